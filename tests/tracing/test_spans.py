"""Spans of one process: which there are, their parents and links, and the context that travels."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased

from perdure import Context, Engine, Every, Limit, Retry, activity, blocking, workflow
from perdure.core.model.turn import Finish, Turn, TurnOutcome
from perdure.core.tracing import Tracer
from perdure.errors import RunCancelled, RunFailed, StoreUnavailable, UsageError
from perdure.middleware import Invocation, Middleware, Next
from perdure.store.user_connections.transaction_step import TransactionStep
from perdure.tracing import Tracing
from tests.helpers import eventually
from tests.stage import Stage
from tests.tracing.collector import Spans, of_sdk
from tests.tracing.shop import WORKFLOWS, mail, order, pack

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE}-{CALLER}-01"}


class Recorder:
    """A tracer provider that keeps its spans."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider(sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = self.provider.get_tracer("tests")

    @property
    def spans(self) -> Spans:
        return Spans(of_sdk(self._kept.get_finished_spans()))

    @asynccontextmanager
    async def engine(self, *workflows: Any, link_after: str = "1h", **options: Any) -> AsyncIterator[Engine]:
        tracing = Tracing(self.provider, link_after=link_after)
        async with (
            Engine("sqlite://", workflows or WORKFLOWS, tracing=tracing, **options) as engine,
            # Each park forgets the run, so that what follows is a replay.
            engine.worker(resident=0, retry=Retry(attempts=2, initial="10ms")),
        ):
            yield engine

    async def until(self, name: str) -> Spans:
        await eventually(lambda: bool(self.spans.named(name)))
        return self.spans


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


async def test_a_run_that_is_replayed_again_and_again_has_each_span_once(recorder: Recorder) -> None:
    async with recorder.engine() as engine:
        with recorder.tracer.start_as_current_span("caller"):
            run = await engine.start(order())
        await run.send("go", "now")
        assert await run.result() == "hello"
        spans = await recorder.until("run shop.order.v1")
    spans.check()
    assert spans.told() == {
        ("caller", 0, ""): 1,
        ("step charge", 1, "failed"): 1,
        ("step charge", 2, "succeeded"): 1,
        ("timer sleep", 0, ""): 1,
        ("message go", 0, ""): 1,
        ("child shop.ship.v1", 0, ""): 1,
        ("run shop.ship.v1", 0, "completed"): 1,
        ("step pack", 1, "succeeded"): 1,
        ("child shop.mail.v1", 0, ""): 1,
        ("activity shop.mail.v1", 1, "failed"): 1,
        ("activity shop.mail.v1", 2, "succeeded"): 1,
        ("run shop.order.v1", 0, "completed"): 1,
    }
    assert len({one.trace_id for one in spans.all}) == 1
    assert spans.parent(spans.one("run shop.order.v1")) == "caller"
    assert {spans.parent(one) for one in spans.named("activity shop.mail.v1")} == {"child shop.mail.v1"}
    assert spans.parent(spans.one("step pack")) == "run shop.ship.v1"
    assert spans.one("timer sleep").end - spans.one("timer sleep").start >= 200_000_000
    failed = next(one for one in spans.named("step charge") if one.failed)
    assert (failed.attributes["error.type"], failed.attributes["perdure.location"]) == ("ConnectionError", "charge")


def inner() -> str:
    with trace.get_tracer("user").start_as_current_span("inner"):
        return baggage.get_baggage("tenant") or "none"  # type: ignore[return-value]


async def current() -> str:
    return f"{trace.get_current_span().get_span_context().trace_id:032x}"


class Passing(Middleware):
    async def step(self, call: Invocation, next: Next, /) -> Any:
        return await next(call)

    activity = step


def on_connection(connection: Any) -> str:
    return f"{trace.get_current_span().get_span_context().trace_id:032x}"


@activity("spans.look.v1")
def look() -> str:
    return f"{trace.get_current_span().get_span_context().trace_id:032x} {baggage.get_baggage('tenant')}"


@workflow("spans.looks.v1")
async def looks(ctx: Context) -> list[str]:
    return [
        await ctx.step(inner),
        await ctx.step(current),
        await ctx.transaction(on_connection),
        await ctx.call(look()),
    ]


