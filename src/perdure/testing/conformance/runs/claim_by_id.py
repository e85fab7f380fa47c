"""Taking one run by its id, and saying which are ready."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure.core.limits.admission_requests import AdmissionRequest, RunArrival
from perdure.core.limits.limit import LimitBounds, RequiredGate, RequiredGates, type_gate
from perdure.core.model.claim import ClaimByIdRequest, ClaimByIdResult, ClaimRefusal
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Status
from perdure.core.model.run_orders import Pause, PauseKind, RunOrder
from perdure.core.model.turn import Block, Finish
from perdure.core.time.duration import NEVER
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    LEASE,
    OTHER_TYPE,
    SECOND,
    START,
    TYPE,
    Harness,
    a_message,
    a_park,
    a_record,
    a_run,
    a_worker,
    claim,
    commit,
    held,
    snapshot,
)
from perdure.testing.conformance.limits.gates import admit


def a_take(run_id: str = "r1", worker: str = "w1", **changes: Any) -> ClaimByIdRequest:
    """A request to take a run."""
    fields: dict[str, Any] = {"nonce": f"nonce-{worker}", "types": (TYPE,)}
    return ClaimByIdRequest(run_id=run_id, worker=worker, **{**fields, **changes})


async def take(store: Store, run_id: str = "r1", worker: str = "w1", **changes: Any) -> ClaimByIdResult:
    """Take a run as a worker that is registered if need be."""
    await store.register(a_worker(worker))
    return await store.claim_by_id(a_take(run_id, worker, **changes))


async def prepare_claim_by_id(store: Store) -> Callable[[Store], Awaitable[object]]:
    """Prepare all that taking a run needs, and return the request."""
    await store.create([a_run("r1"), a_run("r2")], ACTOR)
    await store.register(a_worker())
    return lambda store: store.claim_by_id(a_take())


class Taking:
    """A run is taken by its id as it would be claimed, or it is said why not."""

    async def test_a_ready_run_is_taken_as_if_claimed(self, store: Store) -> None:
        await store.create([a_run("r1"), a_run("r2", queue="elsewhere")], ACTOR)
        taken = await take(store, "r2")
        assert taken.refused is None
        assert taken.claimed is not None
        run = taken.claimed.run
        assert (run.status, run.worker, run.token, run.claims) == (Status.RUNNING, "w1", 1, 1)
        assert (run.started_at, bool(run.seed), taken.claimed.fresh) == (START, True, True)
        assert await store.get("r2") == run
        assert await store.leases("w1") == [taken.claimed.lease]
        assert [event.kind for event in await store.events("r2")] == ["created", "started"]
        other = await store.get("r1")
        assert other is not None
        assert other.status is Status.PENDING

    @pytest.mark.parametrize("begun", [False, True], ids=["fresh", "begun"])
    async def test_every_way_to_a_lease_writes_the_same(self, store: Store, harness: Harness, begun: bool) -> None:
        await self._ready(store, harness, begun=begun)
        harness.system.advance(5)
        await take(store, "r-take")
        await claim(store, nonce="second", queues=("claim",))
        await admit(store, nonce="third", queues=("admit",))
        columns = """status, reason, worker, home, token, claims, progress, started_at, deadline, close_by,
            LENGTH(seed), marked, lease_until, wake_at"""
        rows = {
            run_id: row for run_id, *row in await harness.query(f"SELECT id, {columns} FROM perdure_runs ORDER BY id")
        }
        assert rows["r-claim"][-1] == START + SECOND
        assert rows["r-take"] == rows["r-claim"]
        # A rate counts the time of admission.
        assert rows["r-admit"] == [*rows["r-claim"][:-1], START + 6 * SECOND]

    async def _ready(self, store: Store, harness: Harness, *, begun: bool) -> None:
        """Three runs that are ready a second after the start, alike but for their queues."""
        for way in ("take", "claim", "admit"):
            run = a_run(f"r-{way}", queue=way, wake_at=START + SECOND, deadline=NEVER - 5, close_by=NEVER - 7)
            await store.create([run], ACTOR)
        harness.system.advance(1)
        for way in ("take", "claim", "admit") if begun else ():
            [one] = (await claim(store, nonce=f"first-{way}", queues=(way,))).runs
            await commit(store, one.lease, a_record(0), next=a_park(wake_at=NEVER - 9, reason=Reason.MESSAGE))
            await store.send([a_message(f"r-{way}")], ACTOR)

    async def test_one_that_is_due_is_taken_and_one_that_is_not_is_left(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r1", wake_at=START + SECOND)], ACTOR)
        early = await take(store)
        assert (early.refused, early.run) == (ClaimRefusal.WAITING, await store.get("r1"))
        harness.system.advance(1)
        assert (await take(store)).claimed is not None

    async def test_what_cannot_be_taken_is_left_and_said_why(self, store: Store) -> None:
        await store.create([a_run("free", type=OTHER_TYPE)], ACTOR)
        await commit(store, await held(store, "done"), next=Finish(Status.COMPLETED, "1"))
        await commit(store, await held(store, "parked"), next=a_park())
        await commit(store, await held(store, "aside"), next=Block(Reason.DIVERGED, "{}"))
        await held(store, "busy", worker="w2")
        answers = {name: await take(store, name) for name in ("none", "free", "done", "parked", "aside", "busy")}
        assert {name: answer.refused for name, answer in answers.items()} == {
            "none": ClaimRefusal.UNKNOWN,
            "free": ClaimRefusal.FOREIGN,
            "done": ClaimRefusal.FINISHED,
            "parked": ClaimRefusal.WAITING,
            "aside": ClaimRefusal.BLOCKED,
            "busy": ClaimRefusal.HELD,
        }
        assert all(answer.claimed is None for answer in answers.values())
        assert answers["busy"].run == await store.get("busy")

    async def test_a_pause_holds_it_back(self, store: Store) -> None:
        await store.create([a_run("r1"), a_run("r2", queue="slow")], ACTOR)
        await store.pause(Pause(kind=PauseKind.QUEUE, name="slow"), ACTOR)
        assert (await take(store, "r2")).refused is ClaimRefusal.PAUSED
        await store.pause(Pause(kind=PauseKind.TYPE, name=TYPE), ACTOR)
        assert (await take(store, "r1")).refused is ClaimRefusal.PAUSED
        await store.resume(PauseKind.TYPE, TYPE, ACTOR)
        await store.order_run(RunOrder(run_id="r1", kind=RecordKind.PAUSE, key="p"), ACTOR)
        assert (await take(store, "r1")).refused is ClaimRefusal.WAITING

    async def test_a_worker_that_is_not_alive_gets_nothing(self, store: Store) -> None:
        await store.create([a_run("r1")], ACTOR)
        assert (await store.claim_by_id(a_take())).refused is ClaimRefusal.DEAD
        await store.register(a_worker("w1"))
        await store.retire("w1")
        assert (await store.claim_by_id(a_take())).refused is ClaimRefusal.DEAD

    async def test_the_same_nonce_gets_the_same_answer_and_another_one_none(
        self, store: Store, harness: Harness
    ) -> None:
        await store.create([a_run("r1")], ACTOR)
        taken = await take(store)
        before = await snapshot(harness)
        assert await store.claim_by_id(a_take()) == taken
        assert (await store.claim_by_id(a_take(nonce="other"))).refused is ClaimRefusal.HELD
        assert await snapshot(harness) == before

    async def test_what_is_unread_marks_it_and_what_is_recorded_is_known(self, store: Store) -> None:
        await commit(store, await held(store), a_record(0), a_record(1), next=a_park())
        await store.send([a_message("r1")], ACTOR)
        taken = await take(store, nonce="next")
        assert taken.claimed is not None
        assert (taken.claimed.fresh, taken.progress) == (False, 1)
        assert [message.key for message in await store.unread_messages_of_worker("w1")] == ["k1"]

    async def test_a_suspect_is_for_who_is_alone_and_is_set_aside_in_the_end(
        self, store: Store, harness: Harness
    ) -> None:
        await store.create([a_run("r1")], ACTOR)
        for crash in range(5):
            refused = (await take(store, "r1", f"w{crash}")).refused
            assert refused is (ClaimRefusal.SUSPECT if crash >= 2 else None)
            if refused is not None:
                assert (await take(store, "r1", f"w{crash}", alone=True)).claimed is not None
            harness.system.advance(2 * LEASE / SECOND)
            await store.sweep(10)
        last = await take(store, "r1", "w9", alone=True)
        assert (last.refused, last.run) == (ClaimRefusal.BLOCKED, await store.get("r1"))
        assert last.run is not None
        assert last.run.reason is Reason.POISON
        assert (await store.events("r1"))[-1].kind == "blocked"

    async def test_what_has_to_pass_gates_is_only_made_ready_for_that(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r1"), a_run("r2", wake_at=START + SECOND), a_run("r3")], ACTOR)
        harness.system.advance(1)
        first = await take(store, "r1", gated=frozenset({TYPE}))
        assert (first.refused, first.claimed, first.limited) == (ClaimRefusal.GATED, None, ())
        assert first.run == await store.get("r1")
        due = await take(store, "r2", gated=frozenset({TYPE}))
        assert due.run == await store.get("r2")
        assert due.run is not None
        assert (due.run.status, due.run.wake_at) == (Status.PENDING, START + SECOND)
        await store.set_bounds(type_gate(TYPE), LimitBounds(1), ACTOR)
        told = await take(store, "r3")
        assert (told.refused, told.limited) == (ClaimRefusal.GATED, (type_gate(TYPE),))

    async def test_only_the_named_runs_pass_those_that_stand_in_line(self, store: Store) -> None:
        await store.create([a_run("r1"), a_run("r2"), a_run("r3")], ACTOR)
        gating = RequiredGates((RequiredGate("g", LimitBounds(1)),))
        await store.register(a_worker("w1"))

        async def admitted(nonce: str, *names: str, only: bool = True) -> list[str]:
            arrivals = [RunArrival(run.id, run.token, gating) for run in await store.get_many(names)]
            request = AdmissionRequest(
                worker="w1",
                nonce=nonce,
                limit=1,
                types=(TYPE,),
                queues=("default",),
                arrivals=tuple(arrivals),
                only=only,
            )
            return [one.run.id for one in (await store.admit(request)).runs]

        assert await admitted("n1", "r1") == ["r1"]
        assert await admitted("n2", "r2") == []
        assert await admitted("n3", "r3") == []
        standing = await take(store, "r3", nonce="t")
        assert standing.refused is ClaimRefusal.GATED
        assert standing.run is not None
        assert standing.run.status is Status.PENDING
        assert await store.ready_run_ids([TYPE], ["default"], 10) == ["r3"]
        [lease] = await store.leases("w1")
        await commit(store, lease, next=Finish(Status.COMPLETED, "1"))
        assert await admitted("n4", "r3") == ["r3"]
        waiting = await store.get("r2")
        assert waiting is not None
        assert waiting.reason is Reason.LIMIT

    async def test_a_deadline_for_the_beginning_is_over_when_it_is_taken(self, store: Store) -> None:
        await store.create([a_run("r1", deadline=START + SECOND, close_by=START + 9 * SECOND)], ACTOR)
        taken = await take(store)
        assert taken.claimed is not None
        assert (taken.claimed.run.deadline, taken.claimed.run.close_by) == (START + 9 * SECOND, 0)
        assert await store.get("r1") == taken.claimed.run


class DueRuns:
    """A dispatcher of runs can ask which are ready."""

    async def test_the_longest_ready_come_first_and_others_are_left_out(self, store: Store, harness: Harness) -> None:
        await store.create(
            [a_run("timer", wake_at=START + 2 * SECOND), a_run("far", wake_at=START + SECOND * 99)], ACTOR
        )
        await held(store, "busy")
        await commit(store, await held(store, "parked"), next=a_park(wake_at=NEVER))
        harness.system.advance(1)
        await store.create([a_run("old"), a_run("foreign", type=OTHER_TYPE), a_run("slow", queue="slow")], ACTOR)
        harness.system.advance(4)
        await store.create([a_run("young", priority=1)], ACTOR)
        assert await store.ready_run_ids([TYPE], ["default"], 10) == ["old", "timer", "young"]
        assert await store.ready_run_ids([TYPE], ["default"], 2) == ["old", "timer"]
        assert await store.ready_run_ids([TYPE, OTHER_TYPE], ["default", "slow"], 10) == [
            "foreign", "old", "slow", "timer", "young",
        ]  # fmt: skip
        assert (await claim(store, nonce="claim", limit=1)).runs[0].run.id == "young"

    async def test_what_is_paused_is_not_due(self, store: Store) -> None:
        await store.create([a_run("r1"), a_run("r2", queue="slow")], ACTOR)
        await store.pause(Pause(kind=PauseKind.QUEUE, name="slow"), ACTOR)
        assert await store.ready_run_ids([TYPE], ["default", "slow"], 10) == ["r1"]
        await store.pause(Pause(kind=PauseKind.TYPE, name=TYPE), ACTOR)
        assert await store.ready_run_ids([TYPE], ["default", "slow"], 10) == []
