"""Packed histories: few rows hold many records, and every verb reads what it read before."""

from __future__ import annotations

import pytest

from perdure.core.model.outputs import OutputKind
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import Reason, RetryOutcome, Status
from perdure.core.model.turn import ContinueAsNew, Finish, Lease, Release, Trim, Turn, TurnOutcome
from perdure.errors import StoreCorrupt
from perdure.store import Store
from perdure.store.contract import BRIEF
from perdure.testing.conformance.harness import (
    ACTOR,
    SECOND,
    START,
    Harness,
    a_message,
    a_park,
    a_record,
    commit,
    held,
    lease_of,
    retry,
    snapshot,
)

_ROWS = "SELECT seq, kind, attempts FROM perdure_history ORDER BY run_id, seq"


async def a_long_run(store: Store) -> tuple[Lease, list[Record]]:
    """A held run whose history has every kind of record that is packed, and every kind that is not."""
    lease = await held(store)
    await store.send([a_message()], ACTOR)
    flaky = {"kind": RecordKind.ATTEMPT, "payload": "{}", "failed": True, "retry_at": START, "started_at": START}
    records = [
        a_record(0, "first", digest="d", attempts=1, started_at=START),
        a_record(1, "sleep", kind=RecordKind.TIMER, payload=None, at=START + 1, started_at=START),
        a_record(2, "text", payload='"\\u0000 \\"ü\\" 🐍"', at=START + 2),
        a_record(3, "long", payload=f'"{"x" * BRIEF}"', at=START + 2, started_at=START + 1, attempts=1),
        a_record(4, "last", at=START + 2),
        a_record(5, "news", kind=RecordKind.MESSAGE, inbox_seq=1, at=START + 2),
        a_record(6, "flaky", attempts=1, at=START + 2, **flaky),
        a_record(7, "flaky", attempts=2, started_at=START + 2, at=START + 3),
        a_record(8, at=START + 3),
        a_record(9, at=START + 3),
        a_record(10, at=START + 3),
        a_record(11, "scope/inside", at=START + 3),
        *(a_record(seq, at=START + 4) for seq in range(12, 15)),
        a_record(15, "huge", payload=f'"{"x" * 20_000}"', at=START + 4),
        *(a_record(seq, at=START + 5) for seq in range(16, 24)),
    ]
    assert await commit(store, lease, *records, read=1) is TurnOutcome.APPLIED
    return lease, records


async def reads(store: Store) -> list[object]:
    """Everything that the verbs say of the history."""
    shown = await store.snapshot("r1", 2, (OutputKind.STATE,))
    assert shown is not None
    return [
        await store.history("r1"),
        await store.history("r1", brief=True),
        *[await store.history("r1", after, 3) for after in range(-1, 23, 2)],
        await store.records("r1", [0, 3, 4, 5, 8, 19, 99]),
        await store.records("r1", [10]),
        await store.records("r1", range(24)),
        shown.records,
        await store.load(["r1"]),
        await store.updated_at(["r1"]),
    ]


