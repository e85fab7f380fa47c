from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import (
    Break,
    Context,
    Continue,
    Engine,
    Handle,
    Retry,
    RunCancelled,
    RunExists,
    RunFailed,
    RunFinished,
    RunNotFound,
    Status,
    UsageError,
    activity,
    workflow,
)
from perdure.admin import Reason, RecordKind
from perdure.errors import DecodeError
from perdure.replay import execution
from perdure.workflow.scopes import checkpoint_payload
from tests.helpers import eventually
from tests.stage import Stage, until, until_recorded

ONCE = Retry(attempts=1)
TWICE = Retry.fixed("1ms", attempts=2)


class World:
    """Outside of every run: what was done, and what fails."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.keys: list[str] = []
        self.broken = True

    async def quote(self, key: str = "") -> int:
        self.done["quote"] += 1
        self.keys.append(key)
        return 7

    async def charge(self, cents: int) -> str:
        self.done["charge"] += 1
        if self.broken:
            raise ConnectionError("declined")
        return f"paid {cents}"

    async def ship(self, receipt: str) -> str:
        self.done["ship"] += 1
        return f"shipped, {receipt}"


async def ends(run: Handle[Any], status: Status) -> None:
    with contextlib.suppress(RunFailed, RunCancelled):
        await run.result("20s")
    assert await run.status() is status


async def test_a_failed_run_goes_on_where_it_failed_and_has_its_own_outcome(stage: Stage) -> None:
    world = World()

    @workflow("second.retry.v1")
    async def order(ctx: Context) -> str:
        cents = await ctx.step(world.quote, str(ctx.uuid()))
        receipt = await ctx.options(retry=TWICE).step(world.charge, cents)
        return await ctx.step(world.ship, receipt)

    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order())
        await ends(run, Status.FAILED)
        assert world.done == {"quote": 1, "charge": 2}
        world.broken = False
        assert await run.retry() == 2
        assert await run.result("20s") == "shipped, paid 7"
    assert world.done == {"quote": 1, "charge": 3, "ship": 1}
    assert (await run.info()).generation == 2
    kinds = [event.kind for event in await run.events()]
    assert [kind for kind in kinds if kind != "started"] == ["created", "failed", "reopened", "completed"]


async def test_a_run_that_fails_again_may_be_retried_again_and_its_steps_have_all_their_attempts(stage: Stage) -> None:
    world = World()

    @workflow("second.often.v1")
    async def order(ctx: Context) -> str:
        return await ctx.options(retry=TWICE).step(world.charge, await ctx.step(world.quote))

    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order())
        await ends(run, Status.FAILED)
        await run.retry()
        await ends(run, Status.FAILED)
        assert world.done["charge"] == 4
        world.broken = False
        assert await run.retry() == 3
        assert await run.result("20s") == "paid 7"
    assert world.done == {"quote": 1, "charge": 5}


async def test_a_cancelled_run_goes_on_without_its_cancellation(stage: Stage) -> None:
    world = World()

    @workflow("second.cancelled.v1")
    async def approval(ctx: Context) -> str:
        cents = await ctx.step(world.quote)
        return f"{await ctx.receive('name', str)} pays {cents}"

    engine = stage.engine(approval)
    async with engine.worker():
        run = await engine.start(approval())
        await until(run, Status.WAITING)
        await run.cancel("not now")
        await ends(run, Status.CANCELLED)
        with pytest.raises(RunFinished):
            await run.send("name", "Ada")
        await run.retry()
        await run.send("name", "Ada")
        assert await run.result("20s") == "Ada pays 7"
    assert world.done == {"quote": 1}


async def test_messages_that_were_taken_before_are_there_again_and_once_each(stage: Stage) -> None:
    world = World()

    @workflow("second.messages.v1")
    async def collecting(ctx: Context) -> list[int]:
        got = [await ctx.receive("number", int), await ctx.receive("number", int)]
        await ctx.options(retry=ONCE).step(world.charge, 1)
        return [*got, await ctx.receive("number", int)]

    engine = stage.engine(collecting)
    async with engine.worker():
        run = await engine.start(collecting())
        for number in (1, 2):
            await run.send("number", number)
        await ends(run, Status.FAILED)
        await run.retry()
        await ends(run, Status.FAILED)
        world.broken = False
        await run.retry()
        await run.send("number", 3)
        assert await run.result("20s") == [1, 2, 3]


async def test_a_run_past_its_deadline_needs_another_one(stage: Stage) -> None:
    world = World()

    @workflow("second.deadline.v1")
    async def late(ctx: Context) -> int:
        await ctx.receive("go")
        return await ctx.step(world.quote)

    engine = stage.engine(late)
    async with engine.worker():
        run = await engine.start(late(), deadline="200ms")
        await ends(run, Status.FAILED)
        with pytest.raises(UsageError, match="deadline"):
            await run.retry()
        assert await run.status() is Status.FAILED
        await run.retry(deadline="1h")
        await run.send("go")
        assert await run.result("20s") == 7


async def test_only_what_failed_is_retried(stage: Stage) -> None:
    @workflow("second.refused.v1")
    async def fine(ctx: Context) -> int:
        return await ctx.receive("number", int)

    engine = stage.engine(fine)
    async with engine.worker():
        run = await engine.start(fine(), id="fine")
        with pytest.raises(UsageError, match="nothing to retry in run 'fine'"):
            await run.retry()
        await run.send("number", 1)
        assert await run.result("20s") == 1
        with pytest.raises(RunFinished, match="'fine' completed"):
            await run.retry()
    with pytest.raises(RunNotFound):
        await Handle(engine._session, "missing", Any).retry()


async def test_a_parent_that_was_told_of_the_failure_is_not_disturbed_by_the_second_outcome(stage: Stage) -> None:
    world = World()

    @workflow("second.child.v1")
    async def child(ctx: Context) -> str:
        return await ctx.options(retry=ONCE).step(world.charge, 1)

    @workflow("second.parent.v1")
    async def parent(ctx: Context) -> str:
        try:
            answer = await ctx.call(child(), id="the-child")
        except Exception:
            answer = "unpaid"
        await ctx.receive("go")
        return answer

    engine = stage.engine(parent, child)
    async with engine.worker():
        run = await engine.start(parent())
        await until(run, Status.WAITING)
        await until_recorded(run)
        world.broken = False
        handle = await engine.get("the-child", child)
        await handle.retry()
        assert await handle.result("20s") == "paid 1"
        await until_recorded(run, 2)
        await run.send("go")
        assert await run.result("20s") == "unpaid"


async def test_a_parent_calls_its_failed_children_anew_and_keeps_what_the_others_did(stage: Stage) -> None:
    world = World()

    @workflow("second.good.v1")
    async def good(ctx: Context) -> int:
        return await ctx.step(world.quote)

    @workflow("second.bad.v1")
    async def bad(ctx: Context) -> str:
        return await ctx.options(retry=ONCE).step(world.charge, 1)

    @workflow("second.waits.v1")
    async def waits(ctx: Context) -> str:
        return await ctx.receive("word", str)

    @workflow("second.family.v1")
    async def family(ctx: Context) -> list[object]:
        return list(await asyncio.gather(ctx.call(waits()), ctx.call(good()), ctx.call(bad())))

    engine = stage.engine(family, good, bad, waits)
    async with engine.worker():
        run = await engine.start(family(), id="home")
        await ends(run, Status.FAILED)
        await until(await engine.get("home/second.waits.v1"), Status.CANCELLED)
        world.broken = False
        await run.retry()
        other = await _there(engine, "home/second.waits.v1@2")
        await other.send("word", "done")
        assert await run.result("20s") == ["done", 7, "paid 1"]
    assert world.done == {"quote": 1, "charge": 2}


async def test_a_child_that_an_earlier_generation_abandoned_has_no_place_in_a_reopened_one(stage: Stage) -> None:
    world = World()

    @workflow("second.kid.v1")
    async def kid(ctx: Context, name: str) -> str:
        return f"{name}, {await ctx.receive('word', str)}"

    @workflow("second.renews.v1")
    async def renews(ctx: Context, number: int) -> str:
        if number == 1:
            ctx.spawn(kid("old"), on_close="abandon")
            ctx.continue_as_new(renews(2))
        await ctx.options(retry=ONCE).step(world.charge, 1)
        return await ctx.call(kid("new"))

    engine = stage.engine(renews, kid)
    async with engine.worker():
        run = await engine.start(renews(1), id="r")
        await ends(run, Status.FAILED)
        old = await _there(engine, "r/second.kid.v1")
        await old.send("word", "late")
        assert await old.result("20s") == "old, late"
        world.broken = False
        await run.retry()
        new = await _there(engine, "r~2/second.kid.v1")
        await new.send("word", "right")
        assert await run.result("20s") == "new, right"


@pytest.mark.parametrize("id", [None, "the-child"], ids=["its id by its place", "an id of its own"])
async def test_a_child_that_was_stopped_and_retried_is_waited_for_by_its_retried_parent(
    stage: Stage, id: str | None
) -> None:
    world = World()

    @workflow("second.stopped.v1")
    async def stopped(ctx: Context) -> str:
        return await ctx.receive("word", str)

    @workflow("second.stops.v1")
    async def stops(ctx: Context) -> str:
        child = ctx.spawn(stopped(), id=id)
        await ctx.receive("go")
        await ctx.options(retry=ONCE).step(world.charge, 1)
        return await child

    engine = stage.engine(stops, stopped)
    async with engine.worker():
        run = await engine.start(stops(), id="r")
        child = await _there(engine, id or "r/second.stopped.v1")
        await until(child, Status.WAITING)
        await run.send("go")
        await ends(run, Status.FAILED)
        await until(child, Status.CANCELLED)
        await child.retry()
        await until(child, Status.WAITING)
        world.broken = False
        await run.retry()
        await until(run, Status.WAITING)
        await child.send("word", "done")
        assert await run.result("20s") == "done"
    assert len((await engine.runs.list(parent="r")).runs) == 1


async def test_a_failed_child_that_was_retried_gives_its_result_to_its_retried_parent(stage: Stage) -> None:
    world = World()

    @workflow("second.mended.v1")
    async def mended(ctx: Context) -> str:
        return await ctx.options(retry=ONCE).step(world.charge, 1)

    @workflow("second.mends.v1")
    async def mends(ctx: Context) -> str:
        return await ctx.call(mended())

    engine = stage.engine(mends, mended)
    async with engine.worker():
        run = await engine.start(mends(), id="r")
        await ends(run, Status.FAILED)
        child = await _there(engine, "r/second.mended.v1")
        world.broken = False
        await child.retry()
        assert await child.result("20s") == "paid 1"
        await run.retry()
        assert await run.result("20s") == "paid 1"
    assert world.done == {"charge": 2}


async def _there(engine: Engine, run_id: str) -> Handle[Any]:
    async def found() -> bool:
        return any(run.id == run_id for run in (await engine.runs.list()).runs)

    await eventually(found, saying=f"run {run_id!r} being there")
    return await engine.get(run_id)


async def test_what_a_failed_run_showed_sent_and_started_is_not_shown_sent_and_started_again(stage: Stage) -> None:
    world = World()

    @workflow("second.listens.v1")
    async def listens(ctx: Context) -> list[str]:
        first = await ctx.receive("word", str)
        return [first, await ctx.receive("word", str)]

    @workflow("second.idle.v1")
    async def idle(ctx: Context) -> None:
        await ctx.receive("never")

    @workflow("second.shows.v1")
    async def shows(ctx: Context) -> str:
        ctx.emit("progress", "begun")
        ctx.send("listener", "word", "hello")
        ctx.start(idle())
        ctx.spawn(idle(), on_close="abandon")
        await ctx.step(world.quote)
        ctx.emit("progress", "half")
        return await ctx.options(retry=ONCE).step(world.charge, 1)

    engine = stage.engine(listens, idle, shows)
    async with engine.worker():
        listener = await engine.start(listens(), id="listener")
        run = await engine.start(shows(), id="shows")
        await ends(run, Status.FAILED)
        world.broken = False
        await run.retry()
        assert await run.result("20s") == "paid 1"
        await listener.send("word", "bye")
        assert await listener.result("20s") == ["hello", "bye"]
        assert [item.value async for item in run.stream("progress")] == ["begun", "half"]
        assert len((await engine.runs.list(type="second.idle.v1")).runs) == 2


async def test_a_loop_goes_on_from_where_it_had_got(stage: Stage) -> None:
    world = World()
    seen: list[int] = []

    async def visit(number: int) -> int:
        seen.append(number)
        return number

    @workflow("second.loop.v1")
    async def looping(ctx: Context) -> int:
        async def body(ctx: Context, number: int) -> Continue[int] | Break[int]:
            await ctx.step(visit, number)
            if number == 5:
                await ctx.options(retry=ONCE).step(world.charge, number)
                return Break(number)
            return Continue(number + 1)

        return await ctx.loop(0, body, name="visits", commit_every=2)

    engine = stage.engine(looping)
    async with engine.worker():
        run = await engine.start(looping())
        await ends(run, Status.FAILED)
        world.broken = False
        await run.retry()
        assert await run.result("20s") == 5
    assert seen == [0, 1, 2, 3, 4, 5]


async def test_a_step_that_waits_for_its_next_attempt_gets_all_of_them_at_once(stage: Stage) -> None:
    world = World()
    patient = Retry.fixed("1h", attempts=2)

    @workflow("second.recover.v1")
    async def order(ctx: Context) -> str:
        return await ctx.options(retry=patient).step(world.charge, 1)

    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order())
        await until(run, Status.WAITING)
        assert await run.retry()
        await until_recorded(run, 2)
        await until(run, Status.WAITING)
        assert (await run.info()).reason is Reason.RETRY
        world.broken = False
        assert await run.retry()
        assert await run.result("20s") == "paid 1"
        with pytest.raises(RunFinished):
            await run.retry()
    assert world.done == {"charge": 3}


@pytest.mark.parametrize("cancelled", [False, True], ids=["waiting", "cancelled"])
async def test_an_activity_between_two_attempts_begins_anew_at_once(stage: Stage, cancelled: bool) -> None:
    world = World()

    @activity("second.activity.v1", retry=Retry.fixed("1h", attempts=2))
    async def charge() -> str:
        return await world.charge(1)

    engine = stage.engine(charge)
    async with engine.worker():
        run = await engine.start(charge())
        await until(run, Status.WAITING)
        if cancelled:
            await run.cancel()
            await ends(run, Status.CANCELLED)
        assert await run.retry() == 1 + cancelled
        # All attempts, not only the second one.
        await until_recorded(run, 2)
        await until(run, Status.WAITING)
        world.broken = False
        await run.retry()
        assert await run.result("20s") == "paid 1"
    assert world.done == {"charge": 3}


async def test_a_failed_run_is_recovered_by_opening_it_again(stage: Stage) -> None:
    world = World()

    @workflow("second.recovered.v1")
    async def order(ctx: Context) -> str:
        return await ctx.options(retry=ONCE).step(world.charge, 1)

    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order())
        await ends(run, Status.FAILED)
        world.broken = False
        assert await run.retry()
        assert await run.result("20s") == "paid 1"


async def test_a_fork_goes_on_from_a_step_with_what_came_before(stage: Stage) -> None:
    world = World()
    world.broken = False

    @workflow("second.fork.v1")
    async def order(ctx: Context, note: str) -> str:
        cents = await ctx.step(world.quote, str(ctx.uuid()))
        name = await ctx.receive("name", str)
        await ctx.sleep(0.01)
        await ctx.step(world.quote, str(ctx.uuid()))
        return f"{note}: {name}, {await ctx.step(world.ship, await ctx.step(world.charge, cents))}"

    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order("first"))
        await run.send("name", "Ada")
        assert await run.result("20s") == "first: Ada, shipped, paid 7"
        copy = await run.fork(from_step="World.charge", id="copy")
        assert await copy.result("20s") == "first: Ada, shipped, paid 7"
        assert world.done == {"quote": 2, "charge": 2, "ship": 2}
        edited = await run.fork(from_step="World.charge", input={"note": "other"}, results={"World.quote": 9})
        assert await edited.result("20s") == "other: Ada, shipped, paid 9"
        assert world.done == {"quote": 2, "charge": 3, "ship": 3}
        early = await run.fork(from_step="World.quote#2", input=order("early"))
        assert await early.result("20s") == "early: Ada, shipped, paid 7"
        anew = await run.fork()
        await anew.send("name", "Eve")
        assert await anew.result("20s") == "first: Eve, shipped, paid 7"
    # What comes after the fork is drawn anew; what came before is what it was.
    assert len(set(world.keys)) == len(world.keys)
    said = next(event for event in await copy.events() if event.kind == "forked")
    assert run.id in said.data
    assert [record.kind for record in await copy.history()][3] is RecordKind.FORK


async def test_a_fork_from_the_number_of_a_record_copies_the_records_of_lower_numbers(stage: Stage) -> None:
    world = World()
    world.broken = False

    @workflow("second.fork-number.v1")
    async def order(ctx: Context) -> str:
        cents = await ctx.step(world.quote)
        name = await ctx.receive("name", str)
        await ctx.sleep(0.01)
        return f"{name}, {await ctx.step(world.ship, await ctx.step(world.charge, cents))}"

    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order())
        await until_recorded(run)
        await run.send("name", "Ada")
        assert await run.result("20s") == "Ada, shipped, paid 7"
        records = await run.history()
        kinds = [RecordKind.STEP, RecordKind.MESSAGE, RecordKind.TIMER, RecordKind.STEP, RecordKind.STEP]
        assert [(record.seq, record.kind) for record in records] == list(enumerate(kinds))
        for number, done in ((4, (0, 0, 1)), (3, (0, 1, 1)), (2, (0, 1, 1))):
            before = dict(world.done)
            by_number = await run.fork(from_step=number, id=f"number-{number}")
            assert await by_number.result("20s") == "Ada, shipped, paid 7"
            after = (world.done[name] - before[name] for name in ("quote", "charge", "ship"))
            assert tuple(after) == done
            by_location = await run.fork(from_step=records[number].location)
            assert await by_location.result("20s") == "Ada, shipped, paid 7"
            copied = [record.location for record in records[:number]]
            for one in (by_number, by_location):
                known = [record for record in await one.history() if record.kind is not RecordKind.FORK]
                assert [record.location for record in known[:number]] == copied
                said = next(event for event in await one.events() if event.kind == "forked")
                assert json.loads(said.data) == {"run": run.id, "step": records[number].location}
        first = await run.fork(from_step=0, results={})
        await first.send("name", "Eve")
        assert await first.result("20s") == "Eve, shipped, paid 7"


async def test_a_fork_from_a_number_leaves_out_only_the_failed_attempts_at_its_own_step(stage: Stage) -> None:
    tried: list[str] = []
    other_done = asyncio.Event()

    async def flaky() -> str:
        tried.append("flaky")
        if len(tried) == 1:
            raise ConnectionError("first")
        await other_done.wait()
        return "flaky"

    async def other() -> str:
        tried.append("other")
        return "other"

    @workflow("second.fork-attempts.v1")
    async def both(ctx: Context) -> list[str]:
        first = asyncio.ensure_future(ctx.options(retry=Retry.fixed("1ms"), name="flaky").step(flaky))
        await ctx.receive("go")
        second = await ctx.options(name="other").step(other)
        return [await first, second]

    engine = stage.engine(both)
    async with engine.worker():
        run = await engine.start(both())
        await until_recorded(run, 1)
        await run.send("go")
        await until_recorded(run, 3)
        other_done.set()
        assert await run.result("20s") == ["flaky", "other"]
        found = [(record.kind, record.location) for record in await run.history()]
        assert found[0] == (RecordKind.ATTEMPT, "flaky")
        assert found[2:] == [(RecordKind.STEP, "other"), (RecordKind.STEP, "flaky")]
        tried.clear()
        tried.append("not the first")
        copy = await run.fork(from_step=3)
        assert await copy.result("20s") == ["flaky", "other"]
        assert tried == ["not the first", "flaky"]
        assert [record.attempts for record in await copy.history() if record.location == "flaky"] == [1]


async def test_a_fork_from_a_number_that_is_no_step_says_which_are(stage: Stage) -> None:
    world = World()

    @workflow("second.fork-no-step.v1")
    async def order(ctx: Context) -> int:
        await ctx.step(world.quote)
        await ctx.receive("name", str)
        return await ctx.step(world.quote)

    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order(), id="numbers")
        await until_recorded(run)
        await run.send("name", "Ada")
        await run.result("20s")
    before = await stage.dump()
    known = r"such as: 0 \(World.quote\), 2 \(World.quote#2\)"
    for number, problem in (
        (3, f"run 'numbers' has no record 3; .*{known}"),
        (2**80, f"has no record {2**80}; .*{known}"),
        (1, f"record 1 of run 'numbers' is a message, not a step; .*{known}"),
        (-1, "from_step=-1: give the location of a step, such as 'charge#2', or the number of its record, from 0"),
        (True, "from_step=True: give the location"),
        (10**5000, "has no record <int>; fork it from a record of a step"),
        (-(10**5000), "from_step=<int>: give the location"),
        (1.5, "from_step=1.5: give text"),
    ):
        with pytest.raises(UsageError, match=problem):
            await run.fork(from_step=number)  # type: ignore[arg-type] # a wrong type is among the mistakes
    assert await stage.dump() == before


async def test_a_fork_of_a_run_without_steps_says_what_to_do_instead(on_disk: Stage) -> None:
    @workflow("second.fork-nothing.v1")
    async def waiting(ctx: Context) -> None:
        await ctx.receive("name", str)
        await ctx.receive("name", str)

    engine = on_disk.engine(waiting)
    async with engine.worker():
        run = await engine.start(waiting())
        await run.send("name", "Ada")
        await until_recorded(run)
    for step in (0, 7, "charge"):
        with pytest.raises(UsageError, match="; it has recorded no step to fork from; start another run with the same"):
            await run.fork(from_step=step)


async def _has_record(run: Handle[Any], location: str) -> bool:
    return location in {record.location for record in await run.history()}


@pytest.mark.parametrize("tells", [True, False], ids=["present", "earlier version"])
async def test_a_fork_inside_a_loop_whose_records_a_later_checkpoint_deleted_is_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    if not tells:
        # A checkpoint of an earlier version does not tell which records it has deleted.
        monkeypatch.setattr(execution, "checkpoint_payload", lambda one: checkpoint_payload(replace(one, first=-1)))
    seen: list[str] = []

    async def visit(number: int) -> int:
        seen.append(f"visit {number}")
        return number

    async def aside() -> None:
        seen.append("aside")

    @workflow("second.fork-loop.v1")
    async def looping(ctx: Context) -> int:
        async def body(ctx: Context, number: int) -> Continue[int] | Break[int]:
            await ctx.options(name="visit").step(visit, number)
            if number == 1:
                await ctx.receive("go")
            return Break(number) if number == 5 else Continue(number + 1)

        async def beside() -> None:
            await ctx.receive("beside")
            await ctx.options(name="aside").step(aside)

        other = asyncio.ensure_future(beside())
        last = await ctx.loop(0, body, name="visits", commit_every=2)
        await other
        await ctx.options(name="end").step(aside)
        return last

    engine = stage.engine(looping)
    async with engine.worker():
        run = await engine.start(looping(), id="loop")
        await until_recorded(run, 2)
        await run.send("beside")
        await eventually(lambda: _has_record(run, "aside"))
        await run.send("go")
        assert await run.result("20s") == 5
        records = {record.location: record for record in await run.history()}
        inside, checkpoint = records["aside"], records["visits"]
        assert 0 < inside.seq < checkpoint.seq < records["end"].seq
        before = await stage.dump()
        for where in (inside.seq, "aside"):
            with pytest.raises(
                UsageError,
                match=rf"would repeat steps of a loop or race: .*after the checkpoint {checkpoint.seq} \(visits\)",
            ):
                await run.fork(from_step=where)
        with pytest.raises(
            UsageError, match="record 0 of run 'loop' was deleted by the checkpoint of a loop or race; fork"
        ):
            await run.fork(from_step=0)
        assert await stage.dump() == before
        seen.clear()
        assert await (await run.fork(from_step=records["end"].seq)).result("20s") == 5
        assert seen == ["aside"]


async def test_a_fork_whose_records_the_checkpoint_of_a_second_loop_deleted_is_refused(stage: Stage) -> None:
    seen: list[str] = []

    async def visit(loop: str, number: int) -> None:
        seen.append(f"{loop} {number}")

    @workflow("second.fork-two-loops.v1")
    async def looping(ctx: Context) -> None:
        async def body(ctx: Context, state: tuple[str, int]) -> Continue[tuple[str, int]] | Break[None]:
            loop, number = state
            if (loop, number) in (("quick", 0), ("slow", 1)):
                await ctx.receive(loop)
            await ctx.options(name="visit").step(visit, loop, number)
            return Break(None) if number == 2 else Continue((loop, number + 1))

        quick = asyncio.ensure_future(ctx.loop(("quick", 0), body, name="quick", commit_every=3))
        slow = asyncio.ensure_future(ctx.loop(("slow", 0), body, name="slow", commit_every=3))
        await quick
        await ctx.options(name="between").step(visit, "between", 0)
        await slow
        await ctx.options(name="end").step(visit, "end", 0)

    engine = stage.engine(looping)
    async with engine.worker():
        run = await engine.start(looping(), id="two")
        # The first visit of the slow loop comes before the checkpoint of the quick one, which says nothing about it.
        await until_recorded(run, 1)
        await run.send("quick")
        await eventually(lambda: _has_record(run, "between"))
        await run.send("slow")
        await run.result("20s")
        records = {record.location: record for record in await run.history()}
        assert records["quick"].seq < records["between"].seq < records["slow"].seq < records["end"].seq
        before = await stage.dump()
        with pytest.raises(UsageError, match=rf"after the checkpoint {records['slow'].seq} \(slow\)"):
            await run.fork(from_step="between")
        assert await stage.dump() == before
        seen.clear()
        fork = await run.fork(from_step="end")
        await fork.result("20s")
        assert seen == ["end 0"]
        # The copied checkpoint still tells that it has deleted records before the step between.
        with pytest.raises(UsageError, match=r"would repeat steps of a loop .* \(slow\)"):
            await fork.fork(from_step="between")


async def test_a_loop_that_began_after_the_step_of_a_fork_does_not_prevent_it(stage: Stage) -> None:
    seen: list[str] = []

    async def visit(what: str) -> None:
        seen.append(what)

    @workflow("second.fork-loops-in-turn.v1")
    async def looping(ctx: Context) -> None:
        async def body(ctx: Context, number: int) -> Continue[int] | Break[None]:
            await ctx.options(name="visit").step(visit, str(number))
            return Break(None) if number == 2 else Continue(number + 1)

        await ctx.loop(0, body, name="earlier", commit_every=2)
        await ctx.options(name="between").step(visit, "between")
        await ctx.loop(0, body, name="later", commit_every=2)

    engine = stage.engine(looping)
    async with engine.worker():
        run = await engine.start(looping())
        await run.result("20s")
        seen.clear()
        await (await run.fork(from_step="between")).result("20s")
        assert seen == ["between", "0", "1", "2"]


async def test_a_fork_calls_the_children_that_its_source_was_waiting_for(stage: Stage) -> None:
    world = World()
    world.broken = False

    @workflow("second.slow.v1")
    async def slow(ctx: Context) -> str:
        return await ctx.receive("word", str)

    @workflow("second.forked-parent.v1")
    async def parent(ctx: Context) -> list[object]:
        waiting = ctx.call(slow())
        cents = await ctx.step(world.quote)
        return [await ctx.step(world.charge, cents), await waiting]

    engine = stage.engine(parent, slow)
    async with engine.worker():
        run = await engine.start(parent(), id="one")
        await (await _there(engine, "one/second.slow.v1")).send("word", "source")
        assert await run.result("20s") == ["paid 7", "source"]
        copy = await run.fork(from_step="World.charge", id="two")
        await (await _there(engine, "two/second.slow.v1")).send("word", "copy")
        assert await copy.result("20s") == ["paid 7", "copy"]


async def test_a_fork_that_makes_no_sense_is_refused_before_anything_is_written(stage: Stage) -> None:
    world = World()

    @workflow("second.nonsense.v1")
    async def order(ctx: Context, note: str) -> int:
        return await ctx.step(world.quote)

    @workflow("second.other.v1")
    async def other(ctx: Context) -> None: ...

    engine = stage.engine(order, other)
    async with engine.worker():
        run = await engine.start(order("x"), id="source")
        await run.result("20s")
    before = await stage.dump()
    with pytest.raises(UsageError, match=r"no step 'pay'; it has: World.quote"):
        await run.fork(from_step="pay")
    with pytest.raises(UsageError, match="no result of 'World.quote' is copied"):
        await run.fork(from_step="World.quote", results={"World.quote": 1})
    with pytest.raises(UsageError, match="not a 'second.other.v1'"):
        await run.fork(input=other())
    with pytest.raises(UsageError, match="note"):
        await run.fork(input={"nota": "x"})
    with pytest.raises(RunExists, match="'source' already"):
        await run.fork(id="source")
    assert await stage.dump() == before


async def test_a_fork_that_would_not_come_to_its_step_is_refused_before_anything_is_written(stage: Stage) -> None:
    world = World()
    world.broken = False

    @workflow("second.crossroads.v1")
    async def order(ctx: Context, wanted: bool) -> str:
        cents = await ctx.step(world.quote)
        if wanted and cents < 10:
            await ctx.sleep(0.001)
        return await ctx.step(world.charge, cents)

    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order(True))
        await run.result("20s")
        before = await stage.rows("SELECT id FROM perdure_runs")
        with pytest.raises(
            UsageError, match="does not come to that step: .* timer 'sleep', but the code waits for step"
        ):
            await run.fork(from_step="World.charge", input=order(False))
        with pytest.raises(UsageError, match="does not come to that step"):
            await run.fork(from_step="World.charge", results={"World.quote": 10})
        with pytest.raises(DecodeError, match="World.quote"):
            await run.fork(from_step="World.charge", results={"World.quote": "seven"})
        assert await stage.rows("SELECT id FROM perdure_runs") == before
        early = await run.fork(from_step="sleep", input=order(False))
        assert await early.result("20s") == "paid 7"


async def test_second_chances_from_code_that_is_not_async(stage: Stage) -> None:
    world = World()

    @workflow("second.blocking.v1")
    async def order(ctx: Context) -> str:
        return await ctx.options(retry=ONCE).step(world.charge, await ctx.step(world.quote))

    def act() -> None:
        with engine.blocking() as blocking, blocking.worker():
            run = blocking.start(order())
            with pytest.raises(RunFailed):
                run.result("20s")
            world.broken = False
            assert run.retry() == 2
            assert run.result("20s") == "paid 7"
            with pytest.raises(RunFinished):
                run.retry()
            assert run.fork(from_step="World.charge", results={"World.quote": 8}).result("20s") == "paid 8"
            assert run.fork(from_step=1, results={"World.quote": 9}).result("20s") == "paid 9"

    engine = stage.engine(order)
    await asyncio.to_thread(act)
