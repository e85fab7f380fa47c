"""Runs that go on for very long leave little behind, need little memory, and are taken up again at once."""

from __future__ import annotations

import asyncio
import os

from perdure import Handle
from perdure.core.model.record import NewMessage
from tests.endless.app import counting, listening
from tests.endless.labour import MOST_KILOBYTES, MOST_ROWS, Labour, resumed_within, rows_of, until_iteration
from tests.invariants import scan_store
from tests.stage import Stage

PROVE = bool(os.environ.get("PERDURE_PROVE"))


def amount(stage: Stage, whole: int, some: int, few: int) -> int:
    """The whole of it on one database, where it takes minutes; a few on servers."""
    if stage.path is None:
        return some if PROVE else few
    return whole if PROVE else some


async def check(stage: Stage, labour: Labour) -> None:
    assert stage.store is not None
    rows = await rows_of(stage)
    print(f"{rows} rows left over all tables", end="; ")
    assert rows < MOST_ROWS
    assert await scan_store(stage.store.query) == []
    assert labour.growth < MOST_KILOBYTES


async def test_a_loop_of_very_many_steps_survives_kills_and_stays_small(stage: Stage, labour: Labour) -> None:
    iterations, kills = amount(stage, 1_000_000, 3_000, 400), amount(stage, 10, 2, 1)
    engine = stage.engine(counting)
    run = await engine.start(counting(iterations))
    slowest = 0.0
    for number in range(kills):
        await labour.begin()
        await until_iteration(stage, run, (number + 1) * iterations // (kills + 1))
        assert await rows_of(stage) < MOST_ROWS
        slowest = max(slowest, await resumed_within(run, await labour.kill()))
    await labour.begin()
    assert await run.result("3600s") == iterations * (iterations - 1) // 2
    slowest = max(slowest, await resumed_within(run, await labour.kill()))
    # Usually it takes some milliseconds, but a busy machine may hold a process up for seconds.
    assert slowest < 10
    await check(stage, labour)
    print(f"{iterations:,} iterations, {kills} kills: resumed in {slowest:.3f} s at most; {labour.summary}")


async def test_a_run_that_takes_in_very_many_messages_stays_small(stage: Stage, labour: Labour) -> None:
    messages = amount(stage, 100_000, 2_000, 500)
    engine = stage.engine(listening)
    run = await engine.start(listening())
    sending = asyncio.ensure_future(send(stage, run, messages))
    await labour.begin()
    await until_iteration(stage, run, messages // 2)
    await labour.kill()
    await labour.begin()
    assert await run.result("3600s") == messages * (messages - 1) // 2
    await sending
    await labour.kill()
    await check(stage, labour)
    print(f"{messages:,} messages: {labour.summary}")


async def test_a_run_that_finds_very_many_messages_waiting_stays_small(stage: Stage, labour: Labour) -> None:
    messages = amount(stage, 100_000, 4_000, 500)
    engine = stage.engine(listening)
    run = await engine.start(listening())
    await send(stage, run, messages)
    await labour.begin()
    assert await run.result("3600s") == messages * (messages - 1) // 2
    await labour.kill()
    await check(stage, labour)
    print(f"{messages:,} messages waiting: {labour.summary}")


async def send(stage: Stage, run: Handle[int], count: int) -> None:
    """The numbers below `count`, and then 0, which is the end."""
    assert stage.store is not None
    numbers = [*range(1, count), 0]
    for start in range(0, count, 100):
        some = numbers[start : start + 100]
        await stage.store.send(
            [NewMessage(run_id=run.id, name="number", payload=f"{number}", key=f"{number}") for number in some], "test"
        )
