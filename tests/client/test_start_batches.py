"""Concurrent starts of one process share transactions, and each has an outcome of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from perdure import Context, Engine, RunExists, workflow
from perdure.core.model.run import CreatedRun, NewRun
from perdure.errors import StoreUnavailable
from perdure.host import Host
from perdure.store import Store, open_store


@workflow("batches.echo.v1")
async def echo(ctx: Context, value: int) -> int:
    return value


class GatedStore:
    """A store whose creations wait for a gate, and that records how many runs each of them had."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.gate = asyncio.Event()
        self.sizes: list[int] = []
        self.error: Exception | None = None
        #: Called when a creation begins, with its number.
        self.begun: Callable[[int], object] = lambda number: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(self, runs: Sequence[NewRun], actor: str, *, all_or_none: bool = False) -> list[CreatedRun]:
        self.sizes.append(len(runs))
        await self.gate.wait()
        self.begun(len(self.sizes))
        await asyncio.sleep(0)
        if self.error is not None and len(runs) > 1:
            raise self.error
        return await self._store.create(runs, actor, all_or_none=all_or_none)


@pytest.fixture
async def store() -> GatedStore:
    return GatedStore(open_store("sqlite://", Host()))


def engine_on(store: GatedStore) -> Engine:
    return Engine("sqlite://", [echo], store=store)


async def started(engine: Engine, store: GatedStore, count: int, **options: Any) -> list[asyncio.Task[Any]]:
    """Begin so many starts; the first is in progress and the others wait."""
    if not store.sizes:
        # The first start of an engine also connects and reads watermarks.
        store.gate.set()
        await engine.start(echo(0))
        store.gate.clear()
    store.sizes.clear()
    tasks = [asyncio.ensure_future(engine.start(echo(number), **options)) for number in range(count)]
    for _ in range(200):
        await asyncio.sleep(0)
    return tasks


async def test_starts_that_wait_for_one_in_progress_share_a_transaction(store: GatedStore) -> None:
    async with engine_on(store) as engine:
        tasks = await started(engine, store, 50)
        store.gate.set()
        handles = await asyncio.gather(*tasks)
        assert store.sizes == [1, 49]
        assert len({handle.id for handle in handles}) == 50
        found = [await handle.info() for handle in handles]
        assert [run.input for run in found] == [f'{{"value":{number}}}' for number in range(50)]
        # Nothing waits while the store is idle.
        await engine.start(echo(1))
        assert store.sizes == [1, 49, 1]


async def test_a_start_that_is_refused_does_not_refuse_those_beside_it(store: GatedStore) -> None:
    async with engine_on(store) as engine:
        store.gate.set()
        await engine.start(echo(1), id="taken")
        store.gate.clear()
        good = await started(engine, store, 3)
        same = asyncio.ensure_future(engine.start(echo(1), id="taken"))
        other = asyncio.ensure_future(engine.start(echo(2), id="taken"))
        twice = [asyncio.ensure_future(engine.start(echo(3), id="twice")) for _ in range(2)]
        for _ in range(20):
            await asyncio.sleep(0)
        store.gate.set()
        with pytest.raises(RunExists, match="another input"):
            await other
        assert (await same).id == "taken"
        assert {handle.id for handle in await asyncio.gather(*twice)} == {"twice"}
        assert len({handle.id for handle in await asyncio.gather(*good)}) == 3
        assert store.sizes == [1, 6]


async def test_an_error_of_a_batch_has_each_start_tried_alone(store: GatedStore) -> None:
    async with engine_on(store) as engine:
        store.error = ValueError("one of them cannot be stored")
        tasks = await started(engine, store, 4)
        store.gate.set()
        handles = await asyncio.gather(*tasks)
        assert store.sizes == [1, 3, 1, 1, 1]
        assert len({handle.id for handle in handles}) == 4


async def test_a_database_that_is_gone_is_reported_to_all_and_not_asked_by_each(store: GatedStore) -> None:
    async with engine_on(store) as engine:
        store.error = StoreUnavailable("gone")
        tasks = await started(engine, store, 4)
        store.gate.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes[1:]] == [StoreUnavailable] * 3
        assert store.sizes == [1, 3]


@pytest.mark.parametrize("victim", [0, 1, 2], ids=["in progress", "next leader", "follower"])
async def test_a_start_that_is_cancelled_does_not_hold_up_the_others(store: GatedStore, victim: int) -> None:
    async with engine_on(store) as engine:
        tasks = await started(engine, store, 5)
        tasks[victim].cancel()
        store.gate.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(outcomes[victim], asyncio.CancelledError)
        assert len({handle.id for handle in outcomes if not isinstance(handle, BaseException)}) == 4
        runs = (await engine.runs.list(limit=10)).runs
        assert len(runs) == 5


async def test_a_leader_that_is_cancelled_before_it_begins_passes_its_place_on(
    store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_on(store) as engine:
        tasks = await started(engine, store, 4)
        queue = next(iter(engine._session.start_batches._queues.values()))
        pass_on = queue.pass_on

        def pass_on_to_the_cancelled() -> None:
            pass_on()
            tasks[1].cancel()

        monkeypatch.setattr(queue, "pass_on", pass_on_to_the_cancelled)
        store.gate.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(outcomes[1], asyncio.CancelledError)
        assert len({handle.id for handle in outcomes if not isinstance(handle, BaseException)}) == 3
        # The queue is empty, so that the next start begins at once.
        assert not engine._session.start_batches._queues
        await engine.start(echo(1))


async def test_a_leader_that_is_cancelled_in_the_middle_has_its_followers_tried_alone(store: GatedStore) -> None:
    async with engine_on(store) as engine:
        tasks = await started(engine, store, 4)
        store.begun = lambda number: tasks[1].cancel() if number == 2 else None
        store.gate.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(outcomes[1], asyncio.CancelledError)
        assert len({handle.id for handle in outcomes if not isinstance(handle, BaseException)}) == 3


async def test_runs_with_attributes_are_created_alone(store: GatedStore) -> None:
    async with engine_on(store) as engine:
        tasks = await started(engine, store, 3, attributes={"customer": "c1"})
        store.gate.set()
        await asyncio.gather(*tasks)
        assert store.sizes == [1, 1, 1]
        assert len((await engine.runs.list(attributes={"customer": "c1"})).runs) == 3
