"""Turns: all of it or nothing, under the lease or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import (
    Block,
    ContinueAsNew,
    Finish,
    Lease,
    Release,
    RetryLater,
    StepTurn,
    Trim,
    Turn,
    TurnOutcome,
)
from perdure.core.model.waits import RunWaits, Wait, WaitKind, waits_to_json
from perdure.errors import StoreCorrupt
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
    snapshot,
)


class Turns:
    """Writes that one run makes durable at one moment."""

    async def test_records_come_back_in_order_and_as_they_were(self, store: Store) -> None:
        lease = await held(store)
        records = (
            a_record(0, "charge", payload='{"a": 1}', digest="d1", attempts=2, started_at=START - 5),
            a_record(1, "charge#2", kind=RecordKind.ATTEMPT, failed=True, retry_at=START + SECOND, run_attempt=3),
            a_record(2, "sleep", kind=RecordKind.TIMER, payload=None, at=START + 7, run_attempt=3),
        )
        assert await commit(store, lease, *records[:2]) is TurnOutcome.APPLIED
        assert await commit(store, lease, records[2]) is TurnOutcome.APPLIED
        assert await store.history("r1") == list(records)
        [loaded] = await store.load(["r1"])
        assert loaded.records == records

    async def test_an_empty_batch_is_nothing(self, store: Store, harness: Harness) -> None:
        before = await snapshot(harness)
        assert await store.commit([], ACTOR) == []
        assert await snapshot(harness) == before

    async def test_an_empty_turn_asks_whether_the_lease_holds(self, store: Store) -> None:
        lease = await held(store)
        assert await commit(store, lease) is TurnOutcome.APPLIED
        await commit(store, lease, next=Release())
        assert await commit(store, lease) is TurnOutcome.LOST

    async def test_a_run_completes_with_a_result(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        harness.system.advance(2)
        assert await commit(store, lease, a_record(0), next=Finish(Status.COMPLETED, "42")) is TurnOutcome.APPLIED
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.output, run.error) == (Status.COMPLETED, "42", None)
        assert (run.finished_at, run.worker, run.claims) == (START + 2 * SECOND, None, 0)
        assert [event.kind for event in await store.events("r1")] == ["created", "started", "completed"]

    @pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED])
    async def test_a_run_ends_without_one(self, store: Store, status: Status) -> None:
        lease = await held(store)
        await commit(store, lease, next=Finish(status, '{"type": "x"}'))
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.output, run.error) == (status, None, '{"type": "x"}')
        assert (await store.events("r1"))[-1].kind == status.value

    async def test_another_attempt_begins_at_its_time(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        again = RetryLater(START + 5 * SECOND, '{"type": "Oops"}')
        assert await commit(store, lease, a_record(0), next=again) is TurnOutcome.APPLIED
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.reason, run.attempt, run.started_at) == (Status.WAITING, Reason.RETRY, 2, 0)
        assert run.error == '{"type": "Oops"}'
        harness.system.advance(5)
        [claimed] = (await claim(store, nonce="second")).runs
        assert (claimed.run.attempt, claimed.run.started_at, claimed.fresh) == (2, START + 5 * SECOND, False)
        assert [event.kind for event in await store.events("r1")] == ["created", "started", "retried", "started"]

    async def test_no_attempt_waits_past_the_deadline(self, store: Store) -> None:
        lease = await held(store, deadline=START + SECOND)
        await commit(store, lease, next=RetryLater(START + 5 * SECOND, "{}"))
        run = await store.get("r1")
        assert run is not None
        assert run.wake_at == START + SECOND

    async def test_a_released_run_is_taken_at_once_under_a_higher_token(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        assert await commit(store, lease, a_record(0), next=Release()) is TurnOutcome.APPLIED
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.token, run.worker) == (Status.PENDING, lease.token + 1, None)
        # In the moment of its beginning, a second claim is not told from the first.
        harness.system.advance(1)
        assert await claim_ids(store, "w2") == ["r1"]
        told = [event.kind for event in await store.events("r1") if event.kind != "claimed"]
        assert told == ["created", "started", "released"]

    async def test_a_blocked_run_is_set_aside(self, store: Store) -> None:
        lease = await held(store)
        assert await commit(store, lease, next=Block(Reason.UNDECODABLE, '{"type": "x"}')) is TurnOutcome.APPLIED
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.reason, run.worker) == (Status.BLOCKED, Reason.UNDECODABLE, None)
        assert (await store.events("r1"))[-1].kind == "blocked"

    async def test_steps_and_parks_leave_no_trace_in_the_audit_trail(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, a_record(0), next=a_park())
        assert [event.kind for event in await store.events("r1")] == ["created", "started"]

    @pytest.mark.parametrize("simple", [True, False])
    async def test_a_park_names_what_the_run_waits_for(self, store: Store, harness: Harness, simple: bool) -> None:
        lease = await held(store)
        assert await store.waits("r1") is None
        waits = [Wait(kind=WaitKind.MESSAGE, name='it\'s \\ "so"', since=START, until=START + 1)]
        park = replace(a_park(wake_at=START + SECOND), waits=waits_to_json(lease.token, waits, 3))
        # A message to another run takes the way of turns that touch other runs.
        sends = () if simple else (a_message("other"),)
        assert await commit(store, lease, a_record(0), next=park, sends=sends) is TurnOutcome.APPLIED
        assert await store.waits("r1") == RunWaits(token=lease.token, waits=tuple(waits), more=2)
        harness.system.advance(1)
        lease = await lease_of(store, nonce="another")
        assert await commit(store, lease, next=a_park(), sends=sends) is TurnOutcome.APPLIED
        assert await store.waits("r1") is None

    @pytest.mark.parametrize("simple", [True, False])
    async def test_a_run_that_has_ended_waits_for_nothing(self, store: Store, harness: Harness, simple: bool) -> None:
        lease = await held(store)
        park = replace(a_park(wake_at=START + SECOND), waits=waits_to_json(lease.token, [], 3))
        await commit(store, lease, next=park)
        harness.system.advance(1)
        lease = await lease_of(store, nonce="another")
        sends = () if simple else (a_message("other"),)
        assert await commit(store, lease, next=Finish(Status.COMPLETED, "1"), sends=sends) is TurnOutcome.APPLIED
        assert await store.waits("r1") is None

    async def test_a_turn_that_lost_its_lease_leaves_its_neighbours_alone(self, store: Store) -> None:
        stale = await held(store, "stale")
        await commit(store, stale, next=Release())
        good = [await held(store, f"good{number}", f"w{number}") for number in (2, 3)]
        turns = [
            Turn(lease=good[0], records=(a_record(0),)),
            Turn(lease=stale, records=(a_record(0),), next=Finish(Status.COMPLETED, "1")),
            Turn(lease=good[1], records=(a_record(0), a_record(1)), next=Finish(Status.COMPLETED, "1")),
        ]
        assert await store.commit(turns, ACTOR) == [TurnOutcome.APPLIED, TurnOutcome.LOST, TurnOutcome.APPLIED]
        assert [len(await store.history(id)) for id in ("good2", "stale", "good3")] == [1, 0, 2]

    @pytest.mark.parametrize("mixed", [False, True], ids=["alone", "beside an outcome"])
    async def test_turns_of_usual_steps_are_written_repeated_and_refused_like_others(
        self, store: Store, *, mixed: bool
    ) -> None:
        stale = await held(store, "stale")
        await commit(store, stale, next=Release())
        good = [await held(store, f"good{number}", f"w{number}") for number in (2, 3, 4)]
        usual = a_record(0, attempts=1)
        turns: list[Turn] = [
            StepTurn(lease=good[0], records=(usual,)),
            StepTurn(lease=stale, records=(usual,)),
            StepTurn(lease=good[1], records=(usual, a_record(1, "version", kind=RecordKind.VERSION, payload="1"))),
        ]
        if mixed:
            turns.append(Turn(lease=good[2], records=(usual,), next=Finish(Status.COMPLETED, "1")))
        wanted = [TurnOutcome.APPLIED, TurnOutcome.LOST, *[TurnOutcome.APPLIED] * (len(turns) - 2)]
        assert await store.commit(turns, ACTOR) == wanted
        # As after a lost answer, and with the next step of one of them.
        again = [*turns, StepTurn(lease=good[0], records=(a_record(1, "next", attempts=1),))]
        assert await store.commit(again, ACTOR) == [*wanted, TurnOutcome.APPLIED]
        found = [len(await store.history(id)) for id in ("good2", "stale", "good3", "good4")]
        assert found == [2, 0, 2, 1 if mixed else 0]

    async def test_two_turns_of_one_run_in_one_batch_are_taken_in_order(self, store: Store) -> None:
        lease = await held(store)
        turns = [
            Turn(lease=lease, records=(a_record(0),)),
            Turn(lease=lease, records=(a_record(1),), next=Finish(Status.COMPLETED, "1")),
            Turn(lease=lease, records=(a_record(2),)),
        ]
        assert await store.commit(turns, ACTOR) == [TurnOutcome.APPLIED, TurnOutcome.APPLIED, TurnOutcome.LOST]
        assert [record.seq for record in await store.history("r1")] == [0, 1]

    async def test_a_turn_that_is_twice_in_one_batch_is_written_once(self, store: Store) -> None:
        lease = await held(store)
        turn = Turn(lease=lease, records=(a_record(0),), next=Finish(Status.COMPLETED, "1"))
        assert await store.commit([turn, turn], ACTOR) == [TurnOutcome.APPLIED, TurnOutcome.APPLIED]
        assert len(await store.history("r1")) == 1
        assert [event.kind for event in await store.events("r1")][-1:] == ["completed"]

    async def test_a_record_that_contradicts_the_history_stops_everything(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await commit(store, lease, a_record(0, payload='"real"'))
        before = await snapshot(harness)
        with pytest.raises(StoreCorrupt, match="r1"):
            await commit(store, lease, a_record(0, payload='"other"'))
        assert await snapshot(harness) == before

    async def test_a_record_of_a_former_holder_where_the_next_one_should_be_gives_the_run_back(
        self, store: Store
    ) -> None:
        former = await held(store)
        await commit(store, former, a_record(0, payload='"former"'), next=Release())
        latter = await lease_of(store, nonce="another")
        # As if it had been loaded before that was written.
        assert await commit(store, latter, a_record(0), a_record(1)) is TurnOutcome.LOST
        assert [record.payload for record in await store.history("r1")] == ['"former"']
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.token, run.worker) == (Status.PENDING, latter.token + 1, None)

    async def test_a_refused_park_is_the_only_thing_that_does_not_land(self, store: Store) -> None:
        await store.create([a_run("other")], ACTOR)
        lease = await held(store)
        await store.send([a_message(key="a"), a_message(key="b")], ACTOR)
        verdict = await commit(
            store,
            lease,
            a_record(0, "news", kind=RecordKind.MESSAGE, inbox_seq=1),
            read=1,
            children=(a_child("child", "r1"),),
            sends=(a_message("other"),),
            next=a_park(seen=1),
        )
        assert verdict is TurnOutcome.AWAKE
        assert len(await store.history("r1")) == len(await store.inbox("other", 0)) == 1
        assert [message.key for message in await store.inbox("r1", 0)] == ["b"]
        assert await store.get("child") is not None


#: Everything that a turn can try to do to its run or to others.
PATHS: dict[str, Callable[[Lease], Turn]] = {
    "nothing": lambda lease: Turn(lease=lease),
    "records": lambda lease: Turn(lease=lease, records=(a_record(9),)),
    "read": lambda lease: Turn(lease=lease, records=(a_record(9, kind=RecordKind.MESSAGE, inbox_seq=1),), read=1),
    "children": lambda lease: Turn(lease=lease, children=(a_child("child", "r1"),)),
    "sends": lambda lease: Turn(lease=lease, sends=(a_message("other"),)),
    "park": lambda lease: Turn(lease=lease, next=a_park(seen=1)),
    "finish": lambda lease: Turn(lease=lease, next=Finish(Status.FAILED, "{}")),
    "again": lambda lease: Turn(lease=lease, next=RetryLater(START, "{}")),
    "release": lambda lease: Turn(lease=lease, next=Release()),
    "block": lambda lease: Turn(lease=lease, next=Block(Reason.UNDECODABLE, "{}")),
    "extras": lambda lease: Turn(
        lease=lease,
        outputs=(NewOutput(kind=OutputKind.STREAM, name="tokens", payload="1", key="a"),),
        subscribes=("news@1",),
        trim=Trim(records=((0, 9),), inbox=9, events=1),
    ),
    "renew": lambda lease: Turn(lease=lease, next=ContinueAsNew(TYPE, "[]", 1)),
    "everything": lambda lease: Turn(
        lease=lease,
        records=(a_record(9, kind=RecordKind.MESSAGE, inbox_seq=1),),
        read=1,
        children=(a_child("child", "r1"),),
        sends=(a_message("other"),),
        next=Finish(Status.FAILED, "{}"),
    ),
}

#: How a lease is lost, and what the run is doing since then.
LOSSES = ("another token", "another nonce", "claimed by another", "reclaimed", "completed", "blocked and claimed")


class Fencing:
    """A worker without the lease changes nothing, whatever it tries."""

    async def lose(self, store: Store, harness: Harness, how: str) -> Lease:
        """A lease that no longer holds."""
        await store.create([a_run("other")], ACTOR)
        lease = await held(store)
        await store.send([a_message("r1")], ACTOR)
        if how == "another token":
            return Lease("r1", lease.token + 1, lease.nonce)
        if how == "another nonce":
            return Lease("r1", lease.token, "guessed")
        if how == "completed":
            await commit(store, lease, next=Finish(Status.COMPLETED, "1"))
        elif how == "blocked and claimed":
            await commit(store, lease, next=Block(Reason.DIVERGED, "{}"))
            await store.unblock((TYPE,), ("diverged",), ACTOR)
            await lease_of(store, "r1", "w2")
        else:
            harness.system.advance(60)
            await store.sweep(100)
            if how == "claimed by another":
                await lease_of(store, "r1", "w2")
        return lease

    @pytest.mark.parametrize("how", LOSSES)
    @pytest.mark.parametrize("path", PATHS)
    async def test_a_lost_lease_writes_nothing(self, store: Store, harness: Harness, path: str, how: str) -> None:
        lease = await self.lose(store, harness, how)
        before = await snapshot(harness)
        [verdict] = await store.commit([PATHS[path](lease)], ACTOR)
        given_back_already = path == "release" and how == "reclaimed"
        assert verdict is (TurnOutcome.APPLIED if given_back_already else TurnOutcome.LOST)
        assert await snapshot(harness) == before

    @pytest.mark.parametrize("path", PATHS)
    async def test_a_run_that_was_never_there_is_lost(self, store: Store, harness: Harness, path: str) -> None:
        await store.create([a_run("other")], ACTOR)
        before = await snapshot(harness)
        [verdict] = await store.commit([PATHS[path](Lease("r1", 1, "n"))], ACTOR)
        assert verdict is TurnOutcome.LOST
        assert await snapshot(harness) == before

    async def test_a_late_worker_that_was_not_swept_may_still_write(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        harness.system.advance(3600)
        assert await commit(store, lease, a_record(0)) is TurnOutcome.APPLIED
