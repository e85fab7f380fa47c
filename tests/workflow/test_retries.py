from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from perdure import Context, Fatal, Retry, RetryAfter, RunFailed, Status, StepFailed, step, workflow
from perdure.admin import Failure, Reason, RecordKind
from tests.stage import Stage, until, until_recorded


class Flaky:
    """A step that fails so many times before it succeeds."""

    def __init__(self, failures: int, error: type[Exception] = ConnectionError) -> None:
        self.failures = failures
        self.calls = 0
        self._error = error

    async def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.failures:
            raise self._error(f"call {self.calls}")
        return self.calls


SOON = Retry.fixed("1ms", attempts=5)


async def test_a_step_is_tried_again_until_it_succeeds(stage: Stage) -> None:
    flaky = Flaky(3)

    @workflow("again.flaky.v1")
    async def trying(ctx: Context) -> int:
        return await ctx.options(retry=SOON).step(flaky)

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        assert await run.result("20s") == 4
    history = await run.history()
    assert [record.kind for record in history] == [RecordKind.ATTEMPT] * 3 + [RecordKind.STEP]
    assert [record.attempts for record in history] == [1, 2, 3, 4]


async def test_every_error_of_every_attempt_is_kept(stage: Stage) -> None:
    flaky = Flaky(9)

    @workflow("again.errors.v1")
    async def trying(ctx: Context) -> int:
        return await ctx.options(retry=Retry.fixed("1ms", attempts=3)).step(flaky)

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        with pytest.raises(RunFailed, match="call 3") as caught:
            await run.result("20s")
    assert isinstance(caught.value.__cause__, ConnectionError)
    messages = [Failure.from_json(record.payload or "").message for record in await run.history()]
    assert messages == ["call 1", "call 2", "call 3"]
    assert flaky.calls == 3


async def test_fatal_stops_at_once(stage: Stage) -> None:
    flaky = Flaky(9, Fatal)

    @workflow("again.fatal.v1")
    async def trying(ctx: Context) -> int:
        return await ctx.options(retry=SOON).step(flaky)

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        with pytest.raises(RunFailed, match="Fatal: call 1") as caught:
            await run.result("20s")
    assert isinstance(caught.value.__cause__, Fatal)
    assert flaky.calls == 1


async def test_a_policy_gives_up_on_the_errors_that_it_names(stage: Stage) -> None:
    class Declined(LookupError):
        pass

    flaky = Flaky(9, Declined)

    @workflow("again.give_up.v1")
    async def trying(ctx: Context) -> int:
        return await ctx.options(retry=Retry(give_up_on=(LookupError,))).step(flaky)

    engine = stage.engine(trying)
    async with engine.worker():
        with pytest.raises(RunFailed, match="Declined"):
            await (await engine.start(trying())).result("20s")
    assert flaky.calls == 1


@pytest.mark.parametrize("name", ["LookupError", "Declined", "perdure.errors.StepTimeout"])
async def test_a_policy_gives_up_on_the_errors_whose_names_it_has(stage: Stage, name: str) -> None:
    class Declined(LookupError):
        pass

    flaky = Flaky(9, Declined)

    @workflow("again.give_up_by_name.v1")
    async def trying(ctx: Context) -> int:
        return await ctx.options(retry=Retry(attempts=3, initial="1ms", give_up_on=(name,))).step(flaky)

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        with pytest.raises(RunFailed, match="Declined") as caught:
            await run.result("20s")
    assert caught.value.failure is not None
    if name == "perdure.errors.StepTimeout":
        assert (flaky.calls, caught.value.failure.given_up) == (3, "exhausted")
    else:
        assert (flaky.calls, caught.value.failure.given_up) == (1, "fatal")


