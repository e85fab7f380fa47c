"""Limits and breakers on steps, as a user has them, on every database."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from perdure import Breaker, Context, Handle, Limit, Retry, RunFailed, Status, step, workflow
from perdure.admin import Circuit
from perdure.errors import BreakerOpen
from tests.helpers import eventually
from tests.stage import Stage, until
from tests.worker.crowd import Crowd


async def waits_for(run: Handle[Any], reason: str) -> bool:
    return (await run.info()).reason == reason


async def nothing_is_left(stage: Stage) -> bool:
    permits = await stage.rows("SELECT * FROM perdure_permits")
    return permits == await stage.rows("SELECT * FROM perdure_lines") == []


async def test_no_more_steps_are_executed_at_once_than_allowed_and_who_waits_holds_no_slot(stage: Stage) -> None:
    crowd = Crowd()

    @step(limit=Limit("external", concurrency=2))
    async def visit(name: str) -> str:
        return await crowd.visit(name)

    @workflow("limited.one.v1")
    async def one(ctx: Context, name: str) -> str:
        return await ctx.step(visit, name)

    @workflow("limited.free.v1")
    async def free(ctx: Context) -> str:
        return "at once"

    engine = stage.engine(one, free)
    async with engine.worker(slots=3):
        runs = [await engine.start(one(str(number))) for number in range(6)]
        await eventually(lambda: len(crowd.inside) == 2)
        for run in [run for run in runs if (await run.info()).input[-3] not in "".join(crowd.inside)]:
            await eventually(partial(waits_for, run, "limit"))
        assert "external" in await runs[-1].why()
        assert await (await engine.start(free())).result("20s") == "at once"
        crowd.let_out()
        assert [await run.result("20s") for run in runs] == [str(number) for number in range(6)]
        await eventually(lambda: nothing_is_left(stage))
    assert crowd.most == 2
    assert {(await run.info()).attempt for run in runs} == {1}


@pytest.mark.parametrize("none", [[], ()], ids=["list", "tuple"])
async def test_a_call_lifts_the_limits_of_its_step(stage: Stage, none: Any) -> None:
    crowd = Crowd()

    @step(limit=Limit("lifted", concurrency=1))
    async def visit(name: str) -> str:
        return await crowd.visit(name)

    @workflow("limited.lifted.v1")
    async def three(ctx: Context) -> list[str]:
        return list(await asyncio.gather(*(ctx.options(limit=none).step(visit, name) for name in "abc")))

    engine = stage.engine(three)
    async with engine.worker():
        run = await engine.start(three())
        await eventually(lambda: len(crowd.inside) == 3)
        crowd.let_out()
        assert await run.result("20s") == ["a", "b", "c"]
    assert await stage.rows("SELECT name FROM perdure_gates") == []


async def test_waiting_uses_up_no_attempt_and_no_time_of_the_step(stage: Stage) -> None:
    tried: list[str] = []
    crowd = Crowd()

    @step(limit=Limit(concurrency=1), retry=Retry(attempts=2, initial=0.01, jitter=0), timeout="5s")
    async def flaky(name: str) -> str:
        tried.append(name)
        if tried.count(name) == 1:
            raise OSError(name)
        return await crowd.visit(name)

    @workflow("limited.flaky.v1")
    async def both(ctx: Context) -> list[str]:
        return list(await asyncio.gather(*(ctx.step(flaky, name) for name in "ab")))

    engine = stage.engine(both)
    async with engine.worker():
        run = await engine.start(both())
        await eventually(lambda: len(crowd.inside) == 1)
        crowd.let_out()
        assert await run.result("20s") == ["a", "b"]
        await eventually(lambda: nothing_is_left(stage))
    assert crowd.most == 1
    assert sorted(tried) == ["a", "a", "b", "b"]


async def test_a_step_that_waits_is_given_up_by_a_timeout_and_by_a_cancellation(stage: Stage) -> None:
    crowd = Crowd()

    @step(limit=Limit("one", concurrency=1))
    async def visit(name: str) -> str:
        return await crowd.visit(name)

    @workflow("limited.patient.v1")
    async def patient(ctx: Context, name: str) -> str:
        try:
            async with asyncio.timeout(0.5 if name == "hasty" else 100):
                return await ctx.step(visit, name)
        except TimeoutError:
            return "gave up"

    engine = stage.engine(patient)
    async with engine.worker():
        first = await engine.start(patient("first"))
        await eventually(lambda: crowd.inside == ["first"])
        hasty, stopped, last = [await engine.start(patient(name)) for name in ("hasty", "stopped", "last")]
        assert await hasty.result("20s") == "gave up"
        await eventually(partial(waits_for, stopped, "limit"))
        await stopped.cancel()
        await eventually(lambda: is_now(stopped, Status.CANCELLED))
        crowd.let_out()
        assert await first.result("20s") == "first"
        assert await last.result("20s") == "last"
        await eventually(lambda: nothing_is_left(stage))
    assert crowd.order == ["first", "last"]


async def is_now(run: Handle[Any], status: Status) -> bool:
    return await run.status() is status


async def test_a_breaker_keeps_steps_waiting_and_lets_them_try_again(stage: Stage) -> None:
    calls: list[str] = []
    broken = True

    @step(breaker=Breaker("api", failures=2, successes=1, reset="3s"), retry=Retry(attempts=3, initial=0.01))
    async def call(name: str) -> str:
        calls.append(name)
        if broken:
            raise ConnectionError(name)
        return name

    @workflow("limited.call.v1")
    async def one(ctx: Context, name: str) -> str:
        return await ctx.step(call, name)

    engine = stage.engine(one)
    async with engine.worker():
        run = await engine.start(one("a"))
        await eventually(partial(waits_for, run, "breaker"))
        assert calls == ["a", "a"]
        assert "'api' opened" in await run.why()
        broken = False
        assert await run.result("20s") == "a"

        async def is_closed() -> bool:
            return [one.circuit for one in await engine.breakers.list()] == [Circuit.CLOSED]

        await eventually(is_closed)
        await eventually(lambda: nothing_is_left(stage))
    assert calls == ["a", "a", "a"]


async def test_a_closed_breaker_costs_a_step_no_write(stage: Stage) -> None:
    @step(breaker=Breaker("api"))
    async def call(number: int) -> int:
        return number

    @workflow("limited.fine.v1")
    async def one(ctx: Context) -> list[int]:
        return [await ctx.step(call, number) for number in range(10)]

    engine = stage.engine(one)
    async with engine.worker():
        await (await engine.start(one())).result("20s")
        before = await stage.rows("SELECT * FROM perdure_gates")
        assert await (await engine.start(one())).result("20s") == list(range(10))
        assert await stage.rows("SELECT * FROM perdure_gates") == before
        assert await nothing_is_left(stage)


async def test_a_step_that_is_to_fail_fails_at_once_while_its_breaker_is_open(stage: Stage) -> None:
    calls: list[str] = []

    async def call(name: str) -> str:
        calls.append(name)
        return name

    @workflow("limited.fail.v1")
    async def one(ctx: Context, name: str) -> str:
        return await ctx.options(breaker=Breaker("api", when_open="fail")).step(call, name)

    engine = stage.engine(one)
    await engine.breakers.open("api")
    async with engine.worker():
        with pytest.raises(RunFailed, match="the breaker 'api' is open") as caught:
            await (await engine.start(one("a"))).result("20s")
        assert isinstance(caught.value.__cause__, BreakerOpen)
        await engine.breakers.reset("api")
        assert await (await engine.start(one("b"))).result("20s") == "b"
    assert calls == ["b"]


async def test_a_transaction_gives_its_place_back_when_it_is_committed(stage: Stage) -> None:
    async def write(connection: Any, name: str) -> str:
        return name

    async def nap() -> None:
        await asleep.wait()

    asleep = asyncio.Event()

    @workflow("limited.deed.v1")
    async def deed(ctx: Context, name: str) -> str:
        napping = asyncio.create_task(ctx.step(nap))
        done = await ctx.options(limit=Limit("deeds", concurrency=1)).transaction(write, name)
        await napping
        return str(done)

    engine = stage.engine(deed)
    async with engine.worker():
        runs = [await engine.start(deed(name)) for name in "abc"]

        async def have_passed() -> bool:
            rows = await stage.rows("SELECT run_id FROM perdure_history WHERE location LIKE 'write%'")
            return len(rows) == 3

        await eventually(have_passed)
        asleep.set()
        assert [await run.result("20s") for run in runs] == ["a", "b", "c"]
        await eventually(lambda: nothing_is_left(stage))


async def test_a_key_that_cannot_be_told_fails_its_step(stage: Stage) -> None:
    async def call(name: str) -> str:
        return name

    def odd(ctx: Context) -> Any:
        return ctx.options(limit=Limit("odd", key=lambda name: 1 // 0, concurrency=1)).step(call, "a")

    @workflow("limited.odd.v1")
    async def one(ctx: Context) -> str:
        return str(await odd(ctx))

    @workflow("limited.caught.v1")
    async def caught(ctx: Context) -> str:
        try:
            return str(await odd(ctx))
        except ZeroDivisionError:
            return await ctx.receive("word", str)

    engine = stage.engine(one, caught)
    async with engine.worker():
        with pytest.raises(RunFailed, match="by zero"):
            await (await engine.start(one())).result("20s")
        run = await engine.start(caught())
        # It asks for nothing any more, so it gives up its slot.
        await until(run, Status.WAITING)
        await run.send("word", "go")
        assert await run.result("20s") == "go"


async def test_a_rate_holds_for_steps(stage: Stage) -> None:
    @step(limit=Limit("slow", rate="20/s", burst=1))
    async def call(number: int) -> int:
        return number

    @workflow("limited.rate.v1")
    async def one(ctx: Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.step(call, number) for number in range(8))))

    engine = stage.engine(one)
    async with engine.worker():
        run = await engine.start(one())
        assert await run.result("20s") == list(range(8))
    took = (await run.info()).finished_at - (await run.info()).started_at
    assert took >= 7 * 50_000
