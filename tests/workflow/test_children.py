from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import (
    Call,
    Context,
    Engine,
    Handle,
    Retry,
    RunCancelled,
    RunExists,
    RunFailed,
    Status,
    StepFailed,
    step,
    workflow,
)
from perdure.admin import RecordKind
from perdure.errors import BadArguments
from tests.helpers import eventually
from tests.stage import Stage, until, until_recorded


@dataclass
class Parcel:
    weight: int


@workflow("family.weigh.v1")
async def weigh(ctx: Context, parcel: Parcel) -> Parcel:
    return Parcel(parcel.weight * 2)


@workflow("family.patient.v1")
async def patient(ctx: Context) -> str:
    return await ctx.receive("word", str)


async def test_a_child_gives_its_result_as_its_declared_type(stage: Stage) -> None:
    @workflow("family.parent.v1")
    async def parent(ctx: Context) -> Parcel:
        return await ctx.call(weigh(Parcel(3)))

    engine = stage.engine(parent, weigh)
    async with engine.worker():
        run = await engine.start(parent(), id="p")
        assert await run.result("20s") == Parcel(6)
        child = await engine.get("p/family.weigh.v1")
        assert (await child.info()).parent_id == "p"
    assert [(record.kind, record.location) for record in await run.history()] == [(RecordKind.CHILD, "family.weigh.v1")]


async def test_an_error_of_a_child_is_raised_in_its_parent_as_its_own_class(stage: Stage) -> None:
    @workflow("family.fail.v1")
    async def failing(ctx: Context) -> None:
        raise LookupError("gone")

    @workflow("family.catch.v1")
    async def catching(ctx: Context) -> str:
        try:
            await ctx.call(failing())
        except LookupError as error:
            return str(error)
        return "impossible"

    engine = stage.engine(catching, failing)
    async with engine.worker():
        assert await (await engine.start(catching())).result("20s") == "gone"


async def test_many_children_run_side_by_side(stage: Stage) -> None:
    @workflow("family.fan.v1")
    async def fan(ctx: Context) -> list[int]:
        parcels = await asyncio.gather(*(ctx.call(weigh(Parcel(number))) for number in range(50)))
        return [parcel.weight for parcel in parcels]

    engine = stage.engine(fan, weigh)
    async with engine.worker():
        run = await engine.start(fan())
        assert await run.result("30s") == [number * 2 for number in range(50)]
    page = await engine.runs.list(parent=run.id, limit=1000)
    assert len(page.runs) == 50


async def test_children_have_children(stage: Stage) -> None:
    @workflow("family.tree.v1")
    async def tree(ctx: Context, depth: int) -> int:
        if depth == 0:
            return 1
        return sum(await asyncio.gather(ctx.call(tree(depth - 1)), ctx.call(tree(depth - 1))))

    engine = stage.engine(tree)
    async with engine.worker():
        assert await (await engine.start(tree(4))).result("30s") == 16


async def test_a_child_survives_the_worker_of_its_parent(stage: Stage) -> None:
    @workflow("family.wait.v1")
    async def waiting(ctx: Context) -> str:
        return await ctx.call(patient())

    engine = stage.engine(waiting, patient)
    run = await engine.start(waiting(), id="p")
    async with engine.worker():
        await until(run, Status.WAITING)
        child = await engine.get("p/family.patient.v1")
        await until(child, Status.WAITING)
    await child.send("word", "hello")
    async with engine.worker():
        assert await run.result("20s") == "hello"
    events = [event.kind for event in await child.events()]
    assert events.count("created") == 1


async def test_a_child_gets_the_options_that_it_was_called_with(stage: Stage) -> None:
    @workflow("family.options.v1")
    async def options(ctx: Context) -> Parcel:
        return await ctx.call(weigh(Parcel(1)), id="the-child", queue="heavy", priority=3, deadline="1h")

    engine = stage.engine(options, weigh)
    async with engine.worker(queues=["default", "heavy"]):
        await (await engine.start(options())).result("20s")
        run = await (await engine.get("the-child")).info()
        assert (run.queue, run.priority) == ("heavy", 3)
        assert run.deadline < run.created_at + 2 * 3600 * 10**6


