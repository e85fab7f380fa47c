"""The schedules of an engine, for code that is not async."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

if TYPE_CHECKING:
    from perdure.client.blocking import Blocking, BlockingHandle
    from perdure.client.schedules import ScheduleOptions
    from perdure.core.audit import Event
    from perdure.core.time.cron import Timing
    from perdure.core.time.schedule import Schedule
    from perdure.workflow.definition import Call


class BlockingSchedules:
    """`Schedules` whose methods block."""

    def __init__(self, blocking: Blocking) -> None:
        self._blocking = blocking
        self._wait = blocking._wait
        self._schedules = blocking._engine.schedules

    def create(
        self, id: str, call: Call[Any], timing: Timing, *, replace: bool = False, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """See `Schedules.create`."""
        return self._wait(self._schedules.create(id, call, timing, replace=replace, **options))

    def change(
        self,
        id: str,
        *,
        call: Call[Any] | None = None,
        timing: Timing | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """See `Schedules.change`."""
        return self._wait(self._schedules.change(id, call=call, timing=timing, **options))

    def pause(self, id: str, reason: str = "") -> bool:
        """See `Schedules.pause`."""
        return self._wait(self._schedules.pause(id, reason))

    def resume(self, id: str, *, catch_up: bool = False) -> bool:
        """See `Schedules.resume`."""
        return self._wait(self._schedules.resume(id, catch_up=catch_up))

    def delete(self, id: str) -> None:
        """See `Schedules.delete`."""
        self._wait(self._schedules.delete(id))

    def trigger(self, id: str) -> BlockingHandle[Any]:
        """See `Schedules.trigger`."""
        handle = self._wait(self._schedules.trigger(id))
        return self._blocking.get(handle.id)

    def backfill(self, id: str, start: datetime, end: datetime) -> builtins.list[str]:
        """See `Schedules.backfill`."""
        return self._wait(self._schedules.backfill(id, start, end))

    def get(self, id: str) -> Schedule:
        """See `Schedules.get`."""
        return self._wait(self._schedules.get(id))

    def list(self, *, limit: int = 100, after: str = "") -> builtins.list[Schedule]:
        """See `Schedules.list`."""
        return self._wait(self._schedules.list(limit=limit, after=after))

    def next(self, id: str, count: int = 5) -> builtins.list[datetime]:
        """See `Schedules.next`."""
        return self._wait(self._schedules.next(id, count))

    def events(self, id: str) -> builtins.list[Event]:
        """See `Schedules.events`."""
        return self._wait(self._schedules.events(id))
