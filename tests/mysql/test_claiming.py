"""Many claimers at once, and what their statements cost."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from perdure import Context, Engine, workflow
from perdure.core.model import FAR, ClaimRequest, Finish, Status, Turn, Verdict
from perdure.host import Host
from perdure.store import open_store
from perdure.store.mysql import claim as claiming
from perdure.store.mysql.driver import Way
from perdure.store.mysql.literals import listed
from perdure.store.mysql.store import MysqlStore
from perdure.store.mysql.transaction import MysqlTransaction
from perdure.store.url import MysqlUrl, parse
from perdure.testing.conformance.harness import ACTOR, OTHER_TYPE, TYPE, a_park, a_record, a_run, a_worker, lease_of

PROVE = bool(os.environ.get("PERDURE_PROVE"))
RUNS = 20_000 if PROVE else 2_000
DUE = 100_000 if PROVE else 2_000
CLAIMERS = 8


@workflow("idle.v1")
async def nothing_to_do(ctx: Context) -> None: ...


async def create_many(store: MysqlStore, count: int, letter: str = "r", **changes: object) -> None:
    for start in range(0, count, 1000):
        numbers = range(start, min(start + 1000, count))
        await store.create([a_run(f"{letter}{number:06}", **changes) for number in numbers], ACTOR)


async def test_many_claimers_take_each_run_once_and_all_of_them(store: MysqlStore, url: str) -> None:
    await create_many(store, RUNS)
    claimed: Counter[str] = Counter()

    async def work(name: str) -> None:
        mine = open_store(url, Host())
        await mine.open()
        await mine.register(a_worker(name))
        for number in range(RUNS):
            request = ClaimRequest(worker=name, nonce=f"{name}-{number}", limit=50, by_age=6, types=(TYPE, OTHER_TYPE))
            got = await mine.claim(request)
            assert len(got.runs) <= 50
            claimed.update(one.run.id for one in got.runs)
            turns = [Turn(lease=one.lease, next=Finish(Status.COMPLETED, "1")) for one in got.runs]
            # Another claimer that has just found out that a run is not ready any more may still have its row.
            while turns:
                verdicts = await mine.commit(turns, name)
                assert set(verdicts) <= {Verdict.APPLIED, Verdict.BUSY}
                turns = [turn for turn, verdict in zip(turns, verdicts, strict=True) if verdict is Verdict.BUSY]
            if not got.runs and got.next_wake == FAR:
                break
        await mine.close()

    before = await deadlocks(store)
    await asyncio.gather(*(work(f"w{number}") for number in range(CLAIMERS)))
    assert len(claimed) == RUNS
    assert set(claimed.values()) == {1}
    assert await deadlocks(store) == before


async def deadlocks(store: MysqlStore) -> int:
    """How often the server had to break a circle so far; 0 where it does not count."""
    rows = await store.query("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
    return int(rows[0][1]) if rows else 0


async def test_timers_that_are_due_at_one_instant_are_all_taken(store: MysqlStore) -> None:
    now = await store.now()
    await create_many(store, DUE, wake_at=now + 1)
    await store.register(a_worker())
    taken: set[str] = set()
    for number in range(DUE // 10):
        request = ClaimRequest(worker="w1", nonce=f"n{number}", limit=100, types=(TYPE,))
        taken.update(one.run.id for one in (await store.claim(request)).runs)
        if len(taken) == DUE:
            return
    pytest.fail(f"only {len(taken)} of {DUE} were taken")


async def test_an_idle_claim_is_one_statement(store: MysqlStore) -> None:
    await store.register(a_worker())
    await store.get("warm")
    request = ClaimRequest(worker="w1", nonce="n", limit=10, types=(TYPE,))
    seen = await traced(store)
    assert (await store.claim(request)).runs == ()
    assert len(seen) == 1


async def traced(store: MysqlStore) -> list[str]:
    """What the store sends from now on, on connections that are open already."""
    seen: list[str] = []
    await store.trace(seen.append)
    await store.get("warm")
    seen.clear()
    return seen


#: Each with its values and with the index that it is to follow.
VALUES = {
    "now": FAR,
    "worker": "w1",
    "nonce": "n",
    "alive": listed(["w1", "w2"]),
    "queues": listed(["default"]),
    "types": listed([TYPE]),
    "queue": "default",
    "type": TYPE,
    "claims_below": 2,
    "left_before": 0,
    "limit": 50,
}
HOT = {
    "by priority": (claiming.BY_PRIORITY, "perdure_runs_to_claim"),
    "by age": (claiming.BY_AGE, "perdure_runs_to_claim_by_age"),
    "due": (claiming.DUE, "perdure_runs_to_wake"),
}


async def test_the_plans_of_a_claim_follow_their_indexes_and_sort_nothing(store: MysqlStore) -> None:
    # Many more than one claim takes: of few, any plan would do.
    await create_many(store, DUE)
    await create_many(store, DUE, "s", wake_at=FAR - 1)
    await store.query("ANALYZE TABLE perdure_runs")
    for name, (template, index) in HOT.items():
        [plan] = await explain(store, template)
        assert plan["key"] == index, name
        assert "filesort" not in str(plan["Extra"]), name
        assert "temporary" not in str(plan["Extra"]), name
    for plan in await explain(store, claiming.LOOK):
        assert plan["table"] in (None, "perdure_workers") or plan["key"], plan
        assert "filesort" not in str(plan["Extra"]), plan


async def explain(store: MysqlStore, template: str) -> list[dict[str, object]]:
    async def ask(tx: MysqlTransaction) -> list[dict[str, object]]:
        [answer] = await tx.send("EXPLAIN FORMAT=TRADITIONAL " + tx.text(template, **VALUES))
        names = ["id", "select_type", "table", *([] if len(answer.rows[0]) == 10 else ["partitions"]), "type"]
        names += ["possible_keys", "key", "key_len", "ref", "rows"]
        names += ["Extra"] if len(names) + 1 == len(answer.rows[0]) else ["filtered", "Extra"]
        return [dict(zip(names, row, strict=True)) for row in answer.rows]

    return await store._read("explain", ask)


async def test_a_run_that_somebody_else_has_locked_is_busy_and_its_neighbours_land(store: MysqlStore, url: str) -> None:
    leases = {}
    for name in ("held", "free"):
        await store.create([a_run(name)], ACTOR)
        leases[name] = await lease_of(store, name)
    where = parse(url)
    assert isinstance(where, MysqlUrl)
    other = await Way(where).connect()
    await other.send(["BEGIN", "SELECT 1 FROM perdure_runs WHERE id = 'held' FOR UPDATE"])
    records = [Turn(lease=leases[name], records=(a_record(0),)) for name in ("held", "free")]
    assert await store.commit(records, ACTOR) == [Verdict.BUSY, Verdict.APPLIED]
    parks = [Turn(lease=leases[name], next=a_park()) for name in ("held", "free")]
    assert await store.commit(parks, ACTOR) == [Verdict.BUSY, Verdict.APPLIED]
    await other.send(["ROLLBACK"])
    await other.say_goodbye()
    assert await store.commit([records[0], parks[0]], ACTOR) == [Verdict.APPLIED, Verdict.APPLIED]
    assert len(await store.history("held")) == len(await store.history("free")) == 1


async def test_eight_idle_workers_cost_the_server_less_than_ten_statements_a_second(url: str) -> None:
    host = Host()
    stores = [open_store(url, host) for _ in range(8)]
    seen: list[str] = []
    engines = [Engine(url, [nothing_to_do], system=host, store=store) for store in stores]
    async with AsyncExitStack() as stack:
        for engine, store in zip(engines, stores, strict=True):
            await stack.enter_async_context(engine)
            await store.trace(seen.append)
            await stack.enter_async_context(engine.worker())
        # Polls begin quickly and become slower while nothing happens.
        await asyncio.sleep(8)
        seen.clear()
        await asyncio.sleep(4)
        assert len(seen) / 4 < 10, Counter(text[:60] for text in seen)