async def test_a_child_takes_queue_and_priority_from_its_parent(stage: Stage) -> None:
    @workflow("family.heir.v1")
    async def heir(ctx: Context) -> Parcel:
        return await ctx.call(weigh(Parcel(1)))

    engine = stage.engine(heir, weigh)
    async with engine.worker(queues=["special"]):
        run = await engine.start(heir(), id="p", queue="special", priority=7)
        await run.result("20s")
        child = await (await engine.get("p/family.weigh.v1")).info()
        assert (child.queue, child.priority) == ("special", 7)


async def test_a_child_by_an_id_that_belongs_to_another_run_is_an_error(stage: Stage) -> None:
    @workflow("family.thief.v1")
    async def thief(ctx: Context) -> str:
        try:
            await ctx.call(weigh(Parcel(1)), id="taken")
        except RunExists:
            return "refused"
        return "impossible"

    engine = stage.engine(thief, weigh)
    async with engine.worker():
        await engine.start(weigh(Parcel(1)), id="taken")
        assert await (await engine.start(thief())).result("20s") == "refused"


async def test_a_child_is_called_by_name_where_its_code_is_elsewhere(on_disk: Stage) -> None:
    @workflow("family.far.v1")
    async def far(ctx: Context) -> int:
        parcel = await ctx.call(Call.named("family.weigh.v1", parcel={"weight": 4}))
        return int(parcel["weight"])

    near, other = on_disk.engine(far), on_disk.engine(weigh)
    async with near.worker(), other.worker():
        assert await (await near.start(far())).result("20s") == 8


async def test_arguments_of_a_child_that_cannot_be_stored_are_an_error_in_the_parent(stage: Stage) -> None:
    @workflow("family.bad.v1")
    async def bad(ctx: Context) -> str:
        try:
            await ctx.call(weigh(Parcel("heavy")))  # type: ignore[arg-type] # wrong on purpose
        except BadArguments as error:
            return str(error)
        return "impossible"

    engine = stage.engine(bad, weigh)
    async with engine.worker():
        assert "weight" in await (await engine.start(bad())).result("20s")
    assert len((await engine.runs.list()).runs) == 1


async def test_a_step_after_a_child_is_run_once_though_the_parent_moves(stage: Stage) -> None:
    calls: list[str] = []

    async def ship(word: str) -> str:
        calls.append(word)
        return word.upper()

    @workflow("family.move.v1")
    async def moving(ctx: Context) -> str:
        word = await ctx.call(patient())
        shipped = await ctx.step(ship, word)
        await ctx.receive("end")
        return shipped

    engine = stage.engine(moving, patient)
    run = await engine.start(moving(), id="p")
    async with engine.worker():
        await until(run, Status.WAITING)
        await (await engine.get("p/family.patient.v1")).send("word", "go")
        await until_recorded(run, 2)
    await run.send("end")
    async with engine.worker():
        assert await run.result("20s") == "GO"
    assert calls == ["go"]


async def test_a_failed_child_of_an_unknown_error_keeps_its_name(stage: Stage) -> None:
    class Local(Exception):
        pass

    @workflow("family.local.v1")
    async def failing(ctx: Context) -> None:
        raise Local("inside")

    @workflow("family.over.v1")
    async def over(ctx: Context) -> None:
        await ctx.call(failing())

    engine = stage.engine(over, failing)
    async with engine.worker():
        with pytest.raises(RunFailed, match="Local: inside") as caught:
            await (await engine.start(over())).result("20s")
    assert isinstance(caught.value.__cause__, StepFailed)


