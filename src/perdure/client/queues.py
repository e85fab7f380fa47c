"""Whole queues and types of runs: pausing them, and listing the types that workers serve."""

from __future__ import annotations

import builtins

from perdure.client.session import Session
from perdure.core.ids import check_name
from perdure.core.model.orders import Pause, PauseKind
from perdure.core.routing import TypeInfo
from perdure.errors import UsageError


class Queues:
    """Queues and types of an engine's database: `engine.queues`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def pause(self, *, queue: str | None = None, type: str | None = None, reason: str = "") -> bool:
        """Pause all runs in a queue, or of a type; False if it is paused already.

        Workers claim none of its runs any more. Runs that a worker has go on until they wait for something.
        """
        self._session.codec.encode(reason, "the reason of a pause")
        kind, name = _place(queue, type)
        store = await self._session.opened()
        if any((one.kind, one.name) == (kind, name) for one in await store.pauses()):
            return False
        await store.pause(Pause(kind=kind, name=name, reason=reason), self._session.actor)
        return True

    async def resume(self, *, queue: str | None = None, type: str | None = None) -> bool:
        """End the pause of a queue or a type; False if it was not paused."""
        kind, name = _place(queue, type)
        store = await self._session.opened()
        if not any((one.kind, one.name) == (kind, name) for one in await store.pauses()):
            return False
        await store.resume(kind, name, self._session.actor)
        return True

    async def paused(self) -> builtins.list[Pause]:
        """List the queues and types that are paused."""
        return await (await self._session.opened()).pauses()

    async def types(self) -> builtins.list[TypeInfo]:
        """List the types that workers have registered: kind, runtime, and whether each is enabled.

        A type that is paused is not enabled, in whatever language its workers are written.
        """
        return await (await self._session.opened()).types()


def _place(queue: str | None, type: str | None) -> tuple[PauseKind, str]:
    if (queue is None) == (type is None):
        raise UsageError("name one thing, a queue or a type; such as pause(queue='reports')")
    if type is not None:
        return PauseKind.TYPE, check_name(type, "workflow type")
    return PauseKind.QUEUE, check_name(queue, "queue")
