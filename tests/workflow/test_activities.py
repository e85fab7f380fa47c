from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

import pytest

from perdure import (
    Activity,
    ActivityInfo,
    Call,
    Context,
    Engine,
    Fatal,
    Retry,
    RetryAfter,
    RunCancelled,
    RunFailed,
    Status,
    UsageError,
    activity,
    activity_info,
    step_info,
    workflow,
)
from perdure.admin import Reason, RecordKind
from perdure.core.codec.failure import Failure
from perdure.core.time.duration import NEVER
from perdure.errors import ActivityTimeout, BadArguments, DecodeError, Expired, NotStarted
from tests.helpers import eventually
from tests.stage import Stage, until
from tests.worker.test_interruptions import LEASE, declare_dead
from tests.workflow.crunching import slow_square

AT_ONCE = Retry(attempts=3, initial=0, jitter=0)


@dataclass
class Letter:
    to: str
    pages: int


@activity("post.double.v1")
def double(letter: Letter) -> Letter:
    return Letter(letter.to, 2 * letter.pages)


@activity("post.double_async.v1")
async def double_async(letter: Letter) -> Letter:
    await asyncio.sleep(0)
    return Letter(letter.to, 2 * letter.pages)


@pytest.mark.parametrize("one", [double, double_async], ids=["sync", "async"])
async def test_a_workflow_awaits_an_activity_that_is_a_run_of_its_own(
    stage: Stage, one: Activity[[Letter], Letter]
) -> None:
    @workflow("post.send.v1")
    async def send(ctx: Context) -> Letter:
        return await ctx.call(one(Letter("Ann", 3)))

    engine = stage.engine(send, one)
    async with engine.worker():
        run = await engine.start(send(), id="s")
        assert await run.result("20s") == Letter("Ann", 6)
        child = await (await engine.get(f"s/{one.type}")).info()
    assert (child.status, child.parent_id, child.type) == (Status.COMPLETED, "s", one.type)
    # It cost no record: its outcome is its row.
    assert await stage.rows("SELECT seq FROM perdure_history WHERE run_id = ?", child.id) == []


async def test_a_producer_starts_an_activity_and_gets_its_typed_result(stage: Stage) -> None:
    engine = stage.engine(double)
    run = await engine.start(double(Letter("Bob", 1)), idempotency_key="once")
    again = await engine.start(double(Letter("Bob", 1)), idempotency_key="once")
    assert again.id == run.id
    async with engine.worker():
        assert await run.result("20s") == Letter("Bob", 2)


async def test_an_attempt_knows_what_it_is(stage: Stage) -> None:
    seen: list[ActivityInfo] = []

    @activity("post.look.v1", retry=AT_ONCE)
    def look() -> str:
        seen.append(activity_info())
        if len(seen) < 2:
            raise OSError("the mail van is late")
        assert step_info() is activity_info()
        return seen[-1].attempt_id

    @workflow("post.curious.v1")
    async def curious(ctx: Context) -> str:
        return await ctx.call(look())

    engine = stage.engine(curious, look)
    async with engine.worker():
        assert await (await engine.start(curious(), id="c")).result("20s") == seen[1].attempt_id
    first, second = seen
    assert (first.attempt, second.attempt, first.max_attempts) == (1, 2, 3)
    assert (first.run_id, first.parent_id, first.type) == ("c/post.look.v1", "c", "post.look.v1")
    assert first.attempt_id != second.attempt_id
    with pytest.raises(UsageError, match="outside of an activity"):
        activity_info()


