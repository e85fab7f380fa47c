"""The store verb behind `ctx.transaction`: a function and a record, both or neither."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure.core.model.record import RecordKind
from perdure.core.model.turn import Lease, Release, Turn, TurnOutcome
from perdure.errors import StoreCorrupt
from perdure.store import SqlStore
from perdure.store.postgres.store import PostgresStore
from perdure.store.user_connections.errors import Interrupted
from perdure.store.user_connections.transaction_step import TransactionStep
from perdure.testing.conformance.harness import ACTOR, a_record, a_worker, commit, held
from tests.helpers import eventually
from tests.stage import Stage
from tests.store.user_connections.tables import prepare, put, table, written


async def taken(stage: Stage) -> tuple[SqlStore, Lease]:
    """Create a run that a worker holds."""
    await prepare(stage)
    assert stage.store is not None
    return stage.store, await held(stage.store)


def a_step(stage: Stage, turn: Turn, error: Exception | None = None) -> TransactionStep:
    async def work(connection: Any) -> None:
        await put(connection, table(stage), 1)
        if error is not None:
            raise error

    async def seal(result: object) -> Turn:
        return turn

    return TransactionStep(function=work, is_async=True, make_turn=seal)


async def test_both_are_there(stage: Stage) -> None:
    store, lease = await taken(stage)
    turn = Turn(lease=lease, records=(a_record(0),))
    assert await store.turn_outcome(turn, ACTOR) is TurnOutcome.BUSY
    assert await store.transact(a_step(stage, turn)) is TurnOutcome.APPLIED
    assert await store.turn_outcome(turn, ACTOR) is TurnOutcome.APPLIED
    assert await written(stage) == [1]
    assert await store.history("r1") == list(turn.records)


async def test_neither_is_there_without_the_lease(stage: Stage) -> None:
    store, lease = await taken(stage)
    turn = Turn(lease=lease, records=(a_record(0),))
    await commit(store, lease, next=Release())
    assert await store.transact(a_step(stage, turn)) is TurnOutcome.LOST
    assert await store.turn_outcome(turn, ACTOR) is TurnOutcome.LOST
    assert await written(stage) == []
    assert await store.history("r1") == []


async def test_a_lease_of_the_same_token_is_not_enough(stage: Stage) -> None:
    store, lease = await taken(stage)
    turn = Turn(lease=Lease(lease.run_id, lease.token, "another"), records=(a_record(0),))
    assert await store.transact(a_step(stage, turn)) is TurnOutcome.LOST
    assert await written(stage) == []


async def test_neither_is_there_if_the_function_raises(stage: Stage) -> None:
    store, lease = await taken(stage)
    turn = Turn(lease=lease, records=(a_record(0),))
    with pytest.raises(KeyError, match="no"):
        await store.transact(a_step(stage, turn, KeyError("no")))
    assert await written(stage) == []
    assert await store.turn_outcome(turn, ACTOR) is TurnOutcome.BUSY


async def test_a_server_ends_the_transaction_of_a_function_that_stands_still(stage: Stage) -> None:
    store, lease = await taken(stage)
    if not isinstance(store, PostgresStore):
        pytest.skip("MariaDB limits every session; a file is held up by who stands still with it")
    await store.register(a_worker("w9", lease=300_000))
    turn = Turn(lease=lease, records=(a_record(0),))

    async def stand_still(connection: Any) -> None:
        await put(connection, table(stage), 1)
        await eventually(connection.is_closed)

    async def seal(result: object) -> Turn:
        return turn

    with pytest.raises(Interrupted):
        await store.transact(TransactionStep(function=stand_still, is_async=True, make_turn=seal))
    assert await written(stage) == []


async def test_it_is_found_after_the_run_has_moved_on(stage: Stage) -> None:
    store, lease = await taken(stage)
    turn = Turn(lease=lease, records=(a_record(0),))
    await store.transact(a_step(stage, turn))
    await commit(store, lease, next=Release())
    assert await store.turn_outcome(turn, ACTOR) is TurnOutcome.APPLIED


@pytest.mark.parametrize(
    "other", [{"location": "other"}, {"payload": "2"}, {"kind": RecordKind.TIMER}], ids=lambda other: next(iter(other))
)
async def test_another_record_of_its_number_is_not_taken_for_it(stage: Stage, other: dict[str, Any]) -> None:
    store, lease = await taken(stage)
    mine = Turn(lease=lease, records=(a_record(0),))
    await store.transact(a_step(stage, Turn(lease=lease, records=(msgspec.structs.replace(a_record(0), **other),))))
    with pytest.raises(StoreCorrupt, match="another record"):
        await store.turn_outcome(mine, ACTOR)
    await commit(store, lease, next=Release())
    assert await store.turn_outcome(mine, ACTOR) is TurnOutcome.LOST