@pytest.mark.parametrize("middleware", [(), (Passing(),)])
async def test_functions_see_the_span_of_their_attempt_and_the_baggage(
    recorder: Recorder, middleware: tuple[Middleware, ...], on_disk: Stage
) -> None:
    engine = on_disk.engine(looks, look, tracing=Tracing(recorder.provider), middleware=middleware)
    async with engine, engine.worker():
        token = attach(baggage.set_baggage("tenant", "acme"))
        try:
            with recorder.tracer.start_as_current_span("caller") as caller:
                run = await engine.start(looks())
        finally:
            detach(token)
        trace_id = f"{caller.get_span_context().trace_id:032x}"
        assert await run.result() == ["acme", trace_id, trace_id, f"{trace_id} acme"]
        spans = await recorder.until("run spans.looks.v1")
        assert (await run.info()).headers["baggage"] == "tenant=acme"
    spans.check()
    assert spans.told()[("step on_connection", 1, "succeeded")] == 1


async def test_a_trace_that_is_not_sampled_has_no_spans_and_its_context_travels() -> None:
    recorder = Recorder(ParentBased(ALWAYS_OFF))
    async with recorder.engine(looks, look) as engine:
        run = await engine.start(looks())
        _, in_step, _, in_activity = await run.result()
        assert in_step == in_activity.split()[0] != "0" * 32
        [child] = (await engine.runs.list(type="spans.look.v1")).runs
        assert child.headers["traceparent"].startswith(f"00-{in_step}-")
        assert child.headers["traceparent"].endswith("-00")
        sampled = await engine.start(looks(), headers=PARENT)
        await sampled.result()
        spans = await recorder.until("run spans.looks.v1")
    assert {one.trace_id for one in spans.all} == {int(TRACE, 16)}


async def test_runs_without_a_producer_are_sampled_as_a_whole() -> None:
    recorder = Recorder(ParentBased(TraceIdRatioBased(0.5)))
    async with recorder.engine(looks, look) as engine:
        runs = [await engine.start(looks(), id=f"run-{number}") for number in range(20)]
        await asyncio.gather(*(run.result() for run in runs))
    spans = recorder.spans
    complete = {one.attributes["perdure.run.id"] for one in spans.named("run spans.looks.v1")}
    assert 0 < len(complete) < 20
    assert len(spans.named("step inner")) == len(spans.named("activity spans.look.v1")) == len(complete)
    spans.check()


@workflow("spans.rounds.v1")
async def rounds(ctx: Context, left: int) -> str:
    await ctx.step(pack)
    return "done" if not left else ctx.continue_as_new(rounds(left - 1))


async def test_a_parent_that_may_be_days_old_is_a_link(recorder: Recorder) -> None:
    async with recorder.engine(rounds, link_after="0s") as engine:
        late = await engine.start(rounds(0), headers=PARENT)
        await late.result()
        spans = await recorder.until("run spans.rounds.v1")
        root = spans.one("run spans.rounds.v1")
        assert (root.parent_id, root.links) == (0, (int(CALLER, 16),))
        assert root.trace_id != int(TRACE, 16)
        assert spans.one("step pack").trace_id == root.trace_id
    spans.check()


async def test_each_generation_and_each_run_of_a_schedule_has_a_trace_of_its_own(recorder: Recorder) -> None:
    async with recorder.engine(rounds) as engine:
        await (await engine.start(rounds(1), headers=PARENT)).result()
        await engine.schedules.create("often", rounds(0), Every("1s"), headers=PARENT)
        await eventually(lambda: len(recorder.spans.named("run spans.rounds.v1")) >= 3)
        await engine.schedules.delete("often")
    spans = recorder.spans
    first, second, scheduled, *_ = spans.named("run spans.rounds.v1")
    assert (first.told[2], first.trace_id, first.parent_id) == ("continued", int(TRACE, 16), int(CALLER, 16))
    assert (second.told[2], second.parent_id, second.links) == ("completed", 0, (int(CALLER, 16),))
    assert (scheduled.parent_id, scheduled.links) == (0, (int(CALLER, 16),))
    assert len({one.trace_id for one in (first, second, scheduled)}) == 3


async def refuse() -> None:
    raise ValueError("never")


@workflow("spans.failing.v1", retry=Retry(attempts=2, initial="10ms"))
async def failing(ctx: Context) -> str:
    await ctx.step(pack)
    await ctx.sleep(0.15)
    await ctx.options(retry=Retry.never()).step(refuse)
    return ""


async def test_attempts_at_a_run_have_a_span_each_and_repeat_no_spans_of_reused_results(recorder: Recorder) -> None:
    async with recorder.engine(failing) as engine:
        run = await engine.start(failing())
        with pytest.raises(RunFailed):
            await run.result()
        await eventually(lambda: len(recorder.spans.named("run spans.failing.v1")) == 2)
    spans = recorder.spans
    spans.check()
    assert [one.told[2] for one in spans.named("run spans.failing.v1")] == ["retrying", "failed"]
    assert len({one.trace_id for one in spans.all}) == 1
    assert len(spans.named("step refuse")) == 2
    assert len(spans.named("step pack")) == len(spans.named("timer sleep")) == 1


