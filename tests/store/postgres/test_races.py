"""A transaction that loses races is repeated for as long as its caller can wait."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from perdure.errors import StoreUnavailable
from perdure.store.postgres import driver
from perdure.store.postgres.store import PostgresStore
from perdure.store.server.pool import Timeouts
from perdure.testing.conformance.harness import ACTOR, a_message, a_run

#: Number of lost races; more than the quick repetitions.
MANY = 12


def fail(monkeypatch: pytest.MonkeyPatch, times: float, error: Exception) -> list[str]:
    """Make the server refuse statements that touch runs, a number of times; return the refused statements."""
    refused: list[str] = []
    for name in ("fetch", "execute"):
        usual = getattr(asyncpg.Connection, name)

        async def failing(session: Any, query: str, *args: Any, _usual: Any = usual, **options: Any) -> Any:
            if "perdure_runs" in query and len(refused) < times:
                refused.append(query)
                raise error
            return await _usual(session, query, *args, **options)

        monkeypatch.setattr(driver._NamedSession, name, failing)
    return refused


@pytest.mark.parametrize(
    "error", [asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError]
)
async def test_a_race_is_lost_many_times_and_the_caller_does_not_hear_of_it(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    await store.create([a_run("r1")], ACTOR)
    refused = fail(monkeypatch, MANY, error("again"))
    await store.send([a_message("r1")], ACTOR)
    assert len(refused) == MANY
    assert len(await store.inbox("r1", 0)) == 1


async def test_a_race_that_is_never_won_is_an_outage_once_the_patience_is_over(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store._timeouts = Timeouts(statement=2.0)
    refused = fail(monkeypatch, float("inf"), asyncpg.DeadlockDetectedError("deadlock"))
    with pytest.raises(StoreUnavailable):
        await store.create([a_run("r1")], ACTOR)
    assert len(refused) > 1