async def test_a_workflow_is_not_tried_again_after_the_error_of_a_child_that_it_names(stage: Stage) -> None:
    class Declined(Exception):
        """A class that the engine does not know, as those of another process or language."""

    class Busy(Exception):
        """Another one."""

    tried: list[str] = []

    @workflow("again.declining.v1")
    async def child(ctx: Context, how: str) -> None:
        raise Declined(how) if how == "declined" else Busy(how)

    async def parent(ctx: Context, how: str) -> None:
        tried.append(ctx.run_id)
        await ctx.call(child(how))

    soon = Retry(attempts=2, initial="1ms")
    by_name = workflow("again.by_name.v1", retry=replace(soon, give_up_on=("Declined",)))(parent)
    qualified = f"{Declined.__module__}.{Declined.__qualname__}"
    by_qualified_name = workflow("again.by_qualified_name.v1", retry=replace(soon, give_up_on=(qualified,)))(parent)
    engine = stage.engine(by_name, by_qualified_name, child)
    async with engine.worker():
        for one in (by_name, by_qualified_name):
            for how, times in (("declined", 1), ("busy", 2)):
                tried.clear()
                with pytest.raises(RunFailed) as caught:
                    await (await engine.start(one(how))).result("20s")
                assert isinstance(caught.value.__cause__, StepFailed)
                assert len(tried) == times, (one.type, how)


async def test_retry_after_waits_without_using_up_an_attempt(stage: Stage) -> None:
    calls = 0

    async def polite() -> int:
        nonlocal calls
        calls += 1
        if calls <= 10:
            raise RetryAfter("1ms", "busy")
        return calls

    @workflow("again.after.v1")
    async def trying(ctx: Context) -> int:
        return await ctx.options(retry=Retry.never()).step(polite)

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        assert await run.result("20s") == 11
    history = await run.history()
    assert [record.attempts for record in history] == [0] * 10 + [1]


async def test_retry_after_something_that_is_no_duration_is_an_ordinary_failure(stage: Stage) -> None:
    @step(retry=Retry.never())
    async def impolite() -> None:
        raise RetryAfter("soon", "busy")

    @workflow("again.bad_after.v1")
    async def trying(ctx: Context) -> None:
        await ctx.step(impolite)

    engine = stage.engine(trying)
    async with engine.worker():
        with pytest.raises(RunFailed, match="busy"):
            await (await engine.start(trying())).result("20s")


async def test_the_worker_has_a_policy_for_steps_without_one(stage: Stage) -> None:
    flaky = Flaky(2)

    @workflow("again.default.v1")
    async def trying(ctx: Context) -> int:
        return await ctx.step(flaky)

    engine = stage.engine(trying)
    async with engine.worker(retry=Retry.fixed("1ms", attempts=2)):
        with pytest.raises(RunFailed, match="call 2"):
            await (await engine.start(trying())).result("20s")


async def test_options_of_the_call_win_over_those_of_the_function(stage: Stage) -> None:
    calls = 0

    @step(retry=Retry.never(), name="declared")
    async def fail() -> None:
        nonlocal calls
        calls += 1
        raise ValueError

    @workflow("again.options.v1")
    async def trying(ctx: Context) -> None:
        await ctx.options(retry=Retry.fixed("1ms", attempts=4)).options(name="called").step(fail)

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        with pytest.raises(RunFailed):
            await run.result("20s")
    assert calls == 4
    assert {record.location for record in await run.history()} == {"called"}


async def test_a_policy_may_be_a_function_of_attempt_and_error(stage: Stage) -> None:
    asked: list[tuple[int, str]] = []
    flaky = Flaky(2)

    def delay(attempt: int, error: BaseException) -> str:
        asked.append((attempt, str(error)))
        return "1ms"

    @workflow("again.callable.v1")
    async def trying(ctx: Context) -> int:
        return await ctx.options(retry=Retry(delay=delay)).step(flaky)

    engine = stage.engine(trying)
    async with engine.worker():
        assert await (await engine.start(trying())).result("20s") == 3
    assert asked == [(1, "call 1"), (2, "call 2")]


