"""Concurrent claimers, and the cost of their statements."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from perdure.core.model.claim import ClaimRequest
from perdure.core.model.run import Status
from perdure.core.model.turn import Finish, Turn, TurnOutcome
from perdure.core.time.duration import NEVER
from perdure.store.postgres import claim as claiming
from perdure.store.postgres.store import PostgresStore
from perdure.store.postgres.transaction import PostgresTransaction
from perdure.testing.conformance.harness import (
    ACTOR,
    OTHER_TYPE,
    TYPE,
    a_park,
    a_record,
    a_run,
    a_worker,
    claim,
    lease_of,
)
from tests.servers.claimers import claimed_by_many, create_many, statements_of_idle_workers, taken_of_timers

PROVE = bool(os.environ.get("PERDURE_PROVE"))
RUNS = 20_000 if PROVE else 4_000
DUE = 100_000 if PROVE else 2_000


def without_notifications(seen: list[str]) -> Callable[[str], None]:
    """A trace without notifications, which follow the commits of some time on a connection of their own."""

    def note(statement: str) -> None:
        if "pg_notify" not in statement:
            seen.append(statement)

    return note


async def test_many_claimers_take_each_run_once_and_all_of_them(store: PostgresStore, url: str) -> None:
    await create_many(store, RUNS)
    claimed = await claimed_by_many(url, RUNS)
    assert len(claimed) == RUNS
    assert set(claimed.values()) == {1}


async def test_timers_that_are_due_at_one_instant_are_all_taken(store: PostgresStore) -> None:
    assert await taken_of_timers(store, DUE) == DUE


async def test_an_idle_claim_is_one_statement(store: PostgresStore) -> None:
    await store.register(a_worker())
    seen: list[str] = []
    await store.trace(without_notifications(seen))
    request = ClaimRequest(worker="w1", nonce="n", limit=10, types=(TYPE,))
    assert (await store.claim(request)).runs == ()
    await asyncio.sleep(0)
    assert len(seen) == 1


@pytest.mark.usefixtures("straight")
async def test_turns_of_nothing_but_records_are_one_statement(store: PostgresStore) -> None:
    await create_many(store, 2)
    leases = [await lease_of(store, f"r{number:06}", nonce="n") for number in range(2)]
    seen: list[str] = []
    await store.trace(without_notifications(seen))
    for seq in range(2):
        seen.clear()
        turns = [Turn(lease=lease, records=(a_record(2 * seq), a_record(2 * seq + 1))) for lease in leases]
        assert await store.commit(turns, ACTOR) == [TurnOutcome.APPLIED, TurnOutcome.APPLIED]
        await asyncio.sleep(0)
    assert len(seen) == 1


PAIRS = (["default"], [TYPE])
FREE = (*PAIRS, NEVER, 2, "w1", 0, ["w1"])
READY = (None, None, "w1", "nonce", 0, 44, 6, bytes(16 * 50), 2, "1.0", "default", TYPE)
MANY = (*READY[:10], ["default"] * 40, [TYPE, *(f"t{number}" for number in range(39))])
HOT = {
    "take of many": (claiming.take_ready(40), MANY, "perdure_runs_to_claim"),
    "by priority": (claiming.BY_PRIORITY, (*FREE, 50), "perdure_runs_to_claim"),
    "by age": (claiming.BY_AGE, (*FREE, 50, []), "perdure_runs_to_claim_by_age"),
    "take": (claiming.take_ready(1), READY, "perdure_runs_to_claim_by_age"),
    "wake": (claiming.WAKE, (NEVER - 1, 512), "perdure_runs_to_wake"),
    "suspects": (claiming.SUSPECTS, (*PAIRS, NEVER, 2, 64), "perdure_runs_suspect"),
}


@pytest.mark.plans
@pytest.mark.parametrize("informed", [True, False], ids=["analyzed", "never analyzed"])
@pytest.mark.parametrize("name", HOT)
async def test_the_plan_follows_its_index_and_sorts_nothing(store: PostgresStore, name: str, *, informed: bool) -> None:
    await create_many(store, 3000)
    await create_many_waiting(store)
    if informed:
        await store.query("ANALYZE perdure_runs")
    sql, params, index = HOT[name]
    plan = [row[0] for row in await explain(store, sql, params)]
    assert any(f"using {index} " in line for line in plan), plan
    # The runs of several types are merged by a sort; ranges of the index are not sorted.
    scans = [scan for place, line in enumerate(plan) if "LockRows" in line for scan in below(plan, place)]
    assert scans, plan
    assert not [scan for scan in scans if "Sort" in scan or "Seq Scan" in scan or "Bitmap" in scan], plan
    if name.startswith("take"):
        # The few pauses are joined to the types.
        bad = [line for line in plan if "Join Filter" in line and "p.kind" not in line]
        assert not [*bad, *(line for line in plan if "Seq Scan on perdure_runs" in line)], plan


@pytest.mark.usefixtures("straight")
async def test_a_claim_and_a_finish_are_one_statement_each_however_many_runs(store: PostgresStore) -> None:
    await create_many(store, 60)
    await store.register(a_worker())
    seen: list[str] = []
    await store.trace(without_notifications(seen))
    for number in range(2):
        seen.clear()
        request = ClaimRequest(worker="w1", nonce=f"n{number}", limit=30, by_age=3, types=(TYPE, OTHER_TYPE))
        claimed = await store.claim(request)
        assert len(claimed.runs) == 30
        done = Finish(Status.COMPLETED, "1")
        turns = [Turn(lease=one.lease, records=(a_record(0),), next=done) for one in claimed.runs]
        assert set(await store.commit(turns, ACTOR)) == {TurnOutcome.APPLIED}
        await asyncio.sleep(0)
    assert len(seen) == 2


@pytest.mark.usefixtures("straight")
async def test_runs_that_one_worker_lost_are_claimed_in_one_statement(store: PostgresStore) -> None:
    await create_many(store, 60)
    await store.register(a_worker())
    await store.query("UPDATE perdure_runs SET claims = 1, token = 1")
    seen: list[str] = []
    await store.trace(without_notifications(seen))
    claimed = await store.claim(ClaimRequest(worker="w1", nonce="n", limit=30, types=(TYPE,)))
    await asyncio.sleep(0)
    assert (len(claimed.runs), {one.run.claims for one in claimed.runs}, claimed.suspects) == (30, {2}, False)
    assert len(seen) == 1


async def test_a_suspect_behind_very_many_interrupted_runs_is_found_after_them(store: PostgresStore) -> None:
    await create_many(store, claiming._INTERRUPTED + 1)
    await store.register(a_worker())
    last = f"r{claiming._INTERRUPTED:06}"
    await store.query("UPDATE perdure_runs SET claims = 1, token = 1")
    await store.query(f"UPDATE perdure_runs SET claims = 2, priority = priority + 1 WHERE id = '{last}'")
    request = ClaimRequest(worker="w1", nonce="n1", limit=claiming._INTERRUPTED, types=(TYPE,))
    first = await store.claim(request)
    assert (len(first.runs), first.suspects) == (claiming._INTERRUPTED, False)
    assert last not in {one.run.id for one in first.runs}
    second = await store.claim(replace(request, nonce="n2"))
    assert (second.runs, second.suspects) == ((), True)


async def test_looking_for_many_results_is_one_statement_whatever_their_number(store: PostgresStore) -> None:
    await create_many(store, 9)
    seen: set[str] = set()
    await store.trace(seen.add)
    for count in range(1, 10):
        assert len(await store.get_many([f"r{number:06}" for number in range(count)])) == count
    await asyncio.sleep(0)
    assert len([sql for sql in seen if "perdure_runs" in sql and "pg_notify" not in sql]) == 1


def below(plan: list[str], place: int) -> list[str]:
    """Yield the nodes below one node of a plan."""

    def depth(line: str) -> int:
        return len(line) - len(line.lstrip())

    lines: list[str] = []
    for line in plan[place + 1 :]:
        if depth(line) <= depth(plan[place]):
            break
        lines.append(line)
    return lines


async def create_many_waiting(store: PostgresStore) -> None:
    # Many more runs than one claim wakes: for a few, fetching and sorting all is the better plan.
    await store.create([a_run(f"s{number}", wake_at=NEVER - 5000 + number) for number in range(4000)], ACTOR)
    [(waiting,)] = await store.query("SELECT COUNT(*) FROM perdure_runs WHERE status = 'waiting'")
    assert waiting == 4000


async def explain(store: PostgresStore, sql: str, params: tuple[object, ...]) -> list[tuple[str]]:
    async def ask(tx: PostgresTransaction) -> list[tuple[str]]:
        if sql is claiming.WAKE:
            await tx.run(claiming.IN_ORDER)
        return [(row[0],) for row in await tx.run(f"EXPLAIN (COSTS OFF) {sql}", *params)]

    async with asyncio.timeout(20):
        return await store._write("explain", ACTOR, ask)


async def test_a_run_that_another_session_locked_is_busy_and_its_neighbours_land(
    store: PostgresStore, url: str
) -> None:
    import asyncpg

    leases = {}
    for name in ("held", "free"):
        await store.create([a_run(name)], ACTOR)
        leases[name] = await lease_of(store, name)
    schema = url.rpartition("schema=")[2]
    other = await asyncpg.connect(url.partition("?")[0])
    transaction = other.transaction()
    await transaction.start()
    await other.execute(f"SELECT 1 FROM {schema}.perdure_runs WHERE id = 'held' FOR UPDATE")
    records = [Turn(lease=leases[name], records=(a_record(0),)) for name in ("held", "free")]
    assert await store.commit(records, ACTOR) == [TurnOutcome.BUSY, TurnOutcome.APPLIED]
    parks = [Turn(lease=leases[name], next=a_park()) for name in ("held", "free")]
    assert await store.commit(parks, ACTOR) == [TurnOutcome.BUSY, TurnOutcome.APPLIED]
    await transaction.rollback()
    await other.close()
    assert await store.commit([records[0], parks[0]], ACTOR) == [TurnOutcome.APPLIED, TurnOutcome.APPLIED]
    assert len(await store.history("held")) == len(await store.history("free")) == 1


async def test_a_claim_that_passes_over_a_locked_run_asks_for_another_claim_soon(
    store: PostgresStore, url: str
) -> None:
    """The sender of a message locks the run; nothing announces that the run is free again."""
    import asyncpg

    for name in ("held", "free"):
        await store.create([a_run(name)], ACTOR)
    await store.now()
    schema = url.rpartition("schema=")[2]
    other = await asyncpg.connect(url.partition("?")[0])
    transaction = other.transaction()
    await transaction.start()
    await other.execute(f"SELECT 1 FROM {schema}.perdure_runs WHERE id = 'held' FOR UPDATE")
    claimed = await claim(store, limit=10)
    await transaction.rollback()
    await other.close()
    assert [one.run.id for one in claimed.runs] == ["free"]
    assert claimed.next_wake <= claimed.now + claiming.MOMENT
    claimed = await claim(store, limit=10, nonce="another")
    assert [one.run.id for one in claimed.runs] == ["held"]


@pytest.mark.usefixtures("straight")
async def test_eight_idle_workers_cost_the_server_less_than_ten_statements_a_second(url: str) -> None:
    seen = await statements_of_idle_workers(url)
    assert seen.total() / 4 < 10, seen