async def test_every_error_of_an_activity_is_kept(stage: Stage) -> None:
    tries = 0

    @activity("post.lose.v1", retry=AT_ONCE)
    async def lose() -> None:
        nonlocal tries
        tries += 1
        raise LookupError(f"lost {tries}")

    @workflow("post.decide.v1")
    async def decide(ctx: Context) -> str:
        try:
            await ctx.call(lose())
        except LookupError as error:
            return f"so be it: {error}"
        return "impossible"

    engine = stage.engine(decide, lose)
    async with engine.worker():
        assert await (await engine.start(decide(), id="d")).result("20s") == "so be it: lost 3"
        child = await engine.get("d/post.lose.v1")
        run, history = await child.info(), await child.history()
    assert tries == 3
    assert (run.status, run.attempt) == (Status.FAILED, 3)
    assert [(record.kind, record.attempts, record.run_attempt) for record in history] == [
        (RecordKind.ATTEMPT, 1, 1),
        (RecordKind.ATTEMPT, 2, 2),
    ]
    errors = [*(record.payload for record in history), run.error]
    assert [Failure.from_json(error or "").message for error in errors] == ["lost 1", "lost 2", "lost 3"]


async def test_an_error_that_no_attempt_can_mend_ends_it_at_once(stage: Stage) -> None:
    @activity("post.refuse.v1", retry=AT_ONCE)
    def refuse() -> None:
        raise Fatal("no such street")

    engine = stage.engine(refuse)
    async with engine.worker():
        run = await engine.start(refuse())
        with pytest.raises(RunFailed, match="no such street"):
            await run.result("20s")
        assert (await run.info()).attempt == 1


async def test_asking_for_another_time_uses_up_no_attempt(stage: Stage) -> None:
    asked = 0

    @activity("post.wait.v1", retry=Retry.never())
    async def wait() -> int:
        nonlocal asked
        asked += 1
        if asked < 4:
            raise RetryAfter(0.01)
        return activity_info().attempt

    engine = stage.engine(wait)
    async with engine.worker():
        assert await (await engine.start(wait())).result("20s") == 1
    assert asked == 4


async def test_an_attempt_that_takes_too_long_is_made_again(stage: Stage) -> None:
    stuck = threading.Event()

    # Long enough for the thread of the second attempt to begin and return on a busy machine.
    @activity("post.stuck.v1", retry=AT_ONCE, start_to_close=3.0)
    def hold() -> int:
        if activity_info().attempt == 1:
            stuck.wait(20)
        return activity_info().attempt

    engine = stage.engine(hold)
    async with engine.worker():
        run = await engine.start(hold())
        assert await run.result("20s") == 2
    stuck.set()
    [record] = await run.history()
    failure = Failure.from_json(record.payload or "")
    assert failure.type.endswith("ActivityTimeout")
    assert '"kind":"start_to_close"' in (failure.state or "")


async def test_an_activity_that_gives_no_sign_of_life_is_tried_again_from_where_it_was(stage: Stage) -> None:
    begun: list[object] = []

    @activity("post.walk.v1", retry=AT_ONCE, heartbeat=0.3)
    async def walk() -> object:
        info = activity_info()
        begun.append(info.last_heartbeat)
        if info.attempt == 1:
            info.heartbeat({"house": 1})
            info.heartbeat({"house": 17})
            await asyncio.Event().wait()
        return info.last_heartbeat

    engine = stage.engine(walk)
    async with engine.worker():
        run = await engine.start(walk())
        assert await run.result("20s") == {"house": 17}
    assert begun == [None, {"house": 17}]
    [record] = await run.history()
    assert '"kind":"heartbeat"' in (Failure.from_json(record.payload or "").state or "")


async def test_signs_of_life_keep_an_activity_going(stage: Stage) -> None:
    @activity("post.beat.v1", retry=Retry.never(), heartbeat=4.0)
    def beat() -> int:
        for number in range(50):
            activity_info().heartbeat(number)
            threading.Event().wait(0.1)  # longer in all than the timeout
        return activity_info().attempt

    engine = stage.engine(beat)
    async with engine.worker():
        assert await (await engine.start(beat())).result("20s") == 1


