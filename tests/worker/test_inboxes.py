"""Inboxes that hold more than is read at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Context, RunCancelled, Status, workflow
from perdure.admin import RecordKind
from perdure.core.model.claim import LoadedRun
from perdure.core.model.record import Message, NewMessage
from perdure.store import SqlStore
from tests.stage import Stage, until

PAGE = 4
MANY = 5 * PAGE + 1


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqlStore, "inbox_page", PAGE)


@workflow("inboxes.collect.v1")
async def collecting(ctx: Context, count: int) -> list[int]:
    return [await ctx.receive("number", int) for _ in range(count)]


def numbers(run_id: str, *orders: RecordKind) -> list[NewMessage]:
    """Many numbers, and orders behind them."""
    many = [NewMessage(run_id=run_id, name="number", payload=f"{n}", key=f"number {n}") for n in range(MANY)]
    return [*many, *(NewMessage(run_id=run_id, kind=kind, payload='"enough"', key=f"{kind}") for kind in orders)]


def sizes_of_reads(store: Any) -> list[int]:
    """Return the number of entries that each later read of an inbox returns."""
    sizes: list[int] = []
    load, inbox, marked = store.load, store.inbox, store.unread_messages_of_worker

    async def loaded(run_ids: Any) -> list[LoadedRun]:
        found: list[LoadedRun] = await load(run_ids)
        sizes.extend(len(one.inbox) for one in found)
        return found

    async def read(*args: Any) -> list[Message]:
        found: list[Message] = await inbox(*args)
        sizes.append(len(found))
        return found

    async def told(worker: str) -> list[Message]:
        found: list[Message] = await marked(worker)
        sizes.append(len(found))
        return found

    store.load, store.inbox, store.unread_messages_of_worker = loaded, read, told
    return sizes


async def test_a_run_takes_in_a_long_inbox_page_by_page_and_in_order(stage: Stage) -> None:
    engine = stage.engine(collecting)
    run = await engine.start(collecting(MANY))
    assert stage.store is not None
    await stage.store.send(numbers(run.id), "test")
    sizes = sizes_of_reads(stage.store)
    async with engine.worker():
        assert await run.result("20s") == list(range(MANY))
    assert max(sizes) == PAGE


async def test_a_run_that_stayed_in_memory_takes_in_a_long_inbox_page_by_page(stage: Stage) -> None:
    engine = stage.engine(collecting)
    async with engine.worker():
        run = await engine.start(collecting(MANY))
        await until(run, Status.WAITING)
        assert stage.store is not None
        sizes = sizes_of_reads(stage.store)
        await stage.store.send(numbers(run.id), "test")
        assert await run.result("20s") == list(range(MANY))
    assert max(sizes) == PAGE


async def test_a_cancellation_behind_many_messages_reaches_a_step_that_is_under_way(stage: Stage) -> None:
    begun = asyncio.Event()

    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    @workflow("inboxes.busy.v1")
    async def busy(ctx: Context) -> None:
        await ctx.step(wait_for_ever)

    engine = stage.engine(busy)
    async with engine.worker():
        run = await engine.start(busy())
        await begun.wait()
        assert stage.store is not None
        await stage.store.send(numbers(run.id, RecordKind.CANCEL), "test")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result("20s")


async def test_a_pause_ends_where_its_end_is_however_far_behind(stage: Stage) -> None:
    engine = stage.engine(collecting)
    async with engine.worker():
        run = await engine.start(collecting(MANY))
        await until(run, Status.WAITING)
    assert await run.pause()
    assert stage.store is not None
    await stage.store.send(numbers(run.id), "test")
    assert await run.resume()
    async with engine.worker():
        assert await run.result("20s") == list(range(MANY))
