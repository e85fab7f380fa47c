"""Faults planted in schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
from msgspec.structs import replace

from perdure.core.time import firing_plan
from perdure.core.time.cron import Timing, Window, fire_times
from perdure.core.time.schedule import FiringResult, Schedule
from perdure.store.sql import schedules
from perdure.store.sql.dialect import Transaction
from perdure.store.sqlite.store import SqliteStore

Patch = pytest.MonkeyPatch
#: A schedule, and its fire times by the ids of their runs.
Start = tuple[Schedule, Mapping[str, int]]


def end_forgotten(patch: Patch) -> None:
    """A schedule fires after its end."""

    def endless(timing: Timing | Window, after: int) -> Iterator[int]:
        return fire_times(replace(timing, ends=None) if isinstance(timing, Window) else timing, after)

    patch.setattr(firing_plan, "fire_times", endless)
    patch.setattr(firing_plan, "next_fire_time", lambda timing, after: next(endless(timing, after)))


def beside_its_last_run(patch: Patch) -> None:
    """A fire time that has to wait for the last run starts another one beside it."""
    patch.setattr(firing_plan._OverlapPolicy, "take", firing_plan._OverlapPolicy._begin)


def runs_after_their_fire_time(patch: Patch) -> None:
    """The next fire time is written in one transaction, and the runs of the last one in another."""

    async def in_two(self: SqliteStore, limit: int, actor: str) -> FiringResult:
        late: list[Start] = []

        async def note(tx: Transaction, wanted: Schedule, ids: Mapping[str, int], reason: str = "") -> list[str]:
            late.append((wanted, ids))
            return list(ids)

        async def begin(tx: Transaction) -> None:
            for wanted, ids in late:
                await start(tx, wanted, ids)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(schedules, "_start", note)
            result = await self._write("fire_schedules", actor, lambda tx: schedules.fire(tx, limit))
        await self._write("fire_schedules", actor, begin)
        return result

    start = schedules._start
    patch.setattr(SqliteStore, "fire_schedules", in_two)


PLANTED_IN_SCHEDULES: dict[str, Callable[[Patch], None]] = {
    plant.__name__: plant for plant in (end_forgotten, beside_its_last_run, runs_after_their_fire_time)
}
