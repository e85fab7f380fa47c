"""Runs that are over: deleting and pruning them."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.model.dead_letter import DeadLetterFilter, DeleteOutcome
from perdure.core.model.record import RecordKind, SendOutcome
from perdure.core.model.run import Reason, RetryOutcome, RunFilter, Status
from perdure.core.model.run_orders import RunOrder
from perdure.core.model.turn import Block, Finish, Park
from perdure.core.policy.retention import PruneRequest, PruneResult
from perdure.core.time.duration import NEVER
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
    claim_ids,
    commit,
    held,
    lease_of,
    retry,
)

REFUSED = '{"type":"shop.Refused","message":"no"}'
SLOW = '{"type":"TimeoutError","message":"slow"}'
ALL = PruneRequest(before=NEVER)


async def failed(store: Store, run_id: str = "r1", error: str = REFUSED, **changes: Any) -> int:
    """A run that failed; its token."""
    lease = await held(store, run_id, **changes)
    await commit(store, lease, next=Finish(Status.FAILED, error))
    return lease.token


async def set_aside(store: Store, run_id: str, reason: Reason = Reason.POISON, **changes: Any) -> int:
    """A run that was blocked; its token."""
    lease = await held(store, run_id, **changes)
    await commit(store, lease, next=Block(reason, SLOW))
    return lease.token


async def finished(store: Store, run_id: str, **changes: Any) -> None:
    """A run that completed."""
    await commit(store, await held(store, run_id, **changes), next=Finish(Status.COMPLETED, "1"))


async def a_family(store: Store, count: int, status: Status = Status.COMPLETED, parent: str = "parent") -> None:
    """A finished parent with finished children."""
    lease = await held(store, parent)
    children = tuple(a_child(f"{parent}-{number}", parent) for number in range(count))
    await commit(store, lease, children=children, next=a_park(reason=Reason.CHILD))
    got = await claim(store, nonce=f"of {parent}", limit=count)
    for one in got.runs:
        await commit(store, one.lease, next=Finish(Status.COMPLETED, "1"))
    lease = await lease_of(store, parent, nonce=f"{parent} again")
    await commit(store, lease, next=Finish(status, "1" if status is Status.COMPLETED else REFUSED))


async def ids(store: Store, **filter: Any) -> list[str]:
    """The ids of all runs."""
    return [run.id for run in (await store.list(RunFilter(**filter), 1000, None)).runs]


async def dead_ids(store: Store, **filter: Any) -> list[str]:
    """The ids of dead letters."""
    return [letter.run_id for letter in (await store.list_dead_letters(DeadLetterFilter(**filter), 100, None)).letters]


class Deleting:
    """Finished runs are hidden and brought back."""

    async def test_a_deleted_run_is_hidden_from_listings_and_can_be_read(self, store: Store) -> None:
        await finished(store, "r1")
        await failed(store, "r2")
        for run_id in ("r1", "r2"):
            assert await store.delete(run_id, "old", ACTOR) is DeleteOutcome.DONE
            assert await store.delete(run_id, "old", ACTOR) is DeleteOutcome.ALREADY
        assert await ids(store) == await dead_ids(store) == []
        assert sorted(await ids(store, deleted=True)) == sorted(await ids(store, deleted=None)) == ["r1", "r2"]
        assert await dead_ids(store, deleted=True) == ["r2"]
        run = await store.get("r1")
        assert run is not None
        assert (run.output, run.deleted_at) == ("1", START)
        assert await retry(store, "r2") is RetryOutcome.DELETED
        assert await retry(store, "r2", 1) is RetryOutcome.DELETED
        assert await store.undelete("r2", ACTOR) is DeleteOutcome.DONE
        assert await store.undelete("r2", ACTOR) is DeleteOutcome.ALREADY
        assert await ids(store) == await dead_ids(store) == ["r2"]
        kinds = [event.kind for event in await store.events("r2")]
        assert kinds[-2:] == ["deleted", "undeleted"]

    async def test_what_is_not_over_is_paused_until_it_is_restored(self, store: Store, harness: Harness) -> None:
        later = harness.system.now() + SECOND
        await store.create([a_run("ready"), a_run("later", wake_at=later), a_run("paused")], ACTOR)
        await store.order_run(RunOrder(run_id="paused", kind=RecordKind.PAUSE, key="p"), ACTOR)
        for run_id in ("ready", "later", "paused"):
            assert await store.delete(run_id, "wrong", ACTOR) is DeleteOutcome.DONE
            assert await store.delete(run_id, "wrong", ACTOR) is DeleteOutcome.ALREADY
        harness.system.advance(2 * SECOND)
        assert await ids(store) == await claim_ids(store, nonce="n1") == []
        for run_id in ("ready", "later", "paused"):
            assert await store.undelete(run_id, ACTOR) is DeleteOutcome.DONE
            assert await store.undelete(run_id, ACTOR) is DeleteOutcome.ALREADY
        assert sorted(await claim_ids(store, nonce="n2")) == ["later", "ready"]
        assert [event.kind for event in await store.events("ready")][:4] == [
            "created", "deleted", "resumed", "undeleted",
        ]  # fmt: skip

    async def test_a_held_run_that_is_deleted_finds_a_pause_and_a_resumed_one_is_restored(self, store: Store) -> None:
        lease = await held(store, "r1")
        assert await store.delete("r1", "", ACTOR) is DeleteOutcome.DONE
        assert [one.kind for one in await store.inbox("r1", 0)] == [RecordKind.PAUSE]
        await commit(store, lease, next=a_park(reason=Reason.PAUSED, seen=1))
        assert await claim_ids(store, nonce="n1") == []
        await store.order_run(RunOrder(run_id="r1", kind=RecordKind.RESUME, key="go"), ACTOR)
        run = await store.get("r1")
        assert run is not None
        assert (run.deleted_at, await claim_ids(store, nonce="n2")) == (0, ["r1"])

    async def test_a_deleted_run_that_is_not_over_goes_when_its_time_has_come(
        self, store: Store, harness: Harness
    ) -> None:
        parent = await held(store, "parent")
        await commit(store, parent, children=(a_child("c"),), next=a_park(reason=Reason.CHILD))
        await store.create([a_run("r1")], ACTOR)
        for run_id in ("c", "r1"):
            await store.delete(run_id, "", ACTOR)
        early = PruneRequest(before=START, deleted=True)
        assert (await store.prune(early, 10, None, ACTOR)).runs == 0
        assert [one.failed for one in await store.inbox("parent", 0)] == []
        harness.system.advance(SECOND)
        # The first pruning ends it, the second deletes it.
        gone = [await store.prune(PruneRequest(before=START + 1, deleted=True), 10, None, ACTOR) for _ in range(2)]
        assert ([one.runs for one in gone], await store.get("r1")) == ([0, 1], None)
        # The child is over, and stays as long as its parent may ask for it.
        child = await store.get("c")
        assert child is not None
        assert (child.status, [one.failed for one in await store.inbox("parent", 0)]) == (Status.FAILED, [True])

    async def test_a_blocked_dead_letter_is_discarded_and_not_paused(self, store: Store) -> None:
        await set_aside(store, "r2")
        assert await store.delete("r2", "", ACTOR) is DeleteOutcome.REFUSED
        assert await store.delete("missing", "", ACTOR) is DeleteOutcome.UNKNOWN
        assert await store.undelete("missing", ACTOR) is DeleteOutcome.UNKNOWN

    async def test_a_discarded_run_that_was_set_aside_is_cancelled_and_its_parent_told(self, store: Store) -> None:
        parent = await held(store, "parent")
        await commit(store, parent, children=(a_child("c"),), next=a_park(reason=Reason.CHILD))
        await commit(store, await lease_of(store, "c"), next=Block(Reason.POISON, SLOW))
        assert await store.delete("c", "hopeless", ACTOR, discard=True) is DeleteOutcome.DONE
        run = await store.get("c")
        assert run is not None
        assert (run.status, run.deleted_at) == (Status.CANCELLED, START)
        assert [one.failed for one in await store.inbox("parent", 0)] == [True]
        assert [event.kind for event in await store.events("c")][-1] == "discarded"
        assert await store.delete("parent", "", ACTOR, discard=True) is DeleteOutcome.REFUSED


class Pruning:
    """Finished runs that are old are deleted for good, by families and in batches."""

    async def test_all_that_belongs_to_a_run_goes_and_its_key_is_free(self, store: Store, harness: Harness) -> None:
        lease = await held(store, "r1", idempotency_key="k")
        await store.send([a_message()], ACTOR)
        await commit(store, lease, a_record(0), subscribes=("news@1",), next=Finish(Status.COMPLETED, "1"))
        assert await store.prune(ALL, 10, None, ACTOR) == PruneResult(runs=1, spared=0, cursor=None)
        for table in ("runs", "history", "messages", "outputs", "topics", "events"):
            assert await harness.query(f"SELECT * FROM perdure_{table}") == []
        [created] = await store.create([a_run("r2", idempotency_key="k")], ACTOR)
        assert created.created
        assert await store.send([a_message("r1")], ACTOR) == [SendOutcome.UNKNOWN]

    async def test_runs_are_chosen_by_status_type_and_age(self, store: Store, harness: Harness) -> None:
        await finished(store, "old")
        await failed(store, "dead")
        harness.system.advance(10)
        await finished(store, "new")
        await held(store, "busy")
        late = START + 5 * SECOND
        pruned = await store.prune(PruneRequest(before=late, statuses=(Status.CANCELLED,)), 10, None, ACTOR)
        assert pruned.runs == 0
        assert (await store.prune(PruneRequest(before=late, types=("other.%", "suite")), 10, None, ACTOR)).runs == 0
        pruned = await store.prune(
            PruneRequest(before=late, statuses=(Status.FAILED,), types=("suite.%",)), 10, None, ACTOR
        )
        assert (pruned.runs, await ids(store)) == (1, ["new", "busy", "old"])
        assert (await store.prune(PruneRequest(before=late), 10, None, ACTOR)).runs == 1
        assert sorted(await ids(store)) == ["busy", "new"]

    async def test_what_was_deleted_goes_by_when_that_was(self, store: Store, harness: Harness) -> None:
        for run_id in ("r1", "r2", "r3"):
            await finished(store, run_id)
        await store.delete("r1", "", ACTOR)
        harness.system.advance(10)
        await store.delete("r2", "", ACTOR)
        what = PruneRequest(before=START + 5 * SECOND, deleted=True)
        assert (await store.prune(what, 10, None, ACTOR)).runs == 1
        assert sorted(await ids(store, deleted=None)) == ["r2", "r3"]

    async def test_batches_are_bounded_and_lead_through_everything(self, store: Store) -> None:
        for number in range(7):
            await (failed if number % 2 else finished)(store, f"r{number}")
        what, cursor, batches = PruneRequest(before=NEVER, statuses=(Status.COMPLETED,)), None, []
        while True:
            batch = await store.prune(what, 2, cursor, ACTOR)
            batches.append(batch.runs)
            cursor = batch.cursor
            if cursor is None:
                break
        assert (sum(batches), max(batches) <= 2) == (4, True)
        assert sorted(await ids(store)) == ["r1", "r3", "r5"]
        with pytest.raises(InvalidCursor):
            await store.prune(what, 2, "nonsense", ACTOR)

    async def test_children_stay_while_their_parent_may_need_them_and_go_with_it(self, store: Store) -> None:
        parent = await held(store, "parent")
        await commit(store, parent, children=(a_child("c"),), next=a_park(reason=Reason.CHILD))
        await commit(store, await lease_of(store, "c"), next=Finish(Status.COMPLETED, "1"))
        assert await store.prune(ALL, 10, None, ACTOR) == PruneResult(runs=0, spared=1, cursor=None)
        await commit(store, await lease_of(store, "parent", nonce="second"), next=Finish(Status.FAILED, REFUSED))
        # It may be opened again, and then ask for its child.
        completed = PruneRequest(before=NEVER, statuses=(Status.COMPLETED,))
        assert await store.prune(completed, 10, None, ACTOR) == PruneResult(runs=0, spared=1, cursor=None)
        assert (await store.prune(PruneRequest(before=NEVER, statuses=(Status.FAILED,)), 10, None, ACTOR)).runs == 2
        assert await ids(store) == []

    async def test_a_parent_stays_while_a_run_below_it_is_under_way(self, store: Store) -> None:
        parent = await held(store, "parent")
        await commit(store, parent, children=(a_child("a"), a_child("b")), next=Finish(Status.FAILED, REFUSED))
        await commit(store, await lease_of(store, "a"), next=Finish(Status.COMPLETED, "1"))
        assert await store.prune(ALL, 10, None, ACTOR) == PruneResult(runs=0, spared=2, cursor=None)
        await commit(store, await lease_of(store, "b", "w1", nonce="nonce-w1-a"), next=Finish(Status.COMPLETED, "1"))
        assert (await store.prune(ALL, 10, None, ACTOR)).runs == 3

    @pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED])
    async def test_a_family_too_large_for_a_batch_goes_from_below_and_is_not_opened_meanwhile(
        self, store: Store, status: Status
    ) -> None:
        await a_family(store, 11, status)
        what, cursor, batches = PruneRequest(before=NEVER, types=(TYPE,)), None, []
        while True:
            batch = await store.prune(what, 1, cursor, ACTOR)
            batches.append(batch.runs)
            cursor = batch.cursor
            left = await store.get("parent")
            if left is not None and status is Status.FAILED and len(await ids(store, deleted=None)) < 12:
                assert await retry(store, "parent") is RetryOutcome.DELETED
            if cursor is None:
                break
        assert (sum(batches), max(batches) <= 4) == (12, True)
        assert await ids(store, deleted=None) == []

    async def test_grandchildren_go_before_their_parents(self, store: Store) -> None:
        await a_family(store, 3)
        for number in range(3):
            child = a_child(f"grandchild-{number}", "parent-1")
            await store.create([child], ACTOR)
            lease = await lease_of(store, child.id)
            await commit(store, lease, next=Finish(Status.COMPLETED, "1"))
        cursor, runs = None, 0
        while True:
            batch = await store.prune(ALL, 1, cursor, ACTOR)
            runs, cursor = runs + batch.runs, batch.cursor
            there = set(await ids(store, deleted=None))
            assert "parent-1" in there or not any(name.startswith("grandchild") for name in there)
            assert "parent" in there or not there
            if cursor is None:
                break
        assert (runs, there) == (7, set())

    async def test_only_the_named_go_if_some_are_named(self, store: Store) -> None:
        for number in range(3):
            await finished(store, f"r{number}")
        named = PruneRequest(before=NEVER, ids=("r0", "r2", "missing"))
        assert await store.prune(named, 10, None, ACTOR) == PruneResult(runs=2, spared=0, cursor=None)
        assert await ids(store) == ["r1"]

    async def test_a_run_that_was_opened_again_is_not_touched(self, store: Store, harness: Harness) -> None:
        await failed(store)
        await retry(store, "r1")
        assert (await store.prune(ALL, 10, None, ACTOR)).runs == 0
        lease = await lease_of(store, nonce="second")
        await commit(store, lease, next=Park(START + SECOND, Reason.TIMER, 0))
        harness.system.advance(2)
        assert (await store.prune(ALL, 10, None, ACTOR)).runs == 0
