"""Orders to runs, and pauses of whole types and queues."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure.core.model.record import RecordKind
from perdure.core.model.run import ABANDONED, Reason, RetryOutcome, Status
from perdure.core.model.run_orders import OrderOutcome, Pause, PauseKind, RunOrder
from perdure.core.model.turn import Block, Finish, Release, RetryLater, TurnOutcome
from perdure.core.time.duration import NEVER
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    SECOND,
    START,
    TYPE,
    Harness,
    a_child,
    a_message,
    a_park,
    a_record,
    a_run,
    a_worker,
    claim,
    claim_ids,
    commit,
    held,
    lease_of,
    retry,
    snapshot,
)


async def tell(store: Store, kind: RecordKind, run_id: str = "r1", *, key: str = "", at: int = 0) -> OrderOutcome:
    """Give an order."""
    order = RunOrder(run_id=run_id, kind=kind, key=key or f"{kind}-{run_id}", reason="because", at=at)
    return await store.order_run(order, ACTOR)


async def state(store: Store, run_id: str = "r1") -> tuple[Status, Reason | None, int]:
    """State of a run."""
    run = await store.get(run_id)
    assert run is not None
    return run.status, run.reason, run.wake_at


PAUSED = (Status.WAITING, Reason.PAUSED, NEVER)


class Steering:
    """An order is carried out where no worker holds the run, and otherwise in its inbox."""

    @pytest.mark.parametrize("kind", [RecordKind.PAUSE, RecordKind.RESUME, RecordKind.EVICT, RecordKind.WAKE])
    async def test_an_order_to_an_unknown_or_a_finished_run_changes_nothing(
        self, harness: Harness, store: Store, kind: RecordKind
    ) -> None:
        assert await commit(store, await held(store), next=Finish(Status.COMPLETED, "1")) is TurnOutcome.APPLIED
        before = await snapshot(harness)
        assert await tell(store, kind, "missing") is OrderOutcome.UNKNOWN
        assert await tell(store, kind) is OrderOutcome.FINISHED
        assert await snapshot(harness) == before

    async def test_a_paused_run_is_not_claimed_and_no_message_wakes_it(self, store: Store) -> None:
        assert await commit(store, await held(store), next=a_park()) is TurnOutcome.APPLIED
        assert await tell(store, RecordKind.PAUSE) is OrderOutcome.DONE
        assert await tell(store, RecordKind.PAUSE, key="another") is OrderOutcome.ALREADY
        await store.send([a_message()], ACTOR)
        assert await state(store) == PAUSED
        assert await claim_ids(store, nonce="while paused") == []
        assert await tell(store, RecordKind.RESUME) is OrderOutcome.DONE
        assert await tell(store, RecordKind.RESUME, key="another") is OrderOutcome.ALREADY
        assert await state(store) == (Status.PENDING, None, START)
        assert [entry.kind for entry in await store.inbox("r1", 0)] == [
            RecordKind.PAUSE,
            RecordKind.MESSAGE,
            RecordKind.RESUME,
        ]
        assert [event.kind for event in await store.events("r1")] == ["created", "started", "paused", "sent", "resumed"]

    async def test_the_word_of_a_child_does_not_wake_a_paused_parent(self, store: Store) -> None:
        parent = await held(store, "parent")
        park = a_park(reason=Reason.CHILD)
        assert await commit(store, parent, children=(a_child("child"),), next=park) is TurnOutcome.APPLIED
        await tell(store, RecordKind.PAUSE, "parent")
        child = await lease_of(store, "child")
        assert await commit(store, child, next=Finish(Status.COMPLETED, "1")) is TurnOutcome.APPLIED
        assert await state(store, "parent") == PAUSED
        assert [entry.kind for entry in await store.inbox("parent", 0)] == [RecordKind.PAUSE, RecordKind.CHILD]

    async def test_a_cancellation_ends_a_pause(self, store: Store) -> None:
        await commit(store, await held(store), next=a_park())
        await tell(store, RecordKind.PAUSE)
        await store.cancel("r1", "enough", "c1", ACTOR)
        assert await state(store) == (Status.PENDING, None, START)
        assert await tell(store, RecordKind.RESUME) is OrderOutcome.ALREADY

    async def test_a_pause_ends_with_the_deadline(self, harness: Harness, store: Store) -> None:
        await store.create([a_run(deadline=START + SECOND)], ACTOR)
        await tell(store, RecordKind.PAUSE)
        assert await state(store) == (Status.WAITING, Reason.PAUSED, START + SECOND)
        harness.system.advance(2)
        assert (await store.sweep(10)).expired == 1

    async def test_a_run_for_later_is_resumed_to_its_own_time(self, harness: Harness, store: Store) -> None:
        await store.create([a_run("r1", wake_at=START + 5 * SECOND), a_run("r2", wake_at=START + SECOND)], ACTOR)
        before = await state(store)
        for run_id in ("r1", "r2"):
            assert await tell(store, RecordKind.PAUSE, run_id) is OrderOutcome.DONE
        harness.system.advance(2)
        assert await claim_ids(store) == []
        for run_id in ("r1", "r2"):
            assert await tell(store, RecordKind.RESUME, run_id) is OrderOutcome.DONE
        assert await state(store) == before
        assert await claim_ids(store, nonce="second") == ["r2"]

    async def test_a_run_that_is_tried_again_later_is_resumed_to_that_time(self, store: Store) -> None:
        await commit(store, await held(store), next=RetryLater(START + SECOND, "{}"))
        await tell(store, RecordKind.PAUSE)
        await tell(store, RecordKind.RESUME)
        assert await state(store) == (Status.WAITING, Reason.RETRY, START + SECOND)

    async def test_a_running_run_is_told_and_parks_as_paused_with_entries_unread(self, store: Store) -> None:
        lease = await held(store)
        assert await tell(store, RecordKind.PAUSE) is OrderOutcome.DONE
        assert await tell(store, RecordKind.PAUSE, key="another") is OrderOutcome.ALREADY
        await store.send([a_message()], ACTOR)
        assert [entry.kind for entry in await store.unread_messages_of_worker("w1")] == [
            RecordKind.PAUSE,
            RecordKind.MESSAGE,
        ]
        early = a_park(1, reason=Reason.PAUSED)
        assert await commit(store, lease, next=early) is TurnOutcome.AWAKE
        assert await commit(store, lease, next=a_park(2, reason=Reason.PAUSED)) is TurnOutcome.APPLIED
        assert await state(store) == PAUSED
        assert await tell(store, RecordKind.RESUME) is OrderOutcome.DONE
        lease = await lease_of(store, nonce="again")
        assert [entry.kind for entry in await store.unread_messages_of_worker("w1")] == [
            RecordKind.PAUSE,
            RecordKind.MESSAGE,
            RecordKind.RESUME,
        ]
        news = a_record(0, "news", kind=RecordKind.MESSAGE, inbox_seq=2)
        assert await commit(store, lease, news, read=3, next=a_park(3)) is TurnOutcome.APPLIED
        assert await store.inbox("r1", 0) == []

    async def test_an_eviction_is_for_the_holder_of_the_moment(self, store: Store) -> None:
        lease = await held(store)
        assert await tell(store, RecordKind.EVICT) is OrderOutcome.DONE
        [entry] = await store.unread_messages_of_worker("w1")
        assert (entry.kind, entry.payload) == (RecordKind.EVICT, str(lease.token))
        assert await commit(store, lease, read=1, next=Release("w2")) is TurnOutcome.APPLIED
        await store.register(a_worker("w2"))
        assert await claim_ids(store, "w1", nonce="mine", affinity=SECOND) == []
        assert await claim_ids(store, "w2", nonce="theirs", affinity=SECOND) == ["r1"]

    async def test_a_run_that_no_worker_holds_is_evicted_from_the_worker_that_remembers_it(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, next=a_park())
        assert await tell(store, RecordKind.EVICT) is OrderOutcome.ALREADY
        await store.send([a_message()], ACTOR)
        assert (await lease_of(store, nonce="again")).token > lease.token + 1

    async def test_a_sleep_ends_when_it_is_told_to(self, store: Store) -> None:
        await commit(store, await held(store), next=a_park(wake_at=START + 5 * SECOND, reason=Reason.TIMER))
        assert await tell(store, RecordKind.WAKE, at=START + SECOND) is OrderOutcome.DONE
        [entry] = await store.inbox("r1", 0)
        assert (entry.kind, msgspec.json.decode(entry.payload or "")) == (RecordKind.WAKE, START + SECOND)
        assert await claim_ids(store, nonce="again") == ["r1"]

    async def test_a_run_for_later_is_begun_when_it_is_told_to(self, harness: Harness, store: Store) -> None:
        await store.create([a_run("r1", wake_at=START + 5 * SECOND), a_run("r2", wake_at=START + 5 * SECOND)], ACTOR)
        assert await tell(store, RecordKind.WAKE, "r1", at=0) is OrderOutcome.DONE
        assert await tell(store, RecordKind.WAKE, "r2", at=START + SECOND) is OrderOutcome.DONE
        assert await claim_ids(store) == ["r1"]
        harness.system.advance(1)
        assert await claim_ids(store, nonce="second") == ["r2"]

    async def test_only_what_sleeps_is_woken(self, harness: Harness, store: Store) -> None:
        await store.create([a_run("pending")], ACTOR)
        await commit(store, await held(store), next=a_park(wake_at=START + SECOND))
        before = await snapshot(harness)
        for run_id in ("r1", "pending"):
            assert await tell(store, RecordKind.WAKE, run_id) is OrderOutcome.REFUSED
        assert await snapshot(harness) == before


class Terminations:
    """A run ends by order, whatever it is doing, and the lease of its holder ends with it."""

    async def test_a_run_ends_in_any_status(self, store: Store) -> None:
        await store.create([a_run("later", wake_at=START + SECOND), a_run("ready")], ACTOR)
        parked, blocked = await held(store, "parked"), await held(store, "blocked")
        await held(store, "running")
        assert await commit(store, parked, next=a_park()) is TurnOutcome.APPLIED
        assert await commit(store, blocked, next=Block(Reason.DIVERGED, "{}")) is TurnOutcome.APPLIED
        for run_id in ("later", "ready", "parked", "blocked", "running"):
            assert await store.terminate(run_id, "enough", "t1", ACTOR) is OrderOutcome.DONE
            run = await store.get(run_id)
            assert run is not None
            assert (run.status, run.reason, run.worker, run.finished_at) == (Status.FAILED, None, None, START)
            error = msgspec.json.decode(run.error or "")
            assert error["type"] == "perdure.errors.RunTerminated"
            assert error["message"] == f"run {run_id!r} was terminated: enough"
            event = (await store.events(run_id))[-1]
            assert (event.kind, event.actor) == ("terminated", ACTOR)
            assert msgspec.json.decode(event.data)["reason"] == "enough"

    async def test_the_holder_of_a_terminated_run_has_lost_its_lease(self, harness: Harness, store: Store) -> None:
        lease = await held(store)
        assert await store.terminate("r1", "", "t1", ACTOR) is OrderOutcome.DONE
        before = await snapshot(harness)
        for next in (None, Finish(Status.FAILED, "{}"), Finish(Status.COMPLETED, "1"), Release()):
            records = () if next else (a_record(0),)
            assert await commit(store, lease, *records, next=next) is TurnOutcome.LOST
        assert await store.leases("w1") == []
        assert await snapshot(harness) == before

    async def test_a_second_termination_finds_the_run_finished(self, harness: Harness, store: Store) -> None:
        await held(store)
        assert await store.terminate("missing", "", "t1", ACTOR) is OrderOutcome.UNKNOWN
        assert await store.terminate("r1", "", "t1", ACTOR) is OrderOutcome.DONE
        before = await snapshot(harness)
        assert await store.terminate("r1", "", "t1", ACTOR) is OrderOutcome.DONE
        assert await store.terminate("r1", "", "t2", ACTOR) is OrderOutcome.FINISHED
        assert await snapshot(harness) == before

    async def test_the_parent_is_told_and_the_bound_children_are_cancelled(self, store: Store) -> None:
        parent = await held(store, "parent")
        park = a_park(reason=Reason.CHILD)
        assert await commit(store, parent, children=(a_child("r1"),), next=park) is TurnOutcome.APPLIED
        children = (a_child("c1", "r1"), a_child("c2", "r1", write_id=f"{ABANDONED}c2"))
        assert await commit(store, await lease_of(store, "r1"), children=children) is TurnOutcome.APPLIED
        await lease_of(store, "c1", nonce="of the child")
        assert await store.terminate("r1", "enough", "t1", ACTOR) is OrderOutcome.DONE
        [told] = await store.inbox("parent", 0)
        assert (told.kind, told.name, told.failed) == (RecordKind.CHILD, "call-r1", True)
        assert (await state(store, "parent"))[0] is Status.PENDING
        assert [entry.kind for entry in await store.inbox("c1", 0)] == [RecordKind.CANCEL]
        assert await store.inbox("c2", 0) == []

    async def test_a_terminated_run_goes_on_when_it_is_reopened(self, store: Store) -> None:
        assert await commit(store, await held(store), a_record(0)) is TurnOutcome.APPLIED
        await store.send([a_message()], ACTOR)
        assert await store.terminate("r1", "", "t1", ACTOR) is OrderOutcome.DONE
        assert await retry(store, "r1") is RetryOutcome.OPEN
        assert await claim_ids(store, nonce="again") == ["r1"]
        assert await store.inbox("r1", 0) == []
        kinds = [record.kind for record in await store.history("r1")]
        assert kinds == [RecordKind.STEP, RecordKind.MESSAGE, RecordKind.CANCEL]

    async def test_with_its_undos_a_run_that_has_begun_gets_the_order(self, store: Store) -> None:
        await commit(store, await held(store), next=a_park(reason=Reason.RETRY, wake_at=START + SECOND))
        assert await store.terminate("r1", "enough", "t1", ACTOR, undo=True) is OrderOutcome.DONE
        assert await store.terminate("r1", "enough", "t1", ACTOR, undo=True) is OrderOutcome.DONE
        assert await state(store) == (Status.PENDING, None, START)
        [entry] = await store.inbox("r1", 0)
        assert (entry.kind, entry.failed, entry.payload) == (RecordKind.CANCEL, True, '"enough"')
        assert (await store.events("r1"))[-1].kind == "terminate_requested"

    async def test_with_its_undos_a_run_that_has_not_begun_ends_and_a_blocked_one_is_left(self, store: Store) -> None:
        await commit(store, await held(store, "blocked"), next=Block(Reason.DIVERGED, "{}"))
        await store.create([a_run()], ACTOR)
        assert await store.terminate("r1", "", "t1", ACTOR, undo=True) is OrderOutcome.DONE
        assert (await state(store))[0] is Status.FAILED
        assert await store.terminate("blocked", "", "t1", ACTOR, undo=True) is OrderOutcome.REFUSED
        assert (await state(store, "blocked"))[0] is Status.BLOCKED


class Priorities:
    """A run that has not finished may get another priority."""

    async def test_a_ready_run_overtakes_others(self, store: Store) -> None:
        await store.create([a_run("r1", priority=10), a_run("r2", priority=20), a_run("r3", priority=30)], ACTOR)
        assert await store.set_priority("r3", -5, "it's urgent", ACTOR) is OrderOutcome.DONE
        assert await claim_ids(store, limit=1) == ["r3"]
        [event] = [one for one in await store.events("r3") if one.kind == "priority_changed"]
        assert (event.actor, event.data) == (ACTOR, '{"from":30,"to":-5,"reason":"it\'s urgent"}')

    async def test_a_change_to_the_same_priority_changes_nothing(self, store: Store) -> None:
        await store.create([a_run()], ACTOR)
        assert [await store.set_priority("r1", 7, "", ACTOR) for _ in range(2)] == [OrderOutcome.DONE] * 2
        assert [one.kind for one in await store.events("r1")].count("priority_changed") == 1

    async def test_it_applies_to_running_and_waiting_runs_and_to_no_others(self, store: Store) -> None:
        lease = await held(store, "held")
        await commit(store, await held(store, "waits"), next=a_park())
        await commit(store, await held(store, "over"), next=Finish(Status.COMPLETED, "1"))
        for name in ("held", "waits"):
            assert await store.set_priority(name, 7, "", ACTOR) is OrderOutcome.DONE
        assert await store.set_priority("over", 7, "", ACTOR) is OrderOutcome.FINISHED
        assert await store.set_priority("unknown", 7, "", ACTOR) is OrderOutcome.UNKNOWN
        assert await commit(store, lease, a_record(0)) is TurnOutcome.APPLIED
        priorities = {run.id: run.priority for run in await store.get_many(["held", "waits", "over"])}
        assert priorities == {"held": 7, "waits": 7, "over": 100}


class Pauses:
    """Of what is paused, nothing is claimed."""

    @pytest.mark.parametrize(("kind", "name"), [(PauseKind.TYPE, "other.v1"), (PauseKind.QUEUE, "slow")])
    async def test_no_worker_takes_runs_of_a_paused_type_or_queue(
        self, harness: Harness, store: Store, kind: PauseKind, name: str
    ) -> None:
        changes = {"type": name} if kind is PauseKind.TYPE else {"queue": name}
        await store.create([a_run("r1"), a_run("r2", **changes), a_run("r3", wake_at=START + SECOND, **changes)], ACTOR)
        wanted: dict[str, Any] = {"types": (TYPE, "other.v1"), "queues": ("default", "slow")}
        await store.pause(Pause(kind=kind, name=name, reason="why not"), ACTOR)
        await store.pause(Pause(kind=kind, name=name, reason="later"), ACTOR)
        [pause] = await store.pauses()
        assert pause == Pause(kind=kind, name=name, reason="why not", actor=ACTOR, paused_at=START)
        assert await claim_ids(store, **wanted) == ["r1"]
        assert await claim_ids(store, nonce="one", types=(name,), queues=(name,)) == []
        harness.system.advance(2)
        assert await claim_ids(store, nonce="due", **wanted) == []
        await store.resume(kind, name, ACTOR)
        assert sorted(await claim_ids(store, nonce="after", **wanted)) == ["r2", "r3"]
        assert await store.pauses() == []

    async def test_a_worker_whose_work_is_all_paused_hears_of_nothing_to_do(self, store: Store) -> None:
        await store.create([a_run()], ACTOR)
        await store.pause(Pause(kind=PauseKind.TYPE, name=TYPE), ACTOR)
        for number in range(3):
            claimed = await claim(store, nonce=str(number))
            assert (claimed.runs, claimed.next_wake) == ((), NEVER)
        await store.resume(PauseKind.QUEUE, TYPE, ACTOR)
        assert await claim_ids(store, nonce="still") == []
        await store.resume(PauseKind.TYPE, TYPE, ACTOR)
        assert await claim_ids(store, nonce="now") == ["r1"]
