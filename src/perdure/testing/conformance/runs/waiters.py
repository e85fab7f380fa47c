"""Waits for the end of a run that is not a child."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import permutations
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.core.codec.decoders import decoder_for
from perdure.core.codec.failure import Failure
from perdure.core.model.events import EmitOutcome, NewStickyEvent, event_id, event_run
from perdure.core.model.outputs import NewOutput, OutputKind, SeenOutputs, WantedOutput, state_digest
from perdure.core.model.record import Message, NewMessage, RecordKind
from perdure.core.model.run import STICKY_TYPE, Reason, Status
from perdure.core.model.turn import Finish, Lease, Release, Turn, TurnOutcome
from perdure.errors import StoreUnavailable
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    SECOND,
    START,
    Harness,
    a_park,
    a_record,
    a_run,
    claim_ids,
    commit,
    held,
    lease_of,
    retry,
)


def a_wait(target: str, waiter: str = "waiter", *, location: str = "run.result", over: bool = False) -> NewMessage:
    """A request to wait for the end of a run, or to wait no longer."""
    kind = RecordKind.UNWATCH if over else RecordKind.WATCH
    return NewMessage(run_id=target, kind=kind, name=location, payload=waiter, key=f"watch:1.1:{target}{location}")


def a_look(
    target: str,
    waiter: str = "waiter",
    *,
    location: str = "run.state",
    kind: OutputKind = OutputKind.STATE,
    over: bool = False,
    **wants: Any,
) -> NewMessage:
    """A request to wait for outputs of a run, or to wait no longer."""
    wait = a_wait(target, waiter, location=location, over=over)
    return replace(wait, wants=WantedOutput(kind=kind, name="phase", **wants))


def an_output(payload: str, kind: OutputKind = OutputKind.STATE) -> NewOutput:
    """An output that others may wait for."""
    return NewOutput(kind=kind, name="phase", payload=payload, key=f"{kind} {payload}")


def _seen(entry: Message) -> tuple[str, list[str], bool, bool]:
    found = decoder_for(SeenOutputs).decode(entry.payload or "")
    return entry.name, [one.payload for one in found.outputs], found.ended, found.more


async def waiting(store: Store, target: str, waiter: str = "waiter") -> Lease:
    """A run that waits for the end of another."""
    lease = await held(store, waiter)
    assert await commit(store, lease, sends=(a_wait(target, waiter),), next=a_park(reason=Reason.CHILD))
    return lease


def an_event(payload: str, *, name: str = "rates", replace: bool = False) -> NewStickyEvent:
    """An event to emit."""
    return NewStickyEvent(name=name, payload=payload, replace=replace, write_id=f"emit {payload}")


def _told(entry: Message) -> tuple[RecordKind, str, str | None, bool]:
    return entry.kind, entry.name, entry.payload, entry.failed


class Waiting:
    """A run learns of the end of any other run by its inbox, in the commit that ends it."""

    @pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
    async def test_the_end_of_a_run_wakes_those_that_wait_for_it(
        self, store: Store, harness: Harness, status: Status
    ) -> None:
        target = await held(store, "target")
        for name in ("b", "a"):
            await waiting(store, "target", name)
        await waiting(store, "a", "other")
        assert await commit(store, target, next=Finish(status, '{"type":"x"}')) is TurnOutcome.APPLIED
        for name in ("a", "b"):
            [entry] = await store.inbox(name, 0)
            failed = status is not Status.COMPLETED
            assert _told(entry) == (RecordKind.CHILD, "run.result", '{"type":"x"}', failed)
        assert sorted(await claim_ids(store, nonce="woken")) == ["a", "b"]
        assert await store.inbox("other", 0) == []
        assert await harness.query("SELECT run_id FROM perdure_waiters") == [("other",)]

    @pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED])
    async def test_a_run_that_ended_before_answers_at_once(
        self, store: Store, harness: Harness, status: Status
    ) -> None:
        await commit(store, await held(store, "target"), next=Finish(status, '{"type":"x"}'))
        lease = await held(store, "waiter")
        outcome = await commit(store, lease, sends=(a_wait("target"),), next=a_park(reason=Reason.CHILD))
        assert outcome is TurnOutcome.AWAKE
        [entry] = await store.inbox("waiter", 0)
        assert _told(entry) == (RecordKind.CHILD, "run.result", '{"type":"x"}', status is Status.FAILED)
        assert await harness.query("SELECT run_id FROM perdure_waiters") == []

    async def test_a_wait_for_a_run_that_does_not_exist_fails(self, store: Store) -> None:
        lease = await held(store, "waiter")
        assert await commit(store, lease, sends=(a_wait("nothing"),), next=a_park()) is TurnOutcome.AWAKE
        [entry] = await store.inbox("waiter", 0)
        assert (entry.kind, entry.name, entry.failed) == (RecordKind.CHILD, "run.result", True)
        assert Failure.from_json(entry.payload or "").type == "perdure.errors.RunNotFound"

    @pytest.mark.parametrize("order", list(permutations(("waiter", "target", "both"))), ids="-".join)
    async def test_a_batch_that_waits_and_ends_tells_each_waiter_once(
        self, store: Store, harness: Harness, order: tuple[str, ...]
    ) -> None:
        target, lease, both = [await held(store, name) for name in ("target", "waiter", "both")]
        await commit(store, both, sends=(a_wait("target", "both", location="first"),))
        turns = {
            "waiter": Turn(lease=lease, sends=(a_wait("target"),), next=a_park(reason=Reason.CHILD)),
            "both": Turn(lease=both, records=(a_record(0),), sends=(a_wait("target", "both"),)),
            "target": Turn(lease=target, next=Finish(Status.COMPLETED, "1")),
        }
        verdicts = dict(zip(order, await store.commit([turns[name] for name in order], ACTOR), strict=True))
        applied = TurnOutcome.APPLIED
        assert verdicts == {"waiter": TurnOutcome.AWAKE, "both": applied, "target": applied}
        assert [_told(entry) for entry in await store.inbox("waiter", 0)] == [
            (RecordKind.CHILD, "run.result", "1", False)
        ]
        assert sorted(entry.name for entry in await store.inbox("both", 0)) == ["first", "run.result"]
        assert await harness.query("SELECT run_id FROM perdure_waiters") == []

    async def test_a_repeated_wait_is_answered_once(self, store: Store, harness: Harness) -> None:
        target = await held(store, "target")
        lease = await held(store, "waiter")
        for _ in range(2):
            assert await commit(store, lease, sends=(a_wait("target"),)) is TurnOutcome.APPLIED
        assert await harness.query("SELECT target, run_id FROM perdure_waiters") == [("target", "waiter")]
        await commit(store, target, next=Finish(Status.COMPLETED, "1"))
        assert await commit(store, lease, sends=(a_wait("target"),)) is TurnOutcome.APPLIED
        assert len(await store.inbox("waiter", 0)) == 1

    @pytest.mark.parametrize("asks", ["later", "in the same turn"])
    @pytest.mark.parametrize("wants", [None, OutputKind.STATE])
    async def test_an_answer_that_was_read_and_left_no_record_is_given_again(
        self, store: Store, wants: OutputKind | None, asks: str
    ) -> None:
        target, lease = await held(store, "target"), await held(store, "waiter")
        wait = a_wait("target") if wants is None else a_look("target")
        await commit(store, lease, sends=(wait,))
        await commit(store, target, outputs=(an_output("1"),), next=Finish(Status.COMPLETED, "1"))
        # Changed code waits for something else first: it reads the answer, and asks when its first wait is over.
        if asks == "later":
            await commit(store, lease, read=1)
        again = Turn(lease=lease, records=(a_record(0),), read=1, sends=(wait,))
        for _ in range(2):
            assert await store.commit([again], ACTOR) == [TurnOutcome.APPLIED]
        entries = await store.inbox("waiter", 0)
        assert [entry.seq for entry in entries if entry.key == wait.key] == [2]
        [unread] = await store.inbox("waiter", 1)
        assert (unread.kind, unread.name, unread.failed) == (RecordKind.CHILD, wait.name, False)
        assert unread.payload == "1" if wants is None else _seen(unread)[1] == ["1"]

    @pytest.mark.parametrize("recorded", ["before", "in the same turn"])
    async def test_an_answer_that_was_recorded_is_not_given_again(self, store: Store, recorded: str) -> None:
        target, lease = await held(store, "target"), await held(store, "waiter")
        await commit(store, lease, sends=(a_wait("target"),))
        await commit(store, target, next=Finish(Status.COMPLETED, "1"))
        answer = a_record(0, "run.result", kind=RecordKind.CHILD, inbox_seq=1)
        if recorded == "before":
            await commit(store, lease, answer, read=1)
            assert await commit(store, lease, sends=(a_wait("target"),)) is TurnOutcome.APPLIED
        else:
            assert await commit(store, lease, answer, read=1, sends=(a_wait("target"),)) is TurnOutcome.APPLIED
        assert await store.inbox("waiter", 1) == []

    async def test_a_wait_that_was_given_up_is_not_answered(self, store: Store, harness: Harness) -> None:
        target = await held(store, "target")
        lease = await held(store, "waiter")
        await commit(store, lease, sends=(a_wait("target"), a_wait("target", location="other")))
        await commit(store, lease, sends=(a_wait("target", over=True),))
        await commit(store, target, next=Finish(Status.COMPLETED, "1"))
        assert [entry.name for entry in await store.inbox("waiter", 0)] == ["other"]
        assert await harness.query("SELECT run_id FROM perdure_waiters") == []

    async def test_a_turn_that_gives_up_a_wait_wins_over_an_end_in_the_same_batch(self, store: Store) -> None:
        target = await held(store, "target")
        lease = await held(store, "waiter")
        await commit(store, lease, sends=(a_wait("target"),))
        turns = [
            Turn(lease=lease, sends=(a_wait("target", over=True),)),
            Turn(lease=target, next=Finish(Status.COMPLETED, "1")),
        ]
        assert await store.commit(turns, ACTOR) == [TurnOutcome.APPLIED] * 2
        assert await store.inbox("waiter", 0) == []

    @pytest.mark.parametrize("how", ["cancelled", "cancelled by a turn", "terminated", "expired"])
    async def test_every_way_to_end_tells_those_that_wait(self, store: Store, harness: Harness, how: str) -> None:
        await store.create([a_run("target", deadline=START + SECOND)], ACTOR)
        lease = await lease_of(store, "target")
        await waiting(store, "target")
        other = await held(store, "other")
        if how.startswith("cancelled"):
            await store.create([a_run("fresh", wake_at=START + 9 * SECOND)], ACTOR)
            await commit(store, other, sends=(a_wait("fresh", "other"),))
        if how == "cancelled":
            await store.cancel("fresh", "enough", "c1", ACTOR)
        elif how == "cancelled by a turn":
            stop = NewMessage(run_id="fresh", kind=RecordKind.CANCEL, payload='"enough"', key="c1")
            assert await commit(store, await held(store, "third"), sends=(stop,)) is TurnOutcome.APPLIED
        elif how == "terminated":
            await store.terminate("target", "enough", "t1", ACTOR)
        else:
            await commit(store, lease, next=Release())
            harness.system.advance(5)
            await store.sweep(10)
        waiter = "other" if how.startswith("cancelled") else "waiter"
        [entry] = await store.inbox(waiter, 0)
        assert (entry.kind, entry.failed) == (RecordKind.CHILD, True)
        left = await harness.query("SELECT run_id FROM perdure_waiters")
        assert (waiter,) not in left

    async def test_a_reopened_run_is_waited_for_again(self, store: Store) -> None:
        await commit(store, await held(store, "target"), next=Finish(Status.FAILED, "{}"))
        await retry(store, "target")
        again = await lease_of(store, "target", nonce="again")
        await waiting(store, "target")
        assert await store.inbox("waiter", 0) == []
        await commit(store, again, next=Finish(Status.COMPLETED, "2"))
        [entry] = await store.inbox("waiter", 0)
        assert (entry.payload, entry.failed) == ("2", False)

    async def test_a_sweep_tells_waiters_of_a_run_that_was_ended_without_telling_them(
        self, store: Store, harness: Harness
    ) -> None:
        target = await held(store, "target")
        await commit(store, await held(store, "waiter"), next=a_park(reason=Reason.CHILD))
        await commit(store, target, next=Finish(Status.COMPLETED, "7"))
        await harness.execute(
            "INSERT INTO perdure_waiters (target, run_id, message_key, location) "
            "VALUES ('target', 'waiter', 'watch:1.1:x', 'run.result')"
        )
        await store.sweep(10)
        [entry] = await store.inbox("waiter", 0)
        assert _told(entry) == (RecordKind.CHILD, "run.result", "7", False)
        assert await harness.query("SELECT run_id FROM perdure_waiters") == []
        assert await claim_ids(store, nonce="woken") == ["waiter"]

    async def test_a_waiter_that_has_ended_delays_no_other_run(self, store: Store, harness: Harness) -> None:
        target = await held(store, "target")
        lease = await held(store, "waiter")
        await commit(store, lease, sends=(a_wait("target"),), next=Finish(Status.COMPLETED, "1"))
        assert await commit(store, target, next=Finish(Status.COMPLETED, "1")) is TurnOutcome.APPLIED
        assert await store.inbox("waiter", 0) == []
        assert await harness.query("SELECT run_id FROM perdure_waiters") == []

    async def test_an_event_is_created_by_the_first_wait_and_ended_by_its_emission(
        self, store: Store, harness: Harness
    ) -> None:
        id = event_id("rates")
        for name in ("a", "b"):
            wait = a_wait(id, name)
            turn = Turn(lease=await held(store, name), children=(event_run(id, name),), sends=(wait,), next=a_park())
            assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        run = await store.get(id)
        assert run is not None
        assert (run.type, run.status, await claim_ids(store, nonce="none")) == (STICKY_TYPE, Status.WAITING, [])
        assert await store.emit_event(an_event("1"), ACTOR) is EmitOutcome.EMITTED
        for name in ("a", "b"):
            assert [_told(entry) for entry in await store.inbox(name, 0)] == [
                (RecordKind.CHILD, "run.result", "1", False)
            ]
        assert sorted(await claim_ids(store, nonce="woken")) == ["a", "b"]
        assert await harness.query("SELECT run_id FROM perdure_waiters") == []

    async def test_an_event_that_was_emitted_answers_at_once(self, store: Store) -> None:
        id = event_id("rates")
        assert await store.emit_event(an_event("1"), ACTOR) is EmitOutcome.EMITTED
        turn = Turn(
            lease=await held(store, "waiter"), children=(event_run(id, "w"),), sends=(a_wait(id),), next=a_park()
        )
        assert await store.commit([turn], ACTOR) == [TurnOutcome.AWAKE]
        [entry] = await store.inbox("waiter", 0)
        assert (entry.payload, entry.failed) == ("1", False)

    async def test_the_first_value_of_an_event_stays_unless_it_is_replaced(self, store: Store) -> None:
        outcomes = [await store.emit_event(an_event(value), ACTOR) for value in ("1", "1", "2")]
        assert outcomes == [EmitOutcome.EMITTED, EmitOutcome.EMITTED, EmitOutcome.KEPT]
        assert await store.emit_event(an_event("2", replace=True), ACTOR) is EmitOutcome.EMITTED
        run = await store.get(event_id("rates"))
        assert run is not None
        assert (run.status, run.output, run.generation) == (Status.COMPLETED, "2", 2)
        await store.create([a_run(event_id("other"))], ACTOR)
        assert await store.emit_event(an_event("1", name="other"), ACTOR) is EmitOutcome.TAKEN

    async def test_runs_that_begin_to_wait_for_an_event_at_once_are_all_told(self, store: Store) -> None:
        for number in range(5):
            id, names = event_id(f"e{number}"), [f"{number}-{letter}" for letter in "abc"]
            turns = [
                Turn(
                    lease=await held(store, name),
                    records=(a_record(0),),
                    children=(event_run(id, name),),
                    sends=(a_wait(id, name),),
                    next=a_park(reason=Reason.CHILD),
                )
                for name in names
            ]
            emission = store.emit_event(an_event("1", name=f"e{number}"), ACTOR)
            await asyncio.gather(emission, *(_until_decided(store, turn) for turn in turns))
            for run in await store.get_many(names):
                assert (run.inbox_seq, run.status in (Status.RUNNING, Status.PENDING)) == (1, True)

    async def test_no_wake_up_is_lost_between_the_wait_and_the_end(self, store: Store) -> None:
        for number in range(20):
            target, lease = await held(store, f"target-{number}"), await held(store, f"waiter-{number}")
            wait = a_wait(target.run_id, lease.run_id)
            ending = Turn(lease=target, records=(a_record(0),), next=Finish(Status.COMPLETED, "1"))
            parking = Turn(lease=lease, records=(a_record(0),), sends=(wait,), next=a_park(reason=Reason.CHILD))
            await asyncio.gather(_until_decided(store, ending), _until_decided(store, parking))
            run = await store.get(lease.run_id)
            assert run is not None
            assert (run.inbox_seq, run.status in (Status.RUNNING, Status.PENDING)) == (1, True)


class Observing:
    """A run learns of the outputs of any other run by its inbox, in the commit that writes them."""

    @pytest.mark.parametrize("kind", [OutputKind.STATE, OutputKind.STREAM])
    async def test_outputs_wake_those_that_wait_for_them(
        self, store: Store, harness: Harness, kind: OutputKind
    ) -> None:
        target = await held(store, "target")
        for name in ("b", "a"):
            look = a_look("target", name, kind=kind)
            assert await commit(store, await held(store, name), sends=(look,), next=a_park(reason=Reason.CHILD))
        other = OutputKind.STREAM if kind is OutputKind.STATE else OutputKind.STATE
        assert await commit(store, target, outputs=(an_output("0", other),)) is TurnOutcome.APPLIED
        assert await store.inbox("a", 0) == []
        assert await commit(store, target, outputs=(an_output("1", kind),)) is TurnOutcome.APPLIED
        for name in ("a", "b"):
            assert [_seen(entry) for entry in await store.inbox(name, 0)] == [("run.state", ["1"], False, False)]
        assert sorted(await claim_ids(store, nonce="woken")) == ["a", "b"]
        assert await harness.query("SELECT run_id FROM perdure_observers") == []

    async def test_outputs_that_are_there_answer_at_once(self, store: Store, harness: Harness) -> None:
        await commit(store, await held(store, "target"), outputs=(an_output("1"), an_output("2", OutputKind.STREAM)))
        lease = await held(store, "waiter")
        stream = OutputKind.STREAM
        looks = (
            a_look("target"),
            a_look("target", location="stream", kind=stream),
            a_look("target", location="later", kind=stream, position=1),
            a_look("target", location="same", seen=state_digest("1")),
            a_look("target", location="now", kind=stream, position=1, now=True),
        )
        assert await commit(store, lease, sends=looks, next=a_park(reason=Reason.CHILD)) is TurnOutcome.AWAKE
        assert {_seen(entry)[0]: _seen(entry)[1:] for entry in await store.inbox("waiter", 0)} == {
            "run.state": (["1"], False, False), "stream": (["2"], False, False), "now": ([], False, False),
        }  # fmt: skip
        assert sorted(await harness.query("SELECT location FROM perdure_observers")) == [("later",), ("same",)]

    async def test_a_wait_for_outputs_of_a_run_that_does_not_exist_fails(self, store: Store) -> None:
        lease = await held(store, "waiter")
        assert await commit(store, lease, sends=(a_look("nothing"),), next=a_park()) is TurnOutcome.AWAKE
        [entry] = await store.inbox("waiter", 0)
        assert Failure.from_json(entry.payload or "").type == "perdure.errors.RunNotFound"

    @pytest.mark.parametrize("order", list(permutations(("waiter", "target", "both"))), ids="-".join)
    async def test_a_batch_that_waits_shows_and_ends_tells_each_observer_once_of_everything(
        self, store: Store, harness: Harness, order: tuple[str, ...]
    ) -> None:
        target, lease, both = [await held(store, name) for name in ("target", "waiter", "both")]
        stream = OutputKind.STREAM
        await commit(store, both, sends=(a_look("target", "both", location="first", kind=stream),))
        turns = {
            "waiter": Turn(lease=lease, sends=(a_look("target", kind=stream),), next=a_park(reason=Reason.CHILD)),
            "both": Turn(lease=both, records=(a_record(0),), sends=(a_look("target", "both", kind=stream),)),
            "target": Turn(
                lease=target, outputs=(an_output("1", stream), an_output("2", stream)),
                next=Finish(Status.COMPLETED, "1"),
            ),
        }  # fmt: skip
        verdicts = await store.commit([turns[name] for name in order], ACTOR)
        assert TurnOutcome.LOST not in verdicts
        seen = (["1", "2"], True, False)
        assert [_seen(entry) for entry in await store.inbox("waiter", 0)] == [("run.state", *seen)]
        found = sorted(_seen(entry) for entry in await store.inbox("both", 0))
        assert found == [("first", *seen), ("run.state", *seen)]
        assert await harness.query("SELECT run_id FROM perdure_observers") == []
        run = await store.get("waiter")
        assert run is not None
        assert run.status in (Status.RUNNING, Status.PENDING)

    async def test_a_wait_for_outputs_that_was_given_up_is_not_answered(self, store: Store, harness: Harness) -> None:
        target, lease = await held(store, "target"), await held(store, "waiter")
        await commit(store, lease, sends=(a_look("target"), a_look("target", location="other")))
        await commit(store, lease, sends=(a_look("target", over=True),))
        await commit(store, target, outputs=(an_output("1"),))
        assert [entry.name for entry in await store.inbox("waiter", 0)] == ["other"]
        assert await harness.query("SELECT run_id FROM perdure_observers") == []

    @pytest.mark.parametrize("how", ["cancelled", "cancelled by a turn", "terminated"])
    async def test_every_way_to_end_tells_observers(self, store: Store, harness: Harness, how: str) -> None:
        await store.create([a_run("target", wake_at=START + 9 * SECOND)], ACTOR)
        lease = await held(store, "waiter")
        await commit(store, lease, sends=(a_look("target"),), next=a_park(reason=Reason.CHILD))
        if how == "cancelled":
            await store.cancel("target", "enough", "c1", ACTOR)
        elif how == "terminated":
            await store.terminate("target", "enough", "t1", ACTOR)
        else:
            stop = NewMessage(run_id="target", kind=RecordKind.CANCEL, payload='"enough"', key="c1")
            assert await commit(store, await held(store, "third"), sends=(stop,)) is TurnOutcome.APPLIED
        assert [_seen(entry) for entry in await store.inbox("waiter", 0)] == [("run.state", [], True, False)]
        assert await harness.query("SELECT run_id FROM perdure_observers") == []

    async def test_a_sweep_tells_observers_of_items_that_a_transaction_step_has_written(
        self, store: Store, harness: Harness
    ) -> None:
        await held(store, "target")
        lease = await held(store, "waiter")
        look = a_look("target", kind=OutputKind.STREAM)
        await commit(store, lease, sends=(look,), next=a_park(reason=Reason.CHILD))
        await harness.execute(
            "INSERT INTO perdure_outputs (run_id, kind, name, position, payload, failed, at, output_key) "
            "VALUES ('target', 'stream', 'phase', 0, '7', 0, 1, 'k')"
        )
        await store.sweep(10)
        assert [_seen(entry) for entry in await store.inbox("waiter", 0)] == [("run.state", ["7"], False, False)]
        assert await claim_ids(store, nonce="woken") == ["waiter"]

    async def test_no_wake_up_is_lost_between_the_wait_and_the_output(self, store: Store) -> None:
        for number in range(10):
            target, lease = await held(store, f"target-{number}"), await held(store, f"waiter-{number}")
            look = a_look(target.run_id, lease.run_id)
            showing = Turn(lease=target, records=(a_record(0),), outputs=(an_output("1"),))
            parking = Turn(lease=lease, records=(a_record(0),), sends=(look,), next=a_park(reason=Reason.CHILD))
            await asyncio.gather(_until_decided(store, showing), _until_decided(store, parking))
            run = await store.get(lease.run_id)
            assert run is not None
            assert (run.inbox_seq, run.status in (Status.RUNNING, Status.PENDING)) == (1, True)


async def _until_decided(store: Store, turn: Turn) -> None:
    """Commit as a journal does: a turn whose row is busy, or whose database is unavailable, goes again."""
    verdict = TurnOutcome.BUSY
    while verdict is TurnOutcome.BUSY:
        with suppress(StoreUnavailable):
            [verdict] = await store.commit([turn], ACTOR)
