"""Outputs of runs that clients read, and records that runs no longer need."""

from __future__ import annotations

import pytest

from perdure.core.codec.failure import Failure
from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Status
from perdure.core.model.run_orders import OrderOutcome
from perdure.core.model.set_aside_messages import set_aside_of, set_aside_output
from perdure.core.model.turn import Finish, Lease, Release, Trim, Turn, TurnOutcome
from perdure.core.time.duration import NEVER
from perdure.errors import StoreCorrupt
from perdure.store import Store
from perdure.store.contract import Change
from perdure.testing.conformance.harness import (
    ACTOR,
    SECOND,
    START,
    Harness,
    a_message,
    a_park,
    a_record,
    a_run,
    commit,
    held,
    lease_of,
    snapshot,
)


def an_item(number: int, stream: str = "tokens") -> NewOutput:
    """An item of a stream."""
    return NewOutput(kind=OutputKind.STREAM, name=stream, payload=f"{number}", key=f"{stream}:{number}")


def a_state(value: str, name: str = "phase") -> NewOutput:
    """A state; states have no keys worth the name."""
    return NewOutput(kind=OutputKind.STATE, name=name, payload=value, key=name)


def a_reply(value: str, to: str = "k1", *, failed: bool = False, key: str = "") -> NewOutput:
    """An answer to a message."""
    return NewOutput(kind=OutputKind.REPLY, name=to, payload=value, failed=failed, key=key or f"reply:{to}")


async def items(store: Store, name: str = "tokens", *, after: int = -1, limit: int = 100) -> list[tuple[int, str]]:
    """Positions and payloads of a stream."""
    found = await store.outputs("r1", OutputKind.STREAM, name, after, limit)
    return [(one.position, one.payload) for one in found]


def a_set_aside(number: int = 0, payload: str = '"one"') -> NewOutput:
    """A message that could not be decoded."""
    return set_aside_output("number", payload, Failure(type="DecodeError", message="no"), f"aside:1.{number}")


class SetAside:
    """Messages that could not be decoded stay with their run until it is decided what becomes of them."""

    async def test_it_is_kept_once_and_the_audit_trail_says_so(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, a_record(0), outputs=(a_set_aside(), a_set_aside(1, "{")))
        await commit(store, lease, a_record(1), outputs=(a_set_aside(),))
        found = [set_aside_of(one) for one in await store.outputs("r1", OutputKind.SET_ASIDE, "", -1, 10)]
        assert [(one.number, one.name, one.payload) for one in found] == [(0, "number", '"one"'), (1, "number", "{")]
        assert [event.kind for event in await store.events("r1")].count("message_set_aside") == 2

    @pytest.mark.parametrize(("given", "arrives"), [(None, '"one"'), ("1", "1")])
    async def test_it_is_delivered_again_once(
        self, harness: Harness, store: Store, given: str | None, arrives: str
    ) -> None:
        await commit(store, await held(store), a_record(0), outputs=(a_set_aside(),), next=a_park())
        assert await store.decide_message("r1", 0, "k1", given, ACTOR, deliver=True) is OrderOutcome.DONE
        before = await snapshot(harness)
        assert await store.decide_message("r1", 0, "k1", given, ACTOR, deliver=True) is OrderOutcome.DONE
        assert await store.decide_message("r1", 0, "k2", given, ACTOR, deliver=False) is OrderOutcome.ALREADY
        assert await snapshot(harness) == before
        [entry] = await store.inbox("r1", 0)
        assert (entry.kind, entry.name, entry.payload) == (RecordKind.MESSAGE, "number", arrives)
        run = await store.get("r1")
        assert run is not None
        assert run.status is Status.PENDING
        [output] = await store.outputs("r1", OutputKind.SET_ASIDE, "", -1, 10)
        assert (output.failed, set_aside_of(output).decision) == (False, "delivered")

    async def test_it_is_dropped_once_also_after_the_end(self, harness: Harness, store: Store) -> None:
        finish = Finish(Status.COMPLETED, "1")
        await commit(store, await held(store), a_record(0), outputs=(a_set_aside(),), next=finish)
        assert await store.decide_message("r1", 0, "k1", None, ACTOR, deliver=True) is OrderOutcome.FINISHED
        assert await store.decide_message("r1", 0, "k1", None, ACTOR, deliver=False) is OrderOutcome.DONE
        before = await snapshot(harness)
        assert await store.decide_message("r1", 0, "k1", None, ACTOR, deliver=False) is OrderOutcome.DONE
        assert await store.decide_message("r1", 0, "k2", None, ACTOR, deliver=True) is OrderOutcome.ALREADY
        for number in (-1, 1):
            assert await store.decide_message("r1", number, "k", None, ACTOR, deliver=False) is OrderOutcome.UNKNOWN
        assert await store.decide_message("missing", 0, "k", None, ACTOR, deliver=False) is OrderOutcome.UNKNOWN
        assert await snapshot(harness) == before