async def test_an_activity_that_no_worker_begins_in_time_fails_with_that_reason(stage: Stage) -> None:
    @activity("post.unserved.v1", schedule_to_start=0.05, schedule_to_close="1h", queue="empty")
    def unserved() -> None: ...

    @workflow("post.hopeful.v1")
    async def hopeful(ctx: Context) -> str:
        try:
            await ctx.call(unserved())
        except NotStarted as error:
            return str(error)
        return "impossible"

    engine = stage.engine(hopeful, unserved)
    async with engine.worker(lease=0.5):
        assert "not begun in time" in await (await engine.start(hopeful())).result("20s")


async def test_an_activity_that_began_in_time_has_its_whole_time(stage: Stage) -> None:
    @activity("post.intime.v1", schedule_to_start="1m", schedule_to_close="1h")
    def in_time() -> int:
        return 1

    engine = stage.engine(in_time)
    run = await engine.start(in_time(), id="t")
    waiting = await run.info()
    assert waiting.close_by - waiting.deadline == 3_540_000_000
    async with engine.worker():
        assert await run.result("20s") == 1
    done = await run.info()
    assert (done.deadline, done.close_by) == (waiting.close_by, 0)


async def test_an_activity_that_is_not_done_in_all_its_time_expires(stage: Stage) -> None:
    @activity("post.endless.v1", schedule_to_close=3.0, retry=Retry.fixed(0.05, attempts=None))
    async def endless() -> None:
        raise OSError("not yet")

    engine = stage.engine(endless)
    async with engine.worker(lease=0.5):
        run = await engine.start(endless())
        with pytest.raises(RunFailed) as caught:
            await run.result("20s")
    assert isinstance(caught.value.__cause__, Expired | OSError)
    assert len(await run.history()) > 1


async def test_an_attempt_that_runs_past_the_deadline_is_ended(stage: Stage) -> None:
    @activity("post.late.v1", schedule_to_close=0.2)
    async def late() -> None:
        await asyncio.Event().wait()

    engine = stage.engine(late)
    async with engine.worker():
        with pytest.raises(RunFailed) as caught:
            await (await engine.start(late())).result("20s")
    assert isinstance(caught.value.__cause__, Expired)


async def test_a_cancelled_activity_is_interrupted(stage: Stage) -> None:
    begun, interrupted = asyncio.Event(), asyncio.Event()

    @activity("post.sit.v1")
    async def sit() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.set()

    engine = stage.engine(sit)
    async with engine.worker():
        run = await engine.start(sit())
        await begun.wait()
        await run.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result("20s")
    assert interrupted.is_set()


async def test_an_activity_that_looks_ends_in_its_own_way(stage: Stage) -> None:
    begun = threading.Event()

    @activity("post.tidy.v1")
    def tidy() -> str:
        begun.set()
        while not activity_info().is_cancelled():
            threading.Event().wait(0.005)
        return "tidied up"

    @activity("post.tidy_async.v1")
    async def tidy_async() -> str:
        begun.set()
        await activity_info().cancelled()
        return "tidied up"

    engine = stage.engine(tidy, tidy_async)
    async with engine.worker():
        for call in (tidy(), tidy_async()):
            begun.clear()
            run = await engine.start(call)
            await asyncio.to_thread(begun.wait)
            await run.cancel()
            with pytest.raises(RunCancelled) as caught:
                await run.result("20s")
            assert caught.value.partial == "tidied up"


async def test_an_activity_that_swallows_its_cancellation_ends_cancelled(stage: Stage) -> None:
    begun = asyncio.Event()

    @activity("post.swallow.v1")
    async def swallow(fails: bool) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if fails:
                raise ValueError("cannot tidy up") from None
        return "half"

    engine = stage.engine(swallow)
    async with engine.worker():
        for fails in (False, True):
            begun.clear()
            run = await engine.start(swallow(fails))
            await begun.wait()
            await run.cancel("enough")
            with pytest.raises(RunCancelled, match="enough") as caught:
                await run.result("20s")
            assert caught.value.partial == (None if fails else "half")
            assert isinstance(caught.value.__cause__, ValueError) is fails


