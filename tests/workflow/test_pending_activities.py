"""Activities whose end is reported from outside: they return `Pending`, and a token ends the attempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Activity,
    Context,
    Engine,
    Handle,
    Limit,
    Pending,
    Retry,
    RunCancelled,
    RunFailed,
    RunNotFound,
    Status,
    StepFailed,
    activity,
    activity_info,
    workflow,
)
from perdure.admin import Failure, Reason
from perdure.core.model.attempt_reports import make_token, read_token
from perdure.errors import ActivityTimeout, AttemptNotFound, AttemptOver, BadArguments, DecodeError, EncodeError
from tests.helpers import eventually
from tests.stage import Stage
from tests.workflow.pending_in_a_process import give_out

AT_ONCE = Retry(attempts=3, initial=0, jitter=0)


@dataclass
class Receipt:
    number: int
    paid: bool


def asking(tokens: list[str], **options: Any) -> Activity[[], Receipt]:
    """An activity that gives out its token and waits for its end."""

    @activity("till.pay.v1", **({"retry": AT_ONCE} | options))
    async def pay() -> Receipt:
        tokens.append(activity_info().token)
        return Pending

    return pay


async def parked(engine: Engine, run_id: str) -> Handle[Any]:
    """Wait until a run waits for its completion from outside."""

    async def there() -> bool:
        with suppress(RunNotFound):
            return (await (await engine.get(run_id)).info()).reason is Reason.COMPLETION
        return False

    await eventually(there, saying=f"run {run_id} waiting for its completion")
    return await engine.get(run_id)


async def given(tokens: Sequence[str], count: int = 1) -> str:
    """Wait until so many attempts have given out their tokens; the last one."""
    await eventually(lambda: len(tokens) >= count, saying=f"{count} tokens being given out")
    return tokens[count - 1]


async def test_a_completion_from_outside_is_the_result(stage: Stage) -> None:
    tokens: list[str] = []
    pay = asking(tokens)

    @workflow("till.sell.v1")
    async def sell(ctx: Context) -> Receipt:
        return await ctx.call(pay(), id="pay")

    engine = stage.engine(sell, pay)
    async with engine.worker(slots=1):
        run = await engine.start(sell(), id="s")
        child = await parked(engine, "pay")
        # Neither slot nor thread is used meanwhile: with one slot, another run gets its turn.
        other = await engine.start(pay(), id="other")
        await given(tokens, 2)
        await engine.runs.complete(tokens[0], Receipt(7, True))
        assert (await child.info()).status is Status.COMPLETED
        assert await run.result("20s") == Receipt(7, True)
        # Plain JSON, as a webhook sends it.
        await engine.runs.complete(tokens[1], {"number": 8, "paid": False})
        assert await other.result("20s") == Receipt(8, False)
    kinds = [event.kind for event in await child.events()]
    assert kinds == ["created", "started", "completed"]


async def test_no_worker_is_needed_for_a_completion(stage: Stage) -> None:
    tokens: list[str] = []
    engine = stage.engine(asking(tokens))
    async with engine.worker():
        run = await engine.start(engine.workflows["till.pay.v1"](), id="p")
        await parked(engine, "p")
    await engine.runs.complete(tokens[0], Receipt(1, True))
    assert await run.result("20s") == Receipt(1, True)


async def test_a_result_that_does_not_fit_the_declared_type_is_refused(stage: Stage) -> None:
    tokens: list[str] = []
    engine = stage.engine(asking(tokens))
    async with engine.worker():
        run = await engine.start(engine.workflows["till.pay.v1"](), id="p")
        await parked(engine, "p")
        for value in ({"number": "x", "paid": True}, 7, None):
            with pytest.raises((DecodeError, EncodeError)):
                await engine.runs.complete(tokens[0], value)
        assert await run.status() is Status.WAITING
        await engine.runs.complete(tokens[0], Receipt(1, True))


async def test_the_first_completion_wins_and_may_be_repeated(stage: Stage) -> None:
    tokens: list[str] = []
    engine = stage.engine(asking(tokens))
    async with engine.worker():
        run = await engine.start(engine.workflows["till.pay.v1"](), id="p")
        await parked(engine, "p")
        for _ in range(2):
            await engine.runs.complete(tokens[0], Receipt(1, True))
        with pytest.raises(AttemptOver, match="has ended, with another outcome") as caught:
            await engine.runs.complete(tokens[0], Receipt(2, True))
        assert caught.value.run_id == "p"
        for refused in (engine.runs.fail(tokens[0], "late"), engine.runs.heartbeat(tokens[0])):
            with pytest.raises(AttemptOver):
                await refused
        assert await run.result("20s") == Receipt(1, True)


async def test_many_completions_at_once_have_one_winner(stage: Stage) -> None:
    tokens: list[str] = []
    engine = stage.engine(asking(tokens))
    async with engine.worker():
        run = await engine.start(engine.workflows["till.pay.v1"](), id="p")
        await parked(engine, "p")
        calls = [engine.runs.complete(tokens[0], Receipt(number, True)) for number in range(8)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers if answer is not None] == [AttemptOver] * 7
        won = answers.index(None)
        assert await run.result("20s") == Receipt(won, True)


async def test_a_completion_may_come_before_the_function_has_returned(stage: Stage) -> None:
    tokens: list[str] = []
    go_on = threading.Event()

    @activity("till.quick.v1", retry=AT_ONCE)
    def quick() -> int:
        tokens.append(activity_info().token)
        go_on.wait(60)
        return Pending

    engine = stage.engine(quick)
    async with engine.worker():
        run = await engine.start(quick(), id="q")
        await engine.runs.complete(await given(tokens), 5)
        assert await run.result("20s") == 5
        go_on.set()
    assert (len(tokens), await run.result("20s")) == (1, 5)


async def test_a_failure_may_come_before_the_function_has_returned(stage: Stage) -> None:
    tokens: list[str] = []
    go_on = threading.Event()

    @activity("till.quick.v1", retry=AT_ONCE)
    def quick() -> int:
        tokens.append(activity_info().token)
        if len(tokens) == 1:
            go_on.wait(60)
        return Pending

    engine = stage.engine(quick)
    async with engine.worker():
        run = await engine.start(quick(), id="q")
        await engine.runs.fail(await given(tokens), "refused")
        await engine.runs.complete(await given(tokens, 2), 5)
        assert await run.result("20s") == 5
        go_on.set()
    [record] = await run.history()
    assert Failure.read(record.payload).message == "refused"


async def test_a_reported_failure_follows_the_retry_policy(stage: Stage) -> None:
    tokens: list[str] = []
    engine = stage.engine(asking(tokens, retry=Retry(attempts=2, initial=0, jitter=0)))
    async with engine.worker():
        run = await engine.start(engine.workflows["till.pay.v1"](), id="p")
        first = await given(tokens)
        for _ in range(2):
            await engine.runs.fail(first, OSError("no line"))
        second = await given(tokens, 2)
        assert second != first
        with pytest.raises(AttemptOver, match="a later attempt has its own token"):
            await engine.runs.complete(first, Receipt(1, True))
        await engine.runs.fail(first, OSError("no line"))  # its answer may have been lost
        await engine.runs.fail(second, "declined")
        with pytest.raises(RunFailed, match="declined") as caught:
            await run.result("20s")
    assert isinstance(caught.value.__cause__, StepFailed)
    info = await run.info()
    assert (info.attempt, Failure.read(info.error).given_up) == (2, "exhausted")


async def test_an_error_that_the_policy_gives_up_on_ends_the_activity(stage: Stage) -> None:
    tokens: list[str] = []
    engine = stage.engine(asking(tokens, retry=Retry(attempts=5, initial=0, give_up_on=("shop.Declined",))))
    async with engine.worker():
        run = await engine.start(engine.workflows["till.pay.v1"](), id="p")
        await engine.runs.fail(await given(tokens), Failure(type="shop.Declined", message="no cover"))
        with pytest.raises(RunFailed, match="no cover"):
            await run.result("20s")
    assert len(tokens) == 1


async def test_a_pending_attempt_times_out_and_its_token_with_it(stage: Stage) -> None:
    tokens: list[str] = []
    engine = stage.engine(asking(tokens, start_to_close=0.3))
    async with engine.worker():
        run = await engine.start(engine.workflows["till.pay.v1"](), id="p")
        await given(tokens, 2)
        with pytest.raises(AttemptOver):
            await engine.runs.complete(tokens[0], Receipt(1, True))
        with pytest.raises(RunFailed) as caught:
            await run.result("30s")
    assert isinstance(caught.value.__cause__, ActivityTimeout)
    assert caught.value.__cause__.kind == "start_to_close"
    assert len(set(tokens)) == 3


async def test_heartbeats_by_token_put_off_the_timeout(stage: Stage) -> None:
    tokens: list[str] = []
    seen: list[Any] = []

    @activity("till.wait.v1", retry=AT_ONCE, heartbeat=4.0)
    def wait() -> int:
        seen.append(activity_info().last_heartbeat)
        tokens.append(activity_info().token)
        return Pending

    engine = stage.engine(wait)
    async with engine.worker():
        run = await engine.start(wait(), id="w")
        token = await given(tokens)
        for number in range(8):
            await engine.runs.heartbeat(token, {"number": number})
            await asyncio.sleep(0.6)  # longer in all than the timeout
        assert tokens == [token]
        assert 'said {"number":7}' in await run.why()
        # Silence: the next attempt gets the last details.
        await given(tokens, 2)
        await engine.runs.complete(tokens[1], 3)
        assert await run.result("20s") == 3
    assert seen == [None, {"number": 7}]
    [record] = await run.history()
    assert "no heartbeat was reported for 4 s" in Failure.read(record.payload).message


async def test_a_deadline_ends_a_pending_activity(stage: Stage) -> None:
    tokens: list[str] = []
    engine = stage.engine(asking(tokens, schedule_to_close=3.0))
    async with engine.worker():
        run = await engine.start(engine.workflows["till.pay.v1"](), id="p")
        with pytest.raises(RunFailed):
            await run.result("30s")
    with pytest.raises(AttemptOver):
        await engine.runs.complete(tokens[0], Receipt(1, True))


async def test_a_cancelled_workflow_ends_its_pending_activity(stage: Stage) -> None:
    tokens: list[str] = []
    pay = asking(tokens)

    @workflow("till.sell.v1")
    async def sell(ctx: Context) -> Receipt:
        return await ctx.call(pay(), id="pay")

    engine = stage.engine(sell, pay)
    async with engine.worker():
        run = await engine.start(sell(), id="s")
        child = await parked(engine, "pay")
        await run.cancel("closed")
        with pytest.raises(RunCancelled):
            await run.result("20s")
        with pytest.raises(RunCancelled):
            await child.result("20s")
    for refused in (engine.runs.complete(tokens[0], Receipt(1, True)), engine.runs.heartbeat(tokens[0])):
        with pytest.raises(AttemptOver):
            await refused


async def test_a_pause_keeps_the_attempt_and_its_token(stage: Stage) -> None:
    tokens: list[str] = []
    engine = stage.engine(asking(tokens))
    async with engine.worker():
        run = await engine.start(engine.workflows["till.pay.v1"](), id="p")
        await parked(engine, "p")
        await run.pause("lunch")
        await run.resume()
        await parked(engine, "p")
        # A message does not end the wait either.
        await run.send("hello", 1)
        await parked(engine, "p")
        assert len(tokens) == 1
        await run.pause("again")
        await engine.runs.complete(tokens[0], Receipt(1, True))
        assert await run.result("20s") == Receipt(1, True)


async def test_an_attempt_that_another_worker_makes_again_has_the_same_token(stage: Stage) -> None:
    tokens: list[str] = []
    returns = asyncio.Event()

    @activity("till.slow.v1", retry=AT_ONCE)
    async def slow() -> int:
        tokens.append(activity_info().token)
        await returns.wait()
        return Pending

    engine = stage.engine(slow)
    async with engine.worker(grace=0.01):
        run = await engine.start(slow(), id="s")
        await given(tokens)
    returns.set()
    async with engine.worker():
        await parked(engine, "s")
        assert len(tokens) == 2
        assert len(set(tokens)) == 1
        await engine.runs.complete(tokens[0], 1)
        assert await run.result("20s") == 1


async def test_a_pending_activity_has_no_permit_and_needs_none_to_complete(stage: Stage) -> None:
    tokens: list[str] = []
    engine = stage.engine(asking(tokens, limit=Limit("till", concurrency=1)))
    async with engine.worker():
        calls = [engine.workflows["till.pay.v1"]() for _ in range(3)]
        runs = await engine.start_many(calls)
        await given(tokens, 3)
        for number, token in enumerate(tokens):
            await engine.runs.complete(token, Receipt(number, True))
        assert sorted([(await run.result("20s")).number for run in runs]) == [0, 1, 2]


async def test_why_says_what_is_missing_and_since_when(stage: Stage) -> None:
    tokens: list[str] = []
    pay = asking(tokens, start_to_close="1h")

    @workflow("till.sell.v1")
    async def sell(ctx: Context) -> Receipt:
        return await ctx.call(pay(), id="pay")

    engine = stage.engine(sell, pay)
    async with engine.worker():
        run = await engine.start(sell(), id="s")
        child = await parked(engine, "pay")
        for told in (await child.why(), await run.why()):
            assert "Its function returned Pending. It waits for its completion from outside since " in told
            assert ", at most until " in told
        await engine.runs.complete(tokens[0], Receipt(1, True))


@pytest.mark.parametrize(
    "change",
    [
        lambda token: "",
        lambda token: "x",
        lambda token: "ü" * 40,
        lambda token: "A" * 5000,
        lambda token: token[:-1] + ("A" if token[-1] != "A" else "Q"),
        lambda token: ("A" if token[0] != "A" else "B") + token[1:],
        lambda token: make_token("p", 1, 0, ""),
        lambda token: make_token("p", 1, 0, "guess"),
        lambda token: make_token("missing", 1, 0, "guess"),
    ],
)
async def test_a_token_cannot_be_forged(stage: Stage, change: Callable[[str], str]) -> None:
    tokens: list[str] = []
    engine = stage.engine(asking(tokens))
    async with engine.worker():
        run = await engine.start(engine.workflows["till.pay.v1"](), id="p")
        await parked(engine, "p")
        forged = change(tokens[0])
        with pytest.raises(AttemptNotFound, match="there is no attempt with this token"):
            await engine.runs.complete(forged, Receipt(1, True))
        with pytest.raises(AttemptNotFound):
            await engine.runs.fail(forged, "x")
        with pytest.raises(AttemptNotFound):
            await engine.runs.heartbeat(forged)
        assert await run.status() is Status.WAITING
        assert tokens[0].removeprefix(".").replace("-", "").replace("_", "").isalnum()
        assert read_token(tokens[0]).run_id == "p"
        with pytest.raises(BadArguments, match="error is an exception or a message"):
            await engine.runs.fail(tokens[0], 7)  # type: ignore[arg-type] # what it is about
        await engine.runs.complete(tokens[0], Receipt(1, True))


def test_no_token_looks_like_an_option_of_a_command() -> None:
    tokens = [make_token("p", 1, number, "seed") for number in range(500)]
    assert not [one for one in tokens if one.startswith("-")]
    assert [one for one in tokens if one.startswith(".-")]
    assert all(read_token(one).is_genuine("seed") for one in tokens)
    # Tokens of earlier versions began with `-`.
    assert all(read_token(one.removeprefix(".")).is_genuine("seed") for one in tokens)


async def test_an_activity_in_a_process_gives_out_its_token(stage: Stage, tmp_path: Path) -> None:
    apart = activity("till.apart.v1", process=True)(give_out)
    engine = stage.engine(apart)
    async with engine.worker():
        run = await engine.start(apart(str(tmp_path / "token")), id="a")
        await parked(engine, "a")
        await engine.runs.complete((tmp_path / "token").read_text(), 5)  # a small file
        assert await run.result("20s") == 5
