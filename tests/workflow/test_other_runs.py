"""A workflow and runs that it did not start: their results, messages to them, and cancellations."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import Context, Retry, RunCancelled, RunFailed, Status, Workflow, workflow
from perdure.blocking import Context as BlockingContext
from perdure.errors import DecodeError, InvalidId, RunFinished, RunNotFound, UsageError
from tests.helpers import eventually
from tests.invariants import scan_store
from tests.stage import Stage, until, until_recorded


@dataclass
class Order:
    number: int


@workflow("others.order.v1")
async def order(ctx: Context, number: int) -> Order:
    word = await ctx.receive("go", str)
    if word != "go":
        raise LookupError(word)
    return Order(number)


@workflow("others.waiter.v1")
async def waiter(ctx: Context, id: str) -> Order:
    return await ctx.run(id).result(Order)


@workflow("others.catching.v1")
async def catching(ctx: Context, id: str) -> str:
    try:
        return str(await ctx.run(id).result())
    except Exception as error:  # that is what the test is about
        return f"{type(error).__name__}: {error}"


async def test_a_run_waits_for_a_run_that_it_did_not_start(stage: Stage) -> None:
    engine = stage.engine(order, waiter)
    async with engine.worker():
        target = await engine.start(order(17), id="order-17")
        run = await engine.start(waiter("order-17"))
        await until(run, Status.WAITING)
        assert "the end of run 'order-17'" in await run.why()
        await target.send("go", "go")
        assert await run.result("20s") == Order(17)
    assert [record.location for record in await run.history()] == ["run.result"]
    assert await stage.rows("SELECT target FROM perdure_waiters") == []


async def test_a_run_that_ended_before_gives_its_result_at_once(stage: Stage) -> None:
    engine = stage.engine(order, waiter)
    async with engine.worker():
        target = await engine.start(order(17), id="order-17")
        await target.send("go", "go")
        await target.result("20s")
        runs = [await engine.start(waiter("order-17")) for _ in range(3)]
        assert [await run.result("20s") for run in runs] == [Order(17)] * 3


async def test_the_failure_of_the_other_run_is_raised_as_its_own_class(stage: Stage) -> None:
    engine = stage.engine(order, catching)
    async with engine.worker():
        target = await engine.start(order(17), id="order-17")
        early = await engine.start(catching("order-17"))
        await until(early, Status.WAITING)
        await target.send("go", "no stock")
        late = await engine.start(catching("order-17"))
        assert [await run.result("20s") for run in (early, late)] == ["LookupError: no stock"] * 2


async def test_the_cancellation_of_the_other_run_is_raised(stage: Stage) -> None:
    engine = stage.engine(order, catching)
    async with engine.worker():
        target = await engine.start(order(17), id="order-17")
        run = await engine.start(catching("order-17"))
        await until(run, Status.WAITING)
        await target.cancel("too late")
        assert (await run.result("20s")).startswith("RunCancelled: ")


async def test_a_run_that_does_not_exist_raises_run_not_found(stage: Stage) -> None:
    engine = stage.engine(waiter)
    async with engine.worker():
        with pytest.raises(RunFailed) as caught:
            await (await engine.start(waiter("nothing"))).result("20s")
    assert isinstance(caught.value.__cause__, RunNotFound)
    assert "'nothing'" in str(caught.value.__cause__)


async def test_a_result_of_another_type_blocks_the_run(stage: Stage) -> None:
    @workflow("others.mistaken.v1")
    async def mistaken(ctx: Context) -> str:
        try:
            await ctx.run("order-17").result(int)
        except DecodeError:
            return "another type"
        return "impossible"

    engine = stage.engine(order, mistaken)
    async with engine.worker():
        await (await engine.start(order(17), id="order-17")).send("go", "go")
        run = await engine.start(mistaken())
        await until(run, Status.BLOCKED)


async def test_a_wait_that_times_out_is_withdrawn_and_can_be_repeated(stage: Stage) -> None:
    @workflow("others.impatient.v1")
    async def impatient(ctx: Context) -> tuple[int, int]:
        rounds = 0
        while True:
            try:
                async with asyncio.timeout(0.05):
                    return rounds, (await ctx.run("order-17").result(Order)).number
            except TimeoutError:
                rounds += 1
                if rounds == 2:
                    ctx.run("order-17").send("go", "go")

    engine = stage.engine(order, impatient)
    async with engine.worker():
        await engine.start(order(17), id="order-17")
        rounds, number = await (await engine.start(impatient())).result("20s")
    assert rounds >= 2
    assert number == 17
    assert await stage.rows("SELECT target FROM perdure_waiters") == []


async def test_many_runs_wait_for_one(stage: Stage) -> None:
    engine = stage.engine(order, waiter)
    async with engine.worker():
        target = await engine.start(order(1), id="order-1")
        runs = [await engine.start(waiter("order-1"), id=f"w{number}") for number in range(30)]
        for run in runs:
            await until(run, Status.WAITING)
        await target.send("go", "go")
        assert [await run.result("20s") for run in runs] == [Order(1)] * 30


async def test_one_run_waits_for_several(stage: Stage) -> None:
    @workflow("others.several.v1")
    async def several(ctx: Context) -> list[int]:
        found = await asyncio.gather(*(ctx.run(f"order-{number}").result(Order) for number in (1, 2, 1)))
        return [one.number for one in found]

    engine = stage.engine(order, several)
    async with engine.worker():
        targets = [await engine.start(order(number), id=f"order-{number}") for number in (1, 2)]
        run = await engine.start(several())
        await until(run, Status.WAITING)
        for target in targets:
            await target.send("go", "go")
        assert await run.result("20s") == [1, 2, 1]


async def test_a_waiting_run_survives_a_restart_of_the_worker(stage: Stage) -> None:
    engine = stage.engine(order, waiter)
    async with engine.worker():
        target = await engine.start(order(17), id="order-17")
        run = await engine.start(waiter("order-17"))
        await until(run, Status.WAITING)
    await target.send("go", "go")
    async with engine.worker():
        assert await run.result("20s") == Order(17)


async def test_a_run_that_was_retried_is_waited_for_again(stage: Stage) -> None:
    @workflow("others.broken.v1")
    async def broken(ctx: Context) -> int:
        if faults:
            raise LookupError("no stock")
        return await ctx.receive("number", int)

    faults = [1]
    engine = stage.engine(broken, catching)
    async with engine.worker():
        target = await engine.start(broken(), id="target")
        assert await (await engine.start(catching("target"))).result("20s") == "LookupError: no stock"
        faults.clear()
        await target.retry()
        run = await engine.start(catching("target"))
        await until(run, Status.WAITING)
        await target.send("number", 7)
        assert await run.result("20s") == "7"


async def test_a_waiter_that_is_reopened_gets_an_end_that_came_meanwhile(stage: Stage) -> None:
    @workflow("others.fragile.v1")
    async def fragile(ctx: Context) -> int:
        waiting = ctx.run("order-17").result(Order)
        if await ctx.receive("word", str) == "fail":
            await ctx.receive("word", str)
        return (await waiting).number

    engine = stage.engine(order, fragile)
    async with engine.worker():
        target = await engine.start(order(17), id="order-17")
        run = await engine.start(fragile())
        await run.send("word", "fail")
        await until_recorded(run)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result("20s")
        await target.send("go", "go")
        await target.result("20s")
        await run.retry()
        await run.send("word", "now")
        assert await run.result("20s") == 17


async def test_another_attempt_at_the_waiter_waits_anew(stage: Stage) -> None:
    @workflow("others.stumbling.v1", retry=Retry(attempts=2, initial="1ms"))
    async def stumbling(ctx: Context) -> int:
        found = await ctx.run("order-17").result(Order)
        await ctx.receive("word", str)
        tries.append(1)
        if len(tries) == 1:
            raise OSError("once")
        return found.number

    tries: list[int] = []
    engine = stage.engine(order, stumbling)
    async with engine.worker():
        target = await engine.start(order(17), id="order-17")
        run = await engine.start(stumbling())
        await target.send("go", "go")
        await run.send("word", "one")
        assert await run.result("20s") == 17
    assert len(tries) == 2


@pytest.mark.parametrize("retried", ["by its policy", "by hand"])
async def test_another_attempt_that_waits_for_another_run_gets_the_result_of_that_one(
    stage: Stage, retried: str
) -> None:
    calls: list[str] = []

    async def fails_once(name: str) -> str:
        calls.append(name)
        if calls.count(name) == 1:
            raise ConnectionError(name)
        return "run-b"

    @workflow("others.fickle.v1", retry=Retry(attempts=2 if retried == "by its policy" else 1, initial="1ms"))
    async def fickle(ctx: Context) -> list[str | None]:
        target = "run-a"
        with suppress(ConnectionError):
            target = await ctx.options(retry=1).step(fails_once, "choose")
        found = [target, await ctx.run(target).result(str), await ctx.run(target).state("phase", str)]
        await ctx.options(retry=1).step(fails_once, "end")
        return found

    @workflow("others.lettered.v1")
    async def lettered(ctx: Context, letter: str) -> str:
        ctx.publish("phase", f"phase of {letter}")
        return f"result of {letter}"

    engine = stage.engine(fickle, lettered)
    async with engine.worker():
        for letter in "ab":
            await (await engine.start(lettered(letter), id=f"run-{letter}")).result("20s")
        run = await engine.start(fickle())
        if retried == "by hand":
            await until(run, Status.FAILED)
            await run.retry()
        assert await run.result("20s") == ["run-b", "result of b", "phase of b"]


async def test_a_run_that_continues_as_new_waits_anew(stage: Stage) -> None:
    @workflow("others.endless.v1")
    async def endless(ctx: Context, number: int) -> list[int]:
        found = await ctx.run(f"order-{number}").result(Order)
        if number == 1:
            ctx.continue_as_new(endless(2))
        return [number, found.number]

    engine = stage.engine(order, endless)
    async with engine.worker():
        targets = [await engine.start(order(number), id=f"order-{number}") for number in (1, 2)]
        run = await engine.start(endless(1))
        for target in targets:
            await until(run, Status.WAITING)
            await target.send("go", "go")
            await target.result("20s")
        assert await run.result("20s") == [2, 2]


async def test_a_workflow_cancels_and_writes_to_any_run(stage: Stage) -> None:
    @workflow("others.boss.v1")
    async def boss(ctx: Context) -> str:
        ctx.run("order-1").send("go", "go")
        ctx.run("order-2").cancel("enough")
        ctx.run("nothing").send("go", "go")
        ctx.run("nothing").cancel()
        first = await ctx.run("order-1").result(Order)
        try:
            await ctx.run("order-2").result(Order)
        except RunCancelled as error:
            return f"{first.number} {'enough' in str(error)}"
        return "impossible"

    engine = stage.engine(order, boss)
    async with engine.worker():
        for number in (1, 2):
            await until(await engine.start(order(number), id=f"order-{number}"), Status.WAITING)
        assert await (await engine.start(boss())).result("20s") == "1 True"


async def test_a_run_can_neither_wait_for_itself_nor_for_a_bad_id(stage: Stage) -> None:
    @workflow("others.self.v1")
    async def alone(ctx: Context) -> list[str]:
        found: list[str] = []
        try:
            await ctx.run(ctx.run_id).result()
        except UsageError as error:
            found.append(str(error))
        bad: Any = 7
        try:
            ctx.run(bad)
        except InvalidId as error:
            found.append(str(error))
        return found

    engine = stage.engine(alone)
    async with engine.worker():
        own, bad = await (await engine.start(alone(), id="me")).result("20s")
    assert own == "run 'me' waits for its own end, which would never come"
    assert "7" in bad


async def test_a_def_workflow_waits_for_another_run(stage: Stage) -> None:
    @workflow("others.blocking.v1")
    def blocking(ctx: BlockingContext) -> int:
        other = ctx.run("order-17")
        other.send("go", "go")
        assert (other.id, repr(other)) == ("order-17", "<run order-17>")
        return other.result(Order).number

    engine = stage.engine(order, blocking)
    async with engine.worker():
        await until(await engine.start(order(17), id="order-17"), Status.WAITING)
        assert await (await engine.start(blocking())).result("20s") == 17


@workflow("others.baker.v1")
async def baker(ctx: Context) -> str:
    """Publishes and emits each message, until it gets "done"."""
    while (word := await ctx.receive("word", str)) != "done":
        ctx.publish("phase", word)
        ctx.emit("words", word)
    return "baked"


@workflow("others.guest.v1")
async def guest(ctx: Context, wanted: str) -> list[str | None]:
    other = ctx.run("baker")
    before = await other.state("phase", str)
    found = await other.wait_state("phase", wanted, str)
    return [before, found, await other.state("phase", str), await other.state("nothing", str, default="-")]


async def test_a_run_reads_the_state_of_another_and_waits_for_one(stage: Stage) -> None:
    engine = stage.engine(baker, guest)
    async with engine.worker():
        target = await engine.start(baker(), id="baker")
        run = await engine.start(guest("ready"))
        await until(run, Status.WAITING)
        assert "state 'phase' of run 'baker'" in await run.why()
        for word in ("warm", "ready"):
            await target.send("word", word)
        assert await run.result("20s") == [None, "ready", "ready", "-"]
        assert await (await engine.start(guest("ready"))).result("20s") == ["ready", "ready", "ready", "-"]
    assert await stage.rows("SELECT target FROM perdure_observers") == []


async def test_a_wait_for_a_state_ends_with_the_run_that_does_not_publish_it(stage: Stage) -> None:
    @workflow("others.disappointed.v1")
    async def disappointed(ctx: Context, id: str) -> str:
        try:
            await ctx.run(id).wait_state("phase", lambda phase: phase == "ready")
        except (RunFinished, RunNotFound) as error:
            return f"{type(error).__name__}: {error}"
        return "impossible"

    engine = stage.engine(baker, disappointed)
    async with engine.worker():
        target = await engine.start(baker(), id="baker")
        early = await engine.start(disappointed("baker"))
        await until(early, Status.WAITING)
        await target.send("word", "warm")
        await target.send("word", "done")
        late = await engine.start(disappointed("baker"))
        for run in (early, late):
            assert (await run.result("20s")).startswith("RunFinished: run 'baker' has ended")
        assert "RunNotFound" in await (await engine.start(disappointed("nothing"))).result("20s")


async def test_a_wait_for_a_state_that_times_out_is_withdrawn(stage: Stage) -> None:
    @workflow("others.hasty.v1")
    async def hasty(ctx: Context) -> str:
        try:
            await ctx.run("baker").wait_state("phase", "ready", timeout="50ms")
        except TimeoutError as error:
            return str(error)
        return "impossible"

    engine = stage.engine(baker, hasty)
    async with engine.worker():
        await engine.start(baker(), id="baker")
        late = await (await engine.start(hasty())).result("20s")
        assert late == "run 'baker' did not publish the awaited 'phase' within 0.05 s"

        async def withdrawn() -> bool:
            return not await stage.rows("SELECT target FROM perdure_observers")

        await eventually(withdrawn, saying="the withdrawal of the wait")


async def test_a_run_follows_the_stream_of_another_across_a_restart(stage: Stage) -> None:
    @workflow("others.follower.v1")
    async def follower(ctx: Context, after: int | None) -> list[tuple[int, str]]:
        return [(item.position, item.value) async for item in ctx.run("baker").stream("words", str, after=after)]

    engine = stage.engine(baker, follower)
    async with engine.worker():
        target = await engine.start(baker(), id="baker")
        run = await engine.start(follower(None))
        await target.send("word", "a")
        await until_recorded(run, 1)
        await until(run, Status.WAITING)
    for word in ("b", "c", "done"):
        await target.send("word", word)
    async with engine.worker():
        assert await run.result("20s") == [(0, "a"), (1, "b"), (2, "c")]
        assert await (await engine.start(follower(0))).result("20s") == [(1, "b"), (2, "c")]


async def test_a_stream_is_read_in_pages_up_to_its_present_end(stage: Stage) -> None:
    @workflow("others.emitter.v1")
    async def emitter(ctx: Context) -> None:
        for number in range(250):
            ctx.emit("numbers", number)
        await ctx.receive("never")

    @workflow("others.counter.v1")
    async def counter(ctx: Context) -> int:
        found = [item.value async for item in ctx.run("emitter").stream("numbers", int, follow=False)]
        assert found == list(range(250))
        return len(found)

    engine = stage.engine(emitter, counter)
    async with engine.worker():
        await until(await engine.start(emitter(), id="emitter"), Status.WAITING)
        run = await engine.start(counter())
        assert await run.result("20s") == 250
    assert [record.location for record in await run.history()] == ["run.stream", "run.stream#2", "run.stream#3"]


async def test_a_def_workflow_reads_states_and_streams(stage: Stage) -> None:
    @workflow("others.blockingguest.v1")
    def blocking(ctx: BlockingContext) -> list[str]:
        other = ctx.run("baker")
        assert other.wait_state("phase", "ready", timeout="20s") == other.state("phase", str)
        other.send("word", "done")
        return [item.value for item in other.stream("words", str)]

    engine = stage.engine(baker, blocking)
    async with engine.worker():
        target = await engine.start(baker(), id="baker")
        run = await engine.start(blocking())
        for word in ("warm", "ready"):
            await target.send("word", word)
        assert await run.result("20s") == ["warm", "ready"]


async def test_a_run_does_not_read_its_own_outputs(stage: Stage) -> None:
    @workflow("others.narcissus.v1")
    async def narcissus(ctx: Context) -> str:
        try:
            await ctx.run(ctx.run_id).state("phase")
        except UsageError as error:
            return str(error)
        return "impossible"

    engine = stage.engine(narcissus)
    async with engine.worker():
        assert "keep the value in a variable" in await (await engine.start(narcissus(), id="me")).result("20s")


def changing(wait: str, changed: bool) -> Workflow[Any, Any]:
    """Code that waits for something of another run, before and after it was changed to wait for an approval first."""

    @workflow("others.changing.v1")
    async def waiting(ctx: Context) -> Any:
        if changed:
            await ctx.receive("approved")
        if wait == "result":
            return await ctx.run("target").result(str)
        if wait == "event":
            return await ctx.event("target", str)
        return await ctx.run("target").wait_state("phase", "there")

    return waiting


@workflow("others.phases.v1")
async def phases(ctx: Context) -> str:
    await ctx.receive("go")
    ctx.publish("phase", "there")
    return "there"


@pytest.mark.shared
@pytest.mark.every_database
@pytest.mark.parametrize("wait", ["result", "state", "event"])
async def test_an_end_that_comes_while_changed_code_waits_for_something_else_is_not_lost(
    stage: Stage, wait: str
) -> None:
    engine = stage.engine(old := changing(wait, changed=False), phases)
    async with engine.worker():
        if wait != "event":
            await engine.start(phases(), id="target")
        run = await engine.start(old(), id="waiter")
        await until(run, Status.WAITING)
    engine = stage.engine(changing(wait, changed=True), phases)
    async with engine.worker():
        if wait == "event":
            await engine.events.emit("target", "there")
        else:
            await engine.send("target", "go")
        run = await engine.get("waiter")

        async def has_read() -> bool:
            return "message 'approved'" in await run.why()

        await eventually(has_read, saying="the changed code waiting for its approval")
        await run.send("approved")
        assert await run.result("20s") == "there"
    assert stage.store is not None
    assert await scan_store(stage.store.query) == []