async def test_an_activity_that_takes_its_cancellation_back_completes(stage: Stage) -> None:
    begun = threading.Event()
    told: list[bool] = []

    @activity("post.back.v1")
    def back() -> str:
        info = activity_info()
        begun.set()
        while not info.is_cancelled():
            threading.Event().wait(0.005)
        told.extend([info.uncancel(), info.uncancel(), info.is_cancelled()])
        # Longer than the worker's grace.
        threading.Event().wait(4)
        return "all of it"

    @activity("post.back_async.v1")
    async def back_async() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            activity_info().uncancel()
        await asyncio.sleep(4)
        return "all of it"

    engine = stage.engine(back, back_async)
    async with engine.worker(grace=3):
        runs = []
        for call in (back(), back_async()):
            begun.clear()
            runs.append(await engine.start(call))
            await asyncio.to_thread(begun.wait)
            await runs[-1].cancel()
        for run in runs:
            assert await run.result("20s") == "all of it"
    assert told == [True, False, False]


async def test_an_activity_that_took_its_cancellation_back_can_be_cancelled_again(stage: Stage) -> None:
    begun, back = asyncio.Event(), asyncio.Event()

    @activity("post.twice.v1")
    async def twice() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            activity_info().uncancel()
            back.set()
        await asyncio.Event().wait()
        return "impossible"

    engine = stage.engine(twice)
    async with engine.worker():
        run = await engine.start(twice())
        await begun.wait()
        await run.cancel("once")
        await back.wait()
        await run.cancel("twice")
        with pytest.raises(RunCancelled, match="twice"):
            await run.result("20s")


async def test_a_cancelled_activity_stays_cancelled_when_its_worker_dies_before_it_has_ended(stage: Stage) -> None:
    calls = 0
    asked = threading.Event()
    go_on = threading.Event()

    @activity("post.beating.v1")
    def beating() -> None:
        nonlocal calls
        calls += 1
        info = activity_info()
        info.heartbeat(1)
        asked.set()
        while not info.is_cancelled():
            threading.Event().wait(0.005)
        # The details are written in a turn of their own, which must not count the cancellation as read.
        info.heartbeat(2)
        go_on.wait(20)

    engine = stage.engine(beating)
    run = await engine.start(beating())
    async with engine.worker(grace=30, lease=LEASE) as worker:
        await asyncio.to_thread(asked.wait)
        await run.cancel("enough")

        async def beaten() -> bool:
            return await stage.rows("SELECT payload FROM perdure_outputs WHERE kind = 'beat'") == [("2",)]

        await eventually(beaten, saying="the second heartbeat")
        await declare_dead(stage, worker)
        with pytest.raises(RunCancelled, match="enough"):
            await run.result("20s")
        go_on.set()
    assert calls == 1


async def test_an_activity_in_a_thread_that_never_looks_is_left_behind_after_the_grace(stage: Stage) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @activity("post.deaf.v1")
    def deaf() -> None:
        begun.set()
        go_on.wait(20)

    engine = stage.engine(deaf)
    async with engine.worker(grace=0.1):
        run = await engine.start(deaf())
        await asyncio.to_thread(begun.wait)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result("20s")
        go_on.set()


async def test_giving_up_the_wait_for_an_activity_cancels_it(stage: Stage) -> None:
    @activity("post.slow.v1")
    async def slow() -> None:
        await asyncio.Event().wait()

    @workflow("post.impatient.v1")
    async def impatient(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.2):
                await ctx.call(slow())
        except TimeoutError:
            return "never mind"
        return "impossible"

    engine = stage.engine(impatient, slow)
    async with engine.worker():
        assert await (await engine.start(impatient(), id="i")).result("20s") == "never mind"
        child = await engine.get("i/post.slow.v1")
        await until(child, Status.CANCELLED)


