"""Timelines: of invented histories, where each number is known, and of real runs on SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Context, Engine, Handle, Retry, step, step_info, workflow
from perdure.client.session import session_of
from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.reports import ChildLink
from perdure.core.model.run import Run, Status
from perdure.core.model.waits import RunWaits, Wait, WaitKind
from perdure.core.model.worker_info import RunningStep
from perdure.core.time.duration import NEVER
from perdure.dashboard.timeline import (
    QUEUED,
    ROWS,
    BarKind,
    BarState,
    RunFacts,
    Scale,
    TimelineView,
    as_of,
    draw,
    folded,
    idle_times,
    read_lanes,
    read_marks,
)
from tests.helpers import eventually

SECOND = 1_000_000
DAY = 86_400 * SECOND
T0 = 1_800_000_000 * SECOND


def a_run(**changes: Any) -> Run:
    run = Run(
        id="order-42", type="checkout", queue="default", priority=100, status=Status.RUNNING, reason=None, input="{}",
        output=None, error=None, attempt=1, generation=1, token=1, nonce="n", worker="w", wake_at=0, deadline=NEVER,
        created_at=T0, started_at=T0, finished_at=0, seed="s", inbox_seq=0, inbox_read=0, claims=0, parent_id=None,
        parent_location=None, idempotency_key=None,
    )  # fmt: skip
    return msgspec.structs.replace(run, **changes)


def a_record(seq: int, location: str, start: float, end: float, **changes: Any) -> Record:
    record = Record(
        seq=seq, kind=RecordKind.STEP, location=location, payload="1", at=T0 + round(end * SECOND),
        started_at=T0 + round(start * SECOND), attempts=1,
    )  # fmt: skip
    return msgspec.structs.replace(record, **changes)


def failed_attempt(seq: int, location: str, start: float, end: float, number: int) -> Record:
    error = '{"type":"shop.CardDeclined","message":"do not honour"}'
    return a_record(
        seq, location, start, end, kind=RecordKind.ATTEMPT, failed=True, payload=error, attempts=number
    )  # fmt: skip


def facts(records: Sequence[Record], end: float = 10, run: Run | None = None, **others: Any) -> RunFacts:
    return RunFacts(run=run or a_run(), records=records, now=T0 + round(end * SECOND), **others)


def test_each_attempt_is_a_bar_and_each_retry_wait_a_gap() -> None:
    history = [
        failed_attempt(0, "charge", 0, 1, 1),
        failed_attempt(1, "charge", 2, 3, 2),
        a_record(2, "charge", 5, 6, attempts=3),
    ]
    (lane,) = read_lanes(facts(history))
    assert [(bar.kind, bar.state, (bar.start - T0) / SECOND, (bar.end - T0) / SECOND) for bar in lane.bars] == [
        (BarKind.WORK, BarState.FAILED, 0, 1),
        (BarKind.RETRY, BarState.WAITING, 1, 2),
        (BarKind.WORK, BarState.FAILED, 2, 3),
        (BarKind.RETRY, BarState.WAITING, 3, 5),
        (BarKind.WORK, BarState.COMPLETED, 5, 6),
    ]
    assert [bar.error for bar in lane.bars if bar.error] == ["CardDeclined", "CardDeclined"]


def test_a_bar_never_carries_the_message_of_an_error() -> None:
    found = draw(facts([failed_attempt(0, "charge", 0, 1, 1)]), TimelineView())
    assert "do not honour" not in msgspec.json.encode(found).decode()


def test_parallel_steps_overlap_and_rows_are_in_the_order_of_their_start() -> None:
    history = [a_record(0, "second", 1, 2), a_record(1, "first", 0, 3)]
    assert [lane.location for lane in read_lanes(facts(history))] == ["first", "second"]


def test_sleeps_children_and_messages_are_waits() -> None:
    child = ChildLink(id="order-42/ship", parent_location="ship", created_at=0)
    history = [
        a_record(0, "sleep", 0, 2, kind=RecordKind.TIMER, payload=None, attempts=0),
        a_record(1, "ship", 2, 4, kind=RecordKind.CHILD, attempts=0),
        a_record(2, "approval", 0, 9, kind=RecordKind.MESSAGE, started_at=0, attempts=0),
    ]
    sleep, ship, approval = read_lanes(facts(history, children=[child]))
    assert (sleep.kind, sleep.bars[0].kind) == ("timer", BarKind.WAIT)
    assert (ship.kind, ship.child, ship.bars[0].kind) == ("child", "order-42/ship", BarKind.CHILD)
    # A message has no start of its own; the run did nothing since the record before.
    assert (approval.bars[0].start - T0, approval.bars[0].end - T0) == (4 * SECOND, 9 * SECOND)


def test_a_running_step_lasts_until_now() -> None:
    running = RunningStep(run_id="order-42", type="checkout", location="ship", attempt=2, since=T0 + SECOND, token=1)
    (lane,) = read_lanes(facts([], running=[running]))
    (bar,) = lane.bars
    assert (bar.state, bar.attempt, bar.start, bar.end) == (BarState.RUNNING, 2, T0 + SECOND, T0 + 10 * SECOND)


def test_open_waits_are_bars_that_end_now() -> None:
    waits = RunWaits(
        token=1,
        waits=(
            Wait(kind=WaitKind.MESSAGE, name="approval", since=T0 + SECOND),
            Wait(kind=WaitKind.RETRY, name="charge", until=T0 + 60 * SECOND),
            Wait(kind=WaitKind.CHILD, name="order-42/ship", since=T0, detail="ship"),
            Wait(kind=WaitKind.LIMIT, name="external", detail="fetch", since=T0),
        ),
    )
    child = ChildLink(id="order-42/ship", parent_location="ship#1", created_at=0)
    found = facts([failed_attempt(0, "charge", 0, 1, 1)], waits=waits, children=[child])
    lanes = {lane.location: lane for lane in read_lanes(found)}
    assert {lane.bars[-1].state for lane in lanes.values()} == {BarState.WAITING}
    assert [bar.kind for bar in lanes["charge"].bars] == [BarKind.WORK, BarKind.RETRY]
    assert lanes["ship#1"].child == "order-42/ship"
    assert lanes["fetch"].kind == "limit"


def test_a_takeover_is_a_mark_and_the_interrupted_attempt_a_bar() -> None:
    lost = Interruption(
        at=T0 + 5 * SECOND, worker="w1", reason="lost", generation=1, attempt=1, last=0, steps=("ship",)
    )
    found = facts([a_record(0, "charge", 0, 1), a_record(1, "ship", 6, 7, attempts=2)], interruptions=[lost])
    ship = read_lanes(found)[1]
    assert [bar.state for bar in ship.bars] == [BarState.INTERRUPTED, BarState.WAITING, BarState.COMPLETED]
    (mark,) = read_marks(found)
    assert (mark.kind, mark.at) == ("takeover", lost.at)
    assert "w1" in mark.text


def test_a_worker_that_was_lost_before_the_first_bar_has_its_mark_in_the_window() -> None:
    lost = Interruption(at=T0 + SECOND, worker="w1", reason="lost", generation=1, attempt=1, last=-1, steps=None)
    earlier = Interruption(at=T0 - 60 * SECOND, worker="w0", reason="lost", generation=0, attempt=1, last=9, steps=())
    since = T0 + 2 * SECOND
    running = RunningStep(run_id="order-42", type="checkout", location="ship", attempt=2, since=since, token=1)
    drawn = draw(facts([], running=[running], interruptions=[earlier, lost]), TimelineView())
    assert [(one.mark.kind, one.mark.at, one.x) for one in drawn.marks] == [("takeover", lost.at, 0.0)]
    assert (drawn.begin, drawn.rows[0].shapes[0].bar.start) == (lost.at, since)


def test_steps_that_a_retry_of_the_run_kept_are_drawn_once() -> None:
    again = a_record(2, "charge", 20, 21, run_attempt=2)
    history = [a_record(0, "charge", 0, 1), again, a_record(3, "ship", 22, 23, run_attempt=2)]
    charge, _ = read_lanes(facts(history, end=30))
    assert [bar.seq for bar in charge.bars] == [0]
    assert [mark.kind for mark in read_marks(facts(history, end=30))] == ["attempt"]


def test_the_time_before_the_first_start_is_a_row_unless_it_was_short() -> None:
    late = a_run(created_at=T0 - 60 * SECOND)
    assert read_lanes(facts([a_record(0, "charge", 0, 1)], run=late))[0].location == QUEUED
    assert read_lanes(facts([a_record(0, "charge", 0, 1)]))[0].location == "charge"
    (waiting,) = read_lanes(facts([], run=a_run(started_at=0, status=Status.PENDING)))
    assert waiting.bars[0].state is BarState.WAITING


# folding


def test_a_long_sleep_is_folded_so_that_work_stays_visible() -> None:
    nap = a_record(1, "sleep", 1, 2 * 86_400, kind=RecordKind.TIMER, payload=None)
    history = [a_record(0, "charge", 0, 1), nap, a_record(2, "ship", 2 * 86_400, 2 * 86_400 + 1)]
    found = draw(facts(history, end=2 * 86_400 + 1), TimelineView())
    (fold,) = found.folds
    assert fold.text == "1 d 23 h"
    rows = {row.location: row for row in found.rows}
    assert rows["charge"].shapes[0].width > 40
    assert rows["ship"].shapes[0].width > 40
    true = draw(facts(history, end=2 * 86_400 + 1), TimelineView(true_scale=True))
    assert true.folds == ()
    assert true.foldable
    assert true.rows[0].shapes[0].width < 1


def test_equal_sleeps_are_all_folded_and_short_pauses_are_not() -> None:
    gaps = [(0, DAY), (DAY + SECOND, 2 * DAY), (2 * DAY + SECOND, 3 * DAY)]
    assert len(folded(gaps, 0, 3 * DAY + SECOND)) == 3
    assert folded([(0, SECOND)], 0, SECOND + 1) == []
    # Work that takes longer than the pause leaves the pause as it is.
    assert folded([(0, 20 * SECOND)], 0, 60 * SECOND) == []


def test_a_step_that_runs_for_days_is_work_and_not_folded() -> None:
    history = [a_record(0, "train", 0, 2 * 86_400), a_record(1, "save", 2 * 86_400, 2 * 86_400 + 1)]
    assert draw(facts(history, end=2 * 86_400 + 1), TimelineView()).folds == ()
    assert idle_times(read_lanes(facts(history)), T0, T0 + 3 * DAY) == [(T0 + 2 * DAY + SECOND, T0 + 3 * DAY)]


times = st.integers(0, 10 * DAY)


@given(bounds=st.tuples(times, times), cuts=st.lists(times, max_size=12), probes=st.lists(times, max_size=20))
def test_a_scale_keeps_the_order_of_times_and_stays_within_the_width(
    bounds: tuple[int, int], cuts: list[int], probes: list[int]
) -> None:
    edges = sorted(set(cuts))
    folds = list(zip(edges[::2], edges[1::2], strict=False))
    scale = Scale(min(bounds), max(bounds), folds)
    places = [scale.x(time) for time in sorted(probes)]
    assert all(0 <= place <= 100 + 1e-6 for place in places)
    assert all(a <= b + 1e-6 for a, b in pairwise(places))
    assert scale.x(scale.begin) == 0
    assert scale.x(scale.end) == 100
    assert sum(fold.width for fold in scale.folds) <= 100 + 1e-6
    for tick in scale.ticks(scale.begin):
        assert 0 <= tick.x <= 100


def test_a_position_gives_the_time_back() -> None:
    scale = Scale(T0, T0 + 3 * DAY, [(T0 + SECOND, T0 + DAY), (T0 + DAY + SECOND, T0 + 2 * DAY)])
    for time in (T0, T0 + SECOND // 2, T0 + DAY, T0 + DAY + SECOND // 3, T0 + 3 * DAY - SECOND):
        assert abs(scale.time(scale.x(time)) - time) < SECOND


def test_the_axis_counts_from_the_begin_and_goes_on_after_a_fold() -> None:
    scale = Scale(T0, T0 + DAY + 10 * SECOND, [(T0 + 5 * SECOND, T0 + DAY + 5 * SECOND)])
    texts = [tick.text for tick in scale.ticks(T0)]
    assert texts[:2] == ["0 s", "2 s"]
    assert any(text.startswith("1 d") for text in texts)


# levels of detail


def test_scopes_nest_and_all_are_open_while_there_are_few_rows() -> None:
    history = [a_record(0, "pages/~1/fetch", 0, 1), a_record(1, "pages/~2/fetch", 1, 2), a_record(2, "end", 2, 3)]
    rows = draw(facts(history), TimelineView()).rows
    assert [(row.label, row.depth, row.operations) for row in rows] == [
        ("pages", 0, 2),
        ("~1", 1, 1),
        ("fetch", 2, 0),
        ("~2", 1, 1),
        ("fetch", 2, 0),
        ("end", 0, 0),
    ]


def long_history(number: int) -> list[Record]:
    return [a_record(n, f"pages/~{n // 4}/fetch#{n % 4 + 1}", n, n + 0.5) for n in range(number)]


def test_scopes_of_a_long_history_are_closed_and_open_one_at_a_time() -> None:
    found = facts(long_history(1000), end=1001)
    (closed,) = draw(found, TimelineView()).rows
    assert (closed.location, closed.operations, closed.is_open) == ("pages/", 1000, False)
    one = draw(found, TimelineView(open=frozenset({"pages/", "pages/~7/"})))
    assert one.total == 1 + 250 + 1
    assert len(one.rows) == ROWS
    group = next(row for row in one.rows if row.kind == "group")
    assert (group.label, group.operations) == ("fetch", 4)
    last = draw(found, TimelineView(open=frozenset({"pages/"}), first=200))
    assert len(last.rows) == 51


def test_many_steps_of_one_name_are_a_group_of_merged_bars() -> None:
    history = [a_record(n, "fetch" if n == 0 else f"fetch#{n + 1}", n, n + 0.9) for n in range(10_000)]
    history[5000] = msgspec.structs.replace(history[5000], failed=True, payload='{"type":"Oops","message":""}')
    found = facts(history, end=10_000)
    (group,) = draw(found, TimelineView()).rows
    assert group.operations == 10_000
    assert len(group.shapes) < 1_000
    assert sum(shape.bar.count for shape in group.shapes) == 10_000
    assert group.state is BarState.FAILED
    (failed,) = [shape for shape in group.shapes if shape.bar.state is BarState.FAILED]
    assert failed.x == pytest.approx(50, abs=1)


def test_ten_thousand_records_are_drawn_in_a_bounded_size_and_time() -> None:
    found = facts(long_history(10_000), end=10_001)
    begun = process_time()
    drawn = draw(found, TimelineView(open=frozenset({"pages/"})))
    spent = process_time() - begun
    assert len(msgspec.json.encode(drawn)) < 400_000
    assert len(drawn.rows) == ROWS
    # It takes about 0.15 s here.
    assert spent < 3


def test_a_window_shows_only_what_is_in_it() -> None:
    found = facts([a_record(0, "charge", 0, 1), a_record(1, "ship", 8, 9)])
    drawn = draw(found, TimelineView(since=7 * SECOND, until=10 * SECOND, true_scale=True))
    assert drawn.zoomed
    rows = {row.location: row.shapes for row in drawn.rows}
    assert rows["charge"] == ()
    assert rows["ship"][0].x == pytest.approx(100 / 3)


@given(since=st.integers(-DAY, DAY), until=st.integers(-DAY, DAY), first=st.integers(-10, 10_000))
def test_any_window_can_be_drawn(since: int, until: int, first: int) -> None:
    drawn = draw(facts([a_record(0, "charge", 0, 1)]), TimelineView(since=since, until=until, first=first))
    assert drawn.since < drawn.until
    assert len(drawn.rows) == 1


# the scrubber


def test_the_past_has_no_later_records_and_shows_what_ran_then() -> None:
    history = [a_record(0, "charge", 0, 1), a_record(1, "label", 0.5, 4), a_record(2, "ship", 4, 5)]
    done = a_run(status=Status.COMPLETED, finished_at=T0 + 5 * SECOND)
    past = as_of(facts(history, run=done), 0)
    assert past.now == T0 + SECOND
    assert past.run.status is Status.RUNNING
    charge, label = read_lanes(past)
    assert charge.bars[0].state is BarState.COMPLETED
    assert (label.location, label.bars[0].state) == ("label", BarState.RUNNING)
    assert as_of(facts(history, run=done), 2).run is done


# real runs


@step(retry=Retry.fixed("1ms", attempts=4))
async def charge(cents: int) -> int:
    if step_info().attempt < 3:
        raise ConnectionError("the card network is down")
    return cents


async def fetch(number: int) -> int:
    return number


@workflow("timeline.child")
async def child(ctx: Context, number: int) -> int:
    return await ctx.step(fetch, number)


@workflow("timeline.order")
async def order(ctx: Context) -> int:
    await ctx.step(charge, 1)
    await ctx.sleep("2ms")
    await asyncio.gather(*(ctx.step(fetch, number) for number in range(3)))
    await ctx.call(child(4))
    await ctx.receive("approval", bool)
    return await ctx.step(fetch, 9)


async def read_facts(engine: Engine, handle: Handle[Any]) -> RunFacts:
    report = await handle.report()
    snapshot = await session_of(engine).store.snapshot(handle.id, children=10)
    assert snapshot is not None
    run = report.run
    return RunFacts(
        run=run, records=await handle.history(), interruptions=report.interruptions, waits=report.waits,
        running=report.running, children=snapshot.children, now=run.finished_at or run.created_at + 60 * SECOND,
    )  # fmt: skip


async def test_a_real_run_has_a_row_for_each_operation(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/a.db", [order, child]) as engine, engine.worker():
        handle = await engine.start(order(), id="order-42")
        await handle.send("approval", value=True)
        assert await handle.result() == 9
        found = await read_facts(engine, handle)
    drawn = draw(found, TimelineView())
    rows = {row.location: row for row in drawn.rows}
    assert {"charge", "sleep", "fetch", "fetch#2", "fetch#3", "timeline.child", "approval", "fetch#4"} <= {*rows}
    works = [shape.bar for shape in rows["charge"].shapes if shape.bar.kind is BarKind.WORK]
    assert sum(bar.count for bar in works) >= 3 or len(works) == 3
    assert rows["charge"].attempts == 3
    assert rows["timeline.child"].child == next(run.id for run in found.children)
    assert all(row.state is BarState.COMPLETED for row in drawn.rows)
    assert all(0 <= shape.x <= 100 and shape.x + shape.width <= 100.001 for row in drawn.rows for shape in row.shapes)


async def test_a_run_that_waits_shows_what_for(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/a.db", [order, child]) as engine, engine.worker():
        handle = await engine.start(order(), id="order-42")

        async def waits() -> bool:
            return (await handle.info()).reason == "message"

        await eventually(waits)
        drawn = draw(await read_facts(engine, handle), TimelineView())
    waiting = [row for row in drawn.rows if row.state is BarState.WAITING]
    assert [row.location for row in waiting] == ["approval"]
    assert drawn.foldable
