"""Lost answers, failed commits and closed doors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import Block, Finish, Release, RetryLater, Turn, TurnOutcome
from perdure.errors import EngineClosed, StoreUnavailable
from perdure.store import MUTATING_VERBS, Retrying, Store
from perdure.testing.conformance.harness import (
    ACTOR,
    SECOND,
    START,
    Harness,
    Unshared,
    a_child,
    a_message,
    a_park,
    a_record,
    a_run,
    claim,
    commit,
    held,
    snapshot,
)
from perdure.testing.conformance.prepared import PREPARE


def once(*points: str) -> Callable[[str], None]:
    """Fail at each crash point, the first time that it is reached."""
    left = [*points]

    def fail(name: str) -> None:
        if name in left:
            left.remove(name)
            raise StoreUnavailable(f"a fault of the test at {name}")

    return fail


class Repeating:
    """Every verb that writes can be asked again after its answer was lost."""

    def test_every_verb_that_writes_is_here(self) -> None:
        assert set(PREPARE) == set(MUTATING_VERBS) - {"migrate"}

    @pytest.mark.parametrize("verb", PREPARE)
    async def test_a_lost_answer_is_given_again(self, store: Store, harness: Harness, verb: str) -> None:
        ask = await PREPARE[verb](store)
        harness.system.on_crash_point = once(f"{verb}.committed")
        with suppress(StoreUnavailable):
            await ask(store)
            pytest.fail("the answer was not lost")
        before = await snapshot(harness)
        await ask(store)
        assert await snapshot(harness) == before

    @pytest.mark.parametrize("verb", PREPARE)
    async def test_a_failure_before_the_commit_writes_nothing(self, store: Store, harness: Harness, verb: str) -> None:
        ask = await PREPARE[verb](store)
        before = await snapshot(harness)
        for point in ("enter", "begun", "written"):
            harness.system.on_crash_point = once(f"{verb}.{point}")
            with pytest.raises(StoreUnavailable, match=f"at {verb}.{point}"):
                await ask(store)
            assert await snapshot(harness) == before, point

    @pytest.mark.parametrize("verb", [verb for verb in PREPARE if verb != "transact"])
    async def test_a_patient_store_hides_it(self, store: Store, harness: Harness, verb: str) -> None:
        points = [f"{verb}.{place}" for place in ("enter", "begun", "written", "committed")]
        ask = await PREPARE[verb](store)
        before = await snapshot(harness)
        # Each attempt fails one place later than the one before it.
        harness.system.on_crash_point = once(*points)
        await ask(Retrying(store, harness.system))
        after = await snapshot(harness)
        assert after != before
        await ask(store)
        assert await snapshot(harness) == after

    async def test_patience_has_an_end(self, store: Store, harness: Harness) -> None:
        def fail(point: str) -> None:
            if point == "create.enter":
                raise StoreUnavailable("a fault of the test")

        harness.system.on_crash_point = fail
        patient = Retrying(store, harness.system, bound_seconds=10)
        with pytest.raises(StoreUnavailable):
            await patient.create([a_run()], ACTOR)
        assert harness.system.now() >= START + 10 * SECOND


class LostVerdicts:
    """A turn that is committed again after its verdict was lost gets the verdict that it had."""

    @pytest.mark.parametrize(
        "next",
        [
            None,
            a_park(),
            a_park(wake_at=START),
            Finish(Status.COMPLETED, "1"),
            Finish(Status.FAILED, "{}"),
            RetryLater(START + SECOND, "{}"),
            Release(),
            Block(Reason.DIVERGED, "{}"),
        ],
        ids=lambda next: type(next).__name__,
    )
    @pytest.mark.parametrize("records", [0, 2])
    async def test_the_verdict_is_applied(self, store: Store, harness: Harness, next: Release, records: int) -> None:
        lease = await held(store)
        turn = Turn(lease=lease, records=tuple(a_record(seq) for seq in range(records)), next=next)
        assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        before = await snapshot(harness)
        assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        assert await snapshot(harness) == before

    async def test_it_is_applied_even_when_the_run_has_moved_on(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        turn = Turn(lease=lease, records=(a_record(0),), next=a_park())
        await store.commit([turn], ACTOR)
        await store.send([a_message()], ACTOR)
        await claim(store, "w2")
        before = await snapshot(harness)
        assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        assert await snapshot(harness) == before

    async def test_an_awake_stays_awake(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await store.send([a_message()], ACTOR)
        turn = Turn(lease=lease, records=(a_record(0),), next=a_park(seen=0))
        assert await store.commit([turn], ACTOR) == [TurnOutcome.AWAKE]
        before = await snapshot(harness)
        assert await store.commit([turn], ACTOR) == [TurnOutcome.AWAKE]
        assert await snapshot(harness) == before

    async def test_children_sends_and_reads_happen_once(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("other")], ACTOR)
        lease = await held(store)
        await store.send([a_message()], ACTOR)
        turn = Turn(
            lease=lease,
            records=(a_record(0, "news", kind=RecordKind.MESSAGE, inbox_seq=1),),
            read=1,
            children=(a_child("child", "r1"),),
            sends=(a_message("other"),),
        )
        assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        before = await snapshot(harness)
        assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        assert await snapshot(harness) == before

    async def test_a_batch_of_old_and_new_turns_is_sorted_out(self, store: Store) -> None:
        leases = {id: await held(store, id) for id in ("old", "new", "lost")}
        old = Turn(lease=leases["old"], records=(a_record(0),))
        await store.commit([old], ACTOR)
        await commit(store, leases["lost"], next=Release())
        turns = [
            Turn(lease=leases["lost"], records=(a_record(0),)),
            Turn(lease=leases["new"], records=(a_record(0),)),
            old,
        ]
        assert await store.commit(turns, ACTOR) == [TurnOutcome.LOST, TurnOutcome.APPLIED, TurnOutcome.APPLIED]
        assert [len(await store.history(id)) for id in ("lost", "new", "old")] == [0, 1, 1]


class Points:
    """The places where a test may end the process are made by the mechanism, not by hand."""

    @pytest.mark.parametrize("verb", PREPARE)
    async def test_every_verb_passes_its_four_points_in_order(self, store: Store, harness: Harness, verb: str) -> None:
        ask = await PREPARE[verb](store)
        reached: list[str] = []
        harness.system.on_crash_point = reached.append
        await ask(store)
        mine = [point for point in reached if point.startswith(f"{verb}.")]
        assert mine == [f"{verb}.{place}" for place in ("enter", "begun", "written", "committed")]


class Closing:
    """A closed store says so."""

    async def test_a_closed_store_refuses_every_verb(self, store: Store, harness: Harness) -> None:
        try:
            other = await harness.open()
        except Unshared:
            pytest.skip("closing it would lose the database")
        await other.close()
        await other.close()
        with pytest.raises(EngineClosed):
            await other.create([a_run()], ACTOR)
        with pytest.raises(EngineClosed):
            await other.get("r1")
        with pytest.raises(EngineClosed):
            await other.poll_changes()
        assert await store.get("r1") is None