async def test_a_cancellation_between_two_attempts_is_obeyed_before_the_next(stage: Stage) -> None:
    tries = 0

    @activity("post.again.v1", retry=Retry.fixed("1h"))
    async def again() -> None:
        nonlocal tries
        tries += 1
        raise OSError("no")

    engine = stage.engine(again)
    async with engine.worker():
        run = await engine.start(again())
        await until(run, Status.WAITING)
        await run.cancel("closed")
        with pytest.raises(RunCancelled, match="closed"):
            await run.result("20s")
    assert tries == 1


async def test_a_paused_activity_is_not_tried_again_before_it_is_resumed(stage: Stage) -> None:
    tries = 0

    @activity("post.pause.v1", retry=Retry.fixed(0.02))
    async def pause() -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            await run.pause()
            raise OSError("no")
        return tries

    engine = stage.engine(pause)
    async with engine.worker():
        run = await engine.start(pause())

        async def paused() -> bool:
            row = await run.info()
            return row.status is Status.WAITING and row.reason == "paused"

        await eventually(paused, saying="the run being paused")
        assert tries == 1
        await run.resume()
        assert await run.result("20s") == 2


async def test_one_call_may_have_a_policy_of_its_own(stage: Stage) -> None:
    @activity("post.policy.v1", retry=Retry.never(), start_to_close="1h")
    async def policy() -> int:
        info = activity_info()
        if info.attempt < 3:
            await asyncio.Event().wait()
        return info.attempt

    call = policy().options(retry=Retry(attempts=3, initial=0, jitter=0), start_to_close=0.05)
    engine = stage.engine(policy)
    async with engine.worker():
        run = await engine.start(call)
        assert await run.result("20s") == 3
        named = await engine.start(Call.named("post.policy.v1").options(retry=AT_ONCE, start_to_close=0.05))
        assert await named.result("20s") == 3
    row = await run.info()
    assert row.max_attempts == 3


async def test_an_activity_says_what_queue_and_priority_it_wants(stage: Stage) -> None:
    @activity("post.quick.v1", queue="express", priority=5)
    def quick() -> int:
        return 1

    @workflow("post.sender.v1")
    async def sender(ctx: Context) -> int:
        return await ctx.call(quick())

    engine = stage.engine(sender, quick)
    async with engine.worker(queues=["default", "express"]):
        assert await (await engine.start(sender(), id="q")).result("20s") == 1
        asked = await engine.start(quick(), queue="default", priority=7)
        assert await asked.result("20s") == 1
    child = await (await engine.get("q/post.quick.v1")).info()
    other = await asked.info()
    assert (child.queue, child.priority) == ("express", 5)
    assert (other.queue, other.priority) == ("default", 7)


async def test_an_activity_in_a_process_gives_signs_of_life_too(on_disk: Stage) -> None:
    square: Activity[[int], int] = activity("post.square.v1", process=True, heartbeat="20s")(slow_square)
    engine = on_disk.engine(square)
    async with engine.worker(step_processes=1):
        run = await engine.start(square(12))
        assert await run.result("60s") == 144
    rows = await on_disk.rows("SELECT kind, payload FROM perdure_outputs WHERE run_id = ?", run.id)
    assert rows == [("beat", "12")]


async def test_what_an_activity_emits_is_read_while_it_runs(stage: Stage) -> None:
    @activity("post.tell.v1")
    def tell() -> str:
        for word in ("dear", "Ann"):
            activity_info().emit("words", word)
        return "sent"

    engine = stage.engine(tell)
    async with engine.worker():
        run = await engine.start(tell())
        assert [item.value async for item in run.stream("words")] == ["dear", "Ann"]
        assert await run.result("20s") == "sent"


async def test_input_that_does_not_fit_sets_the_run_aside(stage: Stage) -> None:
    engine = stage.engine(double)
    async with engine.worker():
        run = await engine.start(Call.named("post.unknown.v1"))
        await stage.rows("SELECT 1")
        with pytest.raises(BadArguments):
            await engine.start(Call.named("post.double.v1", letter={"to": 1}))
    assert await run.status() is Status.PENDING


