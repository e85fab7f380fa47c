"""What the hot paths cost, counted in statements and read off query plans."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from perdure.core.model.run import RunFilter, Status
from perdure.core.model.turn import Finish, Lease, Turn, TurnOutcome
from perdure.store import migration_script, open_store
from perdure.store.sql import listing, reads, schedules, workers
from perdure.store.sql.dialect import DEFAULT_PREFIX, SQLITE
from perdure.store.sql.runs import create
from perdure.store.sqlite import claim as claiming
from perdure.store.sqlite import commit
from perdure.store.sqlite import commit as committing
from perdure.store.sqlite.connection import BATCH_ROWS
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.conformance.harness import ACTOR, ManualSystem, a_record, a_run, claim


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    store = open_store("sqlite://", ManualSystem(), inline=True)
    await store.open()
    yield store
    await store.close()


async def many_held(store: SqliteStore, count: int) -> list[Lease]:
    await store.create([a_run(f"r{number}") for number in range(count)], ACTOR)
    return [claimed.lease for claimed in (await claim(store, limit=count)).runs]


async def statements_of(store: SqliteStore, turns: list[Turn]) -> list[str]:
    seen: list[str] = []
    await store.trace(lambda sql: seen.append(sql.split()[0]))
    assert set(await store.commit(turns, ACTOR)) == {TurnOutcome.APPLIED}
    await store.trace(None)
    return seen


# A hundred are three times 32 together, and four one by one.
@pytest.mark.parametrize(("count", "statements"), [(1, 2), (16, 1), (50, 7)])
async def test_a_batch_of_records_is_one_row_each_and_no_read(store: SqliteStore, count: int, statements: int) -> None:
    leases = await many_held(store, count)
    turns = [Turn(lease=lease, records=(a_record(0), a_record(1))) for lease in leases]
    seen = await statements_of(store, turns)
    assert seen == ["BEGIN", *["INSERT"] * statements, "COMMIT"]
    assert await store.query("SELECT COUNT(*) FROM perdure_history") == [(2 * count,)]


async def test_outcomes_are_one_more_row_and_one_line_in_the_audit_trail_each_and_one_look_for_parents(
    store: SqliteStore,
) -> None:
    done = Finish(Status.COMPLETED, "1")
    turns = [Turn(lease=lease, records=(a_record(0),), next=done) for lease in await many_held(store, 3)]
    seen = await statements_of(store, turns)
    assert seen == ["BEGIN", *["INSERT"] * 3, *["UPDATE"] * 3, "SELECT", *["INSERT"] * 3, "COMMIT"]


async def test_of_many_records_together_only_those_whose_lease_is_gone_are_left_out(store: SqliteStore) -> None:
    leases = await many_held(store, BATCH_ROWS)
    gone = [msgspec.structs.replace(lease, nonce="another") for lease in leases[::2]]
    turns = [Turn(lease=lease, records=(a_record(0),)) for lease in [*gone, *leases[1::2], *leases[::2]]]
    verdicts = await store.commit(turns, ACTOR)
    assert verdicts == [TurnOutcome.LOST] * len(gone) + [TurnOutcome.APPLIED] * BATCH_ROWS
    assert await store.query("SELECT COUNT(*), COUNT(DISTINCT run_id) FROM perdure_history") == [
        (BATCH_ROWS, BATCH_ROWS)
    ]


async def test_of_many_runs_created_together_each_is_there_once(store: SqliteStore) -> None:
    count = 2 * BATCH_ROWS + 3
    assert all(made.created for made in await store.create([a_run(f"r{number}") for number in range(count)], ACTOR))
    assert await store.query("SELECT COUNT(*) FROM perdure_runs") == [(count,)]
    assert await store.query("SELECT COUNT(DISTINCT run_id), COUNT(*) FROM perdure_events") == [(count, count)]


async def test_a_repeated_batch_reads_only_then(store: SqliteStore) -> None:
    [lease] = await many_held(store, 1)
    turn = Turn(lease=lease, records=(a_record(0),))
    await store.commit([turn], ACTOR)
    assert await statements_of(store, [turn]) == ["BEGIN", "INSERT", "SELECT", "SELECT", "COMMIT"]


async def test_a_claim_of_many_reads_the_index_by_pages(store: SqliteStore) -> None:
    await store.create([a_run(f"r{number}") for number in range(300)], ACTOR)
    await claim(store, nonce="first", limit=1)
    seen: list[str] = []
    await store.trace(lambda sql: seen.append(sql.split()[0]))
    got = await claim(store, limit=50, by_age=5)
    assert len(got.runs) == 50
    # Registering is the suite's own; then who is alive, what the nonce holds, two ranges, and when to look again. The
    # clock of a
    # test stands, so that whose attempts have started has to be asked, too.
    assert seen.count("SELECT") == 6
    # One wakes what is due, the other (with the list of the chosen) takes all fifty.
    assert seen.count("UPDATE") == 1
    assert seen.count("WITH") == 1


@pytest.fixture
def schema() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(migration_script("sqlite://"))
    yield connection
    connection.close()


HOT = {
    "by priority": (claiming.BY_PRIORITY, "USING COVERING INDEX perdure_runs_to_claim (queue=? AND type=?"),
    "by age": (claiming.BY_AGE, "USING COVERING INDEX perdure_runs_to_claim_by_age (queue=? AND type=?"),
    "suspects": (claiming.SUSPECTS, "USING INDEX perdure_runs_to_claim (queue=? AND type=?"),
    "wake": (claiming.WAKE, "USING INDEX perdure_runs_to_wake (wake_at<?)"),
    "next wake": (claiming.NEXT, "USING INDEX perdure_runs_to_wake"),
    "next firing": (claiming.NEXT, "USING COVERING INDEX perdure_schedules_to_fire"),
    "fire": (schedules._DUE, "USING COVERING INDEX perdure_schedules_to_fire (due_at<?)"),
    "take": (claiming.TAKE, "USING PRIMARY KEY (id=?)"),
    "record": (committing.RECORD, "USING PRIMARY KEY (id=?)"),
    "records": (committing.RECORDS, "USING PRIMARY KEY (id=?)"),
    "finish": (commit.FINISH, "USING PRIMARY KEY (id=?)"),
    "parents": (commit.PARENTS, "USING PRIMARY KEY (id=?)"),
    "expire": (workers._PAST_DEADLINE, "USING INDEX perdure_runs_to_expire (deadline<?)"),
    "holder": (workers._NEXT_HOLDER, "USING INDEX perdure_runs_held (worker>?)"),
    "held": (workers._HELD, "USING INDEX perdure_runs_held (worker=?)"),
    "history": (reads._HISTORY, "USING PRIMARY KEY (run_id=? AND seq>?)"),
    "brief history": (reads._BRIEF_HISTORY, "USING PRIMARY KEY (run_id=? AND seq>?)"),
    "events": (reads._EVENTS, "USING INDEX perdure_events_by_run (run_id=?)"),
}


@pytest.mark.parametrize("name", HOT)
def test_the_plan_uses_its_index_and_sorts_nothing(schema: sqlite3.Connection, name: str) -> None:
    sql, expected = HOT[name]
    plan = plan_of(schema, sql)
    assert expected in plan
    assert "TEMP B-TREE" not in plan
    assert "SCAN perdure_runs\n" not in plan


@pytest.mark.parametrize("sql", [create.INSERT, commit.FINISH, committing.RECORD], ids=["create", "finish", "record"])
def test_what_is_written_once_a_run_or_more_fills_no_table_of_its_own(schema: sqlite3.Connection, sql: str) -> None:
    # As a constraint with IN and three values does, at every write.
    text, params = explained(sql)
    assert "OpenEphemeral" not in {row[1] for row in schema.execute(f"EXPLAIN {text}", params)}


def test_the_marked_are_found_by_their_own_index(schema: sqlite3.Connection) -> None:
    assert "USING INDEX perdure_runs_marked (worker=?)" in plan_of(schema, reads._MARKED)


async def test_a_listing_walks_the_index_of_ages(schema: sqlite3.Connection) -> None:
    sql = "SELECT id FROM perdure_runs WHERE (created_at, id) < (?, ?) ORDER BY created_at DESC, id DESC LIMIT ?"
    plan = plan_of(schema, sql)
    assert "perdure_runs_by_age ((created_at,id)<(?,?))" in plan
    assert "TEMP B-TREE" not in plan


@pytest.mark.parametrize("status", [Status.FAILED, Status.RUNNING])
def test_a_listing_of_one_status_finds_them_among_a_million_others(schema: sqlite3.Connection, status: Status) -> None:
    source = listing.sources_of(RunFilter(status=(status,)), SQLITE)[0]
    plan = plan_of(schema, source.query(listing.PageBounds(), 10)[0])
    assert "perdure_runs_by_status (status=?)" in plan
    assert "TEMP B-TREE" not in plan


def test_a_listing_of_deleted_runs_walks_their_own_index_of_ages(schema: sqlite3.Connection) -> None:
    source = listing.sources_of(RunFilter(deleted=True), SQLITE)[0]
    plan = plan_of(schema, source.query(listing.PageBounds(), 10)[0])
    assert "perdure_runs_deleted_by_age" in plan
    assert "TEMP B-TREE" not in plan


def plan_of(schema: sqlite3.Connection, sql: str) -> str:
    text, params = explained(sql)
    return "\n".join(row[3] for row in schema.execute(f"EXPLAIN QUERY PLAN {text}", params)) + "\n"


def explained(sql: str) -> tuple[str, dict[str, int] | tuple[int, ...]]:
    text = SQLITE.render(sql, DEFAULT_PREFIX)
    names = set(re.findall(r":(\w+)", text))
    return text, dict.fromkeys(names, 1) if names else (1,) * (len(set(re.findall(r"\?\d+", text))) or text.count("?"))
