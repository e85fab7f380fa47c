"""Gates that another transaction has locked: a preview leaves them alone, and a request that needs them waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from perdure.core.limits.limit import LimitBounds
from perdure.store import SqlStore
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.limits.gates import lock_gates
from perdure.testing.conformance.harness import commit
from perdure.testing.conformance.limits.gates import DONE, GATE, a_gating, admit, admit_ids, asks, ready

# There is one writer at a time on SQLite, and so no other transaction that could find anything locked.
pytestmark = pytest.mark.parametrize("harness", ["postgres", "mysql"], indirect=True)


@asynccontextmanager
async def locked(store: SqlStore, gate: str) -> AsyncIterator[None]:
    held, over = asyncio.Event(), asyncio.Event()

    async def hold(tx: Transaction) -> None:
        await lock_gates(tx, {gate: LimitBounds()})
        held.set()
        await over.wait()

    holding = asyncio.ensure_future(store._write("admit", "another", hold))
    await held.wait()
    try:
        yield
    finally:
        over.set()
        await holding


async def test_what_is_asked_of_a_locked_gate_is_left_for_later_and_other_gates_are_not_held_up(
    store: SqlStore,
) -> None:
    await ready(store, "r1", "r2")
    [first] = (await admit(store)).runs
    await commit(store, first.lease, next=DONE)
    await ready(store, "r3", "r4")
    gatings = {"r3": a_gating(), "r4": a_gating(gate="other")}
    async with locked(store, GATE):
        answer = await admit(store, gatings, nonce="meanwhile", released=(("r1", 1),))
    assert [one.run.id for one in answer.runs] == ["r4"]
    assert answer.busy
    assert answer.undelivered == (("r1", 1),)
    assert await admit_ids(store, gatings, nonce="then", released=answer.undelivered) == ["r2"]


async def test_a_caller_that_insists_waits_for_a_locked_gate(store: SqlStore) -> None:
    await ready(store, "r1", "r2")
    [first] = (await admit(store)).runs
    await commit(store, first.lease, next=DONE)
    request = await asks(store, nonce="insists", released=(("r1", 1),), wait_for_locks=True)
    async with locked(store, GATE):
        asking = asyncio.ensure_future(store.admit(request))
        # Far longer than an answer takes that does not wait.
        assert not (await asyncio.wait([asking], timeout=0.3))[0]
    assert [one.run.id for one in (await asking).runs] == ["r2"]
    assert not asking.result().undelivered


async def test_a_lost_answer_comes_again_although_the_gate_is_locked_by_then(store: SqlStore) -> None:
    await ready(store, "r1")
    request = await asks(store, nonce="lost")
    [first] = (await store.admit(request)).runs
    async with locked(store, GATE):
        again = await store.admit(request)
    assert [one.lease for one in again.runs] == [first.lease]
