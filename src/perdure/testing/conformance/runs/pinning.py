"""Runs that are pinned to a build."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.core.limits.limit import LimitBounds, queue_gate
from perdure.core.model.claim import ClaimByIdRequest, ClaimRefusal
from perdure.core.model.run import CountBy, RunFilter, Status
from perdure.core.model.run_orders import OrderOutcome, Pause, PauseKind
from perdure.core.model.turn import Finish, Release
from perdure.core.pinning import pinned_queue
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    TYPE,
    Harness,
    a_park,
    a_run,
    a_worker,
    claim_ids,
    commit,
    held,
    snapshot,
)

OLD, NEW = ("default", "default~1.0"), ("default", "default~2.0")


class Pinning:
    """Only workers that serve the queue of a build get the runs that are pinned to it."""

    async def test_a_pinned_run_is_claimed_by_its_build_alone(self, store: Store) -> None:
        lease = await held(store)
        assert await store.pin([lease], "1.0", ACTOR) == [True]
        await commit(store, lease, next=Release())
        assert await claim_ids(store, nonce="2", queues=NEW, build="2.0") == []
        assert await store.ready_run_ids([TYPE], list(NEW), 10) == []
        assert await store.ready_run_ids([TYPE], list(OLD), 10) == ["r1"]
        assert await claim_ids(store, nonce="1", queues=OLD, build="1.0") == ["r1"]
        run = await store.get("r1")
        assert run is not None
        assert (run.queue, run.build, run.pinned_to) == ("default~1.0", "1.0", "1.0")

    async def test_it_is_pinned_to_the_build_that_pins_it_not_to_one_that_died_before(self, store: Store) -> None:
        await store.create([a_run("r1")], ACTOR)
        await store.register(a_worker())
        assert await claim_ids(store, nonce="n", build="1.0") == ["r1"]
        [lease] = await store.leases("w1")
        await commit(store, lease, next=Release())
        assert await claim_ids(store, nonce="m", build="2.0") == ["r1"]
        [lease] = await store.leases("w1")
        assert await store.pin([lease], "2.0", ACTOR) == [True]
        run = await store.get("r1")
        assert run is not None
        assert (run.build, run.pinned_to) == ("2.0", "2.0")

    async def test_a_lost_lease_pins_nothing(self, store: Store, harness: Harness) -> None:
        lease, other = await held(store, "r1"), await held(store, "r2")
        await commit(store, lease, next=Release())
        before = await snapshot(harness)
        stale = [
            lease,
            replace(other, token=other.token - 1),
            replace(other, nonce="another"),
            replace(lease, run_id="x"),
        ]
        assert await store.pin(stale, "1.0", ACTOR) == [False] * 4
        assert await snapshot(harness) == before
        assert await store.pin([lease, other], "1.0", ACTOR) == [False, True]

    async def test_a_repeated_pin_changes_nothing(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await store.pin([lease], "1.0", ACTOR)
        before = await snapshot(harness)
        assert await store.pin([lease], "1.0", ACTOR) == [True]
        assert await snapshot(harness) == before

    async def test_a_claim_by_id_refuses_another_build(self, store: Store) -> None:
        lease = await held(store)
        await store.pin([lease], "1.0", ACTOR)
        await commit(store, lease, next=Release())
        request = ClaimByIdRequest(run_id="r1", worker="w1", nonce="n", types=(TYPE,), build="2.0")
        assert (await store.claim_by_id(request)).refused is ClaimRefusal.FOREIGN
        assert (await store.claim_by_id(replace(request, build="1.0"))).claimed is not None

    async def test_a_paused_queue_holds_its_pinned_runs_too(self, store: Store) -> None:
        lease = await held(store)
        await store.pin([lease], "1.0", ACTOR)
        await commit(store, lease, next=Release())
        await store.pause(Pause(kind=PauseKind.QUEUE, name="default"), ACTOR)
        assert await claim_ids(store, nonce="n", queues=OLD, build="1.0") == []
        assert await store.ready_run_ids([TYPE], list(OLD), 10) == []
        request = ClaimByIdRequest(run_id="r1", worker="w1", nonce="m", types=(TYPE,), build="1.0")
        assert (await store.claim_by_id(request)).refused is ClaimRefusal.PAUSED
        preview = await store.preview_admission([(OLD[1], TYPE)], 10, newest=False)
        assert preview.arrived == ()
        await store.resume(PauseKind.QUEUE, "default", ACTOR)
        assert await claim_ids(store, nonce="o", queues=OLD, build="1.0") == ["r1"]

    async def test_a_limited_queue_holds_its_pinned_runs_too(self, store: Store) -> None:
        lease = await held(store)
        await store.pin([lease], "1.0", ACTOR)
        await commit(store, lease, next=Release())
        await store.set_bounds(queue_gate("default"), LimitBounds(concurrency=1), ACTOR)
        assert await claim_ids(store, nonce="n", queues=OLD, build="1.0") == []
        request = ClaimByIdRequest(run_id="r1", worker="w1", nonce="m", types=(TYPE,), build="1.0")
        assert (await store.claim_by_id(request)).refused is ClaimRefusal.GATED

    async def test_unpinned_it_is_claimed_by_every_build(self, store: Store) -> None:
        lease = await held(store)
        await store.pin([lease], "1.0", ACTOR)
        await commit(store, lease, next=Release())
        assert await store.unpin("r1", "1.0 is gone", ACTOR) is OrderOutcome.DONE
        assert await claim_ids(store, nonce="2", queues=NEW, build="2.0") == ["r1"]
        run = await store.get("r1")
        assert run is not None
        assert (run.queue, run.build, run.pinned_to) == ("default", "1.0", None)
        events = await store.events("r1")
        assert [(one.kind, one.actor, one.data) for one in events if "pinned" in one.kind] == [
            ("pinned", ACTOR, '{"build":"1.0"}'),
            ("unpinned", ACTOR, '{"build":"1.0","reason":"1.0 is gone"}'),
        ]

    async def test_a_run_is_unpinned_in_every_unfinished_status(self, store: Store, harness: Harness) -> None:
        running, parked, over = [await held(store, name) for name in ("running", "parked", "over")]
        await store.pin([running, parked, over], "1.0", ACTOR)
        await commit(store, parked, next=a_park())
        await commit(store, over, next=Finish(Status.COMPLETED, "1"))
        for name in ("running", "parked"):
            assert await store.unpin(name, "", ACTOR) is OrderOutcome.DONE
        before = await snapshot(harness)
        assert await store.unpin("parked", "", ACTOR) is OrderOutcome.DONE
        assert await store.unpin("over", "", ACTOR) is OrderOutcome.FINISHED
        assert await store.unpin("unknown", "", ACTOR) is OrderOutcome.UNKNOWN
        assert await snapshot(harness) == before
        assert {run.id: run.pinned_to for run in await store.get_many(["running", "parked", "over"])} == {
            "running": None, "parked": None, "over": "1.0",
        }  # fmt: skip

    async def test_a_pin_keeps_the_longest_name_that_it_takes(self, store: Store) -> None:
        queue, build = "ü" * 50, "é" * 49 + "x"
        await store.create([a_run("r1", queue=queue)], ACTOR)
        assert await claim_ids(store, queues=(queue,)) == ["r1"]
        assert await store.pin(await store.leases("w1"), build, ACTOR) == [True]
        run = await store.get("r1")
        assert run is not None
        assert run.queue == pinned_queue(queue, build)
        assert len(run.queue.encode()) == 200

    async def test_unfinished_runs_are_counted_by_build(self, store: Store) -> None:
        await store.create([a_run(f"r{number}") for number in range(3)], ACTOR)
        assert len(await claim_ids(store, limit=2, build="1.0")) == 2
        assert len(await claim_ids(store, nonce="n", build="2.0")) == 1
        groups = await store.count(RunFilter(), CountBy(column="build"), 100)
        assert [(one.value, one.count) for one in groups] == [("1.0", 2), ("2.0", 1)]