class Outputs:
    """States, streams and replies."""

    async def test_a_stream_is_read_by_position_from_anywhere(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, a_record(0), outputs=(an_item(0), an_item(1)))
        await commit(store, lease, a_record(1), outputs=(an_item(2), an_item(0, "log")))
        assert await items(store) == [(0, "0"), (1, "1"), (2, "2")]
        assert await items(store, after=0, limit=1) == [(1, "1")]
        assert await items(store, "log") == [(0, "0")]
        assert await items(store, after=2) == await items(store, "other") == []

    async def test_a_later_state_takes_the_place_of_an_earlier_one(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await commit(store, lease, a_record(0), outputs=(a_state("1"), a_state("2"), a_state('"x"', "other")))
        harness.system.advance(1)
        await commit(store, lease, outputs=(a_state("3"), a_state('"x"', "other")))
        found = await store.outputs("r1", OutputKind.STATE, None, -1, 100)
        assert [(one.name, one.payload, one.at) for one in found] == [
            ("other", '"x"', START),
            ("phase", "3", START + SECOND),
        ]
        assert [one.payload for one in await store.outputs("r1", OutputKind.STATE, "phase", -1, 1)] == ["3"]

    async def test_a_message_is_answered_once(self, store: Store) -> None:
        lease = await held(store)
        await commit(
            store, lease, outputs=(a_reply("1"), a_reply("2", key="another"), a_reply("{}", "k2", failed=True))
        )
        await commit(store, lease, outputs=(a_reply("3", key="third"),))
        found = await store.outputs("r1", OutputKind.REPLY, None, -1, 100)
        assert [(one.name, one.payload, one.failed) for one in found] == [("k1", "1", False), ("k2", "{}", True)]

    async def test_a_key_that_is_there_is_not_written_again(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        outputs = (an_item(0), an_item(1), a_state("1"), a_reply("1"))
        await commit(store, lease, outputs=outputs)
        before = await snapshot(harness)
        harness.system.advance(1)
        assert await commit(store, lease, outputs=outputs) is TurnOutcome.APPLIED
        assert await snapshot(harness) == before
        await commit(store, lease, outputs=(*outputs, an_item(2)))
        assert await items(store) == [(0, "0"), (1, "1"), (2, "2")]

    async def test_many_runs_show_many_things_in_one_batch(self, store: Store) -> None:
        leases = [await held(store, f"r{number}") for number in range(3)]
        turns = [
            Turn(
                lease=lease,
                records=(a_record(0),),
                outputs=(*(an_item(number) for number in range(130)), a_state("1")),
                next=Finish(Status.COMPLETED, "1"),
            )
            for lease in leases
        ]
        assert await store.commit(turns, ACTOR) == [TurnOutcome.APPLIED] * 3
        assert [position for position, _ in await items(store, limit=1000)] == list(range(130))

    async def test_the_latest_items_before_a_position_are_read_by_one_name_or_of_each(self, store: Store) -> None:
        lease = await held(store)
        others = tuple(an_item(number, "z") for number in range(3))
        await commit(store, lease, outputs=(*(an_item(number) for number in range(130)), *others, a_state("1")))
        name = "tokens"

        async def read(name: str | None, before: int, limit: int) -> list[tuple[str, int]]:
            found = await store.outputs(lease.run_id, OutputKind.STREAM, name, -1, limit, before=before)
            return [(one.name, one.position) for one in found]

        assert await read(name, NEVER, 3) == [(name, 127), (name, 128), (name, 129)]
        assert await read(name, 127, 2) == [(name, 125), (name, 126)]
        assert await read(name, 1, 5) == [(name, 0)]
        assert await read(name, 0, 5) == await read("unknown", NEVER, 5) == []
        assert await read(None, NEVER, 2) == [(name, 128), (name, 129), ("z", 1), ("z", 2)]
        assert await store.outputs(lease.run_id, OutputKind.STREAM, name, 128, 9, before=NEVER) == (
            await store.outputs(lease.run_id, OutputKind.STREAM, name, 128, 9)
        )

    async def test_a_listener_is_told(self, store: Store) -> None:
        lease = await held(store)
        heard: list[Change] = []
        unsubscribe = store.subscribe(heard.append)
        await commit(store, lease, a_record(0))
        assert not any(Change.OUTPUT in change for change in heard)
        await commit(store, lease, outputs=(an_item(0),))
        assert Change.OUTPUT in heard.pop()
        await commit(store, lease, outputs=(an_item(0),))
        assert not any(Change.OUTPUT in change for change in heard)
        unsubscribe()

    async def test_what_a_run_shows_outlives_it(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, outputs=(an_item(0),), next=Finish(Status.COMPLETED, "1"))
        assert await items(store) == [(0, "0")]

    async def test_a_turn_that_may_not_park_shows_what_it_has_to_show(self, store: Store) -> None:
        lease = await held(store)
        await store.send([a_message()], ACTOR)
        assert await commit(store, lease, outputs=(an_item(0),), next=a_park(seen=0)) is TurnOutcome.AWAKE
        assert await items(store) == [(0, "0")]

    @pytest.mark.parametrize("records", [0, 1])
    async def test_the_next_holder_goes_on_where_the_last_one_was(self, store: Store, records: int) -> None:
        lease = await held(store)
        await commit(store, lease, *(a_record(seq) for seq in range(records)), outputs=(an_item(0),), next=Release())
        late = await commit(store, lease, a_record(5), outputs=(an_item(8),))
        assert late is TurnOutcome.LOST
        heir = await lease_of(store, "r1", "w2")
        await commit(store, heir, outputs=(an_item(0), an_item(1)))
        assert await items(store) == [(0, "0"), (1, "1")]


class Trimming:
    """History, inbox and audit trail of a run that goes on for ever."""

    async def test_ranges_of_records_go_once_the_turn_is_in(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, *(a_record(seq) for seq in range(6)))
        trim = Trim(records=((0, 2), (4, 5)))
        assert await commit(store, lease, a_record(6, "loop", kind=RecordKind.SCOPE), trim=trim) is TurnOutcome.APPLIED
        assert [record.seq for record in await store.history("r1")] == [3, 6]
        await commit(store, lease, a_record(7), a_record(8))
        [loaded] = await store.load(["r1"])
        assert [record.seq for record in loaded.records] == [3, 6, 7, 8]

    async def test_a_turn_may_leave_out_records_that_it_would_trim(self, store: Store) -> None:
        lease = await held(store)
        turn = Turn(
            lease=lease,
            records=(a_record(3, "beside"), a_record(9, "loop", kind=RecordKind.SCOPE)),
            trim=Trim(records=((0, 2), (4, 8))),
            next=a_park(),
        )
        assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        [loaded] = await store.load(["r1"])
        assert [record.seq for record in loaded.records] == [3, 9]

    async def test_only_what_was_taken_in_leaves_the_inbox(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await store.send([a_message(key=key) for key in ("a", "b", "c")], ACTOR)
        taken = [a_record(seq, "news", kind=RecordKind.MESSAGE, inbox_seq=seq + 1) for seq in range(2)]
        await commit(store, lease, *taken, read=2)
        mark = a_record(2, "loop", kind=RecordKind.SCOPE)
        await commit(store, lease, mark, trim=Trim(records=((0, 1),), inbox=3))
        assert await harness.query("SELECT seq, message_key FROM perdure_messages") == [(3, "c")]
        assert [message.key for message in await store.inbox("r1", 0)] == ["c"]
        # A key is forgotten with its message.
        await store.send([a_message(key="a"), a_message(key="c")], ACTOR)
        assert [(one.seq, one.key) for one in await store.inbox("r1", 0)] == [(3, "c"), (4, "a")]

    async def test_the_newest_events_stay(self, store: Store) -> None:
        lease = await held(store)
        other = await held(store, "other")
        for number in range(6):
            await store.send([a_message(key=f"k{number}")], ACTOR)
        before = await store.events("r1")
        await commit(store, lease, trim=Trim(events=3))
        assert await store.events("r1") == before[-3:]
        assert len(await store.events("other")) == 2
        await commit(store, lease, trim=Trim(events=3), next=Finish(Status.COMPLETED, "1"))
        assert [event.kind for event in await store.events("r1")][-1] == "completed"
        assert await commit(store, other) is TurnOutcome.APPLIED

    async def test_trimming_again_changes_nothing(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await commit(store, lease, *(a_record(seq) for seq in range(4)))
        trim = Trim(records=((0, 3),), inbox=5, events=1)
        turn = Turn(lease=lease, records=(a_record(4, "loop", kind=RecordKind.SCOPE),), trim=trim)
        assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        before = await snapshot(harness)
        assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        assert await snapshot(harness) == before

    async def test_many_runs_trim_in_one_batch(self, store: Store) -> None:
        leases = [await held(store, f"r{number}") for number in range(3)]
        for lease in leases:
            await commit(store, lease, *(a_record(seq) for seq in range(4)))
        turns = [
            Turn(
                lease=lease,
                records=(a_record(4, "loop", kind=RecordKind.SCOPE),),
                trim=Trim(records=((0, number), (3, 3)), inbox=1, events=1),
            )
            for number, lease in enumerate(leases)
        ]
        assert await store.commit(turns, ACTOR) == [TurnOutcome.APPLIED] * 3
        left = [[record.seq for record in await store.history(lease.run_id)] for lease in leases]
        assert left == [[1, 2, 4], [2, 4], [4]]

    async def test_a_hole_that_no_scope_explains_is_damage(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        records = (a_record(0), a_record(1), a_record(2, "loop", kind=RecordKind.SCOPE), a_record(3), a_record(4))
        await commit(store, lease, *records)
        await harness.execute("DELETE FROM perdure_history WHERE seq = 3")
        with pytest.raises(StoreCorrupt, match="r1"):
            await store.load(["r1"])
        await harness.execute("DELETE FROM perdure_history WHERE seq = 4")
        assert len((await store.load(["r1"]))[0].records) == 3

    async def test_a_lost_lease_trims_nothing(self, store: Store, harness: Harness) -> None:
        await store.create([a_run()], ACTOR)
        lease = await lease_of(store)
        await commit(store, lease, a_record(0), next=Release())
        heir = await lease_of(store, "r1", "w2")
        before = await snapshot(harness)
        for late in (lease, Lease("r1", heir.token, "guessed")):
            trim = Trim(records=((0, 0),), events=1)
            assert await commit(store, late, a_record(1, "s", kind=RecordKind.SCOPE), trim=trim) is TurnOutcome.LOST
            assert await commit(store, late, trim=trim, next=Finish(Status.COMPLETED, "1")) is TurnOutcome.LOST
        assert await snapshot(harness) == before