async def forever() -> None:
    await asyncio.Event().wait()


@workflow("spans.stopped.v1")
async def stopped(ctx: Context) -> None:
    await ctx.step(forever)


@workflow("spans.current.v1")
async def tells(ctx: Context) -> str:
    return await ctx.step(current)


@workflow("spans.leaving.v1")
async def leaving(ctx: Context, how: str) -> str:
    if how == "lets go":
        ctx.spawn(stopped(), on_close="abandon")
        return ""
    if how == "times out":
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await ctx.call(stopped())
        # The end of the child arrives meanwhile, and another replay follows.
        await ctx.sleep(0.3)
        return ""
    child = ctx.spawn(stopped())
    # A replay follows.
    await ctx.sleep(0.2)
    if how == "fails":
        raise ValueError("no")
    if how == "waits":
        await child
    if how == "continues":
        return ctx.continue_as_new(leaving("lets go"))
    if how == "cancels":
        child.cancel()
        # Until the end of the child has arrived, on a busy machine, too.
        await ctx.sleep(2.0)
    return ""


@pytest.mark.parametrize("how", ["returns", "fails", "cancels", "times out", "waits", "continues", "lets go"])
async def test_a_child_that_its_parent_leaves_behind_has_a_parent_in_the_trace(recorder: Recorder, how: str) -> None:
    count = 2 if how == "continues" else 1
    async with recorder.engine(leaving, stopped) as engine:
        run = await engine.start(leaving(how), id="leaving")
        if how == "waits":
            await eventually(lambda: bool(recorder.spans.named("timer sleep")))
            await run.cancel()
        with suppress(RunFailed, RunCancelled):
            await run.result()
        for left in (await engine.runs.list(type="spans.stopped.v1")).runs:
            await (await engine.get(left.id)).cancel()
        await eventually(lambda: len(recorder.spans.named("run spans.leaving.v1")) == count)
        await eventually(lambda: len(recorder.spans.named("run spans.stopped.v1")) == count)
    spans = recorder.spans
    spans.check()
    children = spans.named("child spans.stopped.v1")
    assert [one.told[2] for one in children] == ["" if how == "cancels" else "abandoned"] * count
    parents = {one.span_id: one for one in spans.named("run spans.leaving.v1")}
    left_behind = {one.parent_id: one for one in spans.named("run spans.stopped.v1")}
    assert left_behind.keys() == {one.span_id for one in children}
    for child in children:
        parent = parents[child.parent_id]
        # It begins with the call, and neither with the replay that follows nor with the end of the parent.
        assert parent.start <= child.start <= left_behind[child.span_id].start
        assert child.start <= child.end <= parent.end


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ALWAYS_ON])
async def test_runs_with_a_trace_leave_nothing_to_the_collector_of_garbage(sampler: Sampler) -> None:
    found: list[object] = []
    async with Recorder(ParentBased(sampler)).engine(tells) as engine:
        for number in range(2):
            gc.collect()
            gc.disable()
            try:
                for handle in await engine.start_many([tells()] * 20):
                    await handle.result()
                gc.set_debug(gc.DEBUG_SAVEALL)
                gc.collect()
                found = [one for one in gc.garbage if type(one).__name__ in ("_RunTrace", "_RunSpan")]
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()
            assert not found, (number, found[:3])


@workflow("spans.looks-again.v1")
async def looks_again(ctx: Context) -> list[str]:
    return [await ctx.step(current), await ctx.step(inner), await ctx.call(look())]


