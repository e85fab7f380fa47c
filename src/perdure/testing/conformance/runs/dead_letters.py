"""Dead letters: what is listed, and how a dead run goes on."""

from __future__ import annotations

import pytest

from perdure.core.model.dead_letter import DeadLetterFilter, DeadLetterReason
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, RetryOutcome, RetryRequest, Status
from perdure.core.model.turn import Block, Finish, RetryLater
from perdure.errors import InvalidCursor
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
    commit,
    held,
    lease_of,
    retry,
)
from perdure.testing.conformance.runs.retention import REFUSED, SLOW, dead_ids, failed, finished, set_aside


class DeadLetters:
    """A run that failed, is poison or cannot be decoded is listed until a person decides."""

    async def test_only_what_is_dead_is_listed_and_the_latest_run_first(self, store: Store, harness: Harness) -> None:
        await finished(store, "done")
        await failed(store, "a")
        harness.system.advance(1)
        await set_aside(store, "b")
        await set_aside(store, "c", Reason.UNDECODABLE)
        await set_aside(store, "code", Reason.DIVERGED)
        await held(store, "busy")
        page = await store.list_dead_letters(DeadLetterFilter(), 10, None)
        assert [(one.run_id, one.reason.value) for one in page.letters] == [
            ("c", "undecodable"),
            ("b", "poison"),
            ("a", "failed"),
        ]
        assert [one.dead_since for one in page.letters] == [START + SECOND, START + SECOND, START]
        assert page.cursor is None
        assert await store.get_dead_letter("done") is None

    async def test_they_are_chosen_by_type_queue_error_reason_and_time(self, store: Store, harness: Harness) -> None:
        for number, name in enumerate(("billing.a", "billing.b", "billing_x", "Billing.a")):
            await store.create([a_run(f"r{number}", type=name, queue="q" if number == 1 else "default")], ACTOR)
            got = await claim(store, nonce=f"n{number}", types=(name,), queues=("q", "default"))
            error = SLOW if number == 2 else REFUSED
            await commit(store, got.runs[0].lease, next=Finish(Status.FAILED, error))
            harness.system.advance(1)
        await set_aside(store, "r4")
        assert await dead_ids(store, type="billing.%") == ["r1", "r0"]
        assert await dead_ids(store, type="billing%") == ["r2", "r1", "r0"]
        assert await dead_ids(store, type="billing_%") == ["r2"]
        assert await dead_ids(store, type="%") == ["r4", "r3", "r2", "r1", "r0"]
        assert await dead_ids(store, type="billing.a") == ["r0"]
        assert await dead_ids(store, queue="q") == ["r1"]
        assert (
            await dead_ids(store, error="Refused") == await dead_ids(store, error="shop.Refused") == ["r3", "r1", "r0"]
        )
        assert await dead_ids(store, reasons=(DeadLetterReason.POISON,)) == ["r4"]
        assert await dead_ids(store, dead_after=START, dead_before=START + 2 * SECOND) == ["r1"]

    async def test_pages_lead_through_all_of_them_once(self, store: Store) -> None:
        for number in range(7):
            await (failed if number % 2 else set_aside)(store, f"r{number}")
        seen: list[str] = []
        cursor = None
        while True:
            page = await store.list_dead_letters(DeadLetterFilter(), 2, cursor)
            seen += [one.run_id for one in page.letters]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == [f"r{number}" for number in reversed(range(7))]
        # The last two have an id and a time that no database holds.
        for nonsense in ("nonsense", "WzEsImFcdTAwMDBiIl0", "Wy0xLCJhIl0"):
            with pytest.raises(InvalidCursor):
                await store.list_dead_letters(DeadLetterFilter(), 2, nonsense)

    async def test_a_letter_has_every_error_of_every_attempt_and_generation(
        self, store: Store, harness: Harness
    ) -> None:
        token = 0
        for generation in (1, 2):
            lease = await (held(store) if generation == 1 else lease_of(store, nonce="second"))
            seq = len(await store.history("r1"))
            stumble = a_record(
                seq, TYPE, kind=RecordKind.ATTEMPT, failed=True, payload=SLOW, attempts=1, at=harness.system.now()
            )
            await commit(store, lease, stumble, next=RetryLater(harness.system.now(), SLOW))
            harness.system.advance(1)
            lease = await lease_of(store, nonce=f"again {generation}")
            await commit(store, lease, next=Finish(Status.FAILED, REFUSED))
            token = lease.token
            if generation == 1:
                harness.system.advance(1)
                assert await retry(store, "r1", token) is RetryOutcome.OPEN
        letter = await store.get_dead_letter("r1")
        assert letter is not None
        assert [(one.location, one.attempt, one.error.type, one.at) for one in letter.errors] == [
            (TYPE, 1, "TimeoutError", START),
            ("", 2, "shop.Refused", START + SECOND),
            (TYPE, 1, "TimeoutError", START + 2 * SECOND),
            ("", 2, "shop.Refused", START + 3 * SECOND),
        ]
        assert (letter.attempts, letter.generation, letter.requeued, letter.requeued_at) == (
            2,
            2,
            1,
            START + 2 * SECOND,
        )

    async def test_an_error_that_another_program_wrote_can_be_read(self, store: Store, harness: Harness) -> None:
        await failed(store)
        await harness.execute("UPDATE perdure_runs SET error = 'out of paper' WHERE id = 'r1'")
        [letter] = (await store.list_dead_letters(DeadLetterFilter(), 10, None)).letters
        assert letter.error.message == "out of paper"

    async def test_looking_costs_the_same_however_many_completed(self, store: Store, harness: Harness) -> None:
        await failed(store)
        for number in range(30):
            await finished(store, f"done-{number}")
        assert await dead_ids(store) == ["r1"]


