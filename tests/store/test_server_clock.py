"""What a process takes for the server's time: followed when the server's clock is set, and measured again when that was
long ago."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import Context, Engine, Status, workflow
from perdure.core.model.worker_info import WorkerStatus
from perdure.host import Host
from perdure.push import Pusher
from perdure.store import SqlStore, open_store
from perdure.store.server.clock import OLD, SET_BACK, ServerClock
from perdure.testing.conformance.harness import ACTOR, SECOND, ManualSystem, a_run, a_worker, claim, claim_ids
from tests.helpers import eventually
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas

MINUTE = 60 * SECOND


@pytest.fixture(params=["postgres", "mysql"])
async def server_url(request: pytest.FixtureRequest, schemas: Schemas, databases: Databases) -> AsyncIterator[str]:
    async with (schemas if request.param == "postgres" else databases).one() as url:
        yield url


@pytest.fixture
async def store(server_url: str) -> AsyncIterator[SqlStore]:
    store = open_store(server_url, Host())
    await store.open()
    yield store
    await store.close()


def clock_of(store: SqlStore) -> Any:
    clock = store._clock  # type: ignore[attr-defined] # a store on a server has one
    assert isinstance(clock, ServerClock)
    return clock


def shift(store: SqlStore, by: int) -> None:
    """Have a process take another time for the server's, as if the server's clock had been set by so much the other
    way."""
    clock = clock_of(store)
    clock._earliest += by
    clock._latest += by
    clock.now()


def lag(store: SqlStore, by: int) -> None:
    """Delay each answer of the server for this process, whose clock is behind by as much from now on."""
    clock = clock_of(store)
    finish = clock.finish_measurement
    clock.finish_measurement = lambda asked, server: finish(asked, server - by)
    clock._measured, clock._last = False, 0


def measured(server: int) -> tuple[ManualSystem, ServerClock]:
    system = ManualSystem()
    clock = ServerClock(system, None)
    clock.finish_measurement(clock.start_measurement(), server)
    return system, clock


def test_a_server_that_was_set_back_is_followed() -> None:
    _, clock = measured(10 * MINUTE)
    assert clock.now() == 10 * MINUTE
    clock.finish_measurement(clock.start_measurement(), 9 * MINUTE)
    assert clock.now() == 9 * MINUTE


def test_a_server_that_is_a_little_behind_is_waited_for() -> None:
    system, clock = measured(10 * MINUTE)
    clock.finish_measurement(clock.start_measurement(), 10 * MINUTE - SET_BACK // 2)
    assert clock.now() == 10 * MINUTE
    system.advance(1)
    assert clock.now() == 10 * MINUTE - SET_BACK // 2 + SECOND


def test_a_measurement_is_old_after_a_while() -> None:
    system, clock = measured(10 * MINUTE)
    ages: list[bool] = []
    for seconds in (OLD / SECOND, 1):
        system.advance(seconds)
        ages.append(clock.is_old)
    assert ages == [False, True]


async def test_a_sweep_after_the_servers_clock_was_set_back_takes_no_living_worker_for_dead(store: SqlStore) -> None:
    await store.register(a_worker("lives", lease=15 * SECOND))
    await store.create([a_run("overdue", deadline=await store.now() - SECOND)], ACTOR)
    assert await store.heartbeat("lives")
    shift(store, 10 * MINUTE)
    swept = await store.sweep(100)
    assert (swept.expired, swept.dead_workers) == (1, ())
    assert [worker.status for worker in await store.workers()] == [WorkerStatus.ALIVE]


async def test_a_claim_after_the_servers_clock_was_set_back_wakes_nothing_before_its_time(store: SqlStore) -> None:
    await store.create([a_run("later", wake_at=await store.now() + MINUTE), a_run("now")], ACTOR)
    shift(store, 10 * MINUTE)
    assert await claim_ids(store) == ["now"]
    assert await claim_ids(store, nonce="again") == []


@pytest.fixture
async def behind(store: SqlStore, server_url: str) -> AsyncIterator[SqlStore]:
    """The store of a process whose clock is behind, by more than two statements take on a busy machine."""
    behind = open_store(server_url, Host())
    await behind.open()
    lag(behind, 5 * SECOND)
    assert await behind.now() < await store.now() - 4 * SECOND
    yield behind
    await behind.close()


@pytest.mark.parametrize("older", [0, 1])
async def test_a_run_of_a_process_that_is_ahead_is_claimed_at_its_time(
    store: SqlStore, behind: SqlStore, older: int
) -> None:
    await behind.create([a_run(f"older-{n}") for n in range(older)], ACTOR)
    await store.create([a_run("r1")], ACTOR)
    first = await claim(behind)
    assert [one.run.id for one in first.runs] == [f"older-{n}" for n in range(older)]
    assert first.next_wake <= await store.now(), "it claims again as soon as the run is due for it"
    await eventually(lambda: behind.clock() >= first.next_wake)
    assert await claim_ids(behind, nonce="again") == ["r1"]


@workflow("clock.greeting.v1")
async def greeting(ctx: Context) -> str:
    return "hello"


async def test_a_pushed_run_of_a_process_that_is_ahead_is_executed_at_once(store: SqlStore, server_url: str) -> None:
    behind = open_store(server_url, Host())
    engine = Engine(server_url, [greeting], store=behind)
    async with engine, Pusher(engine) as pusher:
        await store.create([a_run("r1", type="clock.greeting.v1")], ACTOR)
        shift(behind, -SECOND // 2)
        clock_of(behind)._last = 0
        done = await pusher.execute("r1")
    assert (done.status, done.worked) == (Status.COMPLETED, True)


async def test_a_process_that_was_suspended_asks_for_the_time_before_it_writes(store: SqlStore) -> None:
    shift(store, -10 * MINUTE)
    clock_of(store)._last = 0
    clock_of(store)._measured_at -= 2 * OLD
    await store.create([a_run("r1")], ACTOR)
    run = await store.get("r1")
    assert run is not None
    assert abs(run.created_at - await store.now()) < MINUTE
    [claimed] = (await claim(store)).runs
    assert claimed.run.id == "r1"
