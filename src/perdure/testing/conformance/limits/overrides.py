"""Gates: what is set for them at run time, and what is forgotten."""

from __future__ import annotations

import asyncio

import pytest

from perdure.core.limits.limit import LimitBounds
from perdure.core.model.dead_letter import DeleteOutcome
from perdure.core.model.turn import TurnOutcome
from perdure.core.policy.retention import PruneRequest
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    OTHER_TYPE,
    SECOND,
    START,
    TYPE,
    Harness,
    Unshared,
    claim,
    claim_ids,
    commit,
)
from perdure.testing.conformance.limits.gates import (
    DONE,
    GATE,
    ONE,
    a_gating,
    admit,
    admit_ids,
    admit_patiently,
    asks,
    ready,
)


class Forgetting:
    """A key that is not used any more leaves nothing behind."""

    async def test_gates_of_keys_are_forgotten_once_there_is_nothing_to_remember(
        self, store: Store, harness: Harness
    ) -> None:
        await ready(store, "r1", "r2", "r3", "r4", "r5")
        gatings = {
            "r1": a_gating(gate="tenant/done"),
            "r2": a_gating(gate="tenant/held"),
            "r3": a_gating(LimitBounds(pace=SECOND), gate="tenant/paced"),
            "r4": a_gating(gate="shared"),
            "r5": a_gating(gate="tenant/held"),
        }
        runs = {one.run.id: one.lease for one in (await admit(store, gatings)).runs}
        for id in ("r1", "r3", "r4"):
            await commit(store, runs[id], next=DONE)
        await store.set_bounds("tenant/set", ONE, ACTOR)
        assert await store.delete_idle_gates(10, ACTOR) == 1
        assert [gate.name for gate in await store.gates("", 10)] == [
            "shared",
            "tenant/held",
            "tenant/paced",
            "tenant/set",
        ]
        harness.system.advance(1)
        assert await store.delete_idle_gates(10, ACTOR) == 1
        await commit(store, runs["r2"], next=DONE)
        assert await store.delete_idle_gates(10, ACTOR) == 0, "a run waits in line"
        assert await admit_ids(store, nonce="then", released=(("r2", 1),)) == ["r5"]

    async def test_a_gate_is_forgotten_when_the_run_that_waited_at_it_is_gone(
        self, store: Store, harness: Harness
    ) -> None:
        await ready(store, "r1")
        await admit(store, a_gating(LimitBounds(pace=SECOND), gate="tenant/a"))
        await ready(store, "r2")
        assert await admit_ids(store, a_gating(LimitBounds(pace=SECOND), gate="tenant/a"), nonce="n") == []
        await store.cancel("r2", "", "c", ACTOR)
        assert await store.delete("r2", "", ACTOR) is DeleteOutcome.DONE
        harness.system.advance(10)
        await store.prune(PruneRequest(before=START + 5 * SECOND, deleted=True), 10, None, ACTOR)
        assert await store.delete_idle_gates(10, ACTOR) == 1

    async def test_one_that_is_forgotten_while_others_want_it_is_made_again(
        self, store: Store, harness: Harness
    ) -> None:
        try:
            other = await harness.open()
        except Unshared:
            pytest.skip("there can be only one")
        key = a_gating(gate="tenant/a")
        for number in range(8):
            await ready(store, f"r{number}")
            request = await asks(store, key, nonce=f"n{number}")
            admitted, _ = await asyncio.gather(admit_patiently(store, request), other.delete_idle_gates(10, ACTOR))
            [one] = admitted.runs
            assert one.run.id == f"r{number}"
            assert await commit(store, one.lease, next=DONE) is TurnOutcome.APPLIED


class Setting:
    """Limits that are set at run time hold."""

    async def test_what_was_set_holds_until_it_is_cleared(self, store: Store) -> None:
        await ready(store, "r1", "r2", "r3", "r4")
        await store.set_bounds(GATE, LimitBounds(concurrency=3), "boss")
        assert len(await admit_ids(store)) == 3
        [gate] = await store.gates("", 10)
        assert (gate.bounds.concurrency, gate.override, gate.held, gate.waiting) == (
            3,
            LimitBounds(concurrency=3),
            3,
            1,
        )
        await store.set_bounds(GATE, None, "boss", "calm")
        [gate] = await store.gates("", 10)
        assert (gate.bounds, gate.override) == (ONE, None)
        told = await store.events(f"gate:{GATE}")
        assert [(event.kind, event.actor) for event in told] == [("limit_set", "boss"), ("limit_cleared", "boss")]
        assert told[1].data == '{"reason":"calm"}'

    async def test_what_is_set_for_a_limit_holds_for_its_keys_but_for_those_that_have_their_own(
        self, store: Store
    ) -> None:
        names = [f"{key}{number}" for key in "ab" for number in range(4)]
        await ready(store, *names)
        await store.set_bounds("tenant", LimitBounds(concurrency=2), ACTOR)
        await store.set_bounds("tenant/b", LimitBounds(concurrency=3), ACTOR)
        passed = await admit_ids(store, {name: a_gating(gate=f"tenant/{name[0]}") for name in names})
        assert sorted(passed) == ["a0", "a1", "b0", "b1", "b2"]

    @pytest.mark.parametrize("gate", [f"type:{TYPE}", "queue:default"])
    async def test_claims_leave_a_limited_type_or_queue_to_admission(self, store: Store, gate: str) -> None:
        await ready(store, "r1", "r2")
        await store.set_bounds(gate, ONE, ACTOR)
        claimed = await claim(store, nonce="n1")
        assert (claimed.runs, claimed.limited) == ((), (gate,))
        assert await store.pauses() == []
        assert await admit_ids(store, a_gating(LimitBounds(), gate=gate)) == ["r1"]
        await store.set_bounds(gate, None, ACTOR)
        assert (await claim(store, nonce="n2")).limited == (gate,), "a run waits in line there"
        assert await admit_ids(store, nonce="n3") == ["r2"]
        assert (await claim(store, nonce="n4")).limited == ()
        await ready(store, "r3")
        assert await claim_ids(store, nonce="n5") == ["r3"]

    async def test_a_claim_that_waits_for_nothing_takes_what_has_no_limit(self, store: Store) -> None:
        await ready(store, "r1")
        await ready(store, "other", type=OTHER_TYPE)
        await store.set_bounds(f"type:{TYPE}", ONE, ACTOR)
        assert await claim_ids(store, types=(TYPE, OTHER_TYPE)) == ["other"]
