"""The packets of a commit, and the failure of a packet whose condition does not hold."""

from __future__ import annotations

import pytest

from perdure.core.model.run import Status
from perdure.core.model.turn import Finish, Release, Turn, TurnOutcome
from perdure.store.mysql.store import MysqlStore
from perdure.testing.conformance.harness import ACTOR, a_child, a_park, a_record, claim, commit, held
from tests.servers.claimers import create_many

COMPLETED = Finish(Status.COMPLETED, "1")


@pytest.fixture
async def seen(store: MysqlStore) -> list[str]:
    """Collect the statements that the store sends; a test clears the list first."""
    seen: list[str] = []
    await store.trace(seen.append)
    return seen


def firsts(statements: list[str]) -> list[str]:
    return [" ".join(statement.split()[:3]) for statement in statements]


async def test_one_record_is_one_statement(store: MysqlStore, seen: list[str]) -> None:
    lease = await held(store)
    seen.clear()
    assert await commit(store, lease, a_record(0)) is TurnOutcome.APPLIED
    assert firsts(seen) == ["INSERT INTO perdure_history"]


async def test_turns_that_reach_no_other_run_take_one_statement_a_table(store: MysqlStore, seen: list[str]) -> None:
    await create_many(store, 30)
    leases = [one.lease for one in (await claim(store, limit=30)).runs]
    nexts = [None] * 10 + [COMPLETED] * 10 + [a_park()] * 10
    turns = [
        Turn(lease=lease, records=(a_record(0), a_record(1)), next=next)
        for lease, next in zip(leases, nexts, strict=True)
    ]
    seen.clear()
    assert await store.commit(turns, ACTOR) == [TurnOutcome.APPLIED] * 30
    assert firsts(seen) == [
        "BEGIN",
        "SELECT 9223372036854775807 +",
        "INSERT INTO perdure_history",
        "INSERT INTO perdure_runs",
        "INSERT INTO perdure_runs",
        "INSERT INTO perdure_events",
        "COMMIT",
    ]


@pytest.mark.parametrize("next", [None, COMPLETED, a_park()], ids=["stays", "finishes", "parks"])
async def test_one_lease_that_is_gone_keeps_nothing_else_from_being_written(
    store: MysqlStore, next: Finish | None
) -> None:
    await create_many(store, 3)
    leases = [one.lease for one in (await claim(store)).runs]
    await commit(store, leases[1], next=Release())
    turns = [Turn(lease=lease, records=(a_record(0),), next=next) for lease in leases]
    assert await store.commit(turns, ACTOR) == [TurnOutcome.APPLIED, TurnOutcome.LOST, TurnOutcome.APPLIED]
    assert [len(await store.history(lease.run_id)) for lease in leases] == [1, 0, 1]


@pytest.mark.parametrize("name", ["r1/child", "child"])
async def test_a_child_that_ends_tells_its_parent_whatever_it_is_called(store: MysqlStore, name: str) -> None:
    parent = await held(store, "r1")
    await commit(store, parent, children=(a_child(name, "r1"),))
    [child] = (await claim(store, nonce="child")).runs
    assert await commit(store, child.lease, a_record(0), next=COMPLETED) is TurnOutcome.APPLIED
    assert [message.payload for message in await store.inbox("r1", 0)] == ["1"]
