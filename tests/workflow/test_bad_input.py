"""Whatever a caller gets wrong has an error of its own, which names it, and leaves the store as it was."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import (
    Call,
    Context,
    Engine,
    PerdureError,
    RunFailed,
    RunFinished,
    RunNotFound,
    Status,
    UsageError,
    workflow,
)
from perdure.errors import (
    BadArguments,
    EncodeError,
    EngineClosed,
    InvalidDuration,
    InvalidId,
    InvalidName,
    PayloadTooLarge,
    UnknownWorkflow,
)
from tests.helpers import eventually
from tests.stage import Stage, until

pytestmark = pytest.mark.every_database


@dataclass
class Item:
    sku: str
    price: float


@dataclass
class Order:
    items: list[Item]


@workflow("bad.order.v1")
async def order(ctx: Context, order: Order, note: str = "") -> int:
    return len(order.items)


@workflow("bad.stranger.v1")
async def stranger(ctx: Context) -> None:
    return None


@workflow("bad.anything.v1")
async def anything(ctx: Context, value: Any) -> None:
    await ctx.receive("never")


GOOD = Order([Item("socks", 3.5)])
Act = Callable[[Engine], Awaitable[object]]

REFUSED: dict[str, tuple[Act, type[PerdureError], str]] = {
    "an unknown workflow": (lambda e: e.start(stranger()), UnknownWorkflow, "bad.stranger.v1"),
    "an unknown workflow among many": (lambda e: e.start_many([anything(1), stranger()]), UnknownWorkflow, "stranger"),
    # Wrong on purpose:
    "something that is no call": (lambda e: e.start(stranger), UsageError, "takes a call"),  # type: ignore[arg-type] # the mistake that is tested
    # Wrong on purpose:
    "an argument of another type": (lambda e: e.start(order("socks")), BadArguments, "argument 'order'"),  # type: ignore[arg-type] # the mistake that is tested
    # Wrong on purpose:
    "a part of another type": (lambda e: e.start(order(Order([Item("a", "b")]))), BadArguments, "price"),  # type: ignore[arg-type] # the mistake that is tested
    "by name, without an argument": (lambda e: e.start(Call.named("bad.order.v1")), BadArguments, "order"),
    "by name, an argument too many": (
        lambda e: e.start(Call.named("bad.order.v1", GOOD, "", 3)),
        BadArguments,
        "too many",
    ),
    "by name, an unknown argument": (lambda e: e.start(Call.named("bad.anything.v1", valu=1)), BadArguments, "valu"),
    "by name, of another type": (lambda e: e.start(Call.named("bad.order.v1", order=3)), BadArguments, "order"),
    "an object": (lambda e: e.start(anything({"a": [object()]})), EncodeError, r"value\.a\[0\]"),
    "a function": (lambda e: e.start(anything(print)), EncodeError, "value"),
    "NaN": (lambda e: e.start(order(Order([Item("a", float("nan"))]))), EncodeError, r"order\.items\[0\]\.price"),
    "infinity": (lambda e: e.start(anything(float("inf"))), EncodeError, "inf"),
    "a lone surrogate": (lambda e: e.start(anything("\ud800")), EncodeError, "surrogate"),
    "a NUL": (lambda e: e.start(anything({"text": "a\0b"})), EncodeError, r"value\.text.*NUL"),
    "a value that contains itself": (lambda e: e.start(anything(_endless())), EncodeError, "contains itself"),
    "too large an input": (lambda e: e.start(anything("x" * 1_100_000)), PayloadTooLarge, "1,048,576"),
    "one bad call of many": (lambda e: e.start_many([anything(1), anything(object())]), EncodeError, "value"),
    "an empty id": (lambda e: e.start(anything(1), id=""), InvalidId, "empty"),
    "too long an id": (lambda e: e.start(anything(1), id="x" * 256), InvalidId, "256 bytes"),
    "an id of many bytes": (lambda e: e.start(anything(1), id="ü" * 128), InvalidId, "256 bytes"),
    "an id with a line break": (lambda e: e.start(anything(1), id="a\nb"), InvalidId, "control character"),
    "an id with a blank at its end": (lambda e: e.start(anything(1), id="a "), InvalidId, "whitespace"),
    # Wrong on purpose:
    "an id that is no text": (lambda e: e.start(anything(1), id=7), InvalidId, "of type int"),  # type: ignore[arg-type] # the mistake that is tested
    "an id in another form": (lambda e: e.start(anything(1), id="u\u0308"), InvalidId, "composed form"),
    "one bad id of many": (lambda e: e.start_many([anything(1), anything(2)], ids=["a", ""]), InvalidId, "empty"),
    "an empty key": (lambda e: e.start(anything(1), idempotency_key=""), InvalidId, "idempotency key"),
    "a queue with a slash": (lambda e: e.start(anything(1), queue="a/b"), InvalidName, "queue"),
    # Wrong on purpose:
    "a priority that is no number": (lambda e: e.start(anything(1), priority="high"), UsageError, "priority"),  # type: ignore[arg-type] # the mistake that is tested
    "a priority out of range": (lambda e: e.start(anything(1), priority=2**40), UsageError, "priority"),
    # Wrong on purpose:
    "an option that does not exist": (lambda e: e.start(anything(1), idd="x"), BadArguments, "idd"),  # type: ignore[call-arg] # the mistake that is tested
    "a moment without a time zone": (
        lambda e: e.start(anything(1), at=datetime.datetime(2030, 1, 1)),
        InvalidDuration,
        "no time zone",
    ),
    "a moment that is none": (lambda e: e.start(anything(1), at="tomorrow"), InvalidDuration, "tomorrow"),
    "a negative delay": (lambda e: e.start(anything(1), at=-1), InvalidDuration, "negative"),
    "a deadline that is none": (lambda e: e.start(anything(1), deadline="1 fortnight"), InvalidDuration, "fortnight"),
    "a message to a missing run": (lambda e: e.send("missing", "word"), RunNotFound, "'missing'"),
    "a message to a finished run": (lambda e: e.send("finished", "word"), RunFinished, "'finished'"),
    "a message without a name": (lambda e: e.send("waiting", ""), InvalidName, "message name"),
    "a message that is an object": (lambda e: e.send("waiting", "word", object()), EncodeError, "message 'word'"),
    "too large a message": (lambda e: e.send("waiting", "word", "x" * 1_100_000), PayloadTooLarge, "message 'word'"),
    "an empty message key": (lambda e: e.send("waiting", "word", key=""), InvalidId, "message key"),
    "a message to a bad id": (lambda e: e.send("", "word"), InvalidId, "run id"),
    "cancelling a missing run": (lambda e: e.cancel("missing"), RunNotFound, "'missing'"),
    "cancelling a bad id": (lambda e: e.cancel("a\0"), InvalidId, "control"),
    "cancelling for a reason that is no text": (lambda e: e.cancel("waiting", "\ud800"), UsageError, "reason"),
    "a handle of a missing run": (lambda e: e.get("missing"), RunNotFound, "'missing'"),
    "unblocking a missing run": (lambda e: e.runs.retry("missing"), RunNotFound, "'missing'"),
    # Wrong on purpose:
    "a listing by a status that there is not": (lambda e: e.runs.list(status="done"), UsageError, "done"),  # type: ignore[arg-type] # the mistake that is tested
}


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize("case", REFUSED)
async def test_it_is_refused_by_name_and_nothing_is_written(on_disk: Stage, case: str) -> None:
    act, error, words = REFUSED[case]
    engine = on_disk.engine(order, anything)
    async with engine.worker():
        await engine.start(anything(1), id="waiting")
        await until(await engine.get("waiting"), Status.WAITING)
        finished = await engine.start(order(GOOD), id="finished")
        await finished.result("20s")
    before = await on_disk.dump()
    with pytest.raises(error, match=words) as caught:
        await act(engine)
    assert type(caught.value) is error
    assert await on_disk.dump() == before


def test_arguments_that_do_not_fit_are_refused_when_the_call_is_built() -> None:
    with pytest.raises(BadArguments, match="missing a required argument: 'order'"):
        order()  # type: ignore[call-arg] # wrong on purpose
    with pytest.raises(BadArguments, match="too many"):
        order(GOOD, "", 1)  # type: ignore[call-arg] # wrong on purpose
    with pytest.raises(BadArguments, match="nte"):
        order(GOOD, nte="")  # type: ignore[call-arg] # wrong on purpose
    with pytest.raises(TypeError):
        order()  # type: ignore[call-arg] # wrong on purpose
    with pytest.raises(BadArguments, match="all by position"):
        Call.named("bad.order.v1", 1, note="")
    with pytest.raises(InvalidName):
        Call.named("")


@workflow("bad.labelled.v1")
async def labelled(ctx: Context, type: str, cls: str = "") -> str:
    return f"{type} {cls}"


async def test_a_parameter_may_be_called_type(stage: Stage) -> None:
    engine = stage.engine(labelled)
    async with engine.worker():
        run = await engine.start(Call.named("bad.labelled.v1", type="parcel", cls="first"))
        again = await run.fork(input={"type": "letter", "cls": "second"})
        assert [await run.result(), await again.result()] == ["parcel first", "letter second"]


async def test_an_argument_called_self_is_one_that_does_not_fit(on_disk: Stage) -> None:
    engine = on_disk.engine(labelled)
    with pytest.raises(BadArguments, match="self"):
        await engine.start(Call.named("bad.labelled.v1", type="parcel", self="x"))


def test_workflows_that_cannot_be_are_refused_when_they_are_declared() -> None:
    with pytest.raises(InvalidName, match="workflow type"):
        workflow("a/b")(stranger.function)
    with pytest.raises(BadArguments, match="async def"):
        workflow("bad.sync.v1")(stranger)  # type: ignore[arg-type] # wrong on purpose

    async def no_context() -> None:
        return None

    with pytest.raises(BadArguments, match="Context"):
        workflow("bad.none.v1")(no_context)  # type: ignore[arg-type] # wrong on purpose

    async def star(ctx: Context, *args: int) -> None:
        return None

    with pytest.raises(BadArguments, match=r"\*args"):
        workflow("bad.star.v1")(star)


async def test_an_annotation_that_cannot_be_resolved_is_refused_by_the_engine(on_disk: Stage) -> None:
    @workflow("bad.annotation.v1")
    async def unresolved(ctx: Context, value: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821 # the mistake that is tested
        return None

    with pytest.raises(BadArguments, match="Nowhere"):
        on_disk.engine(unresolved)


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        ({"a": object()}, EncodeError, "result of bad"),
        (float("nan"), EncodeError, "nan"),
        ("x" * 1_100_000, PayloadTooLarge, "1,048,576"),
        ("seven", BadArguments, "not of the type that it declares"),
    ],
)
async def test_a_result_that_cannot_be_stored_fails_the_run(
    stage: Stage, result: object, error: type[Exception], words: str
) -> None:
    @workflow("bad.result.v1")
    async def returning(ctx: Context) -> int:
        return result  # type: ignore[return-value] # wrong on purpose

    engine = stage.engine(returning)
    async with engine.worker():
        run = await engine.start(returning())
        with pytest.raises(RunFailed, match=words) as caught:
            await run.result("20s")
    assert isinstance(caught.value.__cause__, error)
    assert (await run.info()).output is None
    assert await run.history() == []


@pytest.mark.parametrize(
    ("result", "words"),
    [(object(), "JSON cannot represent"), ("x" * 1_100_000, "1,048,576"), ("seven", "Expected `int`")],
)
async def test_a_step_result_that_cannot_be_stored_fails_the_step_and_keeps_no_payload(
    stage: Stage, result: object, words: str
) -> None:
    calls: list[int] = []

    async def bad() -> int:
        calls.append(1)
        return result  # type: ignore[return-value] # wrong on purpose

    @workflow("bad.step.v1")
    async def stepping(ctx: Context) -> str:
        try:
            await ctx.step(bad)
        except UsageError as error:
            return str(error)
        return "impossible"

    engine = stage.engine(stepping)
    async with engine.worker():
        run = await engine.start(stepping())
        assert words in await run.result("20s")
    [record] = await run.history()
    assert record.failed
    assert len(record.payload or "") < 20_000
    assert calls == [1]


async def test_arguments_of_a_step_that_have_no_json_are_refused_where_it_is_called(stage: Stage) -> None:
    async def act(value: object) -> None:
        raise AssertionError("it must not be called")

    @workflow("bad.argument.v1")
    async def calling(ctx: Context) -> str:
        try:
            await ctx.step(act, object())
        except EncodeError as error:
            return str(error)
        return "impossible"

    engine = stage.engine(calling)
    async with engine.worker():
        run = await engine.start(calling())
        assert "object" in await run.result("20s")
    assert await run.history() == []


async def test_a_large_payload_is_a_warning_before_it_is_an_error(
    on_disk: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    engine = on_disk.engine(anything)
    await engine.start(anything("x" * 300_000))
    assert "input of bad.anything.v1" in caplog.text


async def test_the_limits_of_payloads_are_settings_of_the_engine(on_disk: Stage) -> None:
    engine = on_disk.engine(anything, payload_warn=10, payload_limit=100)
    with pytest.raises(PayloadTooLarge, match="the limit is 100"):
        await engine.start(anything("x" * 100))


CLOSED: dict[str, Act] = {
    "start": lambda e: e.start(anything(1)),
    "start_many": lambda e: e.start_many([anything(1)]),
    "get": lambda e: e.get("a"),
    "list": lambda e: e.runs.list(),
    "send": lambda e: e.send("a", "word"),
    "cancel": lambda e: e.cancel("a"),
    "why": lambda e: e.runs.why("a"),
    "unblock": lambda e: e.runs.retry("a"),
    "workers": lambda e: e.workers.list(),
    "open": lambda e: e.open(),
    "worker": lambda e: e.worker().start(),
}


@pytest.mark.parametrize("verb", CLOSED)
async def test_a_closed_engine_refuses_everything(on_disk: Stage, verb: str) -> None:
    engine = on_disk.engine(anything)
    await engine.start(anything(1), id="a")
    await engine.close()
    before = await on_disk.dump()
    with pytest.raises(EngineClosed, match="was closed"):
        await CLOSED[verb](engine)
    await engine.close()
    assert await on_disk.dump() == before


async def test_handles_of_a_closed_engine_say_that_it_is_closed(on_disk: Stage) -> None:
    engine = on_disk.engine(anything)
    run = await engine.start(anything(1))
    await engine.close()
    for act in (run.result, run.status, run.history, run.events, run.why, run.cancel, run.info):
        with pytest.raises(EngineClosed):
            await act()


async def test_a_wait_for_a_result_ends_when_the_engine_is_closed(stage: Stage) -> None:
    engine = stage.engine(anything)
    run = await engine.start(anything(1))
    waiting = [asyncio.ensure_future(run.result()), asyncio.ensure_future(run.result("1h"))]
    await eventually(
        lambda: any(watch._waiters for watch in engine._session.results._watches.values()),
        saying="a wait for the result",
    )
    await engine.close()
    for each in waiting:
        with pytest.raises(EngineClosed):
            await each


async def test_a_timeout_that_is_no_duration_is_refused(stage: Stage) -> None:
    engine = stage.engine(anything)
    run = await engine.start(anything(1))
    with pytest.raises(InvalidDuration, match="soon"):
        await run.result("soon")
