"""The audit trail: its levels, what those who listen hear of it, and looking through it."""

from __future__ import annotations

import json

import pytest

from perdure.core.audit import Audit, Event, EventFilter
from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import Block, Finish, Lease, Release, RetryLater, Turn
from perdure.store import Store
from perdure.store.contract import NewEvent
from perdure.testing.conformance.harness import (
    ACTOR,
    OTHER_TYPE,
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
)

_OOPS = '{"type":"builtins.ValueError","message":"no money"}'
_KINDS = {
    Audit.FULL: ["created", "started", "parked", "claimed", "retried", "started", "completed"],
    Audit.LIFECYCLE: ["created", "started", "retried", "started", "completed"],
    Audit.OFF: [],
}


async def _lead_a_life(store: Store, harness: Harness, run_id: str) -> None:
    """Be created, begun, parked, taken again, tried again and completed."""
    lease = await held(store, run_id)
    harness.system.advance(1)
    await commit(store, lease, a_record(0), next=a_park(wake_at=harness.system.now() + 1, reason=Reason.TIMER))
    harness.system.advance(1)
    lease = await lease_of(store, run_id, nonce=f"again-{run_id}")
    harness.system.advance(1)
    await commit(store, lease, next=RetryLater(harness.system.now() + 1, _OOPS))
    harness.system.advance(1)
    lease = await lease_of(store, run_id, nonce=f"third-{run_id}")
    await commit(store, lease, next=Finish(Status.COMPLETED, "1"))


def _data(event: Event) -> object:
    return json.loads(event.data)


class Levels:
    """The writer chooses how much is written."""

    async def test_each_level_holds_what_the_next_one_does(self, store: Store, harness: Harness) -> None:
        for level, kinds in _KINDS.items():
            store.audit = level
            await _lead_a_life(store, harness, level.value)
            assert [event.kind for event in await store.events(level.value)] == kinds
            run = await store.get(level.value)
            assert run is not None
            assert (run.status, run.attempt) == (Status.COMPLETED, 2)

    async def test_many_at_once_are_told_of_as_one_is(self, store: Store) -> None:
        for level in Audit:
            store.audit = level
            ids = [f"{level.value}-{number}" for number in range(4)]
            leases = [await held(store, run_id) for run_id in ids]
            outcomes = [Finish(Status.COMPLETED, "1"), Finish(Status.FAILED, _OOPS), None, Release()]
            turns = [Turn(lease=lease, next=after) for lease, after in zip(leases, outcomes, strict=True)]
            await store.commit(turns[:2], ACTOR)
            await store.commit(turns[2:], ACTOR)
            last = [[event.kind for event in await store.events(run_id)][1:] for run_id in ids]
            told = [["started", "completed"], ["started", "failed"], ["started"], ["started", "released"]]
            assert last == ([[]] * 4 if level is Audit.OFF else told)

    async def test_notes_of_a_turn_are_written_in_full_once_and_under_its_lease(
        self, store: Store, harness: Harness
    ) -> None:
        notes = (("timer_started", '{"timer":"sleep"}'), ("child_failed", '{"child":"c"}'))
        for level in Audit:
            store.audit = level
            lease = await held(store, level.value)
            turn = Turn(lease=lease, records=(a_record(0),), notes=notes)
            parked = Turn(lease=lease, notes=notes, next=a_park(wake_at=harness.system.now() + SECOND))
            for one in (turn, parked, parked):
                await store.commit([one], ACTOR)
            lost = Turn(lease=Lease(lease.run_id, lease.token, "another"), notes=notes, next=parked.next)
            await store.commit([lost], ACTOR)
            events = [(event.kind, event.data) for event in await store.events(level.value) if "_" in event.kind]
            assert events == ([*notes, *notes] if level is Audit.FULL else [])

    async def test_the_trail_says_what_went_wrong_each_time(self, store: Store, harness: Harness) -> None:
        await commit(store, await held(store), next=RetryLater(harness.system.now(), _OOPS))
        long = json.dumps({"type": "builtins.OSError", "message": "x" * 10_000})
        await commit(store, await lease_of(store, nonce="again"), next=Finish(Status.FAILED, long))
        await commit(store, await held(store, "odd"), next=Block(Reason.UNDECODABLE, _OOPS))
        retried, failed = [event for event in await store.events("r1") if event.kind in ("retried", "failed")]
        what = {"error": "builtins.ValueError", "message": "no money"}
        assert _data(retried) == {"attempt": 2, "at": START, **what}
        assert _data((await store.events("odd"))[-1]) == {"reason": "undecodable", **what}
        assert len(failed.data) < 1000

    @pytest.mark.parametrize("level", Audit)
    async def test_those_who_listen_hear_of_the_lifecycle_when_it_is_durable(
        self, store: Store, harness: Harness, level: Audit
    ) -> None:
        store.audit = level
        heard: list[NewEvent] = []
        stop = store.observe_events(heard.extend)
        await _lead_a_life(store, harness, "r1")
        assert [kind for _, _, kind, _, _ in heard] == _KINDS[Audit.FULL if level is Audit.FULL else Audit.LIFECYCLE]
        if level is not Audit.OFF:
            written = [(event.run_id, event.kind, event.actor, event.data) for event in await store.events("r1")]
            assert [(run_id, kind, actor, data) for run_id, _, kind, actor, data in heard] == written
        stop()
        before = list(heard)
        await store.create([a_run("r2")], ACTOR)
        assert heard == before

    async def test_one_who_fails_while_listening_spoils_nothing(self, store: Store) -> None:
        heard: list[NewEvent] = []

        def fail(lines: object) -> None:
            raise RuntimeError("a fault of the test")

        store.observe_events(fail)
        store.observe_events(heard.extend)
        await store.create([a_run("r1")], ACTOR)
        assert [line[2] for line in heard] == ["created"]


