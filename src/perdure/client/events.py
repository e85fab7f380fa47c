"""Sticky events of an engine's database: named values that later listeners get, too."""

from __future__ import annotations

import builtins
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar, overload

from perdure.client.runs.namespace import Runs
from perdure.client.runs.results import OutputWatch, within
from perdure.client.session import Session
from perdure.core.codec.snapshot import snapshot
from perdure.core.ids import check_name
from perdure.core.model.events import (
    EVENT_PREFIX,
    EmitOutcome,
    NewStickyEvent,
    StickyEvent,
    event_id,
)
from perdure.core.model.run import STICKY_TYPE, Run, Status
from perdure.core.option_checks import check_flag, check_text
from perdure.core.time.duration import Duration
from perdure.errors import RunExists

T = TypeVar("T")


class Events:
    """Sticky events of an engine's database: `engine.events`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def emit(self, name: str, value: object = None, *, replace: bool = False) -> Coroutine[Any, Any, bool]:
        """Emit an event; all runs that wait for it continue, and later ones get the value at once.

        True if the event has this value now. The first value stays: False if the event was emitted with another one.
        With `replace`, this value takes its place, for later readers.
        """
        return self._emit(name, snapshot(value), check_flag("replace", replace))

    async def _emit(self, name: str, value: object, replace: bool) -> bool:
        session = self._session
        event = NewStickyEvent(
            name=check_name(name, "name of an event"),
            payload=session.codec.encode(value, f"event {name!r}"),
            replace=replace,
            write_id=session.system.entropy(16).hex(),
        )
        outcome = await (await session.connect()).emit_event(event, session.actor)
        if outcome is EmitOutcome.TAKEN:
            raise RunExists(f"the id {event_id(name)!r} belongs to a run that is no event; give the event another name")
        return outcome is EmitOutcome.EMITTED

    async def get(self, name: str, type: Any = Any) -> StickyEvent | None:
        """Return an event with its value, decoded to `type`; None if it was not emitted."""
        run = await (await self._session.connect()).get(event_id(name))
        return None if run is None or not _is_emitted(run) else self._event(run, type)

    @overload
    async def wait(self, name: str, type: type[T], timeout: Duration | None = None) -> T: ...

    @overload
    async def wait(self, name: str, type: Any = ..., timeout: Duration | None = None) -> Any: ...

    async def wait(self, name: str, type: Any = Any, timeout: Duration | None = None) -> Any:
        """Wait until an event is emitted and return its value. Raises `TimeoutError` after `timeout`."""
        event_id(name)
        too_late = f"event {name!r} was not emitted"
        work = partial(self._wait, name, type)
        return await within(self._session.system, work, f"perdure event {name}", timeout, too_late)

    async def _wait(self, name: str, type: Any) -> Any:
        session = self._session
        with OutputWatch(await session.connect(), session.system) as watch:
            while (found := await self.get(name, type)) is None:
                await watch.wait()
        return found.value

    async def list(self, *, prefix: str = "", limit: int = 100) -> builtins.list[StickyEvent]:
        """List events that were emitted, the latest first, with names that begin with `prefix`."""
        named = f"{EVENT_PREFIX}{check_text('prefix', prefix)}"
        runs = Runs(self._session)
        page = await runs.list(type=STICKY_TYPE, status=Status.COMPLETED, id_prefix=named, limit=limit)
        return [self._event(run, Any) for run in page.runs]

    async def delete(self, name: str, reason: str = "") -> bool:
        """Delete an event for good: it can be emitted and waited for anew. False if it was not emitted."""
        run = await (await self._session.connect()).get(event_id(name))
        return run is not None and _is_emitted(run) and await self._delete(run.id, reason)

    async def _delete(self, id: str, reason: str) -> bool:
        return await Runs(self._session).delete(id, reason, purge=True)

    def _event(self, run: Run, type: Any) -> StickyEvent:
        name = run.id.removeprefix(EVENT_PREFIX)
        value = self._session.codec.decode(run.output or "null", type, f"value of event {name!r}")
        return StickyEvent(name=name, value=value, at=run.finished_at)


def _is_emitted(run: Run) -> bool:
    return run.type == STICKY_TYPE and run.status is Status.COMPLETED
