"""Sticky events: named values that are seen by those who listen before and after."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from perdure import Context, RunFailed, Status, workflow
from perdure.blocking import Context as BlockingContext
from perdure.blocking import Engine as BlockingEngine
from perdure.client.session import session_of
from perdure.core.model.events import StickyEvent
from perdure.errors import DecodeError, InvalidName, RunExists, UsageError
from tests.stage import Stage, until


@dataclass
class Rates:
    eur: float


@workflow("events.trade.v1")
async def trade(ctx: Context, name: str) -> float:
    return (await ctx.event(name, Rates)).eur


async def test_a_run_that_waits_for_a_value_of_another_type_is_blocked_and_names_the_event(stage: Stage) -> None:
    engine = stage.engine(trade)
    async with engine.worker():
        await engine.events.emit("rates", "closed")
        run = await engine.start(trade("rates"), id="t")
        await until(run, Status.BLOCKED)
        assert "cannot decode result of run 'sticky:rates', for which run 't' waits as Rates" in await run.why()


async def test_a_run_that_waits_gets_the_value_when_it_is_emitted(stage: Stage) -> None:
    engine = stage.engine(trade)
    async with engine.worker():
        runs = [await engine.start(trade("rates")) for _ in range(5)]
        for run in runs:
            await until(run, Status.WAITING)
        assert "'sticky:rates'" in await runs[0].why()
        assert await engine.events.emit("rates", Rates(1.25))
        assert [await run.result("20s") for run in runs] == [1.25] * 5
    assert [record.location for record in await runs[0].history()] == ["event"]


async def test_a_run_that_listens_later_gets_the_value_at_once(stage: Stage) -> None:
    engine = stage.engine(trade)
    await engine.events.emit("rates", Rates(1.25))
    async with engine.worker():
        assert await (await engine.start(trade("rates"))).result("20s") == 1.25


async def test_the_first_value_stays_unless_it_is_replaced(stage: Stage) -> None:
    engine = stage.engine(trade)
    assert await engine.events.emit("rates", 1)
    assert await engine.events.emit("rates", 1)
    assert not await engine.events.emit("rates", 2)
    first = await engine.events.get("rates")
    assert first is not None
    assert first == StickyEvent(name="rates", value=1, at=first.at)
    assert await engine.events.emit("rates", 2, replace=True)
    second = await engine.events.get("rates", int)
    assert second is not None
    assert (second.value, second.at >= first.at) == (2, True)


async def test_a_run_keeps_the_value_that_it_got(stage: Stage) -> None:
    @workflow("events.twice.v1")
    async def twice(ctx: Context) -> list[int]:
        first = await ctx.event("number", int)
        await ctx.receive("go")
        return [first, await ctx.event("number", int)]

    engine = stage.engine(twice)
    await engine.events.emit("number", 1)
    async with engine.worker():
        run = await engine.start(twice())
        await until(run, Status.WAITING)
    await engine.events.emit("number", 2, replace=True)
    await run.send("go")
    async with engine.worker():
        assert await run.result("20s") == [1, 2]


async def test_code_outside_waits_for_an_event_and_reads_it(stage: Stage) -> None:
    engine = stage.engine(trade)
    assert await engine.events.get("rates") is None
    with pytest.raises(TimeoutError, match="event 'rates' was not emitted within 0.01 s"):
        await engine.events.wait("rates", timeout=0.01)
    waiting = asyncio.ensure_future(engine.events.wait("rates", Rates, "20s"))
    await asyncio.sleep(0)
    await engine.events.emit("rates", Rates(2.0))
    assert await waiting == Rates(2.0)
    assert await engine.events.wait("rates", Rates) == Rates(2.0)
    with pytest.raises(DecodeError):
        await engine.events.get("rates", int)


async def test_events_are_listed_and_deleted(stage: Stage) -> None:
    engine = stage.engine(trade)
    for number in range(3):
        await engine.events.emit(f"fx-{number}", number)
    await engine.events.emit("other")
    assert {event.name: event.value for event in await engine.events.list(prefix="fx-")} == {
        "fx-0": 0,
        "fx-1": 1,
        "fx-2": 2,
    }
    assert len(await engine.events.list()) == 4
    assert len(await engine.events.list(limit=2)) == 2
    assert await engine.events.delete("fx-1", "old")
    assert not await engine.events.delete("fx-1")
    assert await engine.events.get("fx-1") is None
    assert await engine.events.emit("fx-1", "anew")
    assert [event.value for event in await engine.events.list(prefix="fx-1")] == ["anew"]


async def test_an_event_that_is_only_waited_for_is_neither_listed_nor_deleted(stage: Stage) -> None:
    engine = stage.engine(trade)
    async with engine.worker():
        await until(await engine.start(trade("rates")), Status.WAITING)
        assert await engine.events.list() == []
        assert await engine.events.get("rates") is None
        assert not await engine.events.delete("rates")


async def test_old_events_are_pruned_as_runs_are(stage: Stage) -> None:
    engine = stage.engine(trade)
    await engine.events.emit("rates", 1)
    assert (await engine.runs.prune("0s", types="perdure.sticky")).runs == 1
    assert await engine.events.get("rates") is None


async def test_a_value_of_another_type_fails_the_wait(stage: Stage) -> None:
    engine = stage.engine(trade)
    await engine.events.emit("rates", "none")
    async with engine.worker():
        run = await engine.start(trade("rates"))
        await until(run, Status.BLOCKED)


async def test_an_event_that_is_cancelled_raises_in_those_that_wait(stage: Stage) -> None:
    engine = stage.engine(trade)
    async with engine.worker():
        run = await engine.start(trade("rates"))
        await until(run, Status.WAITING)
        await engine.cancel("sticky:rates", "no rates today")
        with pytest.raises(RunFailed, match="no rates today"):
            await run.result("20s")
        assert await engine.events.emit("rates", Rates(1.0))
        assert await (await engine.start(trade("rates"))).result("20s") == 1.0


async def test_events_are_listed_whatever_number_of_other_runs_came_since(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = stage.engine(trade)
    for name in ("a", "b", "c"):
        await engine.events.emit(name)
    await engine.start_many([trade("rates") for _ in range(9)])
    store = session_of(engine).store
    # It examines so few runs for one page.
    monkeypatch.setattr(store, "list", partial(store.list, scan=2))
    assert {event.name for event in await engine.events.list()} == {"a", "b", "c"}
    assert len(await engine.events.list(limit=2)) == 2


async def test_bad_names_and_ids_of_other_runs_are_refused(stage: Stage) -> None:
    engine = stage.engine(trade)
    bad: Any = 7
    for name in ("", "a/b", "x" * 201, bad):
        with pytest.raises(InvalidName):
            await engine.events.emit(name)
        with pytest.raises(InvalidName):
            await engine.events.wait(name, timeout="1s")
    for prefix in (bad, "\0"):
        with pytest.raises(UsageError, match="prefix="):
            await engine.events.list(prefix=prefix)
    with pytest.raises(UsageError):
        await engine.events.emit("rates", 1, replace=bad)
    await engine.start(trade("other"), id="sticky:rates")
    with pytest.raises(RunExists, match="'sticky:rates' belongs to a run that is no event"):
        await engine.events.emit("rates", 1)
    assert await engine.events.get("rates") is None


async def test_a_def_workflow_waits_for_an_event(stage: Stage) -> None:
    @workflow("events.blocking.v1")
    def blocking(ctx: BlockingContext) -> float:
        return ctx.event("rates", Rates).eur

    engine = stage.engine(blocking)
    async with engine.worker():
        run = await engine.start(blocking())
        await engine.events.emit("rates", Rates(3.0))
        assert await run.result("20s") == 3.0


def test_a_blocking_engine_has_events(tmp_path: Any) -> None:
    with BlockingEngine(f"sqlite:///{tmp_path}/runs.db") as engine:
        assert engine.events.emit("rates", 1)
        assert engine.events.wait("rates", int, "5s") == 1
        assert [event.name for event in engine.events.list()] == ["rates"]
        assert engine.events.delete("rates")
        assert engine.events.get("rates") is None
