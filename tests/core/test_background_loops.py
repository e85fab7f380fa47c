"""A background loop survives its errors, logs them, and ends only when it is cancelled."""

from __future__ import annotations

import asyncio
import logging

import pytest

from perdure.core.background_loops import FIRST_PAUSE, LONGEST_PAUSE, LoopGuard, LoopHealth
from perdure.errors import EngineClosed, StoreUnavailable
from perdure.host import Host

logger = logging.getLogger("perdure.test")


def a_guard(health: LoopHealth | None = None) -> LoopGuard:
    return LoopGuard("sweeper", Host(), health or LoopHealth(), logger)


async def no_pause(seconds: float) -> None:
    await asyncio.sleep(0)


async def test_an_error_is_logged_with_its_traceback_counted_and_survived(caplog: pytest.LogCaptureFixture) -> None:
    health, calls = LoopHealth(), 0

    async def main() -> str:
        nonlocal calls
        calls += 1
        if calls < 4:
            raise ValueError(f"number {calls}")
        return "done"

    assert await a_guard(health).keep_going(main, no_pause) == "done"
    assert health.errors == {"sweeper": 3}
    assert health.total == 3
    assert health.latest == "sweeper: ValueError: number 3"
    assert caplog.text.count("Traceback") == 3
    assert "sweeper failed, trying again" in caplog.text


async def test_the_databases_own_errors_need_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    a_guard().failed(StoreUnavailable("the server is away"))
    assert "the server is away" in caplog.text
    assert "Traceback" not in caplog.text


async def test_pauses_grow_to_a_bound_and_begin_anew_after_a_success() -> None:
    guard = a_guard()
    pauses = [guard.failed(ValueError()) for _ in range(12)]
    assert 0.7 * FIRST_PAUSE <= pauses[0] <= 1.3 * FIRST_PAUSE
    assert pauses[4] > 4 * FIRST_PAUSE
    assert 0.7 * LONGEST_PAUSE <= pauses[-1] <= 1.3 * LONGEST_PAUSE
    guard.succeeded()
    assert guard.failed(ValueError()) <= 1.3 * FIRST_PAUSE


async def test_a_cancellation_ends_it() -> None:
    async def main() -> None:
        await asyncio.sleep(60)

    task = asyncio.create_task(a_guard().keep_going(main))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_cancellation_of_what_it_waits_for_does_not_end_it() -> None:
    calls = 0

    async def main() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            answer.cancel()
            await answer
        return "done"

    health = LoopHealth()
    assert await a_guard(health).keep_going(main, no_pause) == "done"
    assert health.total == 1


async def test_a_closed_engine_ends_it() -> None:
    async def main() -> None:
        raise EngineClosed("the store is closed")

    with pytest.raises(EngineClosed):
        await a_guard().keep_going(main)
