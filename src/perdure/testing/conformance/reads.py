"""Listing, loading, watching."""

from __future__ import annotations

import pytest

from perdure.core.model.run import RunFilter, Status
from perdure.core.model.turn import Finish, Release
from perdure.errors import InvalidCursor
from perdure.store import Store
from perdure.store.contract import Change
from perdure.testing.conformance.harness import (
    ACTOR,
    OTHER_TYPE,
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
    claim_ids,
    commit,
    held,
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

    async def test_an_empty_listing_has_no_next_page(self, store: Store) -> None:
        page = await store.list(RunFilter(), 10, None)
        assert (page.runs, page.cursor) == ((), None)

    @pytest.mark.parametrize("cursor", ["", "nonsense", "%%%", "MTIz", "\N{GRINNING FACE}", "YTpi"])
    async def test_a_cursor_that_no_listing_returned_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(InvalidCursor):
            await store.list(RunFilter(), 10, cursor)


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
        await store.changed()
        await other.create([a_run("r1")], ACTOR)
        assert await store.changed()

    async def test_time_does_not_go_back(self, store: Store, harness: Harness) -> None:
        harness.system.advance(10)
        before = await store.now()
        harness.system.advance(-5)
        assert await store.now() >= before
        [answer] = await store.create([a_run("r1")], ACTOR)
        assert answer.run.created_at >= before
