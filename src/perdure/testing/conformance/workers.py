"""Workers come, go and die; what they held goes on. What is too late fails."""

from __future__ import annotations

from perdure.core.codec.failure import Failure
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Status
from perdure.core.model.run_orders import OrderOutcome
from perdure.core.model.turn import Block, TurnOutcome
from perdure.core.model.worker_info import (
    NO_STEPS,
    DrainOrder,
    HeartbeatResult,
    RunningStep,
    WorkerStatus,
    steps_to_json,
)
from perdure.errors import Expired
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    LEASE,
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
)


class Workers:
    """One row a worker, renewed by its heartbeat."""

    async def test_a_registered_worker_is_alive(self, store: Store) -> None:
        await store.register(a_worker("w1", queues=("a", "b"), types=(TYPE,), slots=7))
        [worker] = await store.workers()
        assert (worker.id, worker.status, worker.queues, worker.slots) == ("w1", WorkerStatus.ALIVE, ("a", "b"), 7)
        assert (worker.started_at, worker.heartbeat_at, worker.lease) == (START, START, LEASE)

    async def test_registering_again_changes_nothing(self, store: Store, harness: Harness) -> None:
        await store.register(a_worker("w1"))
        harness.system.advance(1)
        await store.register(a_worker("w1"))
        [worker] = await store.workers()
        assert worker.started_at == START

    async def test_a_heartbeat_renews(self, store: Store, harness: Harness) -> None:
        await store.register(a_worker("w1"))
        for _ in range(5):
            harness.system.advance(10)
            assert await store.heartbeat("w1")
            assert (await store.sweep(100)).dead_workers == ()
        [worker] = await store.workers()
        assert worker.heartbeat_at == START + 50 * SECOND

    async def test_a_sweep_tells_when_the_next_lease_ends(self, store: Store, harness: Harness) -> None:
        assert (await store.sweep(100)).lease_ends_in is None
        await store.register(a_worker("w1"))
        harness.system.advance(1)
        await store.register(a_worker("w2"))
        assert (await store.sweep(100)).lease_ends_in == LEASE - SECOND
        assert await store.heartbeat("w1")
        assert (await store.sweep(100)).lease_ends_in == LEASE
        harness.system.advance(1)
        assert await store.heartbeat("w1")
        harness.system.advance(LEASE / SECOND - 0.5)
        swept = await store.sweep(100)
        assert (swept.dead_workers, swept.lease_ends_in) == (("w2",), SECOND // 2)

    async def test_a_heartbeat_says_what_is_under_way(self, store: Store, harness: Harness) -> None:
        await store.register(a_worker("w1"))
        [worker] = await store.workers()
        assert worker.running == NO_STEPS
        step = RunningStep(run_id="r'1", type=TYPE, location="a/\\b#2", attempt=3, since=START, token=4, heartbeat_at=5)
        assert await store.heartbeat("w1", steps_to_json([step]))
        [worker] = await store.workers()
        assert worker.running.steps == (step,)
        assert await store.heartbeat("w1")
        [worker] = await store.workers()
        assert worker.running == NO_STEPS

    async def test_the_dead_leave_word_of_what_they_did_and_the_stopped_do_not(
        self, store: Store, harness: Harness
    ) -> None:
        running = steps_to_json([RunningStep(run_id="r", type=TYPE, location="s#1", attempt=1, since=START, token=1)])
        for name in ("w1", "w2"):
            await store.register(a_worker(name))
            assert await store.heartbeat(name, running)
        await store.retire("w2")
        harness.system.advance(3600)
        assert (await store.sweep(100)).dead_workers == ("w1",)
        assert [len(worker.running.steps) for worker in await store.workers()] == [1, 0]

    async def test_it_shows_its_build(self, store: Store) -> None:
        await store.register(a_worker("w1", build="1.4.2+g0123456789ab"))
        await store.register(a_worker("w2"))
        assert [worker.build for worker in await store.workers()] == ["1.4.2+g0123456789ab", ""]

    async def test_it_learns_of_an_order_to_drain_with_its_heartbeat(self, store: Store, harness: Harness) -> None:
        for name in ("w1", "w2"):
            await store.register(a_worker(name))
        assert await store.heartbeat("w1") is HeartbeatResult.RENEWED
        harness.system.advance(1)
        order = DrainOrder(key="d1", reason="it's \\ new", grace=7.5)
        assert await store.drain("w1", order, ACTOR) is OrderOutcome.DONE
        harness.system.advance(1)
        assert await store.heartbeat("w1") is HeartbeatResult.DRAIN
        assert await store.heartbeat("w2") is HeartbeatResult.RENEWED
        first, second = await store.workers()
        assert first.drain == DrainOrder(key="d1", at=START + SECOND, actor=ACTOR, reason="it's \\ new", grace=7.5)
        assert (first.is_draining, first.heartbeat_at, second.drain) == (True, START + 2 * SECOND, None)
        [event] = await store.events("worker:w1")
        assert (event.kind, event.actor) == ("worker_drained", ACTOR)

    async def test_an_order_to_drain_that_is_repeated_is_one_order(self, store: Store) -> None:
        await store.register(a_worker("w1"))
        order = DrainOrder(key="d1", reason="first")
        assert [await store.drain("w1", order, ACTOR) for _ in range(2)] == [OrderOutcome.DONE, OrderOutcome.DONE]
        assert await store.drain("w1", DrainOrder(key="d2", reason="second"), ACTOR) is OrderOutcome.ALREADY
        [worker] = await store.workers()
        assert worker.drain is not None
        assert worker.drain.reason == "first"
        assert len(await store.events("worker:w1")) == 1
        await store.retire("w1")
        assert await store.drain("w1", order, ACTOR) is OrderOutcome.DONE
        assert await store.drain("w1", DrainOrder(key="d3"), ACTOR) is OrderOutcome.FINISHED

    async def test_a_dead_worker_keeps_an_order_to_drain_and_a_stopped_one_does_not(
        self, store: Store, harness: Harness
    ) -> None:
        assert await store.drain("unknown", DrainOrder(key="d0"), ACTOR) is OrderOutcome.UNKNOWN
        for name in ("w1", "w2"):
            await store.register(a_worker(name))
        await store.retire("w2")
        harness.system.advance(3600)
        await store.sweep(100)
        for _ in range(2):
            assert await store.drain("w1", DrainOrder(key="d1"), ACTOR) is OrderOutcome.FINISHED
        assert await store.drain("w2", DrainOrder(key="d2"), ACTOR) is OrderOutcome.FINISHED
        assert await store.heartbeat("w1") is HeartbeatResult.LOST
        assert [worker.drain is None for worker in await store.workers()] == [False, True]

    async def test_one_that_was_never_registered_has_no_heart(self, store: Store) -> None:
        assert not await store.heartbeat("unknown")

    async def test_a_late_heartbeat_counts_before_a_sweep(self, store: Store, harness: Harness) -> None:
        await store.register(a_worker("w1"))
        harness.system.advance(3600)
        assert await store.heartbeat("w1")

    async def test_the_dead_do_not_come_back(self, store: Store, harness: Harness) -> None:
        await store.register(a_worker("w1"))
        harness.system.advance(16)
        assert (await store.sweep(100)).dead_workers == ("w1",)
        assert not await store.heartbeat("w1")
        await store.register(a_worker("w1"))
        assert not await store.heartbeat("w1")
        [worker] = await store.workers()
        assert worker.status is WorkerStatus.DEAD

    async def test_no_worker_is_dead_before_its_lease_is_over(self, store: Store, harness: Harness) -> None:
        await held(store)
        harness.system.advance(LEASE / SECOND)
        swept = await store.sweep(100)
        assert (swept.dead_workers, swept.released) == ((), 0)

    async def test_the_dead_are_forgotten_in_the_end(self, store: Store, harness: Harness) -> None:
        await store.register(a_worker("w1"))
        harness.system.advance(16)
        await store.sweep(100)
        assert len(await store.workers()) == 1
        harness.system.advance(25 * 3600)
        await store.sweep(100)
        assert await store.workers() == []

    async def test_its_health_is_listed_with_it(self, store: Store) -> None:
        await store.register(a_worker("w1"))
        await store.register(a_worker("w2"))
        await store.report_health("w1", 1, "claimer: ValueError: x")
        await store.report_health("w1", 3, "drained")
        first, second = await store.workers()
        assert (first.errors, first.problem) == (3, "drained")
        assert (second.errors, second.problem) == (0, "")

    async def test_its_health_is_forgotten_with_it(self, store: Store, harness: Harness) -> None:
        await store.register(a_worker("w1"))
        await store.report_health("w1", 1, "claimer: ValueError: x")
        harness.system.advance(16)
        await store.sweep(100)
        harness.system.advance(25 * 3600)
        await store.sweep(100)
        await store.register(a_worker("w1"))
        [worker] = await store.workers()
        assert (worker.errors, worker.problem) == (0, "")


class Leaving:
    """A worker that stops in order gives back what it holds."""

    async def test_what_it_held_is_ready_under_a_higher_token(self, store: Store) -> None:
        lease = await held(store)
        await store.retire("w1")
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.worker, run.token, run.claims) == (Status.PENDING, None, lease.token + 1, 0)
        assert await commit(store, lease, a_record(0)) is TurnOutcome.LOST
        assert (await store.events("r1"))[-1].kind == "released"

    async def test_it_is_no_longer_alive(self, store: Store) -> None:
        await store.register(a_worker("w1"))
        await store.retire("w1")
        assert not await store.heartbeat("w1")
        [worker] = await store.workers()
        assert worker.status is WorkerStatus.STOPPED

    async def test_others_keep_what_they_hold(self, store: Store) -> None:
        lease = await held(store, "r1", "w1")
        await held(store, "r2", "w2")
        await store.retire("w2")
        assert await commit(store, lease, a_record(0)) is TurnOutcome.APPLIED


