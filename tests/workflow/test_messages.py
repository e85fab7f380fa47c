from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta

import pytest

from perdure import Context, Engine, Handle, RunFinished, RunNotFound, Status, workflow
from tests.helpers import eventually
from tests.stage import Stage, until, until_recorded


@dataclass
class Approval:
    by: str
    amount: int


@workflow("mail.one.v1")
async def receive_one(ctx: Context) -> Approval:
    return await ctx.receive("approval", Approval)


@workflow("mail.collect.v1")
async def collect(ctx: Context, count: int) -> list[int]:
    return [await ctx.receive("number", int) for _ in range(count)]


async def test_a_message_arrives_as_the_type_that_is_received(stage: Stage) -> None:
    engine = stage.engine(receive_one)
    async with engine.worker():
        run = await engine.start(receive_one())
        await run.send("approval", Approval("ann", 7))
        assert await run.result("20s") == Approval("ann", 7)


async def test_a_message_wakes_a_run_that_was_parked(stage: Stage) -> None:
    engine = stage.engine(receive_one)
    async with engine.worker():
        run = await engine.start(receive_one())
        await until(run, Status.WAITING)
        await engine.send(run.id, "approval", {"by": "bob", "amount": 1})
        assert await run.result("20s") == Approval("bob", 1)


async def test_messages_of_one_name_arrive_in_the_order_in_which_they_were_sent(stage: Stage) -> None:
    engine = stage.engine(collect)
    async with engine.worker():
        run = await engine.start(collect(50))
        for number in range(50):
            await run.send("number", number)
        assert await run.result("20s") == list(range(50))


async def test_a_message_sent_before_the_run_is_first_claimed_is_kept(stage: Stage) -> None:
    engine = stage.engine(collect)
    run = await engine.start(collect(2))
    await run.send("number", 1)
    await run.send("number", 2)
    async with engine.worker():
        assert await run.result("20s") == [1, 2]


async def test_a_message_does_not_start_a_scheduled_run_early(stage: Stage) -> None:
    engine = stage.engine(collect)
    async with engine.worker():
        run = await engine.start(collect(1), at="1d")
        await run.send("number", 1)
        other = await engine.start(collect(1))
        await other.send("number", 2)
        assert await other.result("20s") == [2]
        found = await run.info()
        assert (found.status, found.started_at) == (Status.WAITING, 0)


async def test_sending_a_key_twice_is_sending_it_once(stage: Stage) -> None:
    engine = stage.engine(collect)
    async with engine.worker():
        run = await engine.start(collect(2))
        await run.send("number", 1, key="first")
        await run.send("number", 1, key="first")
        await run.send("number", 2, key="second")
        assert await run.result("20s") == [1, 2]


async def test_a_key_counts_even_after_its_message_was_received(stage: Stage) -> None:
    engine = stage.engine(collect)
    async with engine.worker():
        run = await engine.start(collect(2))
        await run.send("number", 1, key="first")
        await until_recorded(run)
        await run.send("number", 1, key="first")
        await run.send("number", 2)
        assert await run.result("20s") == [1, 2]


async def test_one_key_may_be_used_for_two_runs(stage: Stage) -> None:
    engine = stage.engine(collect)
    async with engine.worker():
        one, two = await engine.start_many([collect(1), collect(1)])
        await one.send("number", 1, key="k")
        await two.send("number", 2, key="k")
        assert (await one.result("20s"), await two.result("20s")) == ([1], [2])


async def test_a_message_to_an_unknown_run_is_refused(stage: Stage) -> None:
    engine = stage.engine(collect)
    await engine.open()
    before = await stage.dump()
    with pytest.raises(RunNotFound, match="'missing'"):
        await engine.send("missing", "number", 1)
    assert await stage.dump() == before


async def test_a_message_to_a_finished_run_is_refused(stage: Stage) -> None:
    engine = stage.engine(collect)
    async with engine.worker():
        run = await engine.start(collect(0))
        await run.result("20s")
    before = await stage.dump()
    with pytest.raises(RunFinished, match="has finished"):
        await run.send("number", 1)
    assert await stage.dump() == before