async def test_a_long_wait_for_the_next_attempt_parks_the_run(stage: Stage) -> None:
    flaky = Flaky(1)

    @workflow("again.park.v1")
    async def trying(ctx: Context) -> int:
        return await ctx.options(retry=Retry.fixed("1h")).step(flaky)

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        await until(run, Status.WAITING)
        found = await run.info()
        assert found.reason is Reason.RETRY
        assert found.worker is None
        why = await run.why()
    assert "waits to try again" in why
    assert "ConnectionError: call 1" in why


async def test_counters_survive_a_restart_of_the_worker(stage: Stage) -> None:
    flaky = Flaky(9)

    @workflow("again.restart.v1")
    async def trying(ctx: Context) -> int:
        return await ctx.options(retry=Retry.fixed("250ms", attempts=3)).step(flaky)

    engine = stage.engine(trying)
    run = await engine.start(trying())
    for attempt in (1, 2):
        async with engine.worker():
            await until_recorded(run, attempt)
    async with engine.worker():
        with pytest.raises(RunFailed, match="call 3"):
            await run.result("20s")
    assert flaky.calls == 3
    assert [record.attempts for record in await run.history()] == [1, 2, 3]


async def test_a_waiting_retry_does_not_hold_up_parallel_steps(stage: Stage) -> None:
    flaky = Flaky(1)
    steps_done = 0

    async def quick(number: int) -> int:
        nonlocal steps_done
        steps_done += 1
        return number

    @workflow("again.parallel.v1")
    async def trying(ctx: Context) -> None:
        await asyncio.gather(
            ctx.options(retry=Retry.fixed("1h")).step(flaky), *(ctx.step(quick, number) for number in range(3))
        )

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        await until(run, Status.WAITING)
    assert steps_done == 3


async def test_a_retry_that_would_come_after_the_deadline_is_not_waited_for(stage: Stage) -> None:
    flaky = Flaky(9)

    @workflow("again.deadline.v1")
    async def trying(ctx: Context) -> int:
        return await ctx.options(retry=Retry.fixed("2d")).step(flaky)

    engine = stage.engine(trying)
    async with engine.worker():
        with pytest.raises(RunFailed, match="ConnectionError: call 1"):
            await (await engine.start(trying(), deadline="1d")).result("20s")
    assert flaky.calls == 1


async def test_a_run_of_several_attempts_keeps_the_steps_that_succeeded(stage: Stage) -> None:
    calls: list[str] = []

    async def good(name: str) -> str:
        calls.append(name)
        return f"{name} done"

    @step(retry=Retry.never())
    async def bad() -> str:
        calls.append("bad")
        if calls.count("bad") < 3:
            raise ConnectionError("not yet")
        return "bad done"

    @workflow("again.run.v1", retry=Retry.fixed("1ms", attempts=3))
    async def trying(ctx: Context) -> list[str]:
        first = await ctx.step(good, "first")
        second = await ctx.step(bad)
        third = await ctx.step(good, "third")
        return [first, second, third]

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        assert await run.result("20s") == ["first done", "bad done", "third done"]
        assert (await run.info()).attempt == 3
    assert calls == ["first", "bad", "bad", "bad", "third"]
    assert [event.kind for event in await run.events()].count("retried") == 2


async def test_a_further_attempt_runs_a_step_again_when_its_arguments_differ(stage: Stage) -> None:
    calls: list[int] = []
    attempts: list[int] = []

    async def act(number: int) -> int:
        calls.append(number)
        return number

    @workflow("again.other.v1", retry=Retry.fixed("1ms", attempts=2))
    async def trying(ctx: Context) -> int:
        attempts.append(1)
        result = await ctx.step(act, len(attempts))
        if result == 1:
            raise ValueError("not one")
        return result

    engine = stage.engine(trying)
    async with engine.worker():
        assert await (await engine.start(trying())).result("20s") == 2
    assert calls == [1, 2]


