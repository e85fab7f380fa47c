"""Limits, as an engine hands them out: what holds at which gate, who waits there, and what to change at run time."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from perdure.core.ids import check_id
from perdure.core.limits.limit import KEYED, LimitBounds, LimitInfo, check_gate, make_bounds
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.client.engine import Engine


class Limits:
    """The limits of an engine's database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def set(
        self, name: str, *, concurrency: int | None = None, rate: str | None = None, burst: int | None = None
    ) -> None:
        """Set what holds from now on, whatever the code says.

        It is for a limit of that name, for one of its keys (`tenant/acme`), or for a whole type or queue (`type:billing.charge.v1`,
        `queue:emails`). Runs that are being worked on go on. Raises `UsageError`.
        """
        await self._write(name, make_bounds(concurrency=concurrency, rate=rate, burst=burst))

    async def clear(self, name: str) -> None:
        """What the code says holds again; of a type or queue of which it says nothing, nothing does."""
        await self._write(name, None)

    async def list(self, *, limit: int = 100, after: str = "") -> builtins.list[LimitInfo]:
        """Limits that runs have met or that were set, in the order of their names, past one."""
        if not 1 <= limit <= 1000:
            raise UsageError(f"limit must be between 1 and 1000, not {limit}")
        store = await self._engine._opened()
        found: builtins.list[LimitInfo] = []
        while len(found) < limit:
            page = await store.gates(after, limit)
            found += [gate for gate in page if gate.breaker is None]
            if len(page) < limit:
                break
            after = page[-1].name
        return found[:limit]

    async def _write(self, name: str, bounds: LimitBounds | None) -> None:
        base, keyed, _ = name.partition(KEYED)
        check_gate(base)
        if keyed:
            check_id(name, "limit")
        await (await self._engine._opened()).set_bounds(name, bounds, self._engine._actor)