async def test_a_message_of_another_name_is_kept_for_its_receive(stage: Stage) -> None:
    @workflow("mail.two.v1")
    async def two_names(ctx: Context) -> list[str]:
        return [await ctx.receive("a", str), await ctx.receive("b", str)]

    engine = stage.engine(two_names)
    async with engine.worker():
        run = await engine.start(two_names())
        await run.send("b", "second")
        await run.send("a", "first")
        assert await run.result("20s") == ["first", "second"]


async def test_a_receive_that_timed_out_leaves_the_message_to_the_next_one(stage: Stage) -> None:
    @workflow("mail.patient.v1")
    async def patient(ctx: Context) -> str:
        try:
            await ctx.receive("word", str, timeout="10ms")
        except TimeoutError:
            return await ctx.receive("word", str)
        return "too early"

    engine = stage.engine(patient)
    async with engine.worker():
        run = await engine.start(patient())
        await until_recorded(run)
        await run.send("word", "late")
        assert await run.result("20s") == "late"


async def test_a_receive_with_a_long_timeout_parks_and_then_raises(stage: Stage) -> None:
    @workflow("mail.impatient.v1")
    async def impatient(ctx: Context) -> bool:
        try:
            return await ctx.receive("approval", bool, timeout="250ms")
        except TimeoutError:
            return False

    engine = stage.engine(impatient)
    async with engine.worker():
        assert await (await engine.start(impatient())).result("20s") is False


@workflow("mail.decide.v1")
async def decide(ctx: Context, under_asyncio: bool, patience: float) -> tuple[str, bool]:
    deadline = ctx.now() + timedelta(seconds=patience)
    try:
        if under_asyncio:
            async with asyncio.timeout(patience):
                verdict = await ctx.receive("verdict", bool)
        else:
            verdict = await ctx.receive("verdict", bool, timeout=patience)
        decision = "approved" if verdict else "refused"
    except TimeoutError:
        decision = "no decision"
    is_late = ctx.now() > deadline
    await ctx.receive("end")
    return decision, is_late


#: Seconds that a run waits for a verdict. On a busy machine the first are over before the test goes on.
_PATIENCE = (0.25, 1, 4, 16)


async def _outlast_the_timeout(engine: Engine, under_asyncio: bool) -> Handle[tuple[str, bool]]:
    """Let a run wait, end its worker, and let the time of its receive run out."""
    for patience in _PATIENCE:
        async with engine.worker():
            run = await engine.start(decide(under_asyncio, patience))
            await until(run, Status.WAITING)
        if not await run.history():
            await _until_due((await run.info()).wake_at)
            return run
    pytest.fail("no run waited until its worker had ended")


async def _until_due(wake_at: int) -> None:
    async def due() -> bool:
        return time.time_ns() // 1000 > wake_at

    await eventually(due, saying="the timeout being over")


@pytest.mark.every_database
@pytest.mark.parametrize("under_asyncio", [False, True])
async def test_a_message_that_is_there_when_a_worker_takes_up_the_run_is_received_after_the_timeout_too(
    stage: Stage, under_asyncio: bool
) -> None:
    engine = stage.engine(decide)
    run = await _outlast_the_timeout(engine, under_asyncio)
    await run.send("verdict", True)
    async with engine.worker():
        await until_recorded(run)
        await until(run, Status.WAITING)
    await run.send("end")
    async with engine.worker():
        assert await run.result("20s") == ("approved", True)
    assert [record.location for record in await run.history()] == ["verdict", "end"]


@pytest.mark.every_database
@pytest.mark.parametrize("paused", ["run", "queue"])
async def test_a_message_also_wins_over_a_due_timeout_in_a_run_that_stayed_in_memory(stage: Stage, paused: str) -> None:
    engine = stage.engine(decide)

    async def is_tried(patience: float) -> bool:
        """Try it with a run that waits so long; False if the timeout was over before the pause."""
        run = await engine.start(decide(False, patience))
        await until(run, Status.WAITING)
        wake_at = (await run.info()).wake_at
        await (run.pause() if paused == "run" else engine.queues.pause(queue="default"))

        async def is_let_go() -> bool:
            return await run.status() is not Status.RUNNING

        # A worker that took the run up right before the pause has yet to record that the time was over.
        await eventually(is_let_go, saying="the run being let go")
        is_early = not await run.history()
        if is_early:
            await run.send("verdict", True)
            await _until_due(wake_at)
        await (run.resume() if paused == "run" else engine.queues.resume(queue="default"))
        await run.send("end")
        assert await run.result("20s") == (("approved", True) if is_early else ("no decision", True))
        return is_early

    async with engine.worker():
        for patience in _PATIENCE:
            if await is_tried(patience):
                return
    pytest.fail("no run waited until it was paused")


