"""The verbs of a store that are about gates, each as one transaction."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from perdure.core.limits.admission import AdmitRequest, Admitted, Look
from perdure.core.limits.breaker import Circuit
from perdure.core.limits.limit import Bounds, Gate, Position
from perdure.core.system import System
from perdure.store.sql.dialect import Body
from perdure.store.sql.limits import breakers, due, gates, waitlist
from perdure.store.sql.limits.admit_runs import admit

T = TypeVar("T")


class Guarding(ABC):
    """The part of a `Store` that gates need."""

    _system: System

    @abstractmethod
    async def _write(self, verb: str, actor: str, body: Body[T]) -> T:
        """Run a verb that writes, as one transaction."""

    @abstractmethod
    async def _read(self, verb: str, body: Body[T]) -> T:
        """Run a verb that only reads."""

    async def look(self, pairs: Sequence[tuple[str, str]], limit: int, *, newest: bool = False) -> Look:
        """Runs that are ready and have yet to pass gates."""
        return await self._read("look", lambda tx: waitlist.look(tx, pairs, limit, newest=newest))

    async def admit(self, request: AdmitRequest) -> Admitted:
        """Let runs pass gates, and claim them; gates that are not there are made in transactions of their own."""
        asking = [*(one.gating for one in request.arrivals), *(one.gating for one in request.steps)]
        wanted = {one.gate: one.bounds for gating in asking for one in gating.passes}
        if wanted:
            await self._make(await self._read("missing_gates", lambda tx: gates.missing_gates(tx, wanted)))
        admitted, missing = await self._write(
            "admit", request.worker, lambda tx: admit(tx, request, self._system.entropy)
        )
        await self._make(missing)
        return replace(admitted, next_due=admitted.now) if missing else admitted

    async def _make(self, missing: Mapping[str, Bounds]) -> None:
        if missing:
            await self._write("make_gates", "", partial(gates.make_gates, wanted=missing))

    async def standing(self, run_id: str) -> Position | None:
        """Where a run stands in line."""
        return await self._read("standing", lambda tx: waitlist.standing(tx, run_id))

    async def lined(self, types: Sequence[str]) -> set[str]:
        """Those of the types of which somebody stands in a line."""
        return await self._read("lined", lambda tx: due.lined(tx, types))

    async def stir_gates(self, actor: str) -> None:
        """Have every gate looked at that waits for room."""
        await self._write("stir_gates", actor, gates.stir_gates)

    async def forget_gates(self, limit: int, actor: str) -> int:
        """Forget gates of keys that nobody uses any more; how many."""
        return await self._write("forget_gates", actor, lambda tx: gates.forget_gates(tx, limit))

    async def set_bounds(self, gate: str, bounds: Bounds | None, actor: str) -> None:
        """Override what the code says about a gate, or no longer."""
        await self._write("set_bounds", actor, lambda tx: gates.set_bounds(tx, gate, bounds))

    async def set_breaker(self, gate: str, circuit: Circuit | None, actor: str) -> None:
        """Open or close a breaker, or leave it to its rule."""
        await self._write("set_breaker", actor, lambda tx: breakers.set_breaker(tx, gate, circuit))

    async def gates(self, after: str, limit: int) -> builtins.list[Gate]:
        """Gates in the order of their names, past one."""
        return await self._read("gates", lambda tx: gates.gates(tx, after, limit))