async def test_a_further_attempt_gets_the_messages_of_the_earlier_one(stage: Stage) -> None:
    attempts: list[int] = []

    @workflow("again.mail.v1", retry=Retry.fixed("1ms", attempts=2))
    async def trying(ctx: Context) -> str:
        word = await ctx.receive("word", str)
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError(word)
        return word

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        await run.send("word", "hello")
        assert await run.result("20s") == "hello"


async def test_a_run_whose_attempts_are_used_up_has_failed(stage: Stage) -> None:
    @workflow("again.spent.v1", retry=Retry.fixed("1ms", attempts=2))
    async def trying(ctx: Context) -> None:
        raise ValueError("never works")

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        with pytest.raises(RunFailed, match="never works"):
            await run.result("20s")
        found = await run.info()
        assert (found.attempt, found.status) == (2, Status.FAILED)


async def test_a_fatal_error_of_a_workflow_ends_the_run_whatever_its_policy(stage: Stage) -> None:
    @workflow("again.run_fatal.v1", retry=SOON)
    async def trying(ctx: Context) -> None:
        raise Fatal("hopeless")

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        with pytest.raises(RunFailed, match="hopeless"):
            await run.result("20s")
        assert (await run.info()).attempt == 1


async def test_a_run_waiting_for_its_next_attempt_says_why(stage: Stage) -> None:
    @workflow("again.run_wait.v1", retry=Retry.fixed("1h"))
    async def trying(ctx: Context) -> None:
        raise ValueError("not now")

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        await until(run, Status.WAITING)
        assert (await run.info()).reason is Reason.RETRY
        assert "ValueError: not now" in await run.why()


async def test_a_run_cancelled_between_its_attempts_begins_the_next_at_once_and_is_cancelled_there(
    stage: Stage,
) -> None:
    undone: list[str] = []

    async def charge() -> str:
        return "receipt"

    async def refund(receipt: str) -> None:
        undone.append(receipt)

    @workflow("again.compensate.v1", retry=Retry.fixed("1h"))
    async def trying(ctx: Context) -> None:
        receipt = await ctx.step(charge)
        if (await ctx.receive("verdict", str)) == "fail":
            try:
                await ctx.options(name="ship", retry=Retry.never()).step(_fail)
            except asyncio.CancelledError:
                await ctx.step(refund, receipt)
                raise

    gate = asyncio.Event()

    async def _fail() -> None:
        if gate.is_set():
            await asyncio.Event().wait()
        raise ValueError("not now")

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        await run.send("verdict", "fail")
        await until(run, Status.WAITING)
        gate.set()
        await run.cancel("enough")
        await until(run, Status.CANCELLED)
    assert undone == ["receipt"]


async def test_a_run_that_is_to_be_stopped_gets_no_further_attempt(stage: Stage) -> None:
    attempts: list[int] = []

    @workflow("again.hopeless.v1", retry=Retry.fixed("1h", attempts=None))
    async def trying(ctx: Context) -> None:
        attempts.append(1)
        raise ValueError("not now")

    engine = stage.engine(trying)
    async with engine.worker():
        run = await engine.start(trying())
        await until(run, Status.WAITING)
        await run.cancel("enough")
        with pytest.raises(RunFailed, match="not now"):
            await run.result("20s")
    assert len(attempts) == 2


async def test_a_child_that_failed_is_started_anew_by_the_next_attempt(stage: Stage) -> None:
    calls: list[str] = []

    @workflow("again.child.v1")
    async def child(ctx: Context) -> str:
        calls.append(ctx.run_id)
        if len(calls) == 1:
            raise ValueError("first child")
        return "second child"

    @workflow("again.parent.v1", retry=SOON)
    async def parent(ctx: Context) -> str:
        return await ctx.call(child())

    engine = stage.engine(parent, child)
    async with engine.worker():
        run = await engine.start(parent(), id="p")
        assert await run.result("20s") == "second child"
    assert calls == ["p/again.child.v1", "p/again.child.v1@2"]