async def test_children_that_are_not_waited_for_any_more_are_cancelled_when_their_parent_ends(stage: Stage) -> None:
    @step(retry=Retry.never())
    async def fail() -> None:
        # A child is started with the next turn, which a step that fails at once may precede.
        await eventually(is_started, saying="the other one")
        raise ValueError("gives up on the other one")

    @workflow("family.broken.v1")
    async def broken(ctx: Context) -> None:
        await asyncio.gather(ctx.call(patient()), ctx.step(fail))

    engine = stage.engine(broken, patient)

    async def is_started() -> bool:
        return bool((await engine.runs.list(type="family.patient.v1")).runs)

    async with engine.worker():
        run = await engine.start(broken(), id="p")
        with pytest.raises(RunFailed, match="gives up"):
            await run.result("20s")
        with pytest.raises(RunCancelled, match="no longer waits"):
            await (await engine.get("p/family.patient.v1")).result("20s")


async def test_a_child_under_way_is_taken_up_by_the_next_attempt_of_its_parent(stage: Stage) -> None:
    attempts: list[int] = []

    @step(retry=Retry.never())
    async def fail_once() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("once")

    @workflow("family.again.v1", retry=Retry.fixed("1ms"))
    async def again(ctx: Context) -> str:
        word, _ = await asyncio.gather(ctx.call(patient()), ctx.step(fail_once))
        return word

    engine = stage.engine(again, patient)
    async with engine.worker():
        run = await engine.start(again(), id="p")
        await until(run, Status.WAITING)
        child = await engine.get("p/family.patient.v1")
        await child.send("word", "kept")
        assert await run.result("20s") == "kept"
    assert [event.kind for event in await child.events()].count("created") == 1


async def test_giving_up_a_call_never_reaches_a_run_that_is_not_a_child(stage: Stage) -> None:
    @workflow("family.careless.v1")
    async def careless(ctx: Context) -> str:
        call = ctx.call(patient(), id="stranger")
        call.cancel()
        try:
            return await call
        except asyncio.CancelledError:
            return "gave up"

    @workflow("family.hasty.v1")
    async def hasty(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.0001):
                return await ctx.call(patient(), id="stranger")
        except (TimeoutError, RunExists):
            return "gave up"

    engine = stage.engine(careless, hasty, patient)
    async with engine.worker():
        stranger = await engine.start(patient(), id="stranger")
        await until(stranger, Status.WAITING)
        for call in (careless(), hasty()):
            assert await (await engine.start(call)).result("20s") == "gave up"
        await stranger.send("word", "unharmed")
        assert await stranger.result("20s") == "unharmed"


async def test_a_child_that_an_attempt_has_given_up_is_another_run_in_the_next_attempt(stage: Stage) -> None:
    attempts: list[int] = []

    @step(retry=Retry.never())
    async def fail_once() -> None:
        await eventually(is_started, saying="the child")
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("once")

    @workflow("family.fickle.v1", retry=Retry.fixed("1ms", attempts=2))
    async def fickle(ctx: Context) -> str:
        call = ctx.call(patient())
        try:
            await ctx.step(fail_once)
        except ValueError:
            call.cancel()
            raise
        return await call

    engine = stage.engine(fickle, patient)

    async def is_started() -> bool:
        return bool((await engine.runs.list(type="family.patient.v1")).runs)

    async with engine.worker():
        run = await engine.start(fickle(), id="p")
        await until(await there(engine, "p/family.patient.v1"), Status.CANCELLED)
        second = await there(engine, "p/family.patient.v1@2")
        await until(run, Status.WAITING)
        await second.send("word", "anew")
        assert await run.result("20s") == "anew"
    told = [record for record in await run.history() if record.kind is RecordKind.CHILD]
    assert [(record.run_attempt, record.failed) for record in told] == [(1, True), (2, False)]


