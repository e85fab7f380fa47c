"""Schedules: written by the client that read them last, fired once for each fire time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from perdure.core.model.record import RecordKind
from perdure.core.model.run import Status
from perdure.core.model.turn import Finish, TurnOutcome
from perdure.core.time.cron import Every, to_stored
from perdure.core.time.duration import NEVER, moment_of
from perdure.core.time.schedule import Misfire, Overlap, SaveOutcome, Schedule
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    SECOND,
    START,
    TYPE,
    Harness,
    Unshared,
    a_run,
    claim,
    commit,
    lease_of,
    snapshot,
)

MINUTE = 60 * SECOND
FIRST = "s1@2023-11-14T22:14:20Z"
SECOND_ONE = "s1@2023-11-14T22:15:20Z"


def a_schedule(id: str = "s1", **changes: Any) -> Schedule:
    """A schedule whose first fire time is a minute away, and then every minute."""
    fields: dict[str, Any] = {
        "id": id,
        "spec": to_stored(Every("1m", start=moment_of(START))),
        "type": TYPE,
        "next_fire_time": START + MINUTE,
        "due_at": START + MINUTE,
    }
    return Schedule(**{**fields, **changes})


async def saved(store: Store, id: str = "s1", **changes: Any) -> Schedule:
    """A schedule that is there."""
    wanted = a_schedule(id, **changes)
    assert await store.save_schedule(wanted, 0, f"write-{id}", "schedule_created", ACTOR) is SaveOutcome.DONE
    there = await store.schedule(id)
    assert there is not None
    return there


async def fired(store: Store) -> tuple[str, ...]:
    """The runs that firing starts."""
    return (await store.fire_schedules(10, ACTOR)).runs


async def finish(store: Store, run_id: str) -> None:
    """Let a run complete."""
    lease = await lease_of(store, run_id, nonce=f"finish-{run_id}")
    assert await commit(store, lease, next=Finish(Status.COMPLETED, "1")) is TurnOutcome.APPLIED


async def trail(store: Store, id: str = "s1") -> list[str]:
    """Entries of the audit trail about a schedule."""
    return [event.kind for event in await store.events(f"schedule:{id}")]


class Scheduling:
    """A schedule is written by a client that has read its current state."""

    async def test_it_comes_back_as_it_was_written(self, store: Store) -> None:
        wanted = a_schedule(
            input='{"n":1}',
            queue="q",
            priority=3,
            deadline=5,
            jitter=7,
            misfire=Misfire(None, 2.5, 3.5),
            overlap=Overlap.CANCEL,
            paused=True,
            reason="lunch",
            waiting=(1, 2),
            last_fire_time=4,
            last_run="r",
            error="e",
        )
        assert await store.save_schedule(wanted, 0, "w", "schedule_created", ACTOR) is SaveOutcome.DONE
        assert await store.schedule("s1") == replace(wanted, created_at=START, changed_at=START, version=1)
        assert await store.schedule("s2") is None
        assert await trail(store) == ["schedule_created"]

    async def test_it_is_created_once(self, store: Store, harness: Harness) -> None:
        await saved(store)
        before = await snapshot(harness)
        other = a_schedule(type="other")
        assert await store.save_schedule(other, 0, "another", "schedule_created", ACTOR) is SaveOutcome.CONFLICT
        assert await snapshot(harness) == before

    async def test_a_change_of_what_has_changed_meanwhile_is_refused(self, store: Store, harness: Harness) -> None:
        seen = await saved(store)
        changed = replace(seen, queue="q")
        assert await store.save_schedule(changed, seen.version, "w1", "schedule_changed", ACTOR) is SaveOutcome.DONE
        before = await snapshot(harness)
        assert await store.save_schedule(seen, seen.version, "w2", "schedule_changed", ACTOR) is SaveOutcome.CONFLICT
        assert await store.save_schedule(a_schedule("s2"), 1, "w3", "schedule_changed", ACTOR) is SaveOutcome.CONFLICT
        assert await snapshot(harness) == before

    async def test_a_firing_is_a_change(self, store: Store, harness: Harness) -> None:
        seen = await saved(store)
        harness.system.advance(60)
        assert await fired(store) == (FIRST,)
        assert await store.save_schedule(seen, seen.version, "w1", "schedule_changed", ACTOR) is SaveOutcome.CONFLICT

    async def test_they_are_listed_by_id_a_page_at_a_time(self, store: Store) -> None:
        for id in ("b", "a", "c", "B"):
            await saved(store, id)
        assert [one.id for one in await store.schedules("", 3)] == ["B", "a", "b"]
        assert [one.id for one in await store.schedules("b", 3)] == ["c"]

    async def test_one_that_is_deleted_is_gone_and_its_runs_go_on(self, store: Store, harness: Harness) -> None:
        await saved(store)
        harness.system.advance(60)
        await fired(store)
        await store.delete_schedule("s1", ACTOR)
        assert await store.schedule("s1") is None
        assert (await store.fire_schedules(10, ACTOR)).next_due == NEVER
        assert [one.run.id for one in (await claim(store)).runs] == [FIRST]
        assert await trail(store) == ["schedule_created", "schedule_fired", "schedule_deleted"]

    async def test_a_claim_says_when_one_is_due(self, store: Store) -> None:
        assert (await claim(store)).next_fire == NEVER
        await saved(store)
        assert (await claim(store, nonce="second")).next_fire == START + MINUTE
        await store.create([a_run()], ACTOR)
        got = await claim(store, nonce="third")
        assert (len(got.runs), got.next_fire) == (1, START + MINUTE)


class Firing:
    """Each fire time becomes one run."""

    async def test_the_latest_fires_are_listed_without_those_by_hand_and_of_others(
        self, store: Store, harness: Harness
    ) -> None:
        for name in ("s1", "s10", "s1@2"):
            await saved(store, id=name, overlap=Overlap.ALLOW)
        for _ in range(3):
            harness.system.advance(60)
            await store.fire_schedules(10, ACTOR)
        await store.trigger("s1", (), "now", ACTOR)
        runs = await store.list_fires("s1", 10)
        assert [run.id for run in runs] == sorted((run.id for run in runs), reverse=True)
        assert (len(runs), runs[-1].id) == (3, FIRST)
        assert [run.id for run in await store.list_fires("s1", 1)] == [runs[0].id]
        assert await store.list_fires("unknown", 10) == []

    async def test_nothing_is_fired_before_its_time(self, store: Store, harness: Harness) -> None:
        await saved(store)
        before = await snapshot(harness)
        harness.system.advance(59.999999)
        answer = await store.fire_schedules(10, ACTOR)
        assert (answer.runs, answer.next_due) == ((), START + MINUTE)
        assert await snapshot(harness) == before

    async def test_a_slot_becomes_a_run_that_knows_it(self, store: Store, harness: Harness) -> None:
        await saved(store, input="[1]", queue="q", priority=7, deadline=9 * SECOND)
        harness.system.advance(60.5)
        answer = await store.fire_schedules(10, ACTOR)
        assert (answer.runs, answer.next_due) == ((FIRST,), START + 2 * MINUTE)
        run = await store.get(FIRST)
        assert run is not None
        assert (run.type, run.input, run.queue, run.priority, run.status) == (TYPE, "[1]", "q", 7, Status.PENDING)
        assert run.deadline == START + 69 * SECOND + SECOND // 2
        events = await store.events(FIRST)
        assert [event.kind for event in events] == ["created", "scheduled"]
        assert msgspec.json.decode(events[1].data) == {"schedule": "s1", "slot": START + MINUTE}
        there = await store.schedule("s1")
        assert there is not None
        assert (there.last_run, there.last_fire_time, there.next_fire_time) == (
            FIRST,
            START + MINUTE,
            START + 2 * MINUTE,
        )

    async def test_two_who_fire_at_once_fire_once(self, store: Store, harness: Harness) -> None:
        try:
            other = await harness.open()
        except Unshared:
            pytest.skip("there can be only one")
        for number in range(5):
            await saved(store, f"s{number}", overlap=Overlap.ALLOW)
        harness.system.advance(60)
        answers = await asyncio.gather(*(one.fire_schedules(10, ACTOR) for one in (store, other) * 3))
        runs = [run for answer in answers for run in answer.runs]
        assert sorted(runs) == [f"s{number}@2023-11-14T22:14:20Z" for number in range(5)]

    async def test_a_run_that_is_there_already_is_the_slots(self, store: Store, harness: Harness) -> None:
        await saved(store)
        await store.create([a_run(FIRST)], ACTOR)
        harness.system.advance(60)
        assert await fired(store) == ()
        assert (await store.fire_schedules(10, ACTOR)).next_due == START + 2 * MINUTE

    async def test_a_schedule_that_cannot_be_computed_delays_no_other(self, store: Store, harness: Harness) -> None:
        await saved(store, "s0", spec='{"cron":"* * * * *","zone":"Nowhere/Land"}')
        await saved(store)
        harness.system.advance(60)
        assert await fired(store) == (FIRST,)
        there = await store.schedule("s0")
        assert there is not None
        assert "Nowhere/Land" in there.error
        assert there.due_at == START + 2 * MINUTE
        assert await trail(store, "s0") == ["schedule_created", "schedule_failed"]

    async def test_no_more_than_so_many_are_fired_in_one_transaction(self, store: Store, harness: Harness) -> None:
        for number in range(3):
            await saved(store, f"s{number}", due_at=START + number)
        harness.system.advance(60)
        assert len((await store.fire_schedules(2, ACTOR)).runs) == 2
        assert (await store.fire_schedules(2, ACTOR)).runs == ("s2@2023-11-14T22:14:20Z",)

    async def test_slots_wait_in_line_until_the_run_before_has_ended(self, store: Store, harness: Harness) -> None:
        await saved(store, overlap=Overlap.QUEUE)
        harness.system.advance(60)
        assert await fired(store) == (FIRST,)
        harness.system.advance(60)
        answer = await store.fire_schedules(10, ACTOR)
        assert (answer.runs, answer.next_due) == ((), START + 2 * MINUTE + SECOND)
        await finish(store, FIRST)
        harness.system.advance(1)
        answer = await store.fire_schedules(10, ACTOR)
        assert (answer.runs, answer.next_due) == ((SECOND_ONE,), START + 3 * MINUTE)

    async def test_a_run_that_is_in_the_way_is_stopped(self, store: Store, harness: Harness) -> None:
        await saved(store, overlap=Overlap.CANCEL)
        harness.system.advance(60)
        assert await fired(store) == (FIRST,)
        await lease_of(store, FIRST)
        harness.system.advance(60)
        assert await fired(store) == ()
        assert [entry.kind for entry in await store.inbox(FIRST, 0)] == [RecordKind.CANCEL]
        assert await fired(store) == ()

    async def test_one_that_has_not_begun_makes_way_at_once(self, store: Store, harness: Harness) -> None:
        await saved(store, overlap=Overlap.CANCEL)
        harness.system.advance(60)
        assert await fired(store) == (FIRST,)
        harness.system.advance(60)
        assert await fired(store) == ()
        assert await fired(store) == (SECOND_ONE,)
        run = await store.get(FIRST)
        assert run is not None
        assert run.status is Status.CANCELLED

    async def test_slots_can_be_started_by_hand_and_are_not_started_again(self, store: Store, harness: Harness) -> None:
        await saved(store)
        assert await store.trigger("s1", (START + MINUTE, START + 2 * MINUTE), "", ACTOR) == [FIRST, SECOND_ONE]
        before = await snapshot(harness)
        assert await store.trigger("s1", (START + MINUTE, START + 2 * MINUTE), "", ACTOR) == [FIRST, SECOND_ONE]
        assert await snapshot(harness) == before
        assert await store.trigger("missing", (), "k", ACTOR) is None

    async def test_one_that_is_started_by_hand_is_the_last(self, store: Store, harness: Harness) -> None:
        await saved(store)
        assert await store.trigger("s1", (), "now-1", ACTOR) == ["s1@now-1"]
        harness.system.advance(60)
        assert await fired(store) == ()
        assert await trail(store) == ["schedule_created", "schedule_fired", "schedule_passed"]

    async def test_the_reason_of_a_change_by_hand_is_kept(self, store: Store) -> None:
        seen = await saved(store)
        saving = await store.save_schedule(seen, seen.version, "w2", "schedule_resumed", ACTOR, "back to work")
        assert saving is SaveOutcome.DONE
        await store.trigger("s1", (START + MINUTE,), "", ACTOR, "an audit")
        await store.delete_schedule("s1", ACTOR, "no more audits")
        slot = START + MINUTE
        assert [one.data for one in await store.events("schedule:s1")][1:] == [
            '{"reason":"back to work"}',
            f'{{"run":"{FIRST}","slot":{slot},"reason":"an audit"}}',
            '{"reason":"no more audits"}',
        ]
        scheduled = [one.data for one in await store.events(FIRST) if one.kind == "scheduled"]
        assert scheduled == [f'{{"schedule":"s1","slot":{slot},"reason":"an audit"}}']