async def test_a_result_that_is_of_another_type_fails_without_another_attempt(stage: Stage) -> None:
    @activity("post.wrong.v1", retry=AT_ONCE)
    def wrong() -> int:
        return "seven"  # type: ignore[return-value]  # what the test is about

    engine = stage.engine(wrong)
    async with engine.worker():
        run = await engine.start(wrong())
        with pytest.raises(RunFailed) as caught:
            await run.result("20s")
    assert isinstance(caught.value.__cause__, DecodeError)
    assert (await run.info()).attempt == 1


async def test_an_activity_gives_up_on_errors_by_name_declared_or_given_by_a_call(stage: Stage) -> None:
    class Lost(Exception):
        pass

    attempts: list[int] = []

    @activity("post.lost.v1", retry=Retry(attempts=3, initial=0, give_up_on=("Lost",)))
    def lose() -> None:
        attempts.append(activity_info().attempt)
        raise Lost("in the post")

    @activity("post.lost_again.v1", retry=AT_ONCE)
    def lose_again() -> None:
        attempts.append(activity_info().attempt)
        raise Lost("in the post")

    @workflow("post.losing.v1")
    async def losing(ctx: Context) -> None:
        await ctx.call(lose_again().options(retry=by_name))

    by_name = Retry(attempts=3, initial=0, give_up_on=(f"{Lost.__module__}.{Lost.__qualname__}",))
    engine = stage.engine(lose, lose_again, losing)
    async with engine.worker():
        for call, expected in (
            (lose(), [1]),
            (lose().options(retry=Retry(attempts=3, initial=0, give_up_on=("LostToo",))), [1, 2, 3]),
            (lose_again(), [1, 2, 3]),
            (lose_again().options(retry=by_name), [1]),
            (losing(), [1]),
        ):
            attempts.clear()
            with pytest.raises(RunFailed, match="in the post"):
                await (await engine.start(call)).result("20s")
            assert attempts == expected


def test_what_makes_no_sense_is_refused_where_it_is_said() -> None:
    with pytest.raises(UsageError, match="heartbeat=0"):
        activity("post.bad.v1", heartbeat=0)
    with pytest.raises(UsageError, match="priority"):
        activity("post.bad.v1", priority=2**40)
    with pytest.raises(UsageError, match="travels with a run"):
        double(Letter("Ann", 1)).options(retry=Retry(give_up_on=(OSError,)))
    with pytest.raises(UsageError, match="give the names of the classes"):
        double(Letter("Ann", 1)).options(retry=Retry(give_up_on=("KeyError", OSError)))
    with pytest.raises(UsageError, match=r"give_up_on=\('',\)"):
        activity("post.bad.v1", retry=Retry(give_up_on=("",)))
    with pytest.raises(BadArguments, match="stored by name"):

        @activity("post.bad.v1")
        def many(*letters: Letter) -> None: ...

    @workflow("post.flow.v1")
    async def flow(ctx: Context) -> None: ...

    with pytest.raises(UsageError, match="is a workflow"):
        flow().options(heartbeat=1)
    with pytest.raises(BadArguments, match="missing"):
        double()  # type: ignore[call-arg]  # what the test is about


def test_a_timeout_says_of_which_kind_it_is() -> None:
    error = ActivityTimeout("too long", kind="heartbeat")
    assert isinstance(error, TimeoutError)
    assert error.kind == "heartbeat"


async def test_the_time_of_an_activity_that_begins_later_counts_from_then(stage: Stage) -> None:
    @activity("post.later.v1", schedule_to_close=2.5)
    def later() -> int:
        return 1

    engine = stage.engine(later)
    async with engine.worker():
        assert await (await engine.start(later(), at=3.0)).result("20s") == 1


async def test_one_call_may_have_more_time_than_the_code_says(stage: Stage) -> None:
    @activity("post.time.v1", schedule_to_close=0.2, retry=Retry.fixed(0.3, attempts=2))
    def hurry() -> int:
        if activity_info().attempt == 1:
            raise OSError("not yet")
        return activity_info().attempt

    engine = stage.engine(hurry)
    async with engine.worker():
        run = await engine.start(hurry().options(schedule_to_close="1h"))
        assert await run.result("20s") == 2


