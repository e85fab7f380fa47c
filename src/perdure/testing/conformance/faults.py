"""Lost answers, failed commits and closed doors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from perdure.core.control import Order, Pause, PauseKind
from perdure.core.dead import Requeue
from perdure.core.errors import EngineClosed, StoreUnavailable
from perdure.core.listing import RunFilter
from perdure.core.model import FAR, Again, Block, Finish, Kind, Reason, Release, Status, Turn, Verdict
from perdure.core.retention import Prune
from perdure.store import MUTATING_VERBS, Retrying, Store
from perdure.store.borrowed.deed import Deed
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
    a_worker,
    claim,
    commit,
    held,
    snapshot,
)
from perdure.testing.conformance.locks import PREPARE as LOCKS
from perdure.testing.conformance.registry import MAIL, SHOP
from perdure.testing.conformance.schedules import a_schedule
from perdure.testing.conformance.second import a_fork
from perdure.testing.conformance.taking import prepare_take

Verb = Callable[[Store], Awaitable[object]]


async def _prepare_claim(store: Store) -> Verb:
    await store.create([a_run("r1"), a_run("r2")], ACTOR)
    await store.register(a_worker())
    return claim


async def _prepare_create(store: Store) -> Verb:
    return lambda store: store.create([a_run("r1", idempotency_key="k"), a_run("r2")], ACTOR)


async def _prepare_send(store: Store) -> Verb:
    await held(store)
    await store.create([a_run("r2")], ACTOR)
    return lambda store: store.send([a_message("r1"), a_message("r2"), a_message("unknown")], ACTOR)


async def _prepare_broadcast(store: Store) -> Verb:
    for name in ("r1", "r2", "r3"):
        await commit(store, await held(store, name), subscribes=("news@1",))
    return lambda store: store.broadcast("news@1", "1", "b1", None, 2, ACTOR)


async def _prepare_cancel(store: Store) -> Verb:
    await store.create([a_run("r1")], ACTOR)
    return lambda store: store.cancel("r1", "enough", "c1", ACTOR)


async def _prepare_control(store: Store) -> Verb:
    await commit(store, await held(store), next=a_park())
    order = Order(run_id="r1", kind=Kind.PAUSE, key="p1", reason="lunch")
    return lambda store: store.control(order, ACTOR)


async def _prepare_pause(store: Store) -> Verb:
    return lambda store: store.pause(Pause(kind=PauseKind.TYPE, name="t", reason="lunch"), ACTOR)


async def _prepare_resume(store: Store) -> Verb:
    await store.pause(Pause(kind=PauseKind.QUEUE, name="q"), ACTOR)
    return lambda store: store.resume(PauseKind.QUEUE, "q", ACTOR)


async def _prepare_unblock(store: Store) -> Verb:
    await commit(store, await held(store), next=Block(Reason.DIVERGED, "{}"))
    return lambda store: store.unblock(["r1"], (), ("diverged",), ACTOR)


async def _prepare_reopen(store: Store) -> Verb:
    await commit(store, await held(store), next=Finish(Status.FAILED, "{}"))
    return lambda store: store.reopen("r1", 1, None, ACTOR)


async def _prepare_recover(store: Store) -> Verb:
    stumbled = a_record(0, "flaky", kind=Kind.ATTEMPT, failed=True, attempts=3, retry_at=START + SECOND)
    await commit(store, await held(store), stumbled, next=a_park(reason=Reason.RETRY, wake_at=START + SECOND))
    return lambda store: store.recover("r1", 1, ACTOR)


async def _prepare_fork(store: Store) -> Verb:
    return lambda store: store.fork(a_fork(), ACTOR)


async def _prepare_forget_events(store: Store) -> Verb:
    await store.create([a_run("r1"), a_run("r2")], ACTOR)
    return lambda store: store.forget_events(1, START + 1, ACTOR)


async def _prepare_save_schedule(store: Store) -> Verb:
    return lambda store: store.save_schedule(a_schedule(), 0, "w", "schedule_created", ACTOR)


async def _prepare_delete_schedule(store: Store) -> Verb:
    await store.save_schedule(a_schedule(), 0, "w", "schedule_created", ACTOR)
    return lambda store: store.delete_schedule("s1", ACTOR)


async def _prepare_trigger(store: Store) -> Verb:
    await store.save_schedule(a_schedule(), 0, "w", "schedule_created", ACTOR)
    return lambda store: store.trigger("s1", (), "now", ACTOR)


async def _prepare_fire(store: Store) -> Verb:
    await store.save_schedule(a_schedule(next_slot=START, due_at=START), 0, "w", "schedule_created", ACTOR)
    return lambda store: store.fire(10, ACTOR)


async def _prepare_requeue(store: Store) -> Verb:
    await commit(store, await held(store), next=Finish(Status.FAILED, "{}"))
    return lambda store: store.requeue(Requeue(run_id="r1", token=1, input="[2]"), ACTOR)


async def _prepare_delete(store: Store) -> Verb:
    await commit(store, await held(store), next=Block(Reason.POISON, "{}"))
    return lambda store: store.delete("r1", "enough", ACTOR, discard=True)


async def _prepare_undelete(store: Store) -> Verb:
    await commit(store, await held(store), next=Finish(Status.FAILED, "{}"))
    await store.delete("r1", "", ACTOR)
    return lambda store: store.undelete("r1", ACTOR)


async def _prepare_prune(store: Store) -> Verb:
    for name in ("r1", "r2"):
        await commit(store, await held(store, name), a_record(0), next=Finish(Status.COMPLETED, "1"))
    return lambda store: store.prune(Prune(before=FAR), 10, None, ACTOR)


async def _prepare_register(store: Store) -> Verb:
    return lambda store: store.register(a_worker(), [MAIL, SHOP])


async def _prepare_heartbeat(store: Store) -> Verb:
    await store.register(a_worker())
    return lambda store: store.heartbeat("w1")


async def _prepare_retire(store: Store) -> Verb:
    await held(store)
    return lambda store: store.retire("w1")


async def _prepare_sweep(store: Store) -> Verb:
    await held(store)
    await store.create([a_run("late", deadline=START)], ACTOR)
    return lambda store: store.sweep(10)


async def _prepare_commit(store: Store) -> Verb:
    await store.create([a_run("other")], ACTOR)
    lease = await held(store)
    turn = Turn(
        lease=lease,
        records=(a_record(0), a_record(1)),
        children=(a_child("child", "r1"),),
        sends=(a_message("other"),),
        next=Finish(Status.COMPLETED, "1"),
    )
    return lambda store: store.commit([turn], ACTOR)


async def _prepare_transact(store: Store) -> Verb:
    turn = Turn(lease=await held(store), records=(a_record(0),))

    async def work(connection: object) -> int:
        return 1

    async def seal(result: object) -> Turn:
        return turn

    async def ask(store: Store) -> None:
        # The function is somebody's own, so that whoever asks again has to look first.
        if await store.recorded(turn, ACTOR) is Verdict.BUSY:
            assert await store.transact(Deed(work=work, waits=True, seal=seal)) is Verdict.APPLIED

    return ask


PREPARE: dict[str, Callable[[Store], Awaitable[Verb]]] = {
    "claim": _prepare_claim,
    "take": prepare_take,
    "create": _prepare_create,
    "send": _prepare_send,
    "broadcast": _prepare_broadcast,
    "cancel": _prepare_cancel,
    "control": _prepare_control,
    "pause": _prepare_pause,
    "resume": _prepare_resume,
    "unblock": _prepare_unblock,
    "reopen": _prepare_reopen,
    "recover": _prepare_recover,
    "fork": _prepare_fork,
    "forget_events": _prepare_forget_events,
    "save_schedule": _prepare_save_schedule,
    "delete_schedule": _prepare_delete_schedule,
    "trigger": _prepare_trigger,
    "fire": _prepare_fire,
    "requeue": _prepare_requeue,
    "delete": _prepare_delete,
    "undelete": _prepare_undelete,
    "prune": _prepare_prune,
    "register": _prepare_register,
    "heartbeat": _prepare_heartbeat,
    "retire": _prepare_retire,
    "sweep": _prepare_sweep,
    "commit": _prepare_commit,
    "transact": _prepare_transact,
    **LOCKS,
}


def once(point: str) -> Callable[[str], None]:
    """Fail at a crash point, the first time that it is reached."""
    left = [point]

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
    @pytest.mark.parametrize("point", ["enter", "begun", "written"])
    async def test_a_failure_before_the_commit_writes_nothing(
        self, store: Store, harness: Harness, verb: str, point: str
    ) -> None:
        ask = await PREPARE[verb](store)
        before = await snapshot(harness)
        harness.system.on_crash_point = once(f"{verb}.{point}")
        with pytest.raises(StoreUnavailable):
            await ask(store)
        assert await snapshot(harness) == before

    @pytest.mark.parametrize("verb", [verb for verb in PREPARE if verb != "transact"])
    @pytest.mark.parametrize("point", ["enter", "begun", "written", "committed"])
    async def test_a_patient_store_hides_it(self, store: Store, harness: Harness, verb: str, point: str) -> None:
        ask = await PREPARE[verb](store)
        harness.system.on_crash_point = once(f"{verb}.{point}")
        await ask(Retrying(store, harness.system))
        assert await store.list(RunFilter(), 1, None) is not None

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
            Again(START + SECOND, "{}"),
            Release(),
            Block(Reason.DIVERGED, "{}"),
        ],
        ids=lambda next: type(next).__name__,
    )
    @pytest.mark.parametrize("records", [0, 2])
    async def test_the_verdict_is_applied(self, store: Store, harness: Harness, next: Release, records: int) -> None:
        lease = await held(store)
        turn = Turn(lease=lease, records=tuple(a_record(seq) for seq in range(records)), next=next)
        assert await store.commit([turn], ACTOR) == [Verdict.APPLIED]
        before = await snapshot(harness)
        assert await store.commit([turn], ACTOR) == [Verdict.APPLIED]
        assert await snapshot(harness) == before

    async def test_it_is_applied_even_when_the_run_has_moved_on(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        turn = Turn(lease=lease, records=(a_record(0),), next=a_park())
        await store.commit([turn], ACTOR)
        await store.send([a_message()], ACTOR)
        await claim(store, "w2")
        before = await snapshot(harness)
        assert await store.commit([turn], ACTOR) == [Verdict.APPLIED]
        assert await snapshot(harness) == before

    async def test_an_awake_stays_awake(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await store.send([a_message()], ACTOR)
        turn = Turn(lease=lease, records=(a_record(0),), next=a_park(seen=0))
        assert await store.commit([turn], ACTOR) == [Verdict.AWAKE]
        before = await snapshot(harness)
        assert await store.commit([turn], ACTOR) == [Verdict.AWAKE]
        assert await snapshot(harness) == before

    async def test_children_sends_and_reads_happen_once(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("other")], ACTOR)
        lease = await held(store)
        await store.send([a_message()], ACTOR)
        turn = Turn(
            lease=lease,
            records=(a_record(0, "news", kind=Kind.MESSAGE, inbox_seq=1),),
            read=1,
            children=(a_child("child", "r1"),),
            sends=(a_message("other"),),
        )
        assert await store.commit([turn], ACTOR) == [Verdict.APPLIED]
        before = await snapshot(harness)
        assert await store.commit([turn], ACTOR) == [Verdict.APPLIED]
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
        assert await store.commit(turns, ACTOR) == [Verdict.LOST, Verdict.APPLIED, Verdict.APPLIED]
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
            await other.changed()
        assert await store.get("r1") is None
