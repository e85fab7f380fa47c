"""Concurrent claimers, and the cost of their statements."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from perdure.core.model.claim import ClaimRequest
from perdure.core.model.run_orders import Pause, PauseKind
from perdure.core.model.turn import Release, Turn, TurnOutcome
from perdure.core.time.duration import NEVER
from perdure.store.mysql import claim as claiming
from perdure.store.mysql.driver import MysqlConnector
from perdure.store.mysql.store import MysqlStore
from perdure.store.mysql.transaction import MysqlTransaction, Sql, sql_list
from perdure.store.sql import watermarks
from perdure.store.sql.runs import claim
from perdure.store.url import MysqlUrl, parse
from perdure.testing.conformance.harness import ACTOR, TYPE, a_park, a_record, a_run, a_worker, lease_of
from tests.servers.claimers import claimed_by_many, create_many, statements_of_idle_workers, taken_of_timers

PROVE = bool(os.environ.get("PERDURE_PROVE"))
RUNS = 20_000 if PROVE else 2_000
DUE = 100_000 if PROVE else 2_000


async def test_many_claimers_take_each_run_once_and_all_of_them(store: MysqlStore, url: str) -> None:
    await create_many(store, RUNS)
    races: Counter[str] = Counter()
    claimed = await claimed_by_many(url, RUNS, races)
    assert len(claimed) == RUNS
    assert set(claimed.values()) == {1}
    assert not races


async def test_timers_that_are_due_at_one_instant_are_all_taken(store: MysqlStore) -> None:
    assert await taken_of_timers(store, DUE) == DUE


async def test_an_idle_claim_is_one_statement(store: MysqlStore) -> None:
    await store.register(a_worker())
    await store.get("warm")
    request = ClaimRequest(worker="w1", nonce="n", limit=10, types=(TYPE,))
    seen = await traced(store)
    assert (await store.claim(request)).runs == ()
    assert len(seen) == 1


async def test_a_claim_that_finds_only_what_is_paused_is_one_statement_too(store: MysqlStore) -> None:
    await store.register(a_worker())
    await store.create([a_run(f"r{number}") for number in range(20)], ACTOR)
    await store.pause(Pause(kind=PauseKind.TYPE, name=TYPE), ACTOR)
    assert (await store.claim(ClaimRequest(worker="w1", nonce="n", limit=10, types=(TYPE,)))).runs == ()
    seen = await traced(store)
    assert (await store.claim(ClaimRequest(worker="w1", nonce="m", limit=10, types=(TYPE,)))).runs == ()
    assert len(seen) == 1


async def traced(store: MysqlStore) -> list[str]:
    """Collect the statements that the store sends from now on, on open connections."""
    seen: list[str] = []
    await store.trace(seen.append)
    await store.get("warm")
    seen.clear()
    return seen


#: Statements, each with its values and the index that it has to use.
VALUES = {
    "now": NEVER,
    "known": NEVER,
    "worker": "w1",
    "nonce": "n",
    "alive": sql_list(["w1", "w2"]),
    "queues": sql_list(["default"]),
    "types": sql_list([TYPE]),
    "queue": "default",
    "type": TYPE,
    "claims_below": 2,
    "suspect_after": 2,
    "left_before": 0,
    "limit": 50,
    "pairs": Sql(f"SELECT 'default' AS queue, '{TYPE}' AS type UNION ALL SELECT 'default', 't2'"),
    "after": "",
}
HOT = {
    "by priority": (claiming.BY_PRIORITY, "perdure_runs_to_claim"),
    "by age": (claiming.BY_AGE, "perdure_runs_to_claim_by_age"),
    "suspects": (claiming.SUSPECTS, "perdure_runs_to_claim"),
    "due": (claiming.DUE, "perdure_runs_to_wake"),
}


async def test_the_plans_of_a_claim_follow_their_indexes_and_sort_nothing(store: MysqlStore) -> None:
    # Many more runs than one claim takes: for a few, any plan would do.
    await create_many(store, DUE)
    await create_many(store, DUE, "s", wake_at=NEVER - 1)
    await store.query("ANALYZE TABLE perdure_runs")
    for name, (template, index) in HOT.items():
        [plan] = await explain(store, template)
        assert plan["key"] == index, name
        assert "filesort" not in str(plan["Extra"]), name
        assert "temporary" not in str(plan["Extra"]), name
    # In a page, the names of the pairs come from another table.
    for template, index in [
        (claiming.PAGE_BY_PRIORITY, "perdure_runs_to_claim"),
        (claiming.PAGE_BY_AGE, "perdure_runs_to_claim_by_age"),
    ]:
        plans = [plan for plan in await explain(store, template, **claiming.PAIR) if plan["table"] == "perdure_runs"]
        assert [plan["key"] for plan in plans] == [index, index]
        assert not {"filesort", "temporary"} & set(str([plan["Extra"] for plan in plans]).replace(";", " ").split())
    for plan in await explain(store, claiming.PREVIEW):
        table = plan["table"]
        assert table in (None, "perdure_workers") or str(table).startswith("<derived") or plan["key"], plan
        assert "filesort" not in str(plan["Extra"]), plan
    # Scanning so many rows takes longer than a statement of the store may.
    for table in ("perdure_runs", "perdure_events"):
        await store.query(f"TRUNCATE TABLE {table}")


#: Statements that all databases share.
SHARED = {
    "in a queue": (watermarks._IN_QUEUE, "perdure_runs_to_claim"),
    "of a type": (watermarks._OF_TYPE, "perdure_runs_to_claim"),
    "ready to be pushed": (claim._READY, "perdure_runs_to_claim_by_age"),
    "due to be pushed": (
        claim._DUE.replace("{types}", ":types").replace("{queues}", ":queues"),
        "perdure_runs_to_wake",
    ),
}


async def test_what_is_ready_is_counted_and_pushed_along_the_same_indexes(store: MysqlStore) -> None:
    await create_many(store, DUE)
    await create_many(store, DUE, "s", wake_at=NEVER - 1)
    await store.query("ANALYZE TABLE perdure_runs")
    for name, (template, index) in SHARED.items():
        plans = await explain(store, template)
        assert index in [plan["key"] for plan in plans], (name, plans)
        assert "filesort" not in str([plan["Extra"] for plan in plans]), (name, plans)
    [plan] = await explain(store, watermarks._NEXT_QUEUE)
    # The server reads it while it plans.
    assert "optimized away" in str(plan["Extra"])
    for table in ("perdure_runs", "perdure_events"):
        await store.query(f"TRUNCATE TABLE {table}")


async def test_a_run_that_a_worker_had_since_it_was_chosen_is_not_taken_for_new(
    store: MysqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.register(a_worker())
    await store.create([a_run("r")], ACTOR)
    candidates = claiming._Claim._candidates

    async def overtaken(claim: claiming._Claim, claims_below: int) -> Any:
        found = await candidates(claim, claims_below)
        monkeypatch.undo()
        turn = Turn(lease=await lease_of(store, "r"), records=(a_record(0),), next=Release())
        assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        await store.query("UPDATE perdure_runs SET wake_at = 0 WHERE id = 'r'")
        return found

    monkeypatch.setattr(claiming._Claim, "_candidates", overtaken)
    [claimed] = (await store.claim(ClaimRequest(worker="w1", nonce="late", limit=10, types=(TYPE,)))).runs
    assert claimed.run.token > 1
    assert not claimed.fresh


async def explain(store: MysqlStore, template: str, **values: object) -> list[dict[str, object]]:
    async def ask(tx: MysqlTransaction) -> list[dict[str, object]]:
        [answer] = await tx.send("EXPLAIN FORMAT=TRADITIONAL " + tx.fill(template, **{**VALUES, **values}))
        names = ["id", "select_type", "table", *([] if len(answer.rows[0]) == 10 else ["partitions"]), "type"]
        names += ["possible_keys", "key", "key_len", "ref", "rows"]
        names += ["Extra"] if len(names) + 1 == len(answer.rows[0]) else ["filtered", "Extra"]
        return [dict(zip(names, row, strict=True)) for row in answer.rows]

    return await store._read("explain", ask)


async def test_a_run_that_another_session_locked_is_busy_and_its_neighbours_land(store: MysqlStore, url: str) -> None:
    leases = {}
    for name in ("held", "free"):
        await store.create([a_run(name)], ACTOR)
        leases[name] = await lease_of(store, name)
    where = parse(url)
    assert isinstance(where, MysqlUrl)
    other = await MysqlConnector(where).connect()
    await other.send(["BEGIN", "SELECT 1 FROM perdure_runs WHERE id = 'held' FOR UPDATE"])
    records = [Turn(lease=leases[name], records=(a_record(0),)) for name in ("held", "free")]
    assert await store.commit(records, ACTOR) == [TurnOutcome.BUSY, TurnOutcome.APPLIED]
    parks = [Turn(lease=leases[name], next=a_park()) for name in ("held", "free")]
    assert await store.commit(parks, ACTOR) == [TurnOutcome.BUSY, TurnOutcome.APPLIED]
    await other.send(["ROLLBACK"])
    await other.close_gracefully()
    assert await store.commit([records[0], parks[0]], ACTOR) == [TurnOutcome.APPLIED, TurnOutcome.APPLIED]
    assert len(await store.history("held")) == len(await store.history("free")) == 1


async def test_eight_idle_workers_cost_the_server_less_than_ten_statements_a_second(url: str) -> None:
    seen = await statements_of_idle_workers(url)
    assert seen.total() / 4 < 10, seen
