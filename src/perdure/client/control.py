"""Steering runs from outside: the half of an engine that tells them to stop or to go on."""

from __future__ import annotations

from abc import ABC, abstractmethod

from perdure.core.codec import Codec
from perdure.core.errors import RunNotFound
from perdure.core.ids import check_id
from perdure.core.model import Reason, Run, SendOutcome
from perdure.core.system import System
from perdure.store.protocol import Store


class Control(ABC):
    """What an `Engine` can tell runs."""

    _system: System
    _codec: Codec
    _actor: str

    @abstractmethod
    async def _opened(self) -> Store:
        """The store, ready to be used."""

    @abstractmethod
    async def _run(self, run_id: str) -> Run:
        """A run that exists. Raises `RunNotFound`."""

    async def cancel(self, run_id: str, reason: str = "") -> bool:
        """Ask a run to stop: its workflow gets a `CancelledError` and may clean up. False if it had finished already."""
        self._codec.encode(reason, "the reason of a cancellation")
        key = self._system.entropy(16).hex()
        outcome = await (await self._opened()).cancel(check_id(run_id), reason, key, self._actor)
        if outcome is SendOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to cancel")
        return outcome is not SendOutcome.FINISHED

    async def unblock(self, run_id: str) -> bool:
        """Let a blocked run go on; False if it is not blocked."""
        await self._run(run_id)
        reasons = (Reason.DIVERGED, Reason.UNDECODABLE, Reason.POISON)
        return await (await self._opened()).unblock([run_id], (), reasons, self._actor) > 0
