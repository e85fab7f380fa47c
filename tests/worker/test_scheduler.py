"""The scheduler after an error of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from perdure.core.background_loops import LoopHealth
from perdure.core.system import Cancellable
from perdure.core.time.duration import NEVER
from perdure.errors import StoreUnavailable
from perdure.host import Host
from perdure.store.contract import Store
from perdure.worker.scheduler import Scheduler


class Recording(Host):
    """A system whose sleeps are noted and take no time, and whose timers are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []
        self.timers: list[float] = []

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        self.timers.append(seconds)
        return super().call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


class Failing:
    """A store that cannot be reached three times."""

    def __init__(self) -> None:
        self.calls = 0
        self.fired = asyncio.Event()

    def clock(self) -> int:
        return 1

    async def fire_schedules(self, limit: int, actor: str) -> Any:
        self.calls += 1
        if self.calls <= 3:
            raise StoreUnavailable("the server is away")
        self.fired.set()
        return SimpleNamespace(next_due=NEVER)


async def test_it_pauses_after_each_error_and_then_fires_what_was_due() -> None:
    system, store = Recording(), Failing()
    scheduler = Scheduler(cast("Store", store), system, lambda: "w", LoopHealth())
    scheduler.start()
    scheduler.note_next_fire(0)
    await asyncio.wait_for(store.fired.wait(), 60)
    assert scheduler.quiet
    await scheduler.stop()
    assert store.calls == 4
    assert system.timers == [], "nothing is due any more"
    assert len(system.slept) == 3
    assert all(seconds > 0 for seconds in system.slept)
