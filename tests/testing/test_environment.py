from __future__ import annotations

import asyncio
import sqlite3
import threading
from datetime import timedelta

import pytest

from perdure import (
    Context,
    Limit,
    Retry,
    RunCancelled,
    RunFailed,
    Status,
    activity,
    step,
    step_info,
    workflow,
)
from perdure.testing import Environment, StillWaiting

WEEK = timedelta(days=7)


@workflow("test.nap")
async def nap(ctx: Context, days: float) -> str:
    begun = ctx.now()
    await ctx.sleep(timedelta(days=days))
    return str(ctx.now() - begun)


@workflow("test.approval")
async def approval(ctx: Context) -> str:
    try:
        async with asyncio.timeout(4 * 3600):
            return "approved" if await ctx.receive("approval", bool) else "refused"
    except TimeoutError:
        return "no answer came"


@workflow("test.patient")
async def patient(ctx: Context) -> str:
    return await ctx.receive("word", str)


@workflow("test.family")
async def family(ctx: Context) -> list[str]:
    return list(await asyncio.gather(ctx.call(nap(1)), ctx.call(nap(2))))


@step(retry=Retry(attempts=3, initial=60.0, jitter=0))
def flaky() -> int:
    if step_info().attempt < 3:
        raise RuntimeError("not yet")
    return step_info().attempt


@workflow("test.retrying")
async def retrying(ctx: Context) -> int:
    return await ctx.step(flaky)


@step(timeout="30s", retry=Retry(attempts=1))
async def hang() -> None:
    await asyncio.Event().wait()


@workflow("test.hanging")
async def hanging(ctx: Context) -> str:
    try:
        await ctx.step(hang)
    except TimeoutError:
        return "timed out"
    return "came back"


async def test_time_passes_only_when_told() -> None:
    async with Environment([nap]) as env:
        before = env.now
        run = await env.start(nap(3))
        await env.advance("2d23h59m")
        assert await run.status() is Status.WAITING
        await env.advance("1m")
        assert await run.result() == "3 days, 0:00:00"
        assert env.now - before == timedelta(days=3)


async def test_a_year_passes_in_a_moment() -> None:
    async with Environment([nap]) as env:
        runs = [await env.start(nap(day)) for day in (1, 30, 364)]
        await env.advance("365d")
        assert [await run.result() for run in runs] == ["1 day, 0:00:00", "30 days, 0:00:00", "364 days, 0:00:00"]


async def test_timers_fire_one_after_the_other_within_one_advance() -> None:
    async with Environment([family, nap]) as env:
        run = await env.start(family())
        await env.advance("2d")
        assert await run.result() == ["1 day, 0:00:00", "2 days, 0:00:00"]


async def test_a_result_that_cannot_come_is_an_error_that_says_what_is_missing() -> None:
    async with Environment([nap, patient]) as env:
        sleeping = await env.start(nap(3), id="nap")
        with pytest.raises(StillWaiting, match=r"run 'nap' .*sleeps until Sunday 2026-01-04.*advance"):
            await sleeping.result()
        waiting = await env.start(patient(), id="patient")
        with pytest.raises(StillWaiting, match=r"run 'patient' .*waits for message 'word'.*send"):
            await waiting.result(timeout=5)


async def test_a_result_may_be_awaited_while_another_task_lets_time_pass() -> None:
    async with Environment([nap]) as env:
        run = await env.start(nap(3))
        result = asyncio.create_task(run.result())
        await env.advance("3d")
        assert await result == "3 days, 0:00:00"


async def test_a_message_reaches_the_run() -> None:
    async with Environment([approval]) as env:
        run = await env.start(approval())
        await env.advance("1h")
        await env.send(run, "approval", True)
        assert await run.result() == "approved"


async def test_a_message_that_does_not_come_times_out_at_its_time() -> None:
    async with Environment([approval]) as env:
        run = await env.start(approval())
        await env.advance("4h")
        assert await run.result() == "no answer came"


async def test_a_run_can_be_cancelled() -> None:
    async with Environment([nap]) as env:
        run = await env.start(nap(3))
        await env.settle()
        assert await env.cancel(run.id, "no longer wanted")
        with pytest.raises(RunCancelled):
            await run.result()


async def test_retries_wait_for_the_clock() -> None:
    async with Environment([retrying]) as env:
        run = await env.start(retrying())
        with pytest.raises(StillWaiting, match="not yet"):
            await run.result()
        await env.advance("60s")
        await env.advance("2m")
        assert await run.result() == 3


async def test_a_step_times_out_on_the_virtual_clock() -> None:
    async with Environment([hanging], patience=0.05) as env:
        run = await env.start(hanging())
        await env.advance("29s")
        assert await run.status() is Status.RUNNING
        await env.advance("1s")
        assert await run.result() == "timed out"


