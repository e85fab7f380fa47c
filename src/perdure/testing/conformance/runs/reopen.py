"""Second chances: opening finished runs again, giving attempts anew, and creating runs that have a past."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from perdure.core.model.dead_letter import RequeueRecord
from perdure.core.model.outputs import OutputKind
from perdure.core.model.record import RecordKind, SendOutcome
from perdure.core.model.run import ABANDONED, Fork, Reason, RetryOutcome, Status, random_source
from perdure.core.model.turn import Block, ContinueAsNew, Finish, NextState, RetryLater, TurnOutcome
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
    claim,
    claim_ids,
    commit,
    held,
    lease_of,
    retry,
    snapshot,
)

FAILED = Finish(Status.FAILED, '{"type":"ValueError","message":"no"}')
CANCELLED = Finish(Status.CANCELLED, '{"type":"perdure.errors.RunCancelled","message":"stop"}')


def a_fork(id: str = "copy", **changes: object) -> Fork:
    """A run with a past of two records, one of them a message."""
    records = (
        a_record(0, "quote"),
        a_record(1, kind=RecordKind.FORK, payload="{}"),
        a_record(2, "news", kind=RecordKind.MESSAGE, inbox_seq=1),
    )
    fork = Fork(run=a_run(id), source="r1", step="charge#2", records=records, started_at=START, seed="ab:1@1")
    return replace(fork, **changes)


async def reopen(store: Store, run_id: str = "r1", **changes: Any) -> RetryOutcome:
    """Let a workflow go again."""
    return await retry(store, run_id, is_activity=False, **changes)


class Reopening:
    """A run that failed or was cancelled goes on as a new generation."""

    @pytest.mark.parametrize("outcome", [FAILED, CANCELLED], ids=["failed", "cancelled"])
    async def test_a_finished_run_is_pending_again_with_its_history(self, store: Store, outcome: Finish) -> None:
        await commit(store, await held(store), a_record(0), next=outcome)
        assert await reopen(store) is RetryOutcome.OPEN
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.reason, run.generation, run.attempt) == (Status.PENDING, None, 2, 2)
        assert (run.started_at, run.finished_at, run.output, run.error) == (0, 0, None, None)
        assert [record.location for record in await store.history("r1")] == ["step-0"]
        assert (await store.events("r1"))[-1].kind == "reopened"
        assert await claim_ids(store, "w2") == ["r1"]

    async def test_it_has_its_own_outcome(self, store: Store) -> None:
        await commit(store, await held(store), next=FAILED)
        await reopen(store)
        lease = await lease_of(store, "r1", "w2")
        assert await commit(store, lease, next=Finish(Status.COMPLETED, "1")) is TurnOutcome.APPLIED
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.output, run.error, run.generation) == (Status.COMPLETED, "1", None, 2)

    async def test_its_randomness_stays_what_it_was(self, store: Store) -> None:
        await store.create([a_run()], ACTOR)
        seen = set()
        for generation in (1, 2, 3):
            [claimed] = (await claim(store, nonce=f"n{generation}")).runs
            seen.add(random_source(claimed.run.seed, claimed.run.generation))
            await commit(store, claimed.lease, next=FAILED)
            await reopen(store)
        assert len(seen) == 1

    async def test_said_twice_it_is_done_once(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await commit(store, lease, next=FAILED)
        await reopen(store)
        before = await snapshot(harness)
        assert await reopen(store, token=lease.token) is RetryOutcome.OPEN
        assert await snapshot(harness) == before

    async def test_what_has_not_failed_is_left_alone(self, store: Store, harness: Harness) -> None:
        await commit(store, await held(store, "done"), next=Finish(Status.COMPLETED, "1"))
        await held(store, "busy")
        before = await snapshot(harness)
        assert await reopen(store, "done") is RetryOutcome.COMPLETED
        assert await reopen(store, "busy") is RetryOutcome.ALIVE
        assert await reopen(store, "missing") is RetryOutcome.UNKNOWN
        assert await snapshot(harness) == before

    async def test_past_its_deadline_it_needs_another_one(self, store: Store, harness: Harness) -> None:
        await commit(store, await held(store, deadline=START + SECOND), next=FAILED)
        harness.system.advance(2)
        assert await reopen(store) is RetryOutcome.EXPIRED
        assert await reopen(store, deadline=START + 9 * SECOND) is RetryOutcome.OPEN
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.deadline) == (Status.PENDING, START + 9 * SECOND)

    async def test_what_it_had_not_read_is_remembered_and_no_cancellation_is_left(self, store: Store) -> None:
        lease = await held(store)
        await store.send([a_message(key="k1")], ACTOR)
        await store.cancel("r1", "late", "c1", ACTOR)
        await commit(store, lease, a_record(0), next=FAILED)
        await reopen(store)
        history = await store.history("r1")
        assert [(record.kind, record.inbox_seq, record.run_attempt) for record in history] == [
            (RecordKind.STEP, 0, 1),
            (RecordKind.MESSAGE, 1, 1),
            (RecordKind.CANCEL, 2, 1),
        ]
        assert history[1].payload == '"k1"'
        assert await store.inbox("r1", 0) == []
        run = await store.get("r1")
        assert run is not None
        assert (run.inbox_seq, run.inbox_read) == (2, 2)

    async def test_it_takes_messages_again(self, store: Store) -> None:
        await commit(store, await held(store), next=FAILED)
        assert await store.send([a_message(key="k1")], ACTOR) == [SendOutcome.FINISHED]
        await reopen(store)
        assert await store.send([a_message(key="k1")], ACTOR) == [SendOutcome.ACCEPTED]
        assert [message.key for message in await store.inbox("r1", 0)] == ["k1"]

    @pytest.mark.parametrize("end", ["cancel", "terminate"])
    async def test_one_that_ended_before_it_began_has_both_deadlines_again(self, store: Store, end: str) -> None:
        start_by, close_by = START + SECOND, START + 9 * SECOND
        await store.create([a_run(deadline=start_by, close_by=close_by)], ACTOR)
        if end == "cancel":
            await store.cancel("r1", "", "c1", ACTOR)
        else:
            await store.terminate("r1", "enough", "t1", ACTOR)
        assert await reopen(store) is RetryOutcome.OPEN
        run = await store.get("r1")
        assert run is not None
        assert (run.deadline, run.close_by) == (start_by, close_by)
        [claimed] = (await claim(store)).runs
        assert (claimed.run.deadline, claimed.run.close_by) == (close_by, 0)

    async def test_one_that_was_cancelled_before_it_began_begins(self, store: Store) -> None:
        await store.create([a_run()], ACTOR)
        await store.cancel("r1", "", "c1", ACTOR)
        assert await reopen(store) is RetryOutcome.OPEN
        [claimed] = (await claim(store)).runs
        assert (claimed.run.attempt, claimed.run.generation, claimed.run.started_at) == (2, 2, START)


class Families:
    """A parent that is opened again knows how its children ended, and is told of each further end."""

    async def test_children_that_ended_after_it_are_in_its_history(self, store: Store) -> None:
        lease = await held(store, "parent")
        await commit(store, lease, children=(a_child("good"), a_child("bad"), a_child("busy")))
        await claim(store, nonce="theirs")
        leases = {one.run_id: one for one in await store.leases("w1")}
        await commit(store, lease, next=FAILED)
        await commit(store, leases["good"], next=Finish(Status.COMPLETED, "7"))
        await commit(store, leases["bad"], next=FAILED)
        await reopen(store, "parent")
        history = await store.history("parent")
        assert {(record.location, record.payload, record.failed) for record in history} == {
            ("call-good", "7", False),
            ("call-bad", FAILED.payload, True),
        }

    async def test_a_child_that_is_being_stopped_is_let_go_of(self, store: Store) -> None:
        lease = await held(store, "parent")
        await commit(store, lease, children=(a_child("busy"),))
        child = await lease_of(store, "busy")
        stop = a_message("busy", key="stop", kind=RecordKind.CANCEL, only_child_of="parent")
        await commit(store, lease, sends=(stop,), next=FAILED)
        await reopen(store, "parent")
        assert [(r.location, r.failed) for r in await store.history("parent")] == [("call-busy", True)]
        await commit(store, child, next=CANCELLED)
        assert await store.inbox("parent", 0) == []
        busy = await store.get("busy")
        assert busy is not None
        assert (busy.parent_id, busy.parent_location) == ("parent", None)

    async def test_a_child_that_was_opened_again_is_stopped_again_with_its_parent(
        self, store: Store, harness: Harness
    ) -> None:
        lease = await held(store, "parent")
        await commit(store, lease, children=(a_child("kid"),), next=a_park(reason=Reason.CHILD))
        for stops in (1, 2):
            await store.terminate("parent", "enough", f"t{stops}", ACTOR)
            of_kid = "SELECT COUNT(*) FROM perdure_messages WHERE run_id = 'kid' AND kind = 'cancel'"
            assert await harness.query(of_kid) == [(stops,)]
            if stops == 1:
                await reopen(store, "kid")
                await reopen(store, "parent")

    async def test_a_child_that_goes_on_is_waited_for_again(self, store: Store) -> None:
        lease = await held(store, "parent")
        await commit(store, lease, children=(a_child("busy"),))
        child = await lease_of(store, "busy")
        await commit(store, lease, next=FAILED)
        await reopen(store, "parent")
        lease = await lease_of(store, "parent", "w2")
        await commit(store, lease, children=(a_child("busy"),), next=a_park(reason=Reason.CHILD))
        await commit(store, child, next=Finish(Status.COMPLETED, "7"))
        assert [(one.name, one.payload) for one in await store.inbox("parent", 0)] == [("call-busy", "7")]

    async def test_a_child_that_ended_unheard_is_heard_when_it_is_called_again(self, store: Store) -> None:
        lease = await held(store, "parent")
        await commit(store, lease, children=(a_child("mine"),), next=FAILED)
        await reopen(store, "parent")
        lease = await lease_of(store, "parent", "w2")
        child = next(one for one in await store.leases("w2") if one.run_id == "mine")
        # It ends while its parent has ended once more, which the parent finds out when it calls the child again.
        await commit(store, lease, next=FAILED)
        await commit(store, child, next=Finish(Status.COMPLETED, "7"))
        await reopen(store, "parent")
        assert [(r.location, r.payload) for r in await store.history("parent")] == [("call-mine", "7")]
        lease = await lease_of(store, "parent", "w3")
        await commit(store, lease, children=(a_child("mine"),), next=a_park(reason=Reason.CHILD))
        assert [(one.name, one.payload) for one in await store.inbox("parent", 0)] == [("call-mine", "7")]

    @pytest.mark.parametrize("when", ["unread", "afterwards"])
    @pytest.mark.parametrize("id", ["parent/call", "mine"], ids=["id by its place", "id of its own"])
    async def test_a_child_from_before_continue_as_new_is_not_heard(self, store: Store, id: str, when: str) -> None:
        lease = await held(store, "parent")
        old = a_child(id, location="call", write_id=f"{ABANDONED}parent:1:call:1")
        await commit(store, lease, children=(old,))
        child = await lease_of(store, id)
        await commit(store, lease, next=ContinueAsNew(TYPE, "2", 0))
        lease = await lease_of(store, "parent", "w2")
        if when == "unread":
            await commit(store, child, next=Finish(Status.COMPLETED, "7"))
        await commit(store, lease, a_record(0), next=FAILED)
        if when == "afterwards":
            await commit(store, child, next=Finish(Status.COMPLETED, "7"))
        await reopen(store, "parent")
        assert [record.location for record in await store.history("parent")] == ["step-0"]
        assert await store.inbox("parent", 0) == []

    @pytest.mark.parametrize("when", ["unread", "afterwards"])
    @pytest.mark.parametrize("id", ["parent~2/call", "mine"], ids=["id by its place", "id of its own"])
    async def test_a_child_from_after_continue_as_new_is_heard(self, store: Store, id: str, when: str) -> None:
        await commit(store, await held(store, "parent"), next=ContinueAsNew(TYPE, "2", 0))
        lease = await lease_of(store, "parent", "w2")
        await commit(store, lease, children=(a_child(id, location="call", write_id="parent:2:call:1"),))
        child = await lease_of(store, id)
        if when == "unread":
            await commit(store, child, next=Finish(Status.COMPLETED, "7"))
        await commit(store, lease, next=FAILED)
        if when == "afterwards":
            await commit(store, child, next=Finish(Status.COMPLETED, "7"))
        await reopen(store, "parent")
        assert [(r.location, r.payload) for r in await store.history("parent")] == [("call", "7")]

    async def test_what_the_run_was_told_of_other_runs_is_asked_anew(self, store: Store) -> None:
        lease = await held(store, "parent")
        await store.send([a_message("parent", key="watch:1.1:a", kind=RecordKind.CHILD)], ACTOR)
        await commit(store, lease, next=FAILED)
        await reopen(store, "parent")
        assert await store.history("parent") == []
        assert await store.inbox("parent", 0) == []

    async def test_a_child_that_goes_on_since_it_was_stopped_and_reopened_is_waited_for(self, store: Store) -> None:
        lease = await held(store, "parent")
        await commit(store, lease, children=(a_child("busy"),))
        child = await lease_of(store, "busy")
        stop = a_message("busy", key="stop", kind=RecordKind.CANCEL, only_child_of="parent")
        await commit(store, lease, sends=(stop,), next=FAILED)
        await commit(store, child, next=CANCELLED)
        await reopen(store, "busy")
        await reopen(store, "parent")
        assert await store.history("parent") == []
        lease = await lease_of(store, "parent", "w2")
        await commit(store, lease, children=(a_child("busy"),), next=a_park(reason=Reason.CHILD))
        busy = next(one for one in await store.leases("w2") if one.run_id == "busy")
        await commit(store, busy, next=Finish(Status.COMPLETED, "7"))
        assert [(one.name, one.payload) for one in await store.inbox("parent", 0)] == [("call-busy", "7")]

    async def test_a_child_that_is_stopped_again_after_it_was_reopened_is_let_go_of(self, store: Store) -> None:
        lease = await held(store, "parent")
        await commit(store, lease, children=(a_child("busy"),))
        child = await lease_of(store, "busy")
        await store.cancel("busy", "", "c1", ACTOR)
        await commit(store, child, next=CANCELLED)
        await reopen(store, "busy")
        await store.cancel("busy", "", "c2", ACTOR)
        await commit(store, lease, next=FAILED)
        await reopen(store, "parent")
        assert [record.failed for record in await store.history("parent")] == [True]
        busy = await store.get("busy")
        assert busy is not None
        assert busy.parent_location is None

    async def test_an_unread_failure_of_a_child_that_goes_on_since_is_not_remembered(self, store: Store) -> None:
        lease = await held(store, "parent")
        await commit(store, lease, children=(a_child("busy"),))
        await commit(store, await lease_of(store, "busy"), next=FAILED)
        await reopen(store, "busy")
        await commit(store, lease, next=FAILED)
        await reopen(store, "parent")
        assert await store.history("parent") == []

    async def test_a_child_whose_failure_is_in_the_history_counts_once(self, store: Store) -> None:
        lease = await held(store, "parent")
        given_up = a_record(0, "call", kind=RecordKind.CHILD, failed=True)
        await commit(store, lease, children=(a_child("parent/call", location="call"),))
        child = await lease_of(store, "parent/call")
        await store.cancel("parent/call", "", "c1", ACTOR)
        await commit(store, lease, given_up, next=FAILED)
        await commit(store, child, next=CANCELLED)
        await reopen(store, "parent")
        assert await store.history("parent") == [given_up]

    @pytest.mark.parametrize("another", [False, True], ids=["the last", "called anew since"])
    async def test_a_failed_child_that_was_reopened_and_succeeded_counts_if_it_is_the_last(
        self, store: Store, another: bool
    ) -> None:
        lease = await held(store, "parent")
        failed = a_record(0, "call", kind=RecordKind.CHILD, failed=True)
        await commit(store, lease, children=(a_child("parent/call", location="call"),))
        await commit(store, await lease_of(store, "parent/call"), next=FAILED)
        await commit(store, lease, failed, read=1, next=RetryLater(START, "{}"))
        lease = await lease_of(store, "parent", "w2")
        if another:
            await commit(store, lease, children=(a_child("parent/call@2", location="call"),))
        await commit(store, lease, next=FAILED)
        await reopen(store, "parent/call")
        child = await lease_of(store, "parent/call", "w3")
        await commit(store, child, next=Finish(Status.COMPLETED, "7"))
        await reopen(store, "parent")
        assert [r.payload for r in await store.history("parent") if not r.failed] == ([] if another else ["7"])

    async def test_a_child_that_is_opened_again_tells_its_parent_of_each_end(self, store: Store) -> None:
        lease = await held(store, "parent")
        await commit(store, lease, children=(a_child("child"),))
        await commit(store, await lease_of(store, "child"), next=FAILED)
        await reopen(store, "child")
        await commit(store, await lease_of(store, "child", "w2"), next=Finish(Status.COMPLETED, "7"))
        inbox = await store.inbox("parent", 0)
        assert [(one.name, one.payload, one.failed) for one in inbox] == [
            ("call-child", FAILED.payload, True),
            ("call-child", "7", False),
        ]


class Recovering:
    """Attempts are given anew."""

    async def test_a_step_that_waits_to_be_tried_again_is_tried_at_once_with_all_its_attempts(
        self, store: Store
    ) -> None:
        stumbled = a_record(1, "flaky", kind=RecordKind.ATTEMPT, failed=True, attempts=8, retry_at=START + 900 * SECOND)
        earlier = a_record(0, "flaky", kind=RecordKind.ATTEMPT, failed=True, attempts=7, retry_at=START)
        park = a_park(wake_at=START + 900 * SECOND, reason=Reason.RETRY)
        await commit(store, await held(store), earlier, stumbled, next=park)
        run = await store.get("r1")
        assert run is not None
        assert await retry(store) is RetryOutcome.OPEN
        history = await store.history("r1")
        assert [(record.attempts, record.retry_at) for record in history] == [(7, START), (0, 0)]
        after = await store.get("r1")
        assert after is not None
        assert (after.status, after.token, after.wake_at) == (Status.PENDING, run.token + 1, START)
        assert (await store.events("r1"))[-1].kind == "recovered"

    async def test_steps_that_have_ended_keep_their_attempts(self, store: Store) -> None:
        stumbled = a_record(0, "flaky", kind=RecordKind.ATTEMPT, failed=True, attempts=1)
        await commit(store, await held(store), stumbled, a_record(1, "flaky", attempts=2), next=a_park())
        run = await store.get("r1")
        assert run is not None
        assert await retry(store) is RetryOutcome.ALIVE
        assert [record.attempts for record in await store.history("r1")] == [1, 2]

    async def test_a_whole_run_that_waits_to_be_tried_again_is_tried_at_once(self, store: Store) -> None:
        await commit(store, await held(store), next=RetryLater(START + 900 * SECOND, "{}"))
        run = await store.get("r1")
        assert run is not None
        assert await retry(store) is RetryOutcome.OPEN
        assert await claim_ids(store, "w2") == ["r1"]

    async def test_a_poisonous_run_starts_with_a_clean_record(self, store: Store) -> None:
        await commit(store, await held(store), next=Block(Reason.POISON, "{}"))
        run = await store.get("r1")
        assert run is not None
        assert await retry(store) is RetryOutcome.OPEN
        [claimed] = (await claim(store, "w2")).runs
        assert (claimed.run.claims, claimed.run.error) == (1, None)

    async def test_an_activity_that_waits_for_its_next_attempt_begins_anew_at_once(self, store: Store) -> None:
        failed = a_record(0, TYPE, kind=RecordKind.ATTEMPT, failed=True, attempts=1, retry_at=START + 900 * SECOND)
        await commit(store, await held(store), failed, next=RetryLater(START + 900 * SECOND, "{}"))
        assert await retry(store, is_activity=True) is RetryOutcome.OPEN
        # Its history stays as it is.
        assert await store.history("r1") == [failed]
        [claimed] = (await claim(store, "w2")).runs
        assert (claimed.run.attempt, claimed.run.generation) == (1, 1)

    async def test_a_blocked_activity_counts_its_attempts_anew(self, store: Store) -> None:
        await store.create([a_run("r1")], ACTOR)
        for number in (1, 2):
            failed = a_record(number - 1, TYPE, kind=RecordKind.ATTEMPT, failed=True, run_attempt=number)
            await commit(store, await lease_of(store, "r1", "w1"), failed, next=RetryLater(START, "{}"))
        await commit(store, await lease_of(store, "r1", "w1"), next=Block(Reason.POISON, "{}"))
        assert await retry(store, is_activity=True) is RetryOutcome.OPEN
        again = a_record(2, TYPE, kind=RecordKind.ATTEMPT, failed=True, run_attempt=1)
        await commit(store, await lease_of(store, "r1", "w1"), again, next=RetryLater(START, "{}"))
        assert [record.run_attempt for record in await store.history("r1")] == [1, 2, 1]

    async def test_a_blocked_run_is_claimed_again_and_keeps_its_error_among_its_outputs(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, a_record(0), next=Block(Reason.DIVERGED, '{"type":"Oops"}'))
        assert await retry(store) is RetryOutcome.OPEN
        assert (await store.events("r1"))[-1].kind == "unblocked"
        [kept] = await store.outputs("r1", OutputKind.REQUEUE, "", -1, 10)
        assert RequeueRecord.from_json(kept.payload).error == '{"type":"Oops"}'
        [claimed] = (await claim(store, "w2")).runs
        assert (claimed.run.attempt, claimed.run.generation, claimed.run.started_at) == (1, 1, START)

    @pytest.mark.parametrize("state", [Block(Reason.DIVERGED, "{}"), RetryLater(START + SECOND, "{}")])
    async def test_an_unfinished_run_has_still_to_read_its_inbox(self, store: Store, state: NextState) -> None:
        lease = await held(store)
        await store.send([a_message("r1", "k1"), a_message("r1", "k2")], ACTOR)
        await commit(store, lease, a_record(0, "news", kind=RecordKind.MESSAGE, inbox_seq=1), read=1, next=state)
        assert await retry(store) is RetryOutcome.OPEN
        run = await store.get("r1")
        assert run is not None
        assert (run.inbox_seq, run.inbox_read) == (2, 1)
        assert [message.key for message in await store.inbox("r1", 0)] == ["k2"]

    async def test_a_blocked_run_past_its_deadline_goes_on_with_another(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r1", deadline=START + SECOND)], ACTOR)
        await commit(store, await lease_of(store, "r1", "w1"), next=Block(Reason.BROKEN, "{}"))
        harness.system.advance(2)
        assert await retry(store) is RetryOutcome.EXPIRED
        assert await retry(store, deadline=START + 900 * SECOND, priority=1) is RetryOutcome.ALIVE
        assert await retry(store, deadline=START + 900 * SECOND) is RetryOutcome.OPEN
        [claimed] = (await claim(store, "w2")).runs
        assert (claimed.run.deadline, claimed.run.generation) == (START + 900 * SECOND, 1)

    @pytest.mark.parametrize("state", [Block(Reason.DIVERGED, "{}"), RetryLater(START + SECOND, "{}")])
    async def test_a_repetition_is_known_after_a_claim(self, store: Store, harness: Harness, state: NextState) -> None:
        lease = await held(store)
        await commit(store, lease, next=state)
        assert await retry(store, token=lease.token) is RetryOutcome.OPEN
        await lease_of(store, "r1", "w2")
        before = await snapshot(harness)
        assert await retry(store, token=lease.token) is RetryOutcome.OPEN
        assert await snapshot(harness) == before

    async def test_the_claim_of_another_worker_is_no_repetition(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await commit(store, lease, next=RetryLater(START + SECOND, "{}"))
        harness.system.advance(2)
        # The run is due, and a worker is faster: the token is what a retry would have made of it.
        assert (await lease_of(store, "r1", "w2")).token == lease.token + 1
        before = await snapshot(harness)
        assert await retry(store, token=lease.token) is RetryOutcome.ALIVE
        assert await snapshot(harness) == before

    async def test_others_are_left_alone(self, store: Store, harness: Harness) -> None:
        stumbled = a_record(0, "flaky", kind=RecordKind.ATTEMPT, failed=True, attempts=1)
        await commit(store, await held(store, "busy"), stumbled)
        await commit(store, await held(store, "done"), next=Finish(Status.COMPLETED, "1"))
        await commit(store, await held(store, "waits"), next=a_park())
        before = await snapshot(harness)
        assert await retry(store, "busy") is RetryOutcome.ALIVE
        assert await retry(store, "waits") is RetryOutcome.ALIVE
        assert await retry(store, "done") is RetryOutcome.COMPLETED
        assert await retry(store, "missing") is RetryOutcome.UNKNOWN
        assert await snapshot(harness) == before


class Forking:
    """A run is created with a past."""

    async def test_it_has_its_records_its_time_and_its_randomness(self, store: Store) -> None:
        fork = a_fork()
        answer = await store.fork(fork, ACTOR)
        assert answer.created
        run = await store.get("copy")
        assert run is not None
        assert (run.status, run.started_at, run.seed, run.generation) == (Status.PENDING, START, "ab:1@1", 1)
        assert (run.inbox_seq, run.inbox_read, run.deadline) == (1, 1, NEVER)
        assert tuple(await store.history("copy")) == fork.records
        assert [event.kind for event in await store.events("copy")] == ["created", "forked"]
        [claimed] = (await claim(store)).runs
        assert (claimed.fresh, claimed.run.started_at) == (False, START)

    async def test_it_goes_on_where_its_past_ends(self, store: Store) -> None:
        await store.fork(a_fork(), ACTOR)
        lease = await lease_of(store, "copy")
        await store.send([a_message("copy", key="new")], ACTOR)
        news = a_record(3, "news", kind=RecordKind.MESSAGE, inbox_seq=2)
        assert await commit(store, lease, news, read=2, next=Finish(Status.COMPLETED, "1")) is TurnOutcome.APPLIED

    async def test_said_twice_it_is_done_once(self, store: Store, harness: Harness) -> None:
        first = await store.fork(a_fork(), ACTOR)
        before = await snapshot(harness)
        again = await store.fork(a_fork(), ACTOR)
        assert (first.created, again.created) == (True, True)
        assert await snapshot(harness) == before

    async def test_a_run_of_its_id_is_left_as_it_is(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("copy", write_id="theirs")], ACTOR)
        before = await snapshot(harness)
        assert not (await store.fork(a_fork(), ACTOR)).created
        assert await snapshot(harness) == before
