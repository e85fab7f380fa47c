"""Commits whose columns are sent as joined text."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.core.model.claim import ClaimRequest
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import Finish, Park, Release, Turn, TurnOutcome
from perdure.host import Host
from perdure.store import open_store
from perdure.store.postgres import commit
from perdure.store.postgres.store import PostgresStore
from perdure.store.postgres.transaction import Unjoinable, join_numbers, join_texts
from perdure.testing.conformance.harness import ACTOR, TYPE, a_park, a_record, a_run, a_worker, lease_of
from tests.servers.claimers import create_many

ODD = ["plain", "", "with space", "comma,quote\"'\\", "{NULL}", "NULL", "ünïcødé ✓", "\n\t", "a" * 3000]


async def held(store: PostgresStore, *ids: str) -> list[Turn]:
    turns = []
    for run_id in ids:
        await store.create([a_run(run_id)], ACTOR)
        turns.append(Turn(lease=await lease_of(store, run_id)))
    return turns


def with_records(turn: Turn, *records: Record, **changes: object) -> Turn:
    return Turn(lease=turn.lease, records=records, **changes)  # type: ignore[arg-type] # any of its fields


@pytest.mark.parametrize("odd", ODD)
async def test_texts_arrive_as_they_were(store: PostgresStore, odd: str) -> None:
    turns = await held(store, "r1", "r2")
    records = [replace(a_record(0), location=odd, digest=odd), a_record(0, location=f"{odd}#2", payload=None)]
    batch = [with_records(turn, record) for turn, record in zip(turns, records, strict=True)]
    assert await store.commit(batch, ACTOR) == [TurnOutcome.APPLIED, TurnOutcome.APPLIED]
    assert [*await store.history("r1"), *await store.history("r2")] == records


@pytest.mark.parametrize("odd", ["\x1f", "\x1e", "a\x1fb", "a\x1eb", "\x1e\x1f"])
async def test_texts_with_the_characters_that_stand_between_texts_arrive_as_well(
    store: PostgresStore, odd: str
) -> None:
    turns = await held(store, f"r1{odd}", "r2")
    batch = [with_records(turn, a_record(0, location=odd)) for turn in turns]
    assert await store.commit(batch, ACTOR) == [TurnOutcome.APPLIED, TurnOutcome.APPLIED]
    assert await store.history(f"r1{odd}") == await store.history("r2") == [a_record(0, location=odd)]
    done = Finish(Status.COMPLETED, f'"{odd}"')
    assert await store.commit([with_records(turn, next=done) for turn in turns], ACTOR) == [TurnOutcome.APPLIED] * 2
    run = await store.get("r2")
    assert run is not None
    assert run.output == f'"{odd}"'


async def test_turns_with_no_record_one_and_several_go_together(store: PostgresStore) -> None:
    first, second, third = await held(store, "r1", "r2", "r3")
    batch = [
        with_records(first, a_record(0), a_record(1, location="b"), a_record(2, location="c")),
        with_records(second, next=Finish(Status.FAILED, '{"type":"x"}')),
        with_records(third, a_record(0, digest=""), next=Finish(Status.COMPLETED, "3")),
    ]
    assert await store.commit(batch, ACTOR) == [TurnOutcome.APPLIED] * 3
    assert [len(await store.history(run_id)) for run_id in ("r1", "r2", "r3")] == [3, 0, 1]
    runs = {run.id: run for run in await store.get_many(["r1", "r2", "r3"])}
    assert [runs[run_id].status for run_id in ("r1", "r2", "r3")] == ["running", "failed", "completed"]
    assert (runs["r2"].output, runs["r2"].error) == (None, '{"type":"x"}')
    assert (runs["r3"].output, runs["r3"].error) == ("3", None)


async def test_records_of_every_kind_keep_all_that_they_say(store: PostgresStore) -> None:
    [turn] = await held(store, "r1")
    records = (
        a_record(0),
        a_record(1, location="b", failed=True, attempts=3, retry_at=77, run_attempt=2, started_at=5),
        a_record(2, location="c", kind=RecordKind.TIMER, digest="", attempts=0, run_attempt=2),
    )
    assert await store.commit([with_records(turn, *records)], ACTOR) == [TurnOutcome.APPLIED]
    assert await store.history("r1") == list(records)


async def test_a_run_stays_as_it_is_when_only_its_neighbour_parks(store: PostgresStore) -> None:
    going, parking = await held(store, "r1", "r2")
    park = Park((await store.now()) + 60_000_000, Reason.TIMER, 0)
    batch = [with_records(going, a_record(0)), with_records(parking, next=park)]
    assert await store.commit(batch, ACTOR) == [TurnOutcome.APPLIED] * 2
    runs = {run.id: run for run in await store.get_many(["r1", "r2"])}
    assert (runs["r1"].status, runs["r1"].worker, runs["r1"].claims) == ("running", "w1", 1)
    assert (runs["r2"].status, runs["r2"].reason, runs["r2"].worker) == ("waiting", "timer", None)


async def test_a_lost_lease_is_told_from_its_neighbours(store: PostgresStore) -> None:
    turns = await held(store, "r1", "r2", "r3")
    assert await store.commit([with_records(turns[1], next=a_park())], ACTOR) == [TurnOutcome.APPLIED]
    for batch in (
        [with_records(turn, a_record(0)) for turn in turns],
        [with_records(turn, next=Finish(Status.COMPLETED, "1")) for turn in turns],
    ):
        assert await store.commit(batch, ACTOR) == [TurnOutcome.APPLIED, TurnOutcome.LOST, TurnOutcome.APPLIED]
    assert await store.commit([with_records(turns[1], a_record(0))], ACTOR) == [TurnOutcome.LOST]


async def test_a_record_that_crosses_the_end_of_its_lease_lands_before_it_or_not_at_all(
    store: PostgresStore, url: str
) -> None:
    other = open_store(url, Host())
    await other.open()
    verdicts: Counter[tuple[TurnOutcome, TurnOutcome]] = Counter()
    for number in range(100):
        [turn] = await held(store, f"r{number}")
        lands, ends = await asyncio.gather(
            store.commit([with_records(turn, a_record(0))], ACTOR),
            other.commit([with_records(turn, next=Release())], ACTOR),
        )
        there = await store.history(turn.lease.run_id)
        assert there == ([a_record(0)] if lands == [TurnOutcome.APPLIED] else [])
        verdicts[lands[0], ends[0]] += 1
    await other.close()
    assert set(verdicts) <= {
        (TurnOutcome.APPLIED, TurnOutcome.APPLIED),
        (TurnOutcome.LOST, TurnOutcome.APPLIED),
        (TurnOutcome.BUSY, TurnOutcome.APPLIED),
        (TurnOutcome.APPLIED, TurnOutcome.BUSY),
    }, verdicts


async def row_of(store: PostgresStore, run_id: str) -> dict[str, object]:
    """Return the whole row of a run without what is its own, and its events without their numbers."""
    [(run, events)] = await store.query(
        f"""
        SELECT (to_jsonb(r) - 'id' - 'nonce' - 'seed' - 'wake_at' - 'created_at' - 'started_at' - 'write_id')::text,
          (SELECT json_agg(json_build_array(kind, actor, data) ORDER BY e.id)::text
           FROM perdure_events e WHERE e.run_id = r.id)
        FROM perdure_runs r WHERE id = '{run_id}'
        """
    )
    return {**json.loads(run), "events": json.loads(events)}


@pytest.mark.parametrize("records", [0, 1, 2])
async def test_a_batch_that_only_completes_runs_leaves_the_rows_that_any_other_batch_leaves(
    store: PostgresStore, records: int
) -> None:
    turns = await held(store, "alone1", "alone2", "mixed1", "mixed2")
    await store.query("UPDATE perdure_runs SET claims = 3, marked = 1, waits = '[1]', error = '{}', reason = 'retry'")
    batch = [
        with_records(turn, *map(a_record, range(records)), next=Finish(Status.COMPLETED, payload))
        for turn, payload in zip(turns, ['{"a": 1}', "null"] * 2, strict=True)
    ]
    failed = await held(store, "failed")
    # A failure in the batch selects the other statement.
    batch.append(with_records(failed[0], next=Finish(Status.FAILED, "{}")))
    now = await store.now()
    for part in (batch[:2], batch[2:]):
        assert await store.commit(part, ACTOR) == [TurnOutcome.APPLIED] * len(part)
    for one, other in (("alone1", "mixed1"), ("alone2", "mixed2")):
        rows = [await row_of(store, one), await row_of(store, other)]
        finished = [row.pop("finished_at") for row in rows]
        assert all(isinstance(at, int) and at >= now for at in finished)
        assert rows[0] == rows[1]
        assert rows[0]["status"] == "completed"
    assert len(await store.history("alone1")) == records


async def test_a_batch_that_only_completes_runs_leaves_out_those_it_may_not_write(store: PostgresStore) -> None:
    turns = await held(store, "fine", "lost", "watched")
    await store.query("UPDATE perdure_runs SET watched = 1 WHERE id = 'watched'")
    await store.query("UPDATE perdure_runs SET token = token + 1 WHERE id = 'lost'")
    done = [with_records(turn, a_record(0), next=Finish(Status.COMPLETED, "1")) for turn in turns]
    # The transaction that follows also tells those that wait.
    assert await store.commit(done, ACTOR) == [TurnOutcome.APPLIED, TurnOutcome.LOST, TurnOutcome.APPLIED]
    assert [run.status for run in await store.get_many(["fine", "watched"])] == [Status.COMPLETED] * 2
    assert await store.history("lost") == []
    # Its answer was lost, so that it comes again.
    assert await store.commit(done[:1], ACTOR) == [TurnOutcome.APPLIED]
    assert len(await store.history("fine")) == 1


@pytest.mark.parametrize(
    "changes",
    [{}, {"queue": "q", "priority": 7, "options": '{"a":1}', "deadline": 10**16}, {"wake_at": 10**16}],
    ids=["plain", "options", "later"],
)
async def test_runs_that_are_alike_are_created_as_any_others(store: PostgresStore, changes: dict[str, Any]) -> None:
    odd = '{"text":"\\u00e9 \'\\"\\\\ NULL"}'
    alike = [a_run("a1", **changes, input=odd), a_run("a2", **changes, input="")]
    made = await store.create(alike, ACTOR)
    assert [(one.run.id, one.run.input, one.created) for one in made] == [("a1", odd, True), ("a2", "", True)]
    # Another type selects the other statement.
    others = [a_run("b1", **changes, input=odd), a_run("b2", **changes, input=""), a_run("b3", type="other.v1")]
    await store.create(others, ACTOR)
    for one, other in (("a1", "b1"), ("a2", "b2")):
        assert await row_of(store, one) == await row_of(store, other)
        [found, same] = [await store.get(one), await store.get(other)]
        assert found is not None
        assert same is not None
        assert replace(found, id="", created_at=0, wake_at=0) == replace(same, id="", created_at=0, wake_at=0)
    assert [one.run for one in made] == await store.get_many(["a1", "a2"])


def test_columns_say_when_they_cannot_be_joined() -> None:
    assert join_numbers([]) == join_texts([]) == ""
    assert join_numbers([1, -2]) == "1\x1f-2"
    assert join_texts(["a", None, ""]) == "a\x1f\x1e\x1f\x1e"
    for items in (["a\x1fb"], ["\x1e"], ["a", None, "b\x1e"]):
        with pytest.raises(Unjoinable):
            join_texts(items)


@pytest.mark.plans
@pytest.mark.parametrize("informed", [True, False], ids=["analyzed", "never analyzed"])
async def test_the_runs_of_a_batch_are_found_by_their_ids_whatever_the_planner_knows(
    store: PostgresStore, *, informed: bool
) -> None:
    await create_many(store, 2000)
    await store.register(a_worker())
    assert (await store.claim(ClaimRequest(worker="w1", nonce="n", limit=50, types=(TYPE,)))).runs
    if informed:
        await store.query("ANALYZE perdure_runs")
    for shape, sql in commit.STATEMENTS.items():
        whole = {int(one or other) for one, other in re.findall(r"\$(\d+)::bigint|<> \$(\d+)", sql)}
        count = max(int(number) for number in re.findall(r"\$(\d+)", sql))
        params = [1 if place in whole else "1" for place in range(1, count + 1)]
        plan = await explained(store, sql, params)
        used = {found[1] for line in plan if (found := re.search(r"(?:using|Index Scan on) (perdure_runs\w+)", line))}
        assert used == {"perdure_runs_pkey"}, (shape, plan)
        assert not any("Seq Scan on perdure_runs" in line for line in plan), (shape, plan)


async def explained(store: PostgresStore, sql: str, params: list[int | str]) -> list[str]:
    return [row[0] for row in await store._read("explain", lambda tx: tx.run(f"EXPLAIN {sql}", *params))]