async def test_steps_in_threads_are_waited_for() -> None:
    entered = threading.Event()
    leave = threading.Event()

    def slow() -> str:
        entered.set()
        leave.wait()
        return "done"

    @workflow("test.slow")
    async def slowly(ctx: Context) -> str:
        return await ctx.step(slow)

    async with Environment([slowly]) as env:
        run = await env.start(slowly())
        result = asyncio.create_task(run.result())
        await asyncio.to_thread(entered.wait)
        leave.set()
        assert await result == "done"


async def test_a_restart_replays_what_was_in_memory() -> None:
    calls: list[int] = []

    async def count() -> int:
        calls.append(1)
        return len(calls)

    @workflow("test.counting")
    async def counting(ctx: Context) -> list[int]:
        first = await ctx.step(count)
        await ctx.sleep("1h")
        return [first, await ctx.step(count)]

    async with Environment([counting]) as env:
        run = await env.start(counting())
        await env.settle()
        await env.restart()
        await env.advance("1h")
        assert await run.result() == [1, 2]
        assert len(calls) == 2


async def test_a_run_that_is_not_finished_expires_at_its_deadline() -> None:
    async with Environment([nap]) as env:
        run = await env.start(nap(3), deadline="1d")
        await env.advance("2d")
        with pytest.raises(RunFailed, match="deadline"):
            await run.result()


async def test_a_worker_with_a_long_lease_stays_alive() -> None:
    async with Environment([nap], lease="5m") as env:
        await env.advance("1h")
        run = await env.start(nap(0.01))
        await env.advance("1d")
        assert await run.result()
        [worker] = await env.engine.workers.list()
        assert worker.status == "alive"


async def test_a_result_is_not_held_up_by_steps_of_other_runs() -> None:
    async with Environment([hanging, patient]) as env:
        await env.start(hanging())
        run = await env.start(patient())
        await env.send(run, "word", "now")
        assert await run.result() == "now"


async def test_leaving_does_not_wait_for_runs_that_wait() -> None:
    async with Environment([nap, patient, hanging], patience=0.05) as env:
        await env.start(nap(3))
        await env.start(patient())
        await env.start(hanging())
        await env.settle()


def test_it_needs_no_pytest() -> None:
    async def main() -> str:
        async with Environment([nap]) as env:
            run = await env.start(nap(7))
            await env.advance(WEEK)
            return await run.result()

    assert asyncio.run(main()) == "7 days, 0:00:00"


def count(connection: sqlite3.Connection, by: int) -> int:
    connection.execute("CREATE TABLE IF NOT EXISTS counts (number INTEGER)")
    connection.execute("INSERT INTO counts VALUES (?)", (by,))
    return int(connection.execute("SELECT SUM(number) FROM counts").fetchone()[0])


@workflow("test.counting")
async def counting(ctx: Context) -> list[int]:
    first = await ctx.transaction(count, 2)
    await ctx.sleep(WEEK)
    return [first, *await asyncio.gather(ctx.transaction(count, 3), ctx.transaction(count, 4))]


async def test_transactions_are_on_the_database_in_memory() -> None:
    async with Environment([counting]) as env:
        run = await env.start(counting())
        await env.advance("6d")
        await env.restart()
        await env.advance("2d")
        assert await run.result() == [2, 5, 9]


@activity("test.metered", limit=Limit("metered", rate="1/m"))
async def metered(number: int) -> int:
    return number


@workflow("test.meters")
async def meters(ctx: Context) -> int:
    return sum([await ctx.call(metered(number)) for number in range(3)])


async def test_a_wait_for_a_result_skips_to_the_next_admission_of_a_rate() -> None:
    async with Environment([meters, metered], auto_advance=True) as env:
        begun = env.now
        assert await (await env.start(meters())).result() == 3
        assert env.now - begun == timedelta(minutes=2)
        run = await env.start(meters())
        await env.settle()
        # The new worker did not admit the last run.
        await env.restart()
        assert await run.result() == 3


@workflow("test.seated", limit=Limit("seat", concurrency=1))
async def seated(ctx: Context) -> str:
    return await ctx.receive("word", str)


async def test_no_time_makes_room_for_a_run_that_waits_for_a_permit() -> None:
    async with Environment([seated], auto_advance=True) as env:
        first, second = await env.start(seated()), await env.start(seated())
        with pytest.raises(StillWaiting, match="limit"):
            await second.result()
        await first.send("word", "go")
        await second.send("word", "go on")
        assert [await first.result(), await second.result()] == ["go", "go on"]