class Trail:
    """The trail of all runs can be looked through, and what is old can be let go."""

    async def test_events_are_found_by_run_kind_type_actor_and_time(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r1"), a_run("other", type=OTHER_TYPE)], "alice")
        harness.system.advance(10)
        await store.create([a_run("r2")], "bob")
        assert sorted(await claim_ids(store)) == ["r1", "r2"]

        async def found(**filter: object) -> list[tuple[str, str]]:
            page = await store.events_page(EventFilter(**filter), 100)  # type: ignore[arg-type]  # names, to be short
            assert [event.id for event in page] == sorted([event.id for event in page], reverse=True)
            return sorted((event.run_id, event.kind) for event in page)

        r1, r2 = [("r1", "created"), ("r1", "started")], [("r2", "created"), ("r2", "started")]
        other = [("other", "created")]
        assert await found() == [*other, *r1, *r2]
        assert await found(run_id="r1") == r1
        assert await found(kinds=("created", "failed")) == [*other, r1[0], r2[0]]
        assert await found(kinds=()) == []
        assert await found(type=OTHER_TYPE) == other
        assert await found(actor="alice") == [*other, r1[0]]
        assert await found(since=START + SECOND) == [r1[1], *r2]
        assert await found(until=START + SECOND) == [*other, r1[0]]
        assert await found(run_id="r1", kinds=("started",), actor="w1", since=START, type="no") == []

    async def test_pages_follow_on_each_other_in_both_directions(self, store: Store) -> None:
        await store.create([a_run(f"r{number}") for number in range(7)], ACTOR)
        everything = await store.events_page(EventFilter(), 100)
        newest = await store.events_page(EventFilter(), 3)
        older = await store.events_page(EventFilter(), 100, before=newest[-1].id)
        assert [*newest, *older] == everything
        oldest = await store.events_page(EventFilter(), 3, after=0)
        rest = await store.events_page(EventFilter(), 100, after=oldest[-1].id)
        assert [*oldest, *rest] == everything[::-1]

    async def test_only_what_is_old_is_forgotten_and_only_up_to_a_number(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r1")], ACTOR)
        await store.create([a_run("r2")], ACTOR)
        harness.system.advance(10)
        await store.create([a_run("r3")], ACTOR)
        first, _, third = (await store.events_page(EventFilter(), 100))[::-1]
        await store.delete_events(first.id, START + SECOND, ACTOR)
        assert [event.run_id for event in await store.events_page(EventFilter(), 9, after=0)] == ["r2", "r3"]
        await store.delete_events(third.id, START + SECOND, ACTOR)
        assert [event.run_id for event in await store.events_page(EventFilter(), 9, after=0)] == ["r3"]
        assert await store.get("r1") is not None