class Packing:
    """The old part of a long history takes few rows."""

    async def test_packed_records_are_read_as_before(self, store: Store, harness: Harness) -> None:
        lease, records = await a_long_run(store)
        before = await reads(store)
        assert await store.pack(lease, 0, 19, ACTOR)
        assert await reads(store) == before
        assert await store.history("r1") == records
        kinds = {seq: (kind, count) for seq, kind, count in await harness.query(_ROWS)}
        assert {seq: count for seq, (kind, count) in kinds.items() if kind == "packed"} == {4: 5, 10: 4, 14: 3, 19: 4}
        # All that is found by its columns stays as it is, and so does all past the end.
        assert [seq for seq, (kind, _) in kinds.items() if kind != "packed"] == [5, 6, 11, 15, 20, 21, 22, 23]

    async def test_packing_goes_on_where_it_ended_and_a_repetition_changes_nothing(
        self, store: Store, harness: Harness
    ) -> None:
        lease, records = await a_long_run(store)
        for first, last in ((0, 6), (7, 15), (16, 22)):
            assert await store.pack(lease, first, last, ACTOR)
        before = await snapshot(harness)
        assert await store.pack(lease, 0, 22, ACTOR)
        assert await snapshot(harness) == before
        assert await store.history("r1") == records

    async def test_a_lost_lease_packs_nothing(self, store: Store, harness: Harness) -> None:
        lease, _ = await a_long_run(store)
        await commit(store, lease, next=Release())
        heir = await lease_of(store, "r1", "w2")
        before = await snapshot(harness)
        for late in (lease, Lease("r1", heir.token, "guessed")):
            assert not await store.pack(late, 0, 19, ACTOR)
        assert await snapshot(harness) == before

    async def test_a_packed_run_goes_on_and_ends(self, store: Store) -> None:
        lease, records = await a_long_run(store)
        await store.pack(lease, 0, 19, ACTOR)
        turn = Turn(lease=lease, records=(a_record(24, at=START + 6),), next=Finish(Status.FAILED, "{}"))
        for _ in range(2):
            assert await store.commit([turn], ACTOR) == [TurnOutcome.APPLIED]
        # The next attempt continues the history.
        assert await retry(store) is RetryOutcome.OPEN
        heir = await lease_of(store, "r1")
        assert await commit(store, heir, a_record(25, "first", at=START + 7, run_attempt=2)) is TurnOutcome.APPLIED
        found = await store.history("r1")
        assert found[:25] == [*records, a_record(24, at=START + 6)]
        assert [record.seq for record in found] == list(range(26))

    async def test_a_scope_is_trimmed_beside_what_is_packed(self, store: Store) -> None:
        lease, records = await a_long_run(store)
        await store.pack(lease, 0, 19, ACTOR)
        mark = a_record(24, "scope", kind=RecordKind.SCOPE, at=START + 6)
        await commit(store, lease, mark, trim=Trim(records=((11, 11),)))
        kept = [*records[:11], *records[12:], mark]
        assert await store.history("r1") == kept
        assert await store.history("r1", 9, 5) == kept[10:15]
        assert (await store.load(["r1"]))[0].records == tuple(kept)

    async def test_a_step_that_succeeded_is_not_retried_although_its_result_is_packed(self, store: Store) -> None:
        lease, _ = await a_long_run(store)
        await store.pack(lease, 0, 19, ACTOR)
        await commit(store, lease, next=Release())
        assert await retry(store) is RetryOutcome.ALIVE
        failing = a_record(24, "other", kind=RecordKind.ATTEMPT, failed=True, attempts=3, retry_at=START, at=START + 6)
        lease = await lease_of(store, nonce="again")
        await commit(store, lease, failing, next=a_park(reason=Reason.RETRY, wake_at=START + SECOND, seen=1))
        assert await retry(store) is RetryOutcome.OPEN
        attempts = {record.location: record.attempts for record in await store.history("r1")}
        assert (attempts["other"], attempts["flaky"]) == (0, 2)

    async def test_nothing_is_left_of_an_earlier_generation(self, store: Store) -> None:
        lease, _ = await a_long_run(store)
        await store.pack(lease, 0, 19, ACTOR)
        await commit(store, lease, next=ContinueAsNew(type="t", input="[]", seen=1))
        assert await store.history("r1") == []
        assert not await store.pack(lease, 0, 19, ACTOR)

    async def test_a_packed_row_that_makes_no_sense_is_damage(self, store: Store, harness: Harness) -> None:
        lease, _ = await a_long_run(store)
        await store.pack(lease, 0, 19, ACTOR)
        for damage in ("REPLACE(payload, 'step', 'x')", "'[]'", "'[['", "NULL"):
            await harness.execute(f"UPDATE perdure_history SET payload = {damage} WHERE seq = 4")
            with pytest.raises(StoreCorrupt, match="seq 4"):
                await store.load(["r1"])
