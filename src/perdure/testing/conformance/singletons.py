"""Singletons: one unfinished run of a name, however many want to start one; and starts that are put off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from perdure.core.model.record import RecordKind
from perdure.core.model.run import CreatedRun, NewRun, Reason, RetryOutcome, Status
from perdure.core.model.turn import Finish, TurnOutcome
from perdure.core.policy.singleton import SingletonPolicy, StoredSingleton
from perdure.errors import SingletonBusy
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    SECOND,
    START,
    Harness,
    Unshared,
    a_child,
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

NAME = "suite/one"

Verb = Callable[[Store], Awaitable[object]]


def options(policy: SingletonPolicy, name: str = NAME, **times: int) -> str:
    """The options of a run of a name."""
    return msgspec.json.encode({"single": StoredSingleton(name, policy, **times)}).decode()


def one(id: str, policy: SingletonPolicy = SingletonPolicy.QUEUE, **changes: Any) -> NewRun:
    """A run to create."""
    return a_run(id, options=options(policy), **changes)


async def start(store: Store, id: str, policy: SingletonPolicy = SingletonPolicy.QUEUE, **changes: Any) -> CreatedRun:
    """Create a run of the name."""
    [created] = await store.create([one(id, policy, **changes)], ACTOR)
    return created


async def finish(store: Store, run_id: str) -> None:
    """Let a run complete."""
    lease = await lease_of(store, run_id, nonce=f"finish-{run_id}")
    assert await commit(store, lease, next=Finish(Status.COMPLETED, "1")) is TurnOutcome.APPLIED


async def status(store: Store, run_id: str) -> tuple[Status, Reason | None]:
    """State of a run."""
    run = await store.get(run_id)
    assert run is not None
    return run.status, run.reason


async def sweep(store: Store) -> None:
    """Start the successors that no worker has started yet."""
    for name in (await store.sweep(10)).successions:
        await store.start_successors([name], ACTOR)
    assert (await store.sweep(10)).successions == ()


async def _prepare_start_successors(store: Store) -> Verb:
    for id in ("r1", "r2", "r3"):
        await start(store, id)
    await finish(store, "r1")
    return lambda store: store.start_successors([NAME], ACTOR)


#: For the tests that lose answers.
PREPARE: dict[str, Callable[[Store], Awaitable[Verb]]] = {"start_successors": _prepare_start_successors}

IN_LINE = (Status.WAITING, Reason.LIMIT)
READY = (Status.PENDING, None)


class Singletons:
    """One at a time."""

    async def test_a_second_is_rejected_until_the_first_is_over(self, store: Store, harness: Harness) -> None:
        assert (await start(store, "r1", SingletonPolicy.REJECT)).created
        before = await snapshot(harness)
        with pytest.raises(SingletonBusy, match="'r1'") as busy:
            await start(store, "r2", SingletonPolicy.REJECT)
        assert busy.value.run_id == "r1"
        assert await snapshot(harness) == before
        await finish(store, "r1")
        assert (await start(store, "r2", SingletonPolicy.REJECT)).created

    async def test_a_second_is_attached_to_the_first(self, store: Store) -> None:
        await start(store, "r1", SingletonPolicy.ATTACH)
        answer = await start(store, "r2", SingletonPolicy.ATTACH, input="[2]")
        assert (answer.run.id, answer.created, answer.attached) == ("r1", False, True)
        assert await store.get("r2") is None

    async def test_those_who_queue_begin_one_after_the_other_in_their_order(self, store: Store) -> None:
        for id in ("r3", "r1", "r2"):
            await start(store, id)
        assert await status(store, "r1") == await status(store, "r2") == IN_LINE
        assert await claim_ids(store) == ["r3"]
        assert await store.start_successors([NAME], ACTOR) == 0
        for ended, begun in (("r3", "r1"), ("r1", "r2")):
            await (_finish_held if ended == "r3" else finish)(store, ended)
            assert await store.start_successors([NAME], ACTOR) == 1
            assert await status(store, begun) == READY
        await finish(store, "r2")
        assert await store.start_successors([NAME], ACTOR) == 0

    async def test_nothing_is_left_of_a_name_when_all_are_over(self, store: Store, harness: Harness) -> None:
        for id in ("r1", "r2"):
            await start(store, id)
        for id in ("r1", "r2"):
            await finish(store, id)
            await store.start_successors([NAME], ACTOR)
        assert await harness.query("SELECT name FROM perdure_singletons") == []
        assert await harness.query("SELECT run_id FROM perdure_successors") == []
        assert await store.start_successors([NAME, "suite/unknown"], ACTOR) == 0
        assert await harness.query("SELECT name FROM perdure_singletons") == []

    async def test_one_that_was_begun_is_replaced_when_it_has_ended(self, store: Store) -> None:
        lease = await held(store, "r1", options=options(SingletonPolicy.REPLACE))
        await start(store, "r2")
        await start(store, "r3", SingletonPolicy.REPLACE)
        assert [entry.kind for entry in await store.inbox("r1", 0)] == [RecordKind.CANCEL]
        assert (await status(store, "r2"))[0] is Status.CANCELLED
        assert await status(store, "r3") == IN_LINE
        await commit(store, lease, next=Finish(Status.CANCELLED, "{}"))
        await store.start_successors([NAME], ACTOR)
        assert await status(store, "r3") == READY

    async def test_one_that_was_not_begun_is_replaced_at_once(self, store: Store, harness: Harness) -> None:
        await start(store, "r1", SingletonPolicy.REPLACE)
        await start(store, "r2", SingletonPolicy.REPLACE)
        assert (await status(store, "r1"))[0] is Status.CANCELLED
        assert await status(store, "r2") == READY
        before = await snapshot(harness)
        assert (await start(store, "r2", SingletonPolicy.REPLACE)).created
        assert await snapshot(harness) == before

    @pytest.mark.parametrize(
        "policy", [SingletonPolicy.REJECT, SingletonPolicy.ATTACH, SingletonPolicy.REPLACE, SingletonPolicy.QUEUE]
    )
    async def test_of_many_who_start_at_once_one_goes_on(
        self, store: Store, harness: Harness, policy: SingletonPolicy
    ) -> None:
        try:
            other = await harness.open()
        except Unshared:
            other = store
        answers = await asyncio.gather(
            *(start((store, other)[n % 2], f"r{n}", policy) for n in range(16)), return_exceptions=True
        )
        wrong = [one for one in answers if isinstance(one, BaseException) and not isinstance(one, SingletonBusy)]
        assert wrong == []
        ready = await harness.query("SELECT id FROM perdure_runs WHERE status = 'pending'")
        assert len(ready) == 1
        rows = await harness.query("SELECT status, COUNT(*) FROM perdure_runs GROUP BY status ORDER BY status")
        expected = {
            SingletonPolicy.REJECT: [("pending", 1)],
            SingletonPolicy.ATTACH: [("pending", 1)],
            SingletonPolicy.REPLACE: [("cancelled", 15), ("pending", 1)],
            SingletonPolicy.QUEUE: [("pending", 1), ("waiting", 15)],
        }
        assert [tuple(row) for row in rows] == expected[policy]

    async def test_names_know_nothing_of_each_other(self, store: Store) -> None:
        runs = [a_run(f"r{n}", options=options(SingletonPolicy.QUEUE, f"suite/{n % 2}")) for n in range(4)]
        await store.create(runs, ACTOR)
        assert [await status(store, f"r{n}") for n in range(4)] == [READY, READY, IN_LINE, IN_LINE]

    async def test_all_of_a_batch_are_created_or_none(self, store: Store, harness: Harness) -> None:
        await start(store, "r1")
        before = await snapshot(harness)
        with pytest.raises(SingletonBusy):
            await store.create([a_run("plain"), one("r2", SingletonPolicy.REJECT)], ACTOR, all_or_none=True)
        assert await snapshot(harness) == before
        [first, second] = await store.create(
            [one("a", SingletonPolicy.ATTACH), one("b", SingletonPolicy.ATTACH)], ACTOR, all_or_none=True
        )
        assert (first.run.id, second.run.id) == ("r1", "r1")

    async def test_one_for_later_has_its_turn_and_keeps_its_time(self, store: Store, harness: Harness) -> None:
        await start(store, "r1", wake_at=START + 5 * SECOND)
        await start(store, "r2", wake_at=START + 20 * SECOND)
        harness.system.advance(10)
        assert await claim_ids(store) == ["r1"]
        await _finish_held(store, "r1")
        await store.start_successors([NAME], ACTOR)
        assert await status(store, "r2") == (Status.WAITING, Reason.TIMER)
        harness.system.advance(10)
        assert await claim_ids(store, nonce="later") == ["r2"]

    async def test_those_who_gave_up_in_the_line_are_passed_over(self, store: Store) -> None:
        for id in ("r1", "r2", "r3", "r4"):
            await start(store, id)
        await store.cancel("r2", "", "c", ACTOR)
        await finish(store, "r1")
        await store.start_successors([NAME], ACTOR)
        assert await status(store, "r3") == READY
        assert await status(store, "r4") == IN_LINE

    async def test_a_sweep_finds_a_run_that_was_not_admitted(self, store: Store) -> None:
        for id in ("r1", "r2"):
            await start(store, id)
        await store.cancel("r1", "", "c", ACTOR)
        assert await status(store, "r2") == IN_LINE
        await sweep(store)
        assert await status(store, "r2") == READY

    async def test_children_wait_for_their_turn(self, store: Store) -> None:
        await start(store, "r1")
        lease = await held(store, "parent")
        child = a_child("child", options=options(SingletonPolicy.QUEUE), held_back=True)
        assert await commit(store, lease, children=(child,), next=a_park(reason=Reason.CHILD)) is TurnOutcome.APPLIED
        await store.start_successors([NAME], ACTOR)
        assert await status(store, "child") == IN_LINE
        await _finish_held(store, "r1")
        await sweep(store)
        assert await status(store, "child") == READY

    async def test_runs_that_a_run_starts_queue_in_the_order_of_their_starts(
        self, store: Store, harness: Harness
    ) -> None:
        lease = await held(store, "parent")
        order = ["r9", "r10", "r2", "r1", "r3"]
        for seq, started in enumerate((order[:3], order[3:])):
            runs = tuple(one(id, held_back=True) for id in started)
            assert await commit(store, lease, a_record(seq), children=runs) is TurnOutcome.APPLIED
            # Clocks step back, too.
            harness.system.advance(-5)
        harness.system.advance(15)
        await store.start_successors([NAME], ACTOR)
        for id in order:
            assert await status(store, id) == READY, id
            await finish(store, id)
            await store.start_successors([NAME], ACTOR)

    async def test_a_child_that_must_not_wait_fails_and_its_parent_is_told(self, store: Store) -> None:
        await start(store, "r1")
        lease = await held(store, "parent")
        child = a_child("child", options=options(SingletonPolicy.REJECT), held_back=True)
        await commit(store, lease, children=(child,), next=a_park(reason=Reason.CHILD))
        await store.start_successors([NAME], ACTOR)
        assert (await status(store, "child"))[0] is Status.FAILED
        [word] = await store.inbox("parent", 0)
        assert (word.kind, word.failed) == (RecordKind.CHILD, True)
        assert "SingletonBusy" in (word.payload or "")

    async def test_a_child_replaces_the_run_that_is_there(self, store: Store) -> None:
        await start(store, "r1")
        lease = await held(store, "parent")
        child = a_child("child", options=options(SingletonPolicy.REPLACE), held_back=True)
        await commit(store, lease, children=(child,), next=a_park(reason=Reason.CHILD))
        await sweep(store)
        assert [entry.kind for entry in await store.inbox("r1", 0)] == [RecordKind.CANCEL]
        assert await status(store, "child") == IN_LINE

    async def test_one_that_is_opened_again_waits_for_its_turn(self, store: Store) -> None:
        lease = await held(store, "r1", options=options(SingletonPolicy.QUEUE))
        await commit(store, lease, next=Finish(Status.FAILED, "{}"))
        await start(store, "r2")
        assert await retry(store, "r1") is RetryOutcome.OPEN
        assert await status(store, "r1") == IN_LINE
        await finish(store, "r2")
        await store.start_successors([NAME], ACTOR)
        assert await status(store, "r1") == READY
        lease = await lease_of(store, "r1", nonce="again")
        await commit(store, lease, next=Finish(Status.FAILED, "{}"))
        assert await retry(store, "r1") is RetryOutcome.OPEN
        assert await status(store, "r1") == READY

    async def test_one_that_was_cancelled_in_line_and_is_opened_again_waits_for_its_turn(self, store: Store) -> None:
        await start(store, "r1")
        await start(store, "r2")
        await store.cancel("r2", "enough", "c", ACTOR)
        assert await status(store, "r2") == (Status.CANCELLED, None)
        assert await retry(store, "r2") is RetryOutcome.OPEN
        assert await status(store, "r2") == IN_LINE
        await finish(store, "r1")
        await store.start_successors([NAME], ACTOR)
        assert await status(store, "r2") == READY


class Debouncing:
    """Several starts are one run."""

    async def _start(self, store: Store, id: str, **changes: Any) -> CreatedRun:
        given = options(SingletonPolicy.DEBOUNCE, "~suite/x", delay=5 * SECOND, at_most=12 * SECOND)
        [created] = await store.create([a_run(id, options=given, **changes)], ACTOR)
        return created

    async def test_it_starts_so_long_after_the_last_one_with_its_input(self, store: Store, harness: Harness) -> None:
        assert (await self._start(store, "r1", input="[1]")).created
        harness.system.advance(4)
        answer = await self._start(store, "r2", input="[2]")
        assert (answer.run.id, answer.attached, answer.run.wake_at) == ("r1", True, START + 9 * SECOND)
        harness.system.advance(4.999999)
        assert await claim_ids(store) == []
        harness.system.advance(0.000001)
        got = await claim(store, nonce="later")
        assert [(each.run.id, each.run.input) for each in got.runs] == [("r1", "[2]")]
        assert (await self._start(store, "r3")).created

    async def test_one_that_is_opened_again_waits_for_no_other(self, store: Store, harness: Harness) -> None:
        await self._start(store, "r1")
        harness.system.advance(5)
        await commit(store, await lease_of(store, "r1"), next=Finish(Status.FAILED, "{}"))
        assert (await self._start(store, "r2")).created
        assert await retry(store, "r1") is RetryOutcome.OPEN
        assert await status(store, "r1") == READY

    async def test_it_is_not_put_off_without_end(self, store: Store, harness: Harness) -> None:
        await self._start(store, "r1")
        for number in range(3):
            harness.system.advance(3.9)
            await self._start(store, f"more{number}", input=f"[{number}]")
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.input, run.wake_at) == (Status.WAITING, "[2]", START + 12 * SECOND)
        harness.system.advance(0.3)
        assert (await self._start(store, "next")).created

    async def test_a_repeated_request_changes_nothing_although_others_came(
        self, store: Store, harness: Harness
    ) -> None:
        await self._start(store, "r1", input="[1]")
        await self._start(store, "r2", input="[2]")
        harness.system.advance(1)
        await self._start(store, "r3", input="[3]")
        before = await snapshot(harness)
        harness.system.advance(1)
        for id in ("r1", "r2", "r3"):
            assert (await self._start(store, id, input=f"[{id[1]}]")).run.id == "r1"
        assert await snapshot(harness) == before

    async def test_of_many_starts_at_once_one_run_comes(self, store: Store, harness: Harness) -> None:
        try:
            other = await harness.open()
        except Unshared:
            other = store
        answers = await asyncio.gather(
            *(self._start((store, other)[n % 2], f"r{n}", input=f"[{n}]") for n in range(16))
        )
        assert len({answer.run.id for answer in answers}) == 1
        assert await harness.query("SELECT COUNT(*) FROM perdure_runs") == [(1,)]


async def _finish_held(store: Store, run_id: str) -> None:
    [lease] = [lease for lease in await store.leases("w1") if lease.run_id == run_id]
    assert await commit(store, lease, next=Finish(Status.COMPLETED, "1")) is TurnOutcome.APPLIED