@pytest.mark.parametrize("hears", [True, False], ids=["that has ended", "that has not ended"])
async def test_a_spawned_child_that_an_attempt_has_cancelled_is_another_run_in_the_next_attempt(
    stage: Stage, hears: bool
) -> None:
    attempts: list[int] = []

    @step(retry=Retry.never())
    async def fail_once() -> None:
        await eventually(is_started, saying="the child")
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("once")

    @workflow("family.revoking.v1", retry=Retry.fixed("1ms", attempts=2))
    async def revoking(ctx: Context) -> str:
        child = ctx.spawn(patient())
        try:
            await ctx.step(fail_once)
        except ValueError:
            child.cancel("not needed")
            if hears:
                with pytest.raises(RunCancelled):
                    await child
            raise
        return await child

    engine = stage.engine(revoking, patient)

    async def is_started() -> bool:
        return bool((await engine.runs.list(type="family.patient.v1")).runs)

    async with engine.worker():
        run = await engine.start(revoking(), id="p")
        await until(await there(engine, "p/family.patient.v1"), Status.CANCELLED)
        second = await there(engine, "p/family.patient.v1@2")
        await until(run, Status.WAITING)
        await second.send("word", "anew")
        assert await run.result("20s") == "anew"
    told = [record for record in await run.history() if record.kind is RecordKind.CHILD]
    assert [(record.run_attempt, record.failed) for record in told] == [(1, True), (2, False)]


async def test_a_child_that_an_attempt_has_given_up_and_that_ended_at_once_is_recorded_as_it_ended(
    stage: Stage,
) -> None:
    attempts: list[int] = []

    @step(retry=Retry.never())
    async def fail_once() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("once")

    @workflow("family.slow.to.fail.v1", retry=Retry.fixed("1ms", attempts=2))
    async def slow_to_fail(ctx: Context) -> str:
        call = ctx.call(patient())
        if await ctx.receive("order", str) == "give up":
            call.cancel()
            await ctx.receive("go on")
        await ctx.step(fail_once)
        return "done"

    engine = stage.engine(slow_to_fail, patient)
    async with engine.worker():
        run = await engine.start(slow_to_fail(), id="p")
        child = await there(engine, "p/family.patient.v1")
        await until(child, Status.WAITING)
        await run.send("order", "give up")
        await until(child, Status.CANCELLED)
        await until_recorded(run, 2)
        await run.send("go on")
        assert await run.result("20s") == "done"
    told = [record for record in await run.history() if record.kind is RecordKind.CHILD and record.run_attempt == 1]
    assert len(told) == 1


@pytest.mark.parametrize("waits", [True, False], ids=["that waits", "that has yet to call"])
async def test_the_end_of_a_failed_child_that_was_retried_is_not_that_of_the_one_in_the_next_attempt(
    stage: Stage, waits: bool
) -> None:
    failures: Counter[str] = Counter()

    @step(retry=Retry.never())
    async def fail_once(what: str) -> str:
        failures[what] += 1
        if failures[what] == 1:
            raise ValueError(f"{what} is down")
        return what

    @workflow("family.named.v1")
    async def named(ctx: Context, name: str) -> str:
        await ctx.step(fail_once, "the child")
        return f"{name}, {await ctx.receive('word', str)}"

    @workflow("family.of.two.v1", retry=Retry.fixed("1ms", attempts=2))
    async def of_two(ctx: Context) -> str:
        try:
            name = await ctx.step(fail_once, "the parent")
        except ValueError:
            name = "nothing"
        else:
            await ctx.receive("call")
        return await ctx.call(named(name))

    engine = stage.engine(of_two, named)
    async with engine.worker():
        run = await engine.start(of_two(), id="p")
        first = await there(engine, "p/family.named.v1")
        await until(first, Status.FAILED)
        await until(run, Status.WAITING)
        if waits:
            await run.send("call")
            await until(await there(engine, "p/family.named.v1@2"), Status.WAITING)
        await first.retry()
        await first.send("word", "late")
        assert await first.result("20s") == "nothing, late"
        if not waits:
            await run.send("call")
        second = await there(engine, "p/family.named.v1@2")
        await second.send("word", "right")
        assert await run.result("20s") == "the parent, right"
        assert await second.result("20s") == "the parent, right"


async def there(engine: Engine, run_id: str) -> Handle[Any]:
    """Wait until a run is there."""

    async def found() -> bool:
        return any(run.id == run_id for run in (await engine.runs.list()).runs)

    await eventually(found, saying=f"run {run_id!r}")
    return await engine.get(run_id)