@pytest.mark.every_database
@pytest.mark.parametrize("under_asyncio", [False, True])
async def test_a_timeout_that_a_worker_has_recorded_is_not_undone_by_a_message(
    stage: Stage, under_asyncio: bool
) -> None:
    engine = stage.engine(decide)
    run = await _outlast_the_timeout(engine, under_asyncio)
    async with engine.worker():
        await until_recorded(run)
        await run.send("verdict", True)
        await until_recorded(run, 2)
        await until(run, Status.WAITING)
    await run.send("end")
    async with engine.worker():
        assert await run.result("20s") == ("no decision", True)
    assert [record.location for record in await run.history()][1:] == ["verdict", "end"]


async def test_messages_reach_a_run_while_it_is_running(stage: Stage) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> str:
        entered.set()
        await go_on.wait()
        return "held"

    @workflow("mail.race.v1")
    async def race(ctx: Context) -> str:
        held = asyncio.ensure_future(ctx.step(hold))
        word = await ctx.receive("word", str)
        go_on.set()
        return word + await held

    engine = stage.engine(race)
    async with engine.worker():
        run = await engine.start(race())
        await entered.wait()
        assert await run.status() is Status.RUNNING
        await run.send("word", "early ")
        assert await run.result("20s") == "early held"


async def test_messages_from_another_process_reach_a_running_run(on_disk: Stage) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        entered.set()
        await go_on.wait()

    @workflow("mail.far.v1")
    async def far(ctx: Context) -> str:
        held = asyncio.ensure_future(ctx.step(hold))
        word = await ctx.receive("word", str)
        go_on.set()
        await held
        return word

    engine, client = on_disk.engine(far), on_disk.engine()
    async with engine.worker():
        run = await engine.start(far())
        await entered.wait()
        await client.send(run.id, "word", "from afar")
        assert await run.result("20s") == "from afar"


async def test_what_was_received_is_not_received_again_after_a_restart(stage: Stage) -> None:
    engine = stage.engine(collect)
    run = await engine.start(collect(3))
    async with engine.worker():
        await run.send("number", 1)
        await until_recorded(run)
        await run.send("number", 2)
    await run.send("number", 3)
    async with engine.worker():
        assert await run.result("20s") == [1, 2, 3]


async def test_a_thousand_messages_at_once_are_taken_in_together(on_disk: Stage) -> None:
    engine = on_disk.engine(collect)
    run = await engine.start(collect(1000))
    await asyncio.gather(*(run.send("number", number, key=f"{number}") for number in range(1000)))
    async with engine.worker():
        assert sorted(await run.result("60s")) == list(range(1000))


@workflow("mail.drain.v1")
async def drain(ctx: Context, count: int) -> list[list[int]]:
    batches: list[list[int]] = []
    while sum(map(len, batches)) < count:
        batches.append(await ctx.receive_many("number", int, limit=10))
        await ctx.sleep("1ms")
    return batches


async def test_a_batch_holds_all_the_messages_that_are_in_the_inbox(stage: Stage) -> None:
    engine = stage.engine(drain)
    run = await engine.start(drain(12))
    for number in range(12):
        await run.send("number", number)
    async with engine.worker():
        assert await run.result("20s") == [list(range(10)), [10, 11]]


async def test_a_batch_is_the_same_when_another_worker_takes_the_run_over(stage: Stage) -> None:
    engine = stage.engine(drain)
    run = await engine.start(drain(13))
    for number in range(12):
        await run.send("number", number)
    async with engine.worker():
        await until_recorded(run, 14)
        await until(run, Status.WAITING)
    async with engine.worker():
        await run.send("number", 12)
        assert await run.result("20s") == [list(range(10)), [10, 11], [12]]