async def test_an_activity_that_is_retried_has_the_whole_time_of_its_limit_again(on_disk: Stage) -> None:
    failing = True

    @activity("post.reopened.v1", schedule_to_close=600, retry=Retry(attempts=1))
    async def post() -> str:
        if failing:
            raise ValueError("no")
        return "sent"

    engine = on_disk.engine(post)
    # Started by code that does not know the activity, the run has no deadline of its own.
    async with Engine(engine.url) as other:
        started = await other.start(Call.named("post.reopened.v1"))
    run = await engine.get(started.id)
    async with engine.worker():
        with pytest.raises(RunFailed):
            await run.result("60s")
        failed = await run.info()
        failing = False
        await run.retry()
        assert await run.result("60s") == "sent"
    retried = await run.info()
    assert retried.generation == 2
    assert retried.deadline >= failed.finished_at + 600_000_000


async def test_an_activity_without_a_limit_of_its_own_has_that_of_its_code_from_its_first_attempt_on(
    on_disk: Stage,
) -> None:
    begun: list[int] = []

    @activity("post.sql.v1", schedule_to_close=4.0, retry=Retry.fixed(0.3, attempts=None))
    async def forever() -> None:
        begun.append(activity_info().due)
        raise OSError("not yet")

    engine = on_disk.engine(forever)
    # As a producer does that knows nothing of the code.
    async with Engine(engine.url) as other:
        started = await other.start(Call.named("post.sql.v1"))
    run = await engine.get(started.id)
    assert (await run.info()).deadline == NEVER
    async with engine.worker():
        with pytest.raises(RunFailed):
            await run.result("20s")
    first, *others = begun
    [record, *_] = await run.history()
    # The first attempt counts from its claim, which is a little before it begins; the others count from its beginning.
    assert {*others} == {record.started_at + 4_000_000}
    assert first <= others[0]


async def test_what_is_sent_to_an_activity_does_not_hasten_its_next_attempt(stage: Stage) -> None:
    tries: list[int] = []

    @activity("post.hasten.v1", retry=Retry.never())
    async def asked() -> None:
        tries.append(1)
        raise RetryAfter("1h")

    engine = stage.engine(asked)
    async with engine.worker():
        run = await engine.start(asked())
        await until(run, Status.WAITING)
        due = (await run.info()).wake_at
        await run.send("hello")

        async def waits_again() -> bool:
            row = await run.info()
            return row.status is Status.WAITING and row.inbox_read == 1

        await eventually(waits_again, saying="the message being read")
        row = await run.info()
        assert (row.wake_at, row.reason, row.attempt) == (due, Reason.RETRY, 1)
        await run.pause()
        await run.resume()

        async def resumed() -> bool:
            row = await run.info()
            return row.status is Status.WAITING and row.reason == Reason.RETRY and row.inbox_read == 3

        await eventually(resumed, saying="it waiting again for its time")
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result("20s")
    assert len(tries) == 1


async def test_why_tells_how_an_activity_stands(on_disk: Stage) -> None:
    going = asyncio.Event()

    @activity("post.stands.v1", retry=Retry.never())
    async def stands() -> None:
        if activity_info().attempt == 1:
            activity_info().heartbeat({"house": 4})
            await going.wait()
        raise OSError("no answer")

    engine = on_disk.engine(stands)
    call = stands().options(schedule_to_start="1h", retry=Retry.fixed("1h", attempts=3))
    run = await engine.start(call)
    assert "It fails if no worker begins it within" in await run.why()
    async with engine.worker():

        async def is_at_it() -> bool:
            return 'said {"house":4}' in await run.why()

        await eventually(is_at_it, saying="the sign of life being told")
        going.set()
        await until(run, Status.WAITING)
        why = await run.why()
        assert ", attempt 2 of 3." in why
        assert "The last attempt failed: OSError: no answer." in why
