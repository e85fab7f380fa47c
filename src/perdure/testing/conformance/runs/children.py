"""Children: started once, and their outcomes never slept through."""

from __future__ import annotations

from itertools import permutations

import pytest

from perdure.core.codec.failure import Failure
from perdure.core.model.record import NewMessage, RecordKind
from perdure.core.model.run import ABANDONED, Reason, Status
from perdure.core.model.turn import Block, Finish, Lease, Release, RetryLater, Turn, TurnOutcome
from perdure.errors import RunCancelled
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    SECOND,
    START,
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
)
from perdure.testing.conformance.runs.inbox import taken


class Children:
    """A parent learns of its children's outcomes by its inbox, in the same commit."""

    async def family(self, store: Store, *names: str) -> dict[str, Lease]:
        parent = await held(store, "parent")
        children = tuple(a_child(name) for name in names)
        assert await commit(store, parent, children=children) is TurnOutcome.APPLIED
        got = await claim(store, nonce="children")
        return {"parent": parent, **{claimed.run.id: claimed.lease for claimed in got.runs}}

    async def test_a_turn_starts_children(self, store: Store) -> None:
        await self.family(store, "a", "b")
        runs = {run.id: run for run in await store.get_many(["a", "b"])}
        assert {(run.parent_id, run.parent_location) for run in runs.values()} == {
            ("parent", "call-a"),
            ("parent", "call-b"),
        }
        assert [event.kind for event in await store.events("a")] == ["created", "started"]

    @pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
    async def test_the_outcome_is_put_into_the_inbox_of_a_running_parent(self, store: Store, status: Status) -> None:
        leases = await self.family(store, "a")
        await commit(store, leases["a"], next=Finish(status, '{"type": "x"}'))
        [word] = await store.unread_messages_of_worker("w1")
        assert (word.run_id, word.kind, word.name, word.payload) == (
            "parent",
            RecordKind.CHILD,
            "call-a",
            '{"type": "x"}',
        )
        assert word.failed is (status is not Status.COMPLETED)

    async def test_the_outcome_wakes_a_waiting_parent(self, store: Store) -> None:
        leases = await self.family(store, "a")
        await commit(store, leases["parent"], next=a_park(reason=Reason.CHILD))
        await commit(store, leases["a"], next=Finish(Status.COMPLETED, "1"))
        assert await claim_ids(store, nonce="woken") == ["parent"]

    @pytest.mark.parametrize("order", list(permutations(("parent", "a", "b"))), ids="-".join)
    async def test_children_that_finish_while_the_parent_parks_keep_it_awake(
        self, store: Store, order: tuple[str, ...]
    ) -> None:
        leases = await self.family(store, "a", "b")
        turns = {
            "parent": Turn(lease=leases["parent"], next=a_park(reason=Reason.CHILD)),
            "a": Turn(lease=leases["a"], records=(a_record(0),), next=Finish(Status.COMPLETED, "1")),
            "b": Turn(lease=leases["b"], next=Finish(Status.FAILED, "{}")),
        }
        verdicts = dict(zip(order, await store.commit([turns[name] for name in order], ACTOR), strict=True))
        assert verdicts == {"parent": TurnOutcome.AWAKE, "a": TurnOutcome.APPLIED, "b": TurnOutcome.APPLIED}
        assert {word.name for word in await store.unread_messages_of_worker("w1")} == {"call-a", "call-b"}
        run = await store.get("parent")
        assert run is not None
        assert (run.status, run.inbox_seq) == (Status.RUNNING, 2)

    @pytest.mark.parametrize("order", list(permutations(("parent", "a", "b"))), ids="-".join)
    async def test_separate_commits_in_any_order_lose_no_wake_up(self, store: Store, order: tuple[str, ...]) -> None:
        leases = await self.family(store, "a", "b")
        for name in order:
            next = a_park(reason=Reason.CHILD) if name == "parent" else Finish(Status.COMPLETED, "1")
            await commit(store, leases[name], next=next)
        run = await store.get("parent")
        assert run is not None
        assert run.inbox_seq == 2
        assert run.status in (Status.RUNNING, Status.PENDING)

    async def test_a_child_that_is_there_already_is_taken_up(self, store: Store) -> None:
        leases = await self.family(store, "a")
        assert await commit(store, leases["parent"], children=(a_child("a", write_id="again"),)) is TurnOutcome.APPLIED
        assert await store.inbox("parent", 0) == []
        assert [event.kind for event in await store.events("a")] == ["created", "started"]

    async def test_an_id_that_belongs_to_another_run_fails_the_call(self, store: Store) -> None:
        await store.create([a_run("a", input="[1]")], ACTOR)
        parent = await held(store, "parent")
        assert await commit(store, parent, children=(a_child("a"),)) is TurnOutcome.APPLIED
        [word] = await store.inbox("parent", 0)
        assert (word.kind, word.name, word.failed) == (RecordKind.CHILD, "call-a", True)
        assert word.payload is not None
        assert "'a'" in Failure.from_json(word.payload).message
        run = await store.get("a")
        assert run is not None
        assert (run.parent_id, run.input) == (None, "[1]")

    async def test_a_later_attempt_at_the_parent_is_told_again(self, store: Store) -> None:
        leases = await self.family(store, "a")
        await commit(store, leases["a"], next=Finish(Status.COMPLETED, "42"))
        took = taken(0, 1, "call-a", RecordKind.CHILD)
        await commit(store, leases["parent"], took, read=1, next=RetryLater(START, "{}"))
        again = await lease_of(store, "parent", nonce="second attempt")
        assert await commit(store, again, children=(a_child("a", write_id="second"),)) is TurnOutcome.APPLIED
        [word] = await store.inbox("parent", 1)
        assert (word.name, word.payload, word.failed) == ("call-a", "42", False)
        assert await commit(store, again, children=(a_child("a", write_id="third"),)) is TurnOutcome.APPLIED
        assert len(await store.inbox("parent", 1)) == 1

    async def test_a_cancelled_child_that_never_started_tells_its_parent(self, store: Store) -> None:
        parent = await held(store, "parent")
        await commit(store, parent, children=(a_child("a"),), next=a_park(reason=Reason.CHILD))
        await store.cancel("a", "enough", "c1", ACTOR)
        [word] = await store.inbox("parent", 0)
        assert word.failed
        assert word.payload is not None
        assert Failure.from_json(word.payload).type.endswith(RunCancelled.__qualname__)
        run = await store.get("parent")
        assert run is not None
        assert run.status is Status.PENDING

    async def test_a_parent_that_is_finished_takes_no_word(self, store: Store, harness: Harness) -> None:
        leases = await self.family(store, "a")
        await commit(store, leases["parent"], next=Finish(Status.COMPLETED, "1"))
        assert await commit(store, leases["a"], next=Finish(Status.COMPLETED, "1")) is TurnOutcome.APPLIED
        assert await harness.query("SELECT run_id FROM perdure_messages") == []

    async def test_a_turn_sends_messages_and_cancellations(self, store: Store) -> None:
        await store.create([a_run("other"), a_run("unstarted", wake_at=START + SECOND)], ACTOR)
        lease = await held(store, "r1")
        sends = (a_message("other"), a_message("unstarted", kind=RecordKind.CANCEL, payload='"enough"', key="stop"))
        assert await commit(store, lease, a_record(0), sends=sends) is TurnOutcome.APPLIED
        assert [message.key for message in await store.inbox("other", 0)] == ["k1"]
        run = await store.get("unstarted")
        assert run is not None
        assert run.status is Status.CANCELLED

    async def test_a_cancellation_that_is_meant_for_a_child_reaches_no_other_run(self, store: Store) -> None:
        await store.create([a_run("stranger")], ACTOR)
        lease = await held(store, "r1")
        stop = a_message("stranger", kind=RecordKind.CANCEL, payload='"enough"', key="stop", only_child_of="r1")
        assert await commit(store, lease, a_record(0), sends=(stop,)) is TurnOutcome.APPLIED
        run = await store.get("stranger")
        assert run is not None
        assert (run.status.finished, run.inbox_seq) == (False, 0)

    @pytest.mark.parametrize("parent", [None, "r1"], ids=["a stranger", "a child"])
    async def test_what_is_meant_for_a_child_reaches_no_stranger(self, store: Store, parent: str | None) -> None:
        lease = await held(store, "r1")
        await store.create([a_run("other", parent_id=parent, parent_location=parent and "call")], ACTOR)
        stop = a_message("other", kind=RecordKind.CANCEL, payload="null", key="stop", only_child_of="r1")
        assert await commit(store, lease, sends=(stop,)) is TurnOutcome.APPLIED
        run = await store.get("other")
        assert run is not None
        assert run.status is (Status.PENDING if parent is None else Status.CANCELLED)

    async def test_a_child_whose_line_is_too_long_is_not_started_and_its_parent_is_told(self, store: Store) -> None:
        above = await held(store, "top")
        for name in ("one", "two"):
            parent = "top" if name == "one" else "one"
            child = a_child(name, parent, max_depth=2)
            assert await commit(store, above, children=(child,)) is TurnOutcome.APPLIED
            above = await lease_of(store, name)
        turn = Turn(lease=above, children=(a_child("three", "two", max_depth=2), a_child("four", "two", max_depth=3)))
        for _ in range(2):
            assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        assert await store.get("three") is None
        assert await store.get("four") is not None
        [word] = await store.inbox("two", 0)
        assert (word.kind, word.name, word.failed) == (RecordKind.CHILD, "call-three", True)
        failure = Failure.from_json(word.payload or "")
        assert failure.type.endswith("ChildLimit")
        assert "'two'" in failure.message

    async def test_a_run_of_its_own_is_started_once_and_tells_no_other_run(self, store: Store) -> None:
        parent = await held(store, "parent")
        turn = Turn(lease=parent, children=(a_run("alone"),))
        for _ in range(2):
            assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        await store.commit([Turn(lease=parent, children=(a_run("alone", write_id="another"),))], ACTOR)
        assert [event.kind for event in await store.events("alone")] == ["created"]
        lease = await lease_of(store, "alone")
        assert await commit(store, lease, next=Finish(Status.COMPLETED, "1")) is TurnOutcome.APPLIED
        assert await store.inbox("parent", 0) == []

    @pytest.mark.parametrize("by_a_turn", [False, True])
    async def test_a_cancellation_reaches_the_children_of_a_run_that_is_blocked(
        self, store: Store, by_a_turn: bool
    ) -> None:
        leases = await self.family(store, "blocked")
        lease = leases["blocked"]
        children = [
            a_child("fresh", "blocked"),
            a_child("busy", "blocked"),
            a_child("loose", "blocked", write_id=f"{ABANDONED}loose"),
        ]
        assert await commit(store, lease, children=tuple(children)) is TurnOutcome.APPLIED
        busy = await lease_of(store, "busy", nonce="busy")
        for other in ("fresh", "loose"):
            [fresh] = [one for one in await store.leases("w1") if one.run_id == other]
            assert await commit(store, fresh, next=Release()) is TurnOutcome.APPLIED
        block = Block(Reason.DIVERGED, Failure(type="Diverged", message="").to_json())
        assert await commit(store, lease, next=block) is TurnOutcome.APPLIED
        if by_a_turn:
            stop = NewMessage(
                run_id="blocked", kind=RecordKind.CANCEL, payload='"enough"', key="stop", only_child_of="parent"
            )
            assert await commit(store, leases["parent"], sends=(stop,)) is TurnOutcome.APPLIED
        else:
            await store.cancel("blocked", "enough", "stop", ACTOR)
        assert [entry.kind for entry in await store.inbox("busy", 0)] == [RecordKind.CANCEL]
        assert [entry.kind for entry in await store.inbox("fresh", 0)] == [RecordKind.CANCEL]
        assert await store.inbox("loose", 0) == []
        assert busy.run_id == "busy"
