"""A verb gets the connection that has prepared its statements already."""

from __future__ import annotations

import asyncio

import pytest

from perdure.core.model.claim import ClaimRequest
from perdure.store.postgres.store import PostgresStore
from perdure.testing.conformance.harness import TYPE, a_worker

#: Counts the claim statements that a session has prepared.
_CLAIMS = "SELECT COUNT(*) FROM pg_prepared_statements WHERE ltrim(statement, E' \\n') LIKE 'WITH pair (queue, type)%'"


@pytest.mark.usefixtures("straight")
async def test_claims_are_planned_on_one_connection_whatever_else_is_asked(store: PostgresStore) -> None:
    await store.register(a_worker())
    for number in range(5):
        request = ClaimRequest(worker="w1", nonce=f"n{number}", limit=10, types=(TYPE,))
        # Several connections that are returned in any order.
        await asyncio.gather(store.claim(request), *(store.get(f"r{place}") for place in range(3)))
        await store.claim(request)
    pool = store._pools.here()
    idle = list(pool._idle)
    assert len(idle) > 1
    assert sorted([await session.fetchval(_CLAIMS) for session in idle])[-2:] == [0, 1]
