"""A transaction that loses races is repeated for as long as its caller can wait; a lost connection is no refusal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from perdure.core.model.turn import Release, Turn, TurnOutcome
from perdure.errors import StoreUnavailable
from perdure.host import Host
from perdure.store import open_store
from perdure.store.mysql.driver import DriverError, MysqlConnection, MysqlResult
from perdure.store.mysql.store import MysqlStore
from perdure.store.server.pool import Timeouts
from perdure.testing.conformance.harness import ACTOR, a_record, a_run, a_worker, claim, commit
from tests.helpers import eventually
from tests.servers.claimers import create_many

#: Number of lost races; more than the quick repetitions.
MANY = 12


def fail(monkeypatch: pytest.MonkeyPatch, times: float, fits: Callable[[str], bool], error: Exception) -> list[str]:
    """Make the server refuse packets with a matching statement, a number of times; return the refused statements."""
    refused: list[str] = []
    send = MysqlConnection.send

    async def failing(connection: MysqlConnection, statements: Sequence[str]) -> list[MysqlResult]:
        found = next((statement for statement in statements if fits(statement)), None)
        if found is None or len(refused) >= times:
            return await send(connection, statements)
        refused.append(found)
        # The statements before it were executed.
        await send(connection, [*statements[: statements.index(found)], "DO 1"])
        raise error

    monkeypatch.setattr(MysqlConnection, "send", failing)
    return refused


@pytest.mark.parametrize("code", [1213, 1205, 1020, 3572])
async def test_a_race_is_lost_many_times_and_the_caller_does_not_hear_of_it(
    store: MysqlStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refused = fail(monkeypatch, MANY, lambda text: "INSERT INTO perdure_runs" in text, DriverError(code, "again"))
    await store.create([a_run("r1")], ACTOR)
    assert len(refused) == MANY
    assert await store.get("r1") is not None


@pytest.mark.parametrize("code", [1213, 1180, 3101])
async def test_a_commit_that_a_cluster_takes_back_is_a_lost_race(
    store: MysqlStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    await create_many(store, 3)
    refused = fail(monkeypatch, MANY, "COMMIT".__eq__, DriverError(code, "taken back"))
    assert len((await claim(store)).runs) == 3
    assert len(refused) == MANY


async def test_a_race_that_is_never_won_is_an_outage_once_the_patience_is_over(
    store: MysqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store._timeouts = Timeouts(statement=2.0)
    refused = fail(monkeypatch, float("inf"), lambda text: "perdure_runs" in text, DriverError(1213, "deadlock"))
    with pytest.raises(StoreUnavailable):
        await store.create([a_run("r1")], ACTOR)
    assert len(refused) > 1


@pytest.mark.parametrize("code", [2013, 1317, 3024])
async def test_a_rollback_that_fails_costs_a_connection_and_no_verdict(
    store: MysqlStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    await create_many(store, 2)
    kept, gone = [one.lease for one in (await claim(store)).runs]
    await commit(store, gone, next=Release())
    refused = fail(monkeypatch, 1, "ROLLBACK".__eq__, DriverError(code, "lost"))
    # The fence stops the packet, because one of the leases is lost.
    turns = [Turn(lease=lease, records=(a_record(0),)) for lease in (kept, gone)]

    async def is_applied() -> bool:
        outcome, other = await store.commit(turns, ACTOR)
        # The server may not have noticed yet that the connection is gone, whose session has locked the row. It would
        # end a session that is left open, but later than this test waits.
        assert outcome in (TurnOutcome.APPLIED, TurnOutcome.BUSY)
        assert other is TurnOutcome.LOST
        return outcome is TurnOutcome.APPLIED

    await eventually(is_applied, within=10)
    assert refused == ["ROLLBACK"]


async def test_a_rollback_that_fails_costs_a_connection_and_no_run(
    store: MysqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create([a_run("r1")], ACTOR)
    refused = fail(monkeypatch, 1, "ROLLBACK".__eq__, DriverError(2013, "lost"))
    created = await store.create([a_run("r1"), a_run("r2")], ACTOR)
    assert [one.run.id for one in created] == ["r1", "r2"]
    assert refused == ["ROLLBACK"]


async def test_a_heartbeat_that_was_overtaken_does_not_look_like_lost_commits(
    store: MysqlStore, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await store.register(a_worker("w1", lease=60_000_000))
    assert await store.heartbeat("w1")
    [(beat,)] = await store.query("SELECT heartbeat_at FROM perdure_workers")
    overtaken = open_store(url, Host())
    assert isinstance(overtaken, MysqlStore)
    await overtaken.open()
    # As a statement that began earlier and waited.
    monkeypatch.setattr(overtaken, "_time", lambda: beat - 500_000)
    assert await overtaken.heartbeat("w1")
    assert await store.query("SELECT heartbeat_at FROM perdure_workers") == [(beat,)]
    assert await store.heartbeat("w1")
    assert "lost commits" not in caplog.text
    # A clock that was set back by more than a lease is believed.
    monkeypatch.setattr(overtaken, "_time", lambda: beat - 100_000_000)
    assert await overtaken.heartbeat("w1")
    assert await store.query("SELECT heartbeat_at FROM perdure_workers") == [(beat - 100_000_000,)]
    await overtaken.close()
