"""Messages and cancellations: counted, ordered, and never slept through."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.core.codec.failure import Failure
from perdure.core.model.record import Record, RecordKind, SendOutcome
from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import Block, Finish, Release, RetryLater, TurnOutcome
from perdure.core.model.waits import Wait, WaitKind, waits_to_json
from perdure.core.time.duration import NEVER
from perdure.errors import RunCancelled
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    SECOND,
    START,
    Harness,
    a_message,
    a_park,
    a_record,
    a_run,
    claim_ids,
    commit,
    held,
    lease_of,
    snapshot,
)


def taken(seq: int, inbox_seq: int, name: str = "news", kind: RecordKind = RecordKind.MESSAGE) -> Record:
    """The record that takes an inbox entry in."""
    return a_record(seq, name, kind=kind, inbox_seq=inbox_seq)


class Inbox:
    """Entries are numbered in the order in which they were accepted, and kept until they are taken in."""

    async def test_a_name_close_to_an_awaited_one_is_told_apart(self, store: Store) -> None:
        lease = await held(store)
        waits = waits_to_json(lease.token, [Wait(kind=WaitKind.MESSAGE, name="approval")], 1)
        await commit(store, lease, a_record(0), next=replace(a_park(), waits=waits))
        first, again = a_message(name="aproval", key="k1"), a_message(name="aproval", key="k2")
        assert await store.send([first, again], ACTOR) == [SendOutcome.MISSPELT, SendOutcome.ACCEPTED]
        assert [one.name for one in await store.inbox("r1", 0)] == ["aproval", "aproval"]

    async def test_a_run_that_is_given_back_is_not_marked_for_a_holder(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await store.send([a_message("r1")], ACTOR)
        assert await harness.query("SELECT marked FROM perdure_runs") == [(1,)]
        assert await commit(store, lease, next=Release()) is TurnOutcome.APPLIED
        assert await harness.query("SELECT marked FROM perdure_runs") == [(0,)]

    async def test_messages_keep_their_order(self, store: Store) -> None:
        await store.create([a_run()], ACTOR)
        await store.send([a_message(key="a"), a_message(key="b")], ACTOR)
        await store.send([a_message(key="c")], ACTOR)
        assert [(message.seq, message.key) for message in await store.inbox("r1", 0)] == [(1, "a"), (2, "b"), (3, "c")]
        assert [message.key for message in await store.inbox("r1", 2)] == ["c"]

    async def test_a_long_inbox_is_read_page_by_page(self, store: Store) -> None:
        store.inbox_page = 3
        for name in ("r1", "r2"):
            await held(store, name)
            await store.send([a_message(name, key=f"{number}") for number in range(1, 6)], ACTOR)
        for loaded in await store.load(["r1", "r2"]):
            assert [message.seq for message in loaded.inbox] == [1, 2, 3]
        marked = [(message.run_id, message.seq) for message in await store.unread_messages_of_worker("w1")]
        assert marked == [(name, number) for name in ("r1", "r2") for number in (1, 2, 3)]
        assert [message.seq for message in await store.inbox("r1", 3, 3)] == [4, 5]
        assert [message.seq for message in await store.inbox("r1", 1, 2)] == [2, 3]

    async def test_a_message_comes_back_as_it_was_sent(self, store: Store) -> None:
        await store.create([a_run()], ACTOR)
        await store.send([a_message(name="approval", payload='{"by": "me"}', failed=True)], ACTOR)
        [message] = await store.inbox("r1", 0)
        assert (message.run_id, message.kind, message.name, message.payload) == (
            "r1",
            RecordKind.MESSAGE,
            "approval",
            '{"by": "me"}',
        )
        assert (message.failed, message.key, message.sent_at) == (True, "k1", START)

    async def test_a_key_is_accepted_once(self, store: Store, harness: Harness) -> None:
        await store.create([a_run()], ACTOR)
        assert await store.send([a_message(), a_message()], ACTOR) == [SendOutcome.ACCEPTED, SendOutcome.DUPLICATE]
        before = await snapshot(harness)
        assert await store.send([a_message(payload='"other"')], ACTOR) == [SendOutcome.DUPLICATE]
        assert await snapshot(harness) == before

    async def test_a_key_belongs_to_one_run(self, store: Store) -> None:
        await store.create([a_run("r1"), a_run("r2")], ACTOR)
        assert await store.send([a_message("r1"), a_message("r2")], ACTOR) == [SendOutcome.ACCEPTED] * 2

    async def test_a_key_is_known_after_its_message_was_taken_in(self, store: Store) -> None:
        lease = await held(store)
        await store.send([a_message()], ACTOR)
        await commit(store, lease, taken(0, 1), read=1)
        assert await store.send([a_message()], ACTOR) == [SendOutcome.DUPLICATE]

    async def test_a_run_that_is_not_there_takes_nothing(self, store: Store) -> None:
        assert await store.send([a_message("unknown")], ACTOR) == [SendOutcome.UNKNOWN]
        assert await store.cancel("unknown", "", "c1", ACTOR) is SendOutcome.UNKNOWN

    async def test_a_finished_run_takes_nothing(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await commit(store, lease, next=Finish(Status.COMPLETED, "1"))
        before = await snapshot(harness)
        assert await store.send([a_message()], ACTOR) == [SendOutcome.FINISHED]
        assert await store.cancel("r1", "", "c1", ACTOR) is SendOutcome.FINISHED
        assert await snapshot(harness) == before

    async def test_what_was_accepted_before_the_end_is_still_a_duplicate(self, store: Store) -> None:
        lease = await held(store)
        await store.send([a_message()], ACTOR)
        await commit(store, lease, next=Finish(Status.COMPLETED, "1"))
        assert await store.send([a_message()], ACTOR) == [SendOutcome.DUPLICATE]

    async def test_a_waiting_run_becomes_ready(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await commit(store, lease, next=a_park(wake_at=START + 90 * SECOND))
        harness.system.advance(5)
        await store.send([a_message()], ACTOR)
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.reason, run.wake_at) == (Status.PENDING, None, START + 5 * SECOND)

    async def test_a_running_run_is_marked_until_it_has_read(self, store: Store) -> None:
        lease = await held(store)
        assert await store.unread_messages_of_worker("w1") == []
        await store.send([a_message(key="a"), a_message(key="b")], ACTOR)
        assert [message.key for message in await store.unread_messages_of_worker("w1")] == ["a", "b"]
        await commit(store, lease, taken(0, 1), read=1)
        assert [message.key for message in await store.unread_messages_of_worker("w1")] == ["b"]
        await commit(store, lease, taken(1, 2), read=2)
        assert await store.unread_messages_of_worker("w1") == []

    async def test_what_is_unread_can_be_had_for_some_runs(self, store: Store) -> None:
        await store.create([a_run(f"r{number}") for number in range(1, 4)], ACTOR)
        lease = await held(store)
        for number in range(1, 4):
            await store.send([a_message(f"r{number}", key="a"), a_message(f"r{number}", key="b")], ACTOR)
        await commit(store, lease, taken(0, 1), read=1)
        found = await store.unread_messages(["r1", "r3", "missing"])
        assert [(message.run_id, message.key) for message in found] == [("r1", "b"), ("r3", "a"), ("r3", "b")]
        assert await store.unread_messages([]) == []

    async def test_marks_are_for_the_worker_that_runs_it(self, store: Store) -> None:
        await held(store)
        await store.send([a_message()], ACTOR)
        assert await store.unread_messages_of_worker("w2") == []

    async def test_pending_and_blocked_runs_keep_it_for_later(self, store: Store) -> None:
        await store.create([a_run("pending")], ACTOR)
        lease = await lease_of(store, "pending")
        await commit(store, lease, next=Block(Reason.DIVERGED, "{}"))
        await store.create([a_run("other")], ACTOR)
        await store.send([a_message("pending"), a_message("other")], ACTOR)
        runs = {run.id: run.status for run in await store.get_many(["pending", "other"])}
        assert runs == {"pending": Status.BLOCKED, "other": Status.PENDING}
        assert len(await store.inbox("pending", 0)) == len(await store.inbox("other", 0)) == 1

    async def test_a_run_for_later_is_not_started_early_by_a_message(self, store: Store) -> None:
        await store.create([a_run("r1", wake_at=START + SECOND)], ACTOR)
        await store.send([a_message()], ACTOR)
        assert await claim_ids(store) == []

    async def test_a_run_between_attempts_is_not_started_early_by_a_message(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, next=RetryLater(START + SECOND, "{}"))
        await store.send([a_message()], ACTOR)
        assert await claim_ids(store, nonce="early") == []

    async def test_what_was_taken_in_is_no_longer_unread(self, store: Store) -> None:
        lease = await held(store)
        await store.send([a_message(key="a"), a_message(key="b"), a_message(key="c")], ACTOR)
        await commit(store, lease, taken(0, 1), taken(1, 2), read=2)
        [loaded] = await store.load(["r1"])
        assert [message.key for message in loaded.inbox] == ["c"]
        assert [message.key for message in await store.inbox("r1", 0)] == ["c"]
        assert (loaded.run.inbox_seq, loaded.run.inbox_read) == (3, 2)
        assert [record.payload for record in loaded.records] == ["0", "1"]

    async def test_messages_are_in_the_audit_trail(self, store: Store) -> None:
        await store.create([a_run()], ACTOR)
        await store.send([a_message()], "a client")
        event = (await store.events("r1"))[-1]
        assert (event.kind, event.actor) == ("sent", "a client")
        assert '"k1"' in event.data


class Parking:
    """A run goes to sleep only if it has seen everything."""

    async def test_a_run_that_has_seen_everything_parks(self, store: Store) -> None:
        lease = await held(store)
        assert await commit(store, lease, next=a_park()) is TurnOutcome.APPLIED
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.reason, run.worker, run.wake_at) == (Status.WAITING, Reason.MESSAGE, None, NEVER)

    async def test_a_message_that_came_first_keeps_it_awake(self, store: Store) -> None:
        lease = await held(store)
        await store.send([a_message()], ACTOR)
        assert await commit(store, lease, a_record(0), next=a_park(seen=0)) is TurnOutcome.AWAKE
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.worker) == (Status.RUNNING, "w1")
        assert len(await store.history("r1")) == 1

    async def test_it_parks_after_reading(self, store: Store) -> None:
        lease = await held(store)
        await store.send([a_message()], ACTOR)
        assert await commit(store, lease, taken(0, 1), read=1, next=a_park(seen=1)) is TurnOutcome.APPLIED
        run = await store.get("r1")
        assert run is not None
        assert run.status is Status.WAITING

    async def test_a_cancellation_that_came_first_keeps_it_awake(self, store: Store) -> None:
        lease = await held(store)
        assert await store.cancel("r1", "enough", "c1", ACTOR) is SendOutcome.ACCEPTED
        assert await commit(store, lease, next=a_park(seen=0)) is TurnOutcome.AWAKE
        assert [message.kind for message in await store.unread_messages_of_worker("w1")] == [RecordKind.CANCEL]

    async def test_a_cancellation_that_came_second_wakes_it(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, next=a_park(seen=0))
        assert await store.cancel("r1", "enough", "c1", ACTOR) is SendOutcome.ACCEPTED
        assert await claim_ids(store, nonce="later") == ["r1"]

    async def test_a_park_until_a_moment_that_has_passed_is_none(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        harness.system.advance(2)
        assert (
            await commit(store, lease, next=a_park(wake_at=START + SECOND, reason=Reason.TIMER)) is TurnOutcome.APPLIED
        )
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.reason, run.wake_at) == (Status.PENDING, None, START + SECOND)

    async def test_no_park_outlasts_the_deadline(self, store: Store) -> None:
        lease = await held(store, deadline=START + 9 * SECOND)
        await commit(store, lease, next=a_park())
        run = await store.get("r1")
        assert run is not None
        assert run.wake_at == START + 9 * SECOND


class Cancelling:
    """A run is asked to stop; one that has no code under way is stopped at once."""

    async def stopped(self, store: Store) -> None:
        run = await store.get("r1")
        assert run is not None
        assert run.status is Status.CANCELLED
        assert run.finished_at > 0
        assert run.error is not None
        assert Failure.from_json(run.error).type.endswith(RunCancelled.__qualname__)
        assert [event.kind for event in await store.events("r1")][-2:] == ["cancel_requested", "cancelled"]
        assert await store.cancel("r1", "enough", "c1", ACTOR) is SendOutcome.DUPLICATE
        assert await store.cancel("r1", "enough", "c2", ACTOR) is SendOutcome.FINISHED

    async def test_a_run_that_never_started_is_cancelled_at_once(self, store: Store) -> None:
        await store.create([a_run()], ACTOR)
        assert await store.cancel("r1", "enough", "c1", ACTOR) is SendOutcome.ACCEPTED
        await self.stopped(store)

    async def test_so_is_one_that_is_for_later(self, store: Store) -> None:
        await store.create([a_run(wake_at=START + SECOND)], ACTOR)
        assert await store.cancel("r1", "enough", "c1", ACTOR) is SendOutcome.ACCEPTED
        await self.stopped(store)

    async def test_so_is_one_that_is_blocked(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, a_record(0), next=Block(Reason.DIVERGED, "{}"))
        assert await store.cancel("r1", "enough", "c1", ACTOR) is SendOutcome.ACCEPTED
        await self.stopped(store)

    async def test_one_that_was_given_back_unfinished_decides_for_itself(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, next=Release())
        await store.cancel("r1", "enough", "c1", ACTOR)
        run = await store.get("r1")
        assert run is not None
        assert run.status is Status.PENDING

    async def test_one_between_attempts_is_woken(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, next=RetryLater(START + SECOND, "{}"))
        await store.cancel("r1", "enough", "c1", ACTOR)
        assert await claim_ids(store, nonce="now") == ["r1"]

    async def test_one_that_fails_with_a_cancellation_unread_does_not_wait_for_its_retry(self, store: Store) -> None:
        lease = await held(store)
        await store.cancel("r1", "enough", "c1", ACTOR)
        assert await commit(store, lease, next=RetryLater(START + SECOND, "{}")) is TurnOutcome.APPLIED
        assert await claim_ids(store, nonce="now") == ["r1"]

    async def test_the_reason_is_in_the_inbox(self, store: Store) -> None:
        await held(store)
        await store.cancel("r1", 'he said "enough"', "c1", ACTOR)
        [message] = await store.unread_messages_of_worker("w1")
        assert (message.kind, message.payload) == (RecordKind.CANCEL, '"he said \\"enough\\""')

    async def test_asking_twice_is_asking_once(self, store: Store) -> None:
        await held(store)
        assert await store.cancel("r1", "", "c1", ACTOR) is SendOutcome.ACCEPTED
        assert await store.cancel("r1", "", "c1", ACTOR) is SendOutcome.DUPLICATE
        assert len(await store.inbox("r1", 0)) == 1
