"""A worker that is late: when it was last heard of, and when others take its runs."""

from __future__ import annotations

import pytest

from perdure.client.runs.inspect import explain
from perdure.core.model.worker_info import RunningStep, steps_to_json
from perdure.store import SqlStore
from perdure.testing.conformance.harness import START, TYPE, a_worker, held
from tests.store.conftest import AnyHarness


async def why(store: SqlStore) -> str:
    run = await store.get("r1")
    assert run is not None
    return await explain(store, run)


@pytest.mark.parametrize("late", [0, 5, 6, 14, 16])
async def test_a_late_worker_says_when_it_was_heard_of_and_when_others_take_over(
    store: SqlStore, harness: AnyHarness, late: int
) -> None:
    lease = await held(store)
    step = RunningStep(run_id="r1", type=TYPE, location="charge", attempt=2, since=START, token=lease.token)
    assert await store.heartbeat("w1", steps_to_json([step]))
    harness.system.advance(late)
    told = await why(store)
    [worker] = await store.workers()
    assert worker.silence == late
    assert f"'charge' for {late} s, attempt 2" in told
    match late:
        case 0 | 5:
            assert ("last heard of 5 s ago." in told, "heard of" in told) == (late == 5, late == 5)
            assert "taken over" not in told
            assert worker.taken_over_in is None
        case 6 | 14:
            assert f"last heard of {late} s ago, taken over in {15 - late} s." in told
            assert worker.taken_over_in == 15 - late
            assert "Nothing takes it over" not in told
        case _:
            assert "last heard of 16 s ago, taken over at the next sweep." in told
            assert "Nothing takes it over: no worker is alive; start one: `async with engine.worker():`" in told
            assert worker.taken_over_in == 0


async def test_a_worker_that_lives_takes_over_what_a_late_one_has_lost(store: SqlStore, harness: AnyHarness) -> None:
    await held(store)
    harness.system.advance(16)
    await store.register(a_worker("w2"))
    told = await why(store)
    assert "taken over at the next sweep" in told
    assert "Nothing takes it over" not in told


async def test_steps_under_an_earlier_lease_are_not_shown(store: SqlStore) -> None:
    lease = await held(store)
    step = RunningStep(run_id="r1", type=TYPE, location="charge", attempt=2, since=START, token=lease.token - 1)
    assert await store.heartbeat("w1", steps_to_json([step]))
    assert "charge" not in await why(store)