class Sweeping:
    """Runs of dead workers are given back, in bounded parts."""

    async def test_the_runs_of_the_dead_are_given_back(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        harness.system.advance(16)
        swept = await store.sweep(100)
        assert (swept.dead_workers, swept.released, swept.more) == (("w1",), 1, False)
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.worker, run.token) == (Status.PENDING, None, lease.token + 1)
        assert run.claims == 1
        assert (await store.events("r1"))[-1].kind == "reclaimed"
        assert await commit(store, lease, a_record(0)) is TurnOutcome.LOST

    async def test_the_living_keep_theirs(self, store: Store, harness: Harness) -> None:
        await held(store, "r1", "w1")
        harness.system.advance(10)
        lease = await held(store, "r2", "w2")
        harness.system.advance(10)
        assert (await store.sweep(100)).dead_workers == ("w1",)
        assert await commit(store, lease, a_record(0)) is TurnOutcome.APPLIED

    async def test_a_sweep_is_bounded_and_says_when_there_is_more(self, store: Store, harness: Harness) -> None:
        await store.create([a_run(f"r{number}") for number in range(5)], ACTOR)
        await claim(store)
        harness.system.advance(16)
        swept = [await store.sweep(2) for _ in range(3)]
        assert [(one.released, one.more) for one in swept] == [(2, True), (2, True), (1, False)]
        assert len(await claim_ids(store, "w2")) == 5

    async def test_several_dead_workers_are_swept_together(self, store: Store, harness: Harness) -> None:
        for number in range(4):
            await held(store, f"r{number}", f"w{number}")
        harness.system.advance(16)
        await held(store, "r9", "w9")
        swept = await store.sweep(100)
        assert (len(swept.dead_workers), swept.released) == (4, 4)
        assert len(await store.leases("w9")) == 1

    async def test_waiting_and_finished_runs_are_none_of_its_business(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await commit(store, lease, next=a_park())
        harness.system.advance(16)
        assert (await store.sweep(100)).released == 0


class Deadlines:
    """A run past its deadline that no worker holds fails as expired."""

    async def expired(self, store: Store, id: str = "r1") -> None:
        run = await store.get(id)
        assert run is not None
        assert run.status is Status.FAILED
        assert run.error is not None
        assert Failure.from_json(run.error).type.endswith(Expired.__qualname__)
        assert [event.kind for event in await store.events(id)][-1] == "expired"

    async def test_a_run_that_no_worker_took_expires(self, store: Store, harness: Harness) -> None:
        await store.create([a_run(deadline=START + SECOND)], ACTOR)
        assert (await store.sweep(100)).expired == 0
        harness.system.advance(1)
        assert (await store.sweep(100)).expired == 1
        await self.expired(store)

    async def test_a_waiting_run_expires(self, store: Store, harness: Harness) -> None:
        lease = await held(store, deadline=START + SECOND)
        await commit(store, lease, next=a_park())
        harness.system.advance(1)
        assert (await store.sweep(100)).expired == 1
        await self.expired(store)

    async def test_a_running_run_is_left_to_its_worker(self, store: Store, harness: Harness) -> None:
        lease = await held(store, deadline=START + SECOND)
        harness.system.advance(2)
        assert (await store.sweep(100)).expired == 0
        assert await commit(store, lease, a_record(0)) is TurnOutcome.APPLIED

    async def test_a_blocked_run_is_left_to_people(self, store: Store, harness: Harness) -> None:
        lease = await held(store, deadline=START + SECOND)
        await commit(store, lease, next=Block(Reason.DIVERGED, "{}"))
        harness.system.advance(2)
        assert (await store.sweep(100)).expired == 0

    async def test_the_parent_of_an_expired_run_is_woken(self, store: Store, harness: Harness) -> None:
        parent = await held(store, "parent")
        child = a_child("child", deadline=START + SECOND)
        await commit(store, parent, children=(child,), next=a_park(reason=Reason.CHILD))
        harness.system.advance(1)
        await store.sweep(100)
        await self.expired(store, "child")
        [word] = await store.inbox("parent", 0)
        assert (word.kind, word.name, word.failed) == (RecordKind.CHILD, "call-child", True)
        assert await claim_ids(store, nonce="woken") == ["parent"]

    async def test_expiring_is_bounded(self, store: Store, harness: Harness) -> None:
        await store.create([a_run(f"r{number}", deadline=START + SECOND) for number in range(3)], ACTOR)
        harness.system.advance(1)
        swept = [await store.sweep(2) for _ in range(2)]
        assert [(one.expired, one.more) for one in swept] == [(2, True), (1, False)]

    async def test_unread_messages_do_not_keep_it_alive(self, store: Store, harness: Harness) -> None:
        await store.create([a_run(deadline=START + SECOND)], ACTOR)
        await store.send([a_message()], ACTOR)
        harness.system.advance(1)
        assert (await store.sweep(100)).expired == 1