class Requeueing:
    """A dead run goes on, once, with what is to be different."""

    async def test_an_activity_counts_its_attempts_anew_and_its_history_goes_on(
        self, store: Store, harness: Harness
    ) -> None:
        lease = await held(store)
        stumble = a_record(0, TYPE, kind=RecordKind.ATTEMPT, failed=True, payload=SLOW, attempts=1)
        await commit(store, lease, stumble, next=RetryLater(START, SLOW))
        lease = await lease_of(store, nonce="second")
        await commit(store, lease, next=Finish(Status.FAILED, REFUSED))
        order = RetryRequest(
            run_id="r1", token=lease.token, is_activity=True, input="[2]", options='{"heartbeat":1.0}', max_attempts=9,
            deadline=START + 9 * SECOND, close_by=START + 20 * SECOND, queue="slow", priority=3,
        )  # fmt: skip
        assert (await store.retry(order, ACTOR)).outcome is RetryOutcome.OPEN
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.attempt, run.generation, run.error, run.finished_at) == (Status.PENDING, 1, 2, None, 0)
        assert (run.input, run.options, run.max_attempts, run.queue, run.priority) == (
            "[2]",
            '{"heartbeat":1.0}',
            9,
            "slow",
            3,
        )
        got = await claim(store, nonce="third", queues=("slow",))
        assert got.runs[0].run.deadline == START + 20 * SECOND
        again = a_record(1, TYPE, kind=RecordKind.ATTEMPT, failed=True, payload=SLOW, attempts=1)
        await commit(store, got.runs[0].lease, again, next=RetryLater(START, SLOW))
        assert [event.kind for event in await store.events("r1")].count("requeued") == 1

    async def test_a_workflow_goes_on_as_its_next_attempt(self, store: Store) -> None:
        lease = await held(store)
        await store.send([a_message()], ACTOR)
        await commit(store, lease, a_record(0), next=Finish(Status.FAILED, REFUSED))
        assert await retry(store, "r1", lease.token) is RetryOutcome.OPEN
        run = await store.get("r1")
        assert run is not None
        assert (run.attempt, run.generation, run.inbox_read) == (2, 2, 1)
        # What came too late for the attempt that failed is part of it.
        assert [record.kind for record in await store.history("r1")] == [RecordKind.STEP, RecordKind.MESSAGE]

    async def test_another_input_does_not_fit_a_history(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, a_record(0), next=Finish(Status.FAILED, REFUSED))
        order = RetryRequest(run_id="r1", token=lease.token, input="[2]")
        assert (await store.retry(order, ACTOR)).outcome is RetryOutcome.BEGUN
        token = await failed(store, "fresh")
        assert await retry(store, "fresh", token, input="[2]") is RetryOutcome.OPEN

    @pytest.mark.parametrize("reason", [Reason.POISON, Reason.UNDECODABLE])
    async def test_one_that_was_set_aside_is_taken_up_where_it_was(self, store: Store, reason: Reason) -> None:
        lease = await held(store)
        await commit(store, lease, a_record(0), next=Block(reason, SLOW))
        assert await retry(store, "r1", lease.token) is RetryOutcome.OPEN
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.generation, run.attempt, run.claims, run.error) == (Status.PENDING, 1, 1, 0, None)
        assert (await claim(store, nonce="second")).runs[0].run.started_at == START

    async def test_what_is_not_dead_is_left_alone(self, store: Store) -> None:
        await finished(store, "done")
        token = await set_aside(store, "code", Reason.DIVERGED)
        assert await retry(store, "done", 1) is RetryOutcome.COMPLETED
        assert await retry(store, "code", token, input="[2]") is RetryOutcome.ALIVE
        assert await retry(store, "missing", 1) is RetryOutcome.UNKNOWN

    async def test_a_deadline_that_has_passed_has_to_be_another_one(self, store: Store, harness: Harness) -> None:
        await store.create([a_run(deadline=START + SECOND)], ACTOR)
        harness.system.advance(2)
        await store.sweep(10)
        assert await retry(store, "r1", 0) is RetryOutcome.EXPIRED
        order = RetryRequest(run_id="r1", token=0, deadline=START + 9 * SECOND)
        assert (await store.retry(order, ACTOR)).outcome is RetryOutcome.OPEN

    async def test_two_who_want_something_else_are_told(self, store: Store) -> None:
        token = await failed(store)
        first = RetryRequest(run_id="r1", token=token, input="[1]")
        assert (await store.retry(first, ACTOR)).outcome is RetryOutcome.OPEN
        assert (await store.retry(first, ACTOR)).outcome is RetryOutcome.OPEN
        assert await retry(store, "r1", token) is RetryOutcome.OPEN
        second = RetryRequest(run_id="r1", token=token, input="[2]")
        assert (await store.retry(second, ACTOR)).outcome is RetryOutcome.OTHERWISE

    async def test_a_late_repetition_does_not_open_the_next_death(self, store: Store) -> None:
        token = await failed(store)
        order = RetryRequest(run_id="r1", token=token)
        await store.retry(order, ACTOR)
        await commit(store, await lease_of(store, nonce="second"), next=Finish(Status.FAILED, REFUSED))
        assert (await store.retry(order, ACTOR)).outcome is RetryOutcome.OPEN
        assert await dead_ids(store) == ["r1"]

    async def test_a_parent_that_waits_is_told_of_each_end_and_one_that_ended_of_none(self, store: Store) -> None:
        parent = await held(store, "parent")
        await commit(store, parent, children=(a_child("c"),), next=a_park(reason=Reason.CHILD))
        lease = await lease_of(store, "c")
        await commit(store, lease, next=Finish(Status.FAILED, REFUSED))
        assert await retry(store, "c", lease.token) is RetryOutcome.OPEN
        lease = await lease_of(store, "c", "w2")
        await commit(store, lease, next=Finish(Status.COMPLETED, "7"))
        assert [(one.kind, one.failed) for one in await store.inbox("parent", 0)] == [
            (RecordKind.CHILD, True),
            (RecordKind.CHILD, False),
        ]
