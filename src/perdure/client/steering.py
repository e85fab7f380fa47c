"""Steering runs from outside: the half of an engine that tells them to stop, to pause, to go on, to move, to wake up."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod

from perdure.client.start import Moment
from perdure.core.codec.codec import Codec
from perdure.core.ids import check_id, check_name
from perdure.core.model.orders import OrderOutcome, Pause, PauseKind, RunOrder
from perdure.core.model.record import RecordKind, SendOutcome
from perdure.core.model.run import Reason, Run
from perdure.core.routing import TypeInfo
from perdure.core.system import System
from perdure.core.time.duration import instant
from perdure.errors import RunFinished, RunNotFound, UsageError
from perdure.store.contract import Store


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

    @abstractmethod
    async def why(self, run_id: str) -> str:
        """Why a run is where it is, in a sentence."""

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

    async def pause(
        self, run_id: str | None = None, *, type: str | None = None, queue: str | None = None, reason: str = ""
    ) -> bool:
        """Pause a run, all runs of a type, or all in a queue; False if that is so already, or the run has finished.

        A paused run finishes the steps that are under way and then waits: messages and timers are kept for later, a cancellation
        and its deadline still end it. Of a paused type or queue no run is taken any more; those that workers have go on until
        they wait for something.
        """
        self._codec.encode(reason, "the reason of a pause")
        if run_id is not None and type is None and queue is None:
            return await self._order(RecordKind.PAUSE, run_id, reason) is OrderOutcome.DONE
        kind, name = _chosen(run_id, type, queue)
        store = await self._opened()
        if any((one.kind, one.name) == (kind, name) for one in await store.pauses()):
            return False
        await store.pause(Pause(kind=kind, name=name, reason=reason), self._actor)
        return True

    async def resume(self, run_id: str | None = None, *, type: str | None = None, queue: str | None = None) -> bool:
        """Let what was paused go on; False if it was not paused."""
        if run_id is not None and type is None and queue is None:
            return await self._order(RecordKind.RESUME, run_id) is OrderOutcome.DONE
        kind, name = _chosen(run_id, type, queue)
        store = await self._opened()
        if not any((one.kind, one.name) == (kind, name) for one in await store.pauses()):
            return False
        await store.resume(kind, name, self._actor)
        return True

    async def paused(self) -> builtins.list[Pause]:
        """The types and queues that are paused."""
        return await (await self._opened()).pauses()

    async def types(self) -> builtins.list[TypeInfo]:
        """The types that workers have registered: who serves each, what it is, and whether it is enabled.

        One that is paused is not: `pause(type=...)` disables a type, whoever serves it, and `resume(type=...)` enables it.
        """
        return await (await self._opened()).types()

    async def evict(self, run_id: str) -> bool:
        """Have a run given back by the worker that holds it, and taken by another if there is one; False if none held it.

        Steps that are under way may end first, for as long as that worker's grace lasts.
        """
        return await self._order(RecordKind.EVICT, run_id) is OrderOutcome.DONE

    async def wake(self, run_id: str, at: Moment | None = None) -> None:
        """Let the sleep that a run is in end at another time, now if none is given; or begin a run that was to begin later.

        Raises `RunNotFound`, `RunFinished`, and `UsageError` if it is not asleep.
        """
        now = (await self._opened()).clock()
        obeyed = await self._order(RecordKind.WAKE, run_id, at=now if at is None else instant(at, now))
        if obeyed is OrderOutcome.FINISHED:
            raise RunFinished(f"run {run_id!r} has finished and does not sleep")
        if obeyed is OrderOutcome.REFUSED:
            raise UsageError(
                f"run {run_id!r} is not asleep, so there is nothing to wake it from. {await self.why(run_id)}"
            )

    async def _order(self, kind: RecordKind, run_id: str, reason: str = "", at: int = 0) -> OrderOutcome:
        key = self._system.entropy(16).hex()
        order = RunOrder(run_id=check_id(run_id), kind=kind, key=key, reason=reason, at=at)
        obeyed = await (await self._opened()).control(order, self._actor)
        if obeyed is OrderOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to {kind}")
        return obeyed


def _chosen(run_id: str | None, type: str | None, queue: str | None) -> tuple[PauseKind, str]:
    if sum(one is not None for one in (run_id, type, queue)) != 1:
        raise UsageError("name one thing: a run, a type or a queue; such as pause(queue='reports')")
    if type is not None:
        return PauseKind.TYPE, check_name(type, "workflow type")
    return PauseKind.QUEUE, check_name(queue, "queue")
