"""Broadcasts, and the runs that listen to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from perdure.core.model.outputs import BroadcastResult, NewOutput, OutputKind
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import ContinueAsNew, Finish, Lease, Turn, TurnOutcome
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    TYPE,
    Harness,
    a_park,
    a_record,
    a_run,
    commit,
    held,
    snapshot,
)

TOPIC = "news@1"


async def listeners(store: Store, names: Sequence[str], topic: str = TOPIC) -> None:
    """Runs that wait for a broadcast."""
    for name in names:
        await commit(store, await held(store, name), subscribes=(topic,), next=a_park())


async def tell(store: Store, *, key: str = "b1", after: str | None = None, limit: int = 100) -> BroadcastResult:
    """Broadcast a chunk."""
    return await store.broadcast(TOPIC, '"hello"', key, after, limit, ACTOR)


class Broadcasting:
    """A message for all runs that listen to a topic."""

    async def test_it_wakes_every_run_that_listens_and_no_other(self, store: Store) -> None:
        await listeners(store, ("a", "b"))
        await listeners(store, ("other",), "news@2")
        assert await tell(store) == BroadcastResult(2, None)
        for name in ("a", "b"):
            [message] = await store.inbox(name, 0)
            assert (message.kind, message.name, message.payload) == (RecordKind.MESSAGE, TOPIC, '"hello"')
            assert message.key == "broadcast:b1"
        assert await store.inbox("other", 0) == []
        statuses = {run.id: run.status for run in await store.get_many(["a", "b", "other"])}
        assert statuses == {"a": Status.PENDING, "b": Status.PENDING, "other": Status.WAITING}
        assert [event.kind for event in await store.events("a")][-1] == "sent"

    async def test_it_goes_in_chunks_in_the_order_of_ids(self, store: Store) -> None:
        await listeners(store, ("c", "a", "b", "B"))
        first = await tell(store, limit=2)
        assert first == BroadcastResult(2, "a")
        assert [len(await store.inbox(name, 0)) for name in ("B", "a", "b", "c")] == [1, 1, 0, 0]
        second = await tell(store, after=first.cursor, limit=2)
        assert second == BroadcastResult(2, "c")
        assert await tell(store, after=second.cursor, limit=2) == BroadcastResult(0, None)

    async def test_an_interrupted_broadcast_begins_again(self, store: Store, harness: Harness) -> None:
        await listeners(store, ("a", "b", "c"))
        await tell(store, limit=2)
        assert await tell(store) == BroadcastResult(3, None)
        assert [len(await store.inbox(name, 0)) for name in ("a", "b", "c")] == [1, 1, 1]
        before = await snapshot(harness)
        assert await tell(store) == BroadcastResult(3, None)
        assert await snapshot(harness) == before
        await tell(store, key="b2")
        assert [len(await store.inbox(name, 0)) for name in ("a", "b", "c")] == [2, 2, 2]

    async def test_no_run_listens(self, store: Store, harness: Harness) -> None:
        await store.create([a_run()], ACTOR)
        before = await snapshot(harness)
        assert await tell(store) == BroadcastResult(0, None)
        assert await snapshot(harness) == before

    async def test_a_run_that_listens_no_longer_gets_nothing(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, subscribes=(TOPIC, "news@2"))
        await commit(store, lease, unsubscribes=(TOPIC, "never@1"))
        assert await tell(store) == BroadcastResult(0, None)
        await commit(store, lease, subscribes=(TOPIC, TOPIC), unsubscribes=(TOPIC,))
        assert await tell(store) == BroadcastResult(1, None)

    async def test_finished_runs_are_passed_over_and_forgotten(self, store: Store, harness: Harness) -> None:
        for number, name in enumerate("abcd"):
            next = Finish(Status.COMPLETED, "1") if number % 2 else a_park()
            await commit(store, await held(store, name), subscribes=(TOPIC,), next=next)
        assert await tell(store, limit=3) == BroadcastResult(2, "c")
        assert await tell(store, after="c") == BroadcastResult(0, None)
        assert await harness.query("SELECT run_id FROM perdure_topics ORDER BY run_id") == [("a",), ("c",)]

    async def test_a_run_that_ends_can_leave_by_itself(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await commit(store, lease, subscribes=(TOPIC,))
        await commit(store, lease, unsubscribes=(TOPIC,), next=Finish(Status.COMPLETED, "1"))
        assert await harness.query("SELECT * FROM perdure_topics") == []

    async def test_a_run_that_parks_in_time_is_woken_and_one_that_parks_too_late_stays_awake(
        self, store: Store
    ) -> None:
        lease = await held(store)
        await commit(store, lease, subscribes=(TOPIC,))
        await tell(store)
        assert [message.run_id for message in await store.unread_messages_of_worker("w1")] == ["r1"]
        assert await commit(store, lease, next=a_park(seen=0, reason=Reason.MESSAGE)) is TurnOutcome.AWAKE

    async def test_listening_outlives_a_new_generation(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, a_record(0), subscribes=(TOPIC,))
        await commit(store, lease, next=ContinueAsNew(TYPE, "{}", 0))
        assert await tell(store) == BroadcastResult(1, None)

    async def test_many_runs_join_and_leave_in_one_batch(self, store: Store, harness: Harness) -> None:
        leases = [await held(store, f"r{number}") for number in range(3)]
        turns = [Turn(lease=lease, subscribes=(TOPIC, f"own@{lease.run_id}")) for lease in leases]
        for _ in range(2):
            assert await store.commit(turns, ACTOR) == [TurnOutcome.APPLIED] * 3
        assert len(await harness.query("SELECT * FROM perdure_topics")) == 6
        turns = [Turn(lease=lease, unsubscribes=(TOPIC,)) for lease in leases]
        await store.commit(turns, ACTOR)
        assert await tell(store) == BroadcastResult(0, None)

    async def test_broadcasts_and_turns_do_not_get_in_each_others_way(self, store: Store) -> None:
        leases = [await held(store, f"r{number}") for number in range(6)]
        await store.commit([Turn(lease=lease, subscribes=(TOPIC,)) for lease in leases], ACTOR)

        async def tell_all(key: str) -> None:
            chunk = await tell(store, key=key, limit=4)
            while chunk.cursor is not None:
                chunk = await tell(store, key=key, after=chunk.cursor, limit=4)

        async def show(lease: Lease) -> None:
            for number in range(8):
                output = NewOutput(kind=OutputKind.STREAM, name="tokens", payload=f"{number}", key=f"{number}")
                turn = Turn(lease=lease, records=(a_record(number),), outputs=(output,))
                while (verdict := (await store.commit([turn], ACTOR))[0]) is TurnOutcome.BUSY:
                    pass
                assert verdict is TurnOutcome.APPLIED

        await asyncio.gather(*(tell_all(key) for key in ("x", "y", "z")), *(show(lease) for lease in leases))
        for lease in leases:
            assert sorted(one.key[-1] for one in await store.inbox(lease.run_id, 0)) == ["x", "y", "z"]
            shown = await store.outputs(lease.run_id, OutputKind.STREAM, "tokens", -1, 100)
            assert [one.payload for one in shown] == [f"{number}" for number in range(8)]
