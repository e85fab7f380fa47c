"""Two servers that accept writes: a worker that has lost a run on one cannot write it on the other."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from perdure.core.model.claim import ClaimRequest
from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import Finish, Lease, Park, Turn, TurnOutcome
from perdure.host import Host
from perdure.store import open_store
from perdure.store.mysql import session
from perdure.store.mysql.store import MysqlStore
from perdure.store.user_connections.transaction_step import TransactionStep
from perdure.testing.conformance.harness import ACTOR, TYPE, a_message, a_record, a_run, a_worker
from tests.helpers import eventually
from tests.servers.databases import execute
from tests.servers.galera import Node, cluster
from tests.servers.private import Missing

#: Number of rows that keep the other server busy with replication for a while.
BULK = 30_000


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    try:
        nodes = cluster()
    except (Missing, RuntimeError) as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"a Galera cluster is needed: {missing}")
    yield nodes
    for node in nodes:
        node.remove()


def a_store(dsn: str) -> MysqlStore:
    store = open_store(dsn, Host())
    assert isinstance(store, MysqlStore)
    return store


async def _ready(node: Node) -> bool:
    rows = await execute(node.dsn, ["SHOW STATUS WHERE Variable_name IN ('wsrep_ready', 'wsrep_cluster_size')"])
    return {("wsrep_ready", "ON"), ("wsrep_cluster_size", "2")} <= set(rows)


async def _claim(store: MysqlStore, worker: str) -> Lease | None:
    claimed = await store.claim(ClaimRequest(worker=worker, nonce=worker, limit=1, types=(TYPE,)))
    return claimed.runs[0].lease if claimed.runs else None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", ["record", "records", "message"])
async def test_a_record_of_a_former_holder_is_refused_by_another_server(nodes: list[Node], case: str) -> None:
    for node in nodes:
        await eventually(
            lambda node=node: _ready(node),  # type: ignore[misc] # mypy infers no type for the default of a lambda
            within=60,
            saying="both servers in the cluster",
        )
    here, there = a_store(nodes[0].dsn), a_store(nodes[1].dsn)
    await here.open()
    await eventually(lambda: _has_tables(nodes[1]), within=60, saying="the tables on both servers")
    await there.open()
    try:
        run, former, latter = f"r-{case}", f"former-{case}", f"latter-{case}"
        await here.create([a_run(run)], ACTOR)
        await here.register(a_worker(former))
        lease = await _claim(here, former)
        assert lease is not None
        await eventually(lambda: _is_there(there, former), within=60, saying="both servers knowing the claim")
        await there.register(a_worker(latter))
        await _keep_busy(nodes[1], case)
        await there.retire(former)
        assert (taken := await _claim(there, latter)) is not None
        turn = _turn(lease, case)
        assert await eventually(lambda: _verdict(here, turn, former), within=60) is TurnOutcome.LOST
        assert await there.commit([Turn(lease=taken, records=(a_record(0),), next=_done())], latter) == [
            TurnOutcome.APPLIED
        ]
        assert [record.seq for record in await there.history(run)] == [0]
    finally:
        await there.query("DELETE FROM perdure_runs")
        await there.query("DELETE FROM perdure_history")
        for store in (here, there):
            await store.close()


def _turn(lease: Lease, case: str) -> Turn:
    match case:
        case "record":
            return Turn(lease=lease, records=(a_record(0),))
        case "records":
            return Turn(lease=lease, records=(a_record(0), a_record(1)))
        case _:
            return Turn(lease=lease, records=(a_record(0),), sends=(a_message(run_id="unknown"),))


def _done() -> Finish:
    return Finish(Status.COMPLETED, "1")


async def _verdict(store: MysqlStore, turn: Turn, actor: str) -> TurnOutcome | None:
    [verdict] = await store.commit([turn], actor)
    return None if verdict is TurnOutcome.BUSY else verdict


async def _keep_busy(node: Node, case: str) -> None:
    """Keep the other server busy with replication."""
    table = f"bulk_{case}"
    await execute(
        node.dsn,
        [
            f"CREATE TABLE {table} (id INT PRIMARY KEY, value CHAR(200))",
            f"INSERT INTO {table} SELECT seq, '' FROM seq_1_to_{BULK}",
            f"UPDATE {table} SET value = REPEAT('x', 200)",
        ],
    )


async def _has_tables(node: Node) -> bool:
    return bool(await execute(node.dsn, ["SHOW TABLES LIKE 'perdure_health'"]))


async def _is_there(store: MysqlStore, worker: str) -> bool:
    return bool(await store.query("SELECT 1 FROM perdure_runs WHERE worker = ?", [worker]))


async def test_every_commit_that_goes_on_writes_the_row_of_its_run(
    store: MysqlStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store on a single server that it takes for one of a cluster."""
    monkeypatch.setattr(session, "_CLUSTER", "SELECT 'wsrep_on', 'ON'")
    several = a_store(url)
    await several.open()
    await several.register(a_worker("w1"))
    await several.create([a_run("r1")], ACTOR)
    lease = await _claim(several, "w1")
    assert lease is not None
    turns = [
        Turn(lease=lease, records=(a_record(0),)),
        Turn(lease=lease, records=(a_record(1), a_record(2))),
        Turn(lease=lease, records=(a_record(3),), sends=(a_message(run_id="unknown"),)),
        Turn(lease=lease, next=Park(wake_at=0, reason=Reason.TIMER, seen=7)),
    ]
    row = "SELECT wake_at FROM perdure_runs WHERE id = 'r1'"
    for turn in turns:
        before = await several.query(row)
        assert (await several.commit([turn], "w1"))[0] in (TurnOutcome.APPLIED, TurnOutcome.AWAKE)
        assert await several.query(row) != before
    before = await several.query(row)

    async def work(connection: object) -> None:
        """Write nothing."""

    async def seal(result: object) -> Turn:
        return Turn(lease=lease, records=(a_record(4),))

    assert (
        await several.transact(TransactionStep(function=work, is_async=True, make_turn=seal, actor="w1"))
        is TurnOutcome.APPLIED
    )
    assert await several.query(row) != before
    await several.close()
