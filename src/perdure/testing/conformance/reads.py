"""Listing, loading, watching."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perdure.core.codec.failure import Failure
from perdure.core.model.dead_letter import DeadLetterFilter
from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import CountBy, Reason, RunFilter, RunTimes, Status
from perdure.core.model.turn import Finish, Release, TurnOutcome
from perdure.core.model.waits import RunWaits, Wait, WaitKind, waits_to_json
from perdure.core.routing import TypeInfo
from perdure.errors import InvalidCursor, StoreCorrupt
from perdure.store import Store
from perdure.store.contract import BRIEF, Change
from perdure.testing.conformance.harness import (
    ACTOR,
    LEASE,
    OTHER_TYPE,
    SECOND,
    START,
    TYPE,
    Harness,
    Unshared,
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
    lease_of,
)


async def listed(store: Store, limit: int = 100, **filter: object) -> list[str]:
    """The ids that a listing shows, over all pages."""
    ids: list[str] = []
    cursor: str | None = None
    while True:
        # The filters are named by the tests, one kind of value each.
        page = await store.list(RunFilter(**filter), limit, cursor)  # type: ignore[arg-type] # any of its fields
        assert len(page.runs) <= limit
        ids += [run.id for run in page.runs]
        cursor = page.cursor
        if cursor is None:
            return ids


class Listing:
    """Newest first, page by page, without repeating or missing what was there."""

    async def over_time(self, store: Store, harness: Harness, count: int) -> list[str]:
        for number in range(count):
            await store.create([a_run(f"r{number}")], ACTOR)
            harness.system.advance(1)
        return [f"r{number}" for number in reversed(range(count))]

    async def test_the_newest_run_is_first(self, store: Store, harness: Harness) -> None:
        expected = await self.over_time(store, harness, 5)
        assert await listed(store) == expected

    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
    async def test_pages_of_any_size_show_the_same(self, store: Store, harness: Harness, limit: int) -> None:
        expected = await self.over_time(store, harness, 4)
        assert await listed(store, limit) == expected

    async def test_runs_of_one_moment_are_shown_once_each(self, store: Store) -> None:
        await store.create([a_run(f"r{number}") for number in range(7)], ACTOR)
        ids = await listed(store, 2)
        assert ids == sorted(ids, reverse=True)
        assert len(ids) == 7

    async def test_runs_created_meanwhile_shift_nothing(self, store: Store, harness: Harness) -> None:
        await self.over_time(store, harness, 4)
        first = await store.list(RunFilter(), 2, None)
        await store.create([a_run("new")], ACTOR)
        second = await store.list(RunFilter(), 2, first.cursor)
        assert [run.id for run in (*first.runs, *second.runs)] == ["r3", "r2", "r1", "r0"]
        assert second.cursor is None

    async def test_filters_narrow_it(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("a"), a_run("b", type=OTHER_TYPE), a_run("c", queue="slow")], ACTOR)
        harness.system.advance(1)
        parent = await held(store, "parent", "w1", queue="default")
        await commit(store, parent, children=(a_child("child"),))
        assert await listed(store, type=OTHER_TYPE) == ["b"]
        assert await listed(store, queue="slow") == ["c"]
        assert await listed(store, parent_id="parent") == ["child"]
        assert await listed(store, status=(Status.RUNNING,)) == ["parent", "a"]
        assert await listed(store, status=(Status.PENDING, Status.COMPLETED), type=OTHER_TYPE) == ["b"]
        assert await listed(store, status=()) == []
        assert await listed(store, created_after=START) == ["parent", "child"]
        assert await listed(store, created_before=START + SECOND) == ["c", "b", "a"]

    async def test_times_are_those_of_the_latest_runs_between_two_times(self, store: Store, harness: Harness) -> None:
        await self.over_time(store, harness, 5)
        runs = {run.id: run for run in (await store.list(RunFilter(), 100, None)).runs}
        times = {id: RunTimes(run.type, run.status, run.created_at, 0, 0, 0) for id, run in runs.items()}
        assert len({one.created_at for one in times.values()}) == 5
        first, last = times["r0"].created_at, times["r4"].created_at
        assert await store.run_times(first - 1, last + 1, 3) == [times["r4"], times["r3"], times["r2"]]
        assert await store.run_times(first, last, 100) == [times["r3"], times["r2"], times["r1"]]

    async def test_times_have_those_of_runs_that_ended_or_were_deleted(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r0")], ACTOR)
        await store.terminate("r0", "", "key", ACTOR)
        await store.delete("r0", "", ACTOR)
        run = await store.get("r0")
        assert run is not None
        assert run.finished_at > 0 < run.deleted_at
        times = RunTimes(run.type, Status.FAILED, run.created_at, run.started_at, run.finished_at, run.deleted_at)
        assert await store.run_times(0, run.created_at + 1, 10) == [times]

    async def test_an_unreadable_run_is_shown_as_such_among_the_others(self, store: Store, harness: Harness) -> None:
        expected = await self.over_time(store, harness, 4)
        await store.terminate("r1", "", "key", ACTOR)
        await store.terminate("r0", "", "key", ACTOR)
        await harness.execute("UPDATE perdure_runs SET reason = 'newer' WHERE id IN ('r1', 'r2')")
        assert await listed(store, 1) == expected
        shown = {run.id: run for run in (await store.list(RunFilter(), 10, None)).runs}
        assert [shown[id].reason for id in expected] == [None, Reason.UNDECODABLE, Reason.UNDECODABLE, None]
        assert [shown[id].status for id in ("r2", "r1")] == [Status.PENDING, Status.FAILED]
        assert "perdure_runs has data that cannot be read, at id 'r2': unknown reason 'newer'" in (
            Failure.read(shown["r2"].error).message
        )
        letters = (await store.list_dead_letters(DeadLetterFilter(), 10, None)).letters
        assert [one.run_id for one in letters] == ["r1", "r0"]
        with pytest.raises(StoreCorrupt, match="'r2'"):
            await store.get("r2")
        await harness.execute("UPDATE perdure_runs SET reason = NULL WHERE id IN ('r1', 'r2')")

    async def test_an_empty_listing_has_no_next_page(self, store: Store) -> None:
        page = await store.list(RunFilter(), 10, None)
        assert (page.runs, page.cursor) == ((), None)

    async def test_runs_that_no_live_worker_takes_are_listed(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r1"), a_run("r2", queue="far"), a_run("r3", type=OTHER_TYPE)], ACTOR)
        assert sorted(await listed(store, unserved=True)) == ["r1", "r2", "r3"]
        await store.register(a_worker("w1", types=(TYPE,)))
        await store.register(a_worker("w2", types=(OTHER_TYPE,), queues=("far",)))
        assert sorted(await listed(store, unserved=True)) == ["r2", "r3"]
        assert sorted(await listed(store, unserved=True, queue="far")) == ["r2"]
        assert await listed(store, unserved=True, status=(Status.RUNNING,)) == []
        [group] = await store.count(RunFilter(unserved=True), CountBy(), 10)
        assert (group.count, group.exact) == (2, True)
        await store.register(
            a_worker("w3", types=(), queues=()), [TypeInfo(type=OTHER_TYPE, kind="activity", runtime="node")]
        )
        assert await listed(store, unserved=True) == ["r2"]
        await claim(store, "w1", types=(TYPE,))
        harness.system.advance(LEASE + 1)
        assert await listed(store, unserved=True) == ["r2"]

    @pytest.mark.parametrize("cursor", ["", "nonsense", "%%%", "MTIz", "\N{GRINNING FACE}", "YTpi"])
    async def test_a_cursor_that_no_listing_returned_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(InvalidCursor):
            await store.list(RunFilter(), 10, cursor)


class LastChanges:
    """The time of the last change of a run is that of its last record, event or state."""

    async def test_the_last_change_of_each_run_is_known(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r1"), a_run("r2")], ACTOR)
        assert await store.updated_at(["r1", "r2", "unknown"]) == {"r1": START, "r2": START}
        assert await store.updated_at([]) == {}
        harness.system.advance(1)
        lease = await lease_of(store, "r1")
        assert (await store.updated_at(["r1"]))["r1"] == START + SECOND
        harness.system.advance(1)
        await commit(store, lease, a_record(0, at=START + 2 * SECOND))
        assert (await store.updated_at(["r1", "r2"]))["r1"] == START + 2 * SECOND
        harness.system.advance(1)
        await commit(store, lease, next=Finish(Status.COMPLETED, "1"))
        assert (await store.updated_at(["r1", "r2"]))["r1"] == START + 3 * SECOND


class Loading:
    """Everything that is needed to take a run up again, as of one moment."""

    async def test_history_and_unread_inbox_are_loaded_for_many(self, store: Store) -> None:
        leases = {id: await held(store, id) for id in ("a", "b")}
        await commit(store, leases["a"], a_record(0), a_record(1))
        await store.send([a_message("b")], ACTOR)
        loaded = {one.run.id: one for one in await store.load(["a", "b"])}
        assert [record.seq for record in loaded["a"].records] == [0, 1]
        assert (loaded["a"].inbox, loaded["b"].records) == ((), ())
        assert [message.key for message in loaded["b"].inbox] == ["k1"]
        assert loaded["a"].run == await store.get("a")

    async def test_earlier_attempts_are_included(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, a_record(0), next=Release())
        [claimed] = (await claim(store, nonce="2")).runs
        await commit(store, claimed.lease, a_record(1, run_attempt=2))
        [loaded] = await store.load(["r1"])
        assert [record.run_attempt for record in loaded.records] == [1, 2]


class Histories:
    """A history is read as a whole, a page at a time, without long results, or by the numbers of its records."""

    async def filled(self, store: Store, *records: Record) -> list[Record]:
        assert await commit(store, await held(store), *records) is TurnOutcome.APPLIED
        return list(records)

    async def test_a_page_begins_after_a_number_and_has_at_most_as_many_as_asked_for(self, store: Store) -> None:
        records = await self.filled(store, *(a_record(seq) for seq in range(7)))
        await commit(store, await held(store, "other"), a_record(0))
        assert await store.history("r1", limit=3) == records[:3]
        assert await store.history("r1", 2, 3) == records[3:6]
        assert await store.history("r1", 5, 3) == records[6:]
        assert await store.history("r1", 6, 3) == await store.history("none", limit=3) == []
        assert await store.history("r1", 2**63 - 1) == []
        assert await store.history("r1", 2) == records[3:]

    async def test_a_brief_history_leaves_out_long_results_alone(self, store: Store) -> None:
        long, short = f'"{"x" * BRIEF}"', f'"{"x" * (BRIEF - 2)}"'
        at = START - 5
        records = await self.filled(
            store,
            a_record(0, payload=long, started_at=at),
            a_record(1, payload=short, started_at=at),
            a_record(2, payload=None, started_at=at),
            a_record(3, payload=long, failed=True, started_at=at),
            # Without a duration, only the payload tells it from the same record of an earlier attempt.
            a_record(4, payload=long),
            a_record(5, payload=long, kind=RecordKind.TIMER, started_at=at),
        )
        assert await store.history("r1", brief=True) == [replace(records[0], payload=None), *records[1:]]
        assert await store.history("r1", -1, 1, brief=True) == [replace(records[0], payload=None)]
        assert await store.history("r1") == records

    async def test_a_snapshot_has_the_run_its_waits_its_new_records_and_some_of_its_outputs(self, store: Store) -> None:
        lease, long = await held(store, input=f'"{"x" * 5000}"'), f'"{"x" * BRIEF}"'
        outputs = [
            NewOutput(kind=OutputKind.STATE, name=name, payload=f'"{name}"', key=f"key-{name}") for name in ("b", "a")
        ]
        outputs += [NewOutput(kind=OutputKind.STREAM, name="log", payload=str(n), key=f"log:{n}") for n in range(3)]
        records = [a_record(0, payload=long, started_at=START - 5), *(a_record(seq) for seq in range(1, 12))]
        await commit(store, lease, *records, outputs=tuple(outputs))
        brief = [replace(records[0], payload=None), *records[1:]]
        kinds = (OutputKind.STATE, OutputKind.INTERRUPTION)
        found = await store.snapshot("r1", kinds=kinds)
        assert found is not None
        assert found.run == await store.get("r1")
        assert found.run.input == f'"{"x" * 5000}"'
        assert found.records == (*brief,)
        assert found.outputs == (*await store.outputs("r1", OutputKind.STATE, None, -1, 10),)
        later = await store.snapshot("r1", 9, [OutputKind.STREAM])
        assert later is not None
        assert later.records == (*brief[10:],)
        assert later.outputs == (*await store.outputs("r1", OutputKind.STREAM, None, -1, 10),)
        none = await store.snapshot("r1", 11)
        assert none is not None
        assert (none.run, none.waits, none.records, none.outputs) == (found.run, None, (), ())
        waits = [Wait(kind=WaitKind.MESSAGE, name="go")]
        await commit(store, lease, next=replace(a_park(), waits=waits_to_json(lease.token, waits, 1)))
        parked = await store.snapshot("r1", 11)
        assert parked is not None
        assert parked.waits == await store.waits("r1") == RunWaits(token=lease.token, waits=(*waits,))
        assert await store.snapshot("unknown") is None

    async def test_a_snapshot_has_the_latest_children(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        for number in range(3):
            harness.system.advance(1)
            await commit(store, lease, a_record(number), children=(a_child(f"c{number}", "r1", f"go#{number}"),))
        found = await store.snapshot("r1", children=2)
        assert found is not None
        assert [(one.id, one.parent_location) for one in found.children] == [("c2", "go#2"), ("c1", "go#1")]
        assert found.children[0].created_at > found.children[1].created_at
        assert (await store.snapshot("c1", children=2)) is not None
        none = await store.snapshot("r1")
        assert none is not None
        assert none.children == ()

    async def test_records_are_read_by_their_numbers(self, store: Store) -> None:
        records = await self.filled(store, *(a_record(seq) for seq in range(150)))
        assert await store.records("r1", [7, 3, 3, 149, 150, -1]) == [records[3], records[7], records[149]]
        assert await store.records("r1", range(150)) == records
        assert await store.records("r1", []) == await store.records("none", [1]) == []


class Watching:
    """Waiters are told, through the same object or by asking."""

    async def test_listeners_hear_what_concerns_them(self, store: Store) -> None:
        heard: list[Change] = []
        end = store.subscribe(heard.append)
        lease = await held(store)
        assert Change.READY in heard.pop()
        await store.send([a_message(key="a")], ACTOR)
        assert Change.MARKED in heard.pop()
        await commit(store, lease, a_record(0, inbox_seq=1, kind="message"), read=1, next=a_park(seen=1))
        assert heard == []
        await store.send([a_message(key="b")], ACTOR)
        assert Change.READY in heard.pop()
        [claimed] = (await claim(store, nonce="2")).runs
        await commit(store, claimed.lease, next=Finish(Status.COMPLETED, "1"))
        assert Change.FINISHED in heard.pop()
        end()
        await store.create([a_run("r2")], ACTOR)
        assert heard == []

    async def test_the_holder_of_a_run_is_told_of_its_termination(self, store: Store) -> None:
        await held(store)
        heard: list[Change] = []
        store.subscribe(heard.append)
        await store.terminate("r1", "enough", "key", ACTOR)
        assert heard
        assert Change.ENDED in heard[0]
        assert Change.FINISHED in heard[0]

    async def test_what_was_not_written_is_not_announced(self, store: Store) -> None:
        await store.create([a_run("r1")], ACTOR)
        heard: list[Change] = []
        store.subscribe(heard.append)
        await store.create([a_run("r1")], ACTOR)
        await store.send([a_message("unknown")], ACTOR)
        assert heard == []

    async def test_a_listener_that_fails_spoils_nothing(self, store: Store) -> None:
        heard: list[Change] = []

        def fail(change: Change) -> None:
            raise RuntimeError(change)

        store.subscribe(fail)
        store.subscribe(heard.append)
        [answer] = await store.create([a_run("r1")], ACTOR)
        assert answer.created
        assert len(heard) == 1
        assert await claim_ids(store) == ["r1"]

    async def test_the_writes_of_others_are_noticed(self, store: Store, harness: Harness) -> None:
        try:
            other = await harness.open()
        except Unshared:
            pytest.skip("there is no other process")
        await store.poll_changes()
        await other.create([a_run("r1")], ACTOR)
        assert await store.poll_changes()

    async def test_time_does_not_go_back(self, store: Store, harness: Harness) -> None:
        harness.system.advance(10)
        before = await store.now()
        harness.system.advance(-5)
        assert await store.now() >= before
        [answer] = await store.create([a_run("r1")], ACTOR)
        assert answer.run.created_at >= before
