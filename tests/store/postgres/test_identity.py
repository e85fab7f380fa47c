"""The identity of a server: read with each connection, proved by each commit behind a pooler."""

from __future__ import annotations

import asyncpg
import pytest

from perdure.core.model.claim import ClaimRequest
from perdure.core.model.run import Status
from perdure.core.model.turn import Finish, Lease, Turn, TurnOutcome
from perdure.host import Host
from perdure.store import open_store
from perdure.store.contract import Change
from perdure.store.postgres import store as module
from perdure.store.postgres.driver import PostgresConnection
from perdure.store.postgres.session import ServerSession, fence, read_identity
from perdure.store.postgres.store import PostgresStore
from perdure.store.postgres.transaction import StatementCache
from perdure.store.server.identity import ServerIdentity
from perdure.testing.conformance.harness import ACTOR, TYPE, a_message, a_record, a_run, a_worker

TURNS = {
    "a record": lambda leases: [Turn(lease=leases[0], records=(a_record(0),))],
    "a record each": lambda leases: [Turn(lease=lease, records=(a_record(0),)) for lease in leases],
    "several records": lambda leases: [Turn(lease=lease, records=(a_record(0), a_record(1))) for lease in leases],
    "an outcome": lambda leases: [Turn(lease=lease, next=Finish(Status.COMPLETED, "1")) for lease in leases],
    "a message": lambda leases: [Turn(lease=leases[0], sends=(a_message("r9"),))],
}


async def _leases(store: PostgresStore) -> list[Lease]:
    await store.create([a_run(f"r{number}") for number in range(3)], ACTOR)
    await store.create([a_run("r9", type="another")], ACTOR)
    await store.register(a_worker())
    claimed = await store.claim(ClaimRequest(worker="w1", nonce="n", limit=3, types=(TYPE,)))
    return [one.lease for one in claimed.runs]


@pytest.mark.parametrize("case", TURNS)
@pytest.mark.usefixtures("straight")
async def test_behind_a_pooler_no_lease_holds_on_another_timeline(store: PostgresStore, case: str) -> None:
    leases = await _leases(store)
    turns: list[Turn] = TURNS[case](leases)
    ours = store._statements
    store._statements = StatementCache(store._tables, fence("FFFFFFFF"))
    assert set(await store.commit(turns, "w1")) == {TurnOutcome.BUSY}
    assert await store.query("SELECT 1 FROM perdure_history") == []
    assert await store.query("SELECT 1 FROM perdure_messages") == []
    store._statements = ours
    assert set(await store.commit(turns, "w1")) == {TurnOutcome.APPLIED}


@pytest.mark.usefixtures("straight")
async def test_a_pooler_that_leads_to_another_timeline_ends_every_life(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = await _leases(store)
    # Of the other store alone: this one may just now open a connection, which finds the same.
    changes: list[Change] = []

    async def pooled(connection: PostgresConnection) -> ServerSession:
        said = await read_identity(connection)
        return ServerSession(ServerIdentity("cluster/FFFFFFFF"), "FFFFFFFF", pooled=True) if not changes else said

    monkeypatch.setattr(module, "read_identity", pooled)
    other = open_store(url, Host())
    assert isinstance(other, PostgresStore)
    other.subscribe(lambda change: changes.append(change) if change is Change.REPLACED else None)
    await other.open()
    await other.register(a_worker("w2"))
    assert changes == []
    assert not await other.heartbeat("w2")
    assert Change.REPLACED in changes
    assert await other.commit([Turn(lease=leases[0], records=(a_record(0),))], "w2") == [TurnOutcome.LOST]
    await other.register(a_worker("w3"))
    assert await other.heartbeat("w3")
    await other.close()


async def test_a_server_that_went_back_ends_every_life(store: PostgresStore) -> None:
    leases = await _leases(store)
    assert await store.heartbeat("w1")
    changes: list[Change] = []
    store.subscribe(lambda change: changes.append(change) if change is Change.REPLACED else None)
    await store.query("UPDATE perdure_workers SET heartbeat_at = started_at - 1")
    assert not await store.heartbeat("w1")
    assert changes == [Change.REPLACED]
    assert await store.commit([Turn(lease=leases[0], records=(a_record(0),))], "w1") == [TurnOutcome.LOST]
    # Its registration ends on whatever server is there, and any worker may claim what it held.
    await store.retire("w1")
    await store.register(a_worker("w2"))
    claimed = await store.claim(ClaimRequest(worker="w2", nonce="n2", limit=3, types=(TYPE,)))
    assert len(claimed.runs) == len(leases)


async def test_a_server_that_does_not_say_who_it_is_is_used_all_the_same(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(connection: PostgresConnection) -> ServerSession:
        monkeypatch.setattr("perdure.store.postgres.session._WHO", "SELECT no_such_function()")
        return await read_identity(connection)

    monkeypatch.setattr(module, "read_identity", silent)
    other = open_store(url, Host())
    await other.open()
    await other.register(a_worker("w2"))
    assert await other.heartbeat("w2")
    await other.close()


@pytest.mark.usefixtures("straight")
async def test_any_role_may_ask_who_the_server_is(store: PostgresStore, url: str) -> None:
    connection = await asyncpg.connect(url.partition("?")[0])
    try:
        await connection.execute("SET ROLE pg_read_all_stats")
        said = await read_identity(connection)
        assert said.who.name is not None
        assert not said.pooled
    finally:
        await connection.close()
