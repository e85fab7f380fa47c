"""Runs that begin anew under their id."""

from __future__ import annotations

import pytest

from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import ContinueAsNew, Finish, RetryLater, Trim, Turn, TurnOutcome
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    OTHER_TYPE,
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
    commit,
    held,
    lease_of,
    snapshot,
)


class Renewal:
    """A new generation has everything but the past."""

    async def test_a_run_begins_anew_with_another_input_and_no_history(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        [claimed] = await store.get_many(["r1"])
        output = NewOutput(kind=OutputKind.STREAM, name="tokens", payload="1", key="a")
        await commit(store, lease, a_record(0), outputs=(output,))
        harness.system.advance(1)
        verdict = await commit(store, lease, a_record(1), next=ContinueAsNew(OTHER_TYPE, '{"n":2}', 0))
        assert verdict is TurnOutcome.APPLIED
        [run] = await store.get_many(["r1"])
        assert (run.type, run.input, run.generation, run.attempt) == (OTHER_TYPE, '{"n":2}', 2, 1)
        assert (run.status, run.reason, run.wake_at) == (Status.PENDING, None, START + SECOND)
        assert (run.token, run.worker, run.claims, run.started_at) == (lease.token + 1, None, 0, 0)
        assert (run.seed, run.created_at, run.error) == (claimed.seed, START, None)
        assert await store.history("r1") == []
        assert len(await store.outputs("r1", OutputKind.STREAM, "tokens", -1, 10)) == 1
        last = (await store.events("r1"))[-1]
        assert (last.kind, last.data) == ("continued", '{"generation":2}')

    async def test_the_next_generation_is_claimed_as_a_run_without_a_past(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await commit(store, lease, *(a_record(seq) for seq in range(5)))
        await commit(store, lease, next=ContinueAsNew(TYPE, "{}", 0))
        harness.system.advance(1)
        [claimed] = (await claim(store, nonce="second")).runs
        assert claimed.fresh
        assert (claimed.run.token, claimed.run.claims, claimed.run.started_at) == (lease.token + 2, 1, START + SECOND)
        assert (
            await commit(store, claimed.lease, a_record(0), next=Finish(Status.COMPLETED, "1")) is TurnOutcome.APPLIED
        )
        kinds = [event.kind for event in await store.events("r1")]
        assert kinds == ["created", "started", "continued", "started", "completed"]

    async def test_an_attempt_that_failed_is_forgotten(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, a_record(0), next=RetryLater(START, '{"type": "Oops"}'))
        lease = await lease_of(store, nonce="second")
        await commit(store, lease, next=ContinueAsNew(TYPE, "{}", 0))
        [run] = await store.get_many(["r1"])
        assert (run.attempt, run.error) == (1, None)

    async def test_it_is_refused_when_something_came_in(self, store: Store) -> None:
        await store.create([a_run("other")], ACTOR)
        lease = await held(store)
        await store.send([a_message(key=key) for key in ("a", "b", "c")], ACTOR)
        # One entry was taken in with a record, the next without one, and the third was not known.
        record = a_record(0, "news", kind=RecordKind.MESSAGE, inbox_seq=1)
        renew = ContinueAsNew(OTHER_TYPE, "{}", 2, (("news", '"b"', "kept:1:2"),))
        verdict = await commit(store, lease, record, read=2, sends=(a_message("other"),), next=renew)
        assert verdict is TurnOutcome.AWAKE
        [run] = await store.get_many(["r1"])
        assert (run.status, run.type, run.generation, run.token) == (Status.RUNNING, TYPE, 1, lease.token)
        assert len(await store.history("r1")) == len(await store.inbox("other", 0)) == 1
        # What has no record is still to be read, should the worker die now.
        assert [message.key for message in await store.inbox("r1", 0)] == ["b", "c"]

    async def test_a_child_that_ends_in_the_same_batch_comes_first(self, store: Store) -> None:
        lease = await held(store, "parent")
        await commit(store, lease, children=(a_child("child"),))
        child = await lease_of(store, "child", "w2")
        turns = [
            Turn(lease=lease, next=ContinueAsNew(TYPE, "{}", 0)),
            Turn(lease=child, next=Finish(Status.COMPLETED, "1")),
        ]
        assert await store.commit(turns, ACTOR) == [TurnOutcome.AWAKE, TurnOutcome.APPLIED]

    async def test_messages_that_were_not_received_are_carried_over(self, store: Store) -> None:
        lease = await held(store)
        await store.send([a_message(key="a"), a_message(key="b")], ACTOR)
        record = a_record(0, "news", kind=RecordKind.MESSAGE, inbox_seq=1)
        renew = ContinueAsNew(TYPE, "{}", 2, (("news", '"a"', "kept:1:1"), ("other", '"b"', "kept:1:2")))
        assert await commit(store, lease, record, read=2, next=renew) is TurnOutcome.APPLIED
        [run] = await store.get_many(["r1"])
        assert (run.status, run.inbox_seq, run.inbox_read) == (Status.PENDING, 4, 2)
        second = await lease_of(store, nonce="second")
        [loaded] = await store.load(["r1"])
        found = [(one.seq, one.kind, one.name, one.payload) for one in loaded.inbox]
        assert found == [(3, RecordKind.MESSAGE, "news", '"a"'), (4, RecordKind.MESSAGE, "other", '"b"')]
        assert [event.kind for event in await store.events("r1")][-2:] == ["continued", "started"]
        taken = [a_record(seq, "news", kind=RecordKind.MESSAGE, inbox_seq=seq + 3) for seq in range(2)]
        again = ContinueAsNew(TYPE, "{}", 4, (("other", '"b"', "kept:2:4"),))
        await commit(store, second, *taken, read=4, trim=Trim(inbox=4, events=2), next=again)
        assert [(one.seq, one.key) for one in await store.inbox("r1", 0)] == [(5, "kept:2:4")]

    async def test_a_message_to_itself_comes_first(self, store: Store) -> None:
        lease = await held(store)
        verdict = await commit(store, lease, sends=(a_message(),), next=ContinueAsNew(TYPE, "{}", 0))
        assert verdict is TurnOutcome.AWAKE
        assert [message.key for message in await store.inbox("r1", 0)] == ["k1"]

    @pytest.mark.parametrize("records", [0, 2])
    async def test_a_lost_verdict_is_given_again(self, store: Store, harness: Harness, records: int) -> None:
        lease = await held(store)
        turn = Turn(
            lease=lease,
            records=tuple(a_record(seq) for seq in range(records)),
            trim=Trim(events=1),
            next=ContinueAsNew(TYPE, '{"n":2}', 0, (("news", "1", "kept:1:1"),)),
        )
        assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        before = await snapshot(harness)
        assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        assert await snapshot(harness) == before

    async def test_a_refusal_that_was_lost_is_given_again(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await store.send([a_message()], ACTOR)
        turn = Turn(lease=lease, records=(a_record(0),), next=ContinueAsNew(TYPE, "{}", 0, (("news", "1", "k"),)))
        assert await store.commit([turn], ACTOR) == [TurnOutcome.AWAKE]
        before = await snapshot(harness)
        assert await store.commit([turn], ACTOR) == [TurnOutcome.AWAKE]
        assert await snapshot(harness) == before

    async def test_a_run_that_was_given_back_has_not_begun_anew(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        harness.system.advance(60)
        await store.sweep(10)
        before = await snapshot(harness)
        for records in ((), (a_record(0),)):
            turn = Turn(lease=lease, records=records, next=ContinueAsNew(TYPE, "{}", 0))
            assert await store.commit([turn], ACTOR) == [TurnOutcome.LOST]
        assert await snapshot(harness) == before

    async def test_many_runs_begin_anew_in_one_batch(self, store: Store) -> None:
        leases = [await held(store, f"r{number}") for number in range(3)]
        await store.send([a_message("r1")], ACTOR)
        turns = [
            Turn(lease=lease, records=(a_record(0),), next=ContinueAsNew(TYPE, f"[{lease.token}]", 0))
            for lease in leases
        ]
        assert await store.commit(turns, ACTOR) == [TurnOutcome.APPLIED, TurnOutcome.AWAKE, TurnOutcome.APPLIED]
        assert [len(await store.history(lease.run_id)) for lease in leases] == [0, 1, 0]

    async def test_a_child_tells_its_parent_when_its_last_generation_ends(self, store: Store) -> None:
        lease = await held(store, "parent")
        await commit(store, lease, children=(a_child("child"),), next=a_park(reason=Reason.CHILD))
        child = await lease_of(store, "child", "w2")
        await commit(store, child, next=ContinueAsNew(TYPE, "{}", 0))
        assert await store.inbox("parent", 0) == []
        child = await lease_of(store, "child", "w2", nonce="second")
        await commit(store, child, next=Finish(Status.COMPLETED, "7"))
        assert [message.payload for message in await store.inbox("parent", 0)] == ["7"]