async def test_the_span_of_an_attempt_waits_until_its_record_is_durable(
    recorder: Recorder, on_disk: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = on_disk.engine(looks_again, look, tracing=Tracing(recorder.provider))
    store, reached, go_on = on_disk.store, asyncio.Queue[int](), asyncio.Queue[int]()
    assert store is not None
    commit = store.commit

    async def wait_and_commit(turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        # With the record of a step or the outcome of an activity. A worker that was killed now would repeat it.
        if any(one.records or isinstance(one.next, Finish) for one in turns):
            reached.put_nowait(time.time_ns())
            await go_on.get()
        return await commit(turns, actor)

    monkeypatch.setattr(store, "commit", wait_and_commit)
    async with engine, engine.worker():
        run = await engine.start(looks_again())
        for name in ("step current", "step inner", "activity spans.look.v1"):
            ended = await reached.get()
            assert recorder.spans.named(name) == []
            go_on.put_nowait(1)
            assert (await recorder.until(name)).one(name).end <= ended
        go_on.put_nowait(1)
        await run.result()
        spans = await recorder.until("run spans.looks-again.v1")
    spans.check()
    assert {one.told[2] for one in spans.all if one.name.startswith(("step", "activity"))} == {"succeeded"}


@workflow("spans.transacts.v1")
async def transacts(ctx: Context) -> str:
    return await ctx.transaction(on_connection)


async def test_a_transaction_step_whose_answer_was_lost_has_one_span_with_the_true_outcome(
    recorder: Recorder, on_disk: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = on_disk.engine(transacts, tracing=Tracing(recorder.provider))
    assert on_disk.store is not None
    transact = on_disk.store.transact

    async def transact_and_lose(step: TransactionStep) -> None:
        await transact(step)
        raise StoreUnavailable("the answer was lost")

    monkeypatch.setattr(on_disk.store, "transact", transact_and_lose)
    async with engine, engine.worker():
        await (await engine.start(transacts())).result()
        spans = await recorder.until("run spans.transacts.v1")
    spans.check()
    assert spans.one("step on_connection").told == ("step on_connection", 1, "succeeded")


@activity("spans.limited.v1", limit=Limit("one-at-once", concurrency=1))
async def limited() -> None:
    await asyncio.sleep(0.2)


async def test_a_claim_tells_how_long_its_run_has_waited_for_a_limit(recorder: Recorder) -> None:
    async with recorder.engine(limited) as engine:
        for handle in await engine.start_many([limited(), limited()]):
            await handle.result()
        await eventually(lambda: len(recorder.spans.named("activity spans.limited.v1")) == 2)
    first, second = (one.attributes for one in sorted(recorder.spans.named("claim"), key=lambda one: one.end))
    assert second["perdure.limit.wait"] >= first["perdure.limit.wait"] + 0.2


async def test_an_attempt_that_is_cancelled_has_a_span(recorder: Recorder) -> None:
    async with recorder.engine(stopped) as engine:
        run = await engine.start(stopped())
        await eventually(lambda: bool(recorder.spans.named("claim")))
        await run.cancel()
        spans = await recorder.until("run spans.stopped.v1")
    spans.check()
    assert spans.one("run spans.stopped.v1").told[2] == "cancelled"
    assert {one.told[2] for one in spans.named("step forever")} <= {"cancelled"}


async def test_a_run_that_plain_sql_wrote_goes_on_with_the_trace_in_its_headers(
    recorder: Recorder, on_disk: Stage
) -> None:
    engine = on_disk.engine(*WORKFLOWS, tracing=Tracing(recorder.provider))
    async with engine:
        assert on_disk.path is not None
        with closing(sqlite3.connect(on_disk.path)) as connection, connection:
            sql = "INSERT INTO perdure_runs (type, input, options) VALUES (?, ?, ?)"
            connection.execute(sql, (mail.type, '{"text": "x"}', json.dumps({"headers": PARENT})))
        async with engine.worker():
            spans = await recorder.until("activity shop.mail.v1")
    assert {(one.trace_id, one.parent_id) for one in spans.named("activity shop.mail.v1")} == {
        (int(TRACE, 16), int(CALLER, 16))
    }


def test_an_engine_refuses_what_is_no_tracing() -> None:
    with pytest.raises(UsageError, match="Tracing"):
        Engine("sqlite://", tracing=Tracing)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="link_after"):
        Tracing(link_after="soon")


async def test_without_a_tracer_provider_there_are_no_spans_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with Engine("sqlite://", [rounds], tracing=Tracing()) as engine, engine.worker():
        assert await (await engine.start(rounds(0))).result() == "done"
    assert "set a tracer provider" in caplog.text


def test_the_blocking_client_passes_the_span_of_its_caller_on(recorder: Recorder) -> None:
    with blocking.Engine("sqlite://", [rounds], tracing=Tracing(recorder.provider)) as engine, engine.worker():
        with recorder.tracer.start_as_current_span("caller"):
            run = engine.start(rounds(0))
        assert run.result() == "done"
    spans = recorder.spans
    spans.check()
    assert spans.parent(spans.one("run spans.rounds.v1")) == "caller"


class Broken(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError("no disk")


@pytest.mark.timeout(60)
async def test_a_processor_that_fails_does_not_harm_the_run(caplog: pytest.LogCaptureFixture) -> None:
    provider = TracerProvider()
    provider.add_span_processor(Broken())
    async with Engine("sqlite://", [looks, look], tracing=Tracing(provider)) as engine, engine.worker():
        assert len(await (await engine.start(looks())).result()) == 4
    assert "has no span" in caplog.text


@pytest.mark.parametrize("given", [Tracing, Tracer, object(), "otlp"])
def test_an_option_that_is_no_tracer_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="takes an instance of perdure.tracing.Tracing"):
        Engine("sqlite://", [], tracing=given)
