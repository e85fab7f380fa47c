"""Reads for the diagnosis of a live database: its settings, its indexes, its waiting work and its broken invariants.

Each function is a few statements through `SqlStore.query`, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.model.run import Status
from perdure.core.model.waits import RunWaits, waits_from_json
from perdure.core.time.duration import NEVER
from perdure.store.migrations import Index, indexes
from perdure.store.sql.dialect import Dialect, Row
from perdure.store.sql.invariants import Invariant
from perdure.store.sql.store import SqlStore

#: Settings that decide whether a commit survives a crash, by name.
_SETTINGS = {
    "sqlite": """
SELECT 'journal_mode', journal_mode FROM pragma_journal_mode
UNION ALL SELECT 'synchronous', CAST(synchronous AS TEXT) FROM pragma_synchronous
""",
    "postgres": """
SELECT name, setting FROM pg_settings
WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes')
""",
    "mysql": """
SELECT 'innodb_flush_log_at_trx_commit', CONCAT(@@GLOBAL.innodb_flush_log_at_trx_commit, '')
UNION ALL SELECT 'sync_binlog', CONCAT(@@GLOBAL.sync_binlog, '')
UNION ALL SELECT 'log_bin', CONCAT(@@GLOBAL.log_bin, '')
UNION ALL SELECT 'max_allowed_packet', CONCAT(@@GLOBAL.max_allowed_packet, '')
""",
}

#: Names of the indexes that queries can use.
_INDEXES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'index'",
    "postgres": """
SELECT c.relname FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE i.indisvalid AND n.nspname = {schema}
""",
    "mysql": "SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_schema = DATABASE()",
}

_NEWEST = """
SELECT COALESCE(MAX(at), 0) FROM (
  SELECT MAX(created_at) AS at FROM perdure_runs
  UNION ALL SELECT MAX(heartbeat_at) FROM perdure_workers
) AS newest
"""

_READY = """
SELECT type, queue, COUNT(*), MIN(wake_at) FROM perdure_runs
WHERE status = 'pending' GROUP BY type, queue ORDER BY type, queue
"""

#: Rows of one kind that a live view counts, and runs of the last minute.
MOST_COUNTED = 10_000
MOST_RECENT = 100_000

#: Conditions that finished runs fulfil anyway, spelled as those of partial indexes; and that they are not deleted.
_KEPT = {
    Status.COMPLETED: " AND finished_at > 0 AND deleted_at = 0",
    Status.FAILED: " AND status <> 'completed' AND deleted_at = 0",
    Status.CANCELLED: " AND status <> 'completed' AND deleted_at = 0",
}
_COUNTED = """
SELECT 'status', '{status}', '', COUNT(*), 0
FROM (SELECT 1 AS one FROM perdure_runs WHERE status = '{status}'{kept} LIMIT {most}) AS all_{status}
"""
_ACTIVITY = [
    """
SELECT 'ready' AS what, type AS name, queue AS place, COUNT(*) AS number, MIN(wake_at) AS since
FROM (SELECT type, queue, wake_at FROM perdure_runs WHERE status = 'pending' LIMIT {recent}) AS ready
GROUP BY type, queue
""",
    "SELECT 'held', worker, '', COUNT(*), 0 FROM perdure_runs WHERE status = 'running' GROUP BY worker",
    """
SELECT 'blocked', type, reason, COUNT(*), 0
FROM (SELECT type, reason FROM perdure_runs WHERE status = 'blocked' LIMIT {most}) AS blocked
GROUP BY type, reason
""",
    *(_COUNTED.replace("{status}", status.value).replace("{kept}", _KEPT.get(status, "")) for status in Status),
    """
SELECT 'finished', status, '', COUNT(*), 0
FROM (SELECT status FROM perdure_runs WHERE finished_at > 0 AND finished_at > {since} LIMIT {recent}) AS finished
GROUP BY status
""",
    """
SELECT 'started', '', '', COUNT(*), 0
FROM (SELECT 1 AS one FROM perdure_runs WHERE created_at > {since} LIMIT {recent}) AS started
""",
]

_HELD = """
SELECT worker, COUNT(*) FROM perdure_runs WHERE status = 'running' AND lease_until = 0 GROUP BY worker
"""

_FORGOTTEN = """
SELECT g.name, g.due_at, COUNT(*) FROM perdure_gates g JOIN perdure_lines l ON l.gate = g.name
WHERE g.due_at < ? GROUP BY g.name, g.due_at ORDER BY g.name
"""

_ABANDONED = """
SELECT r.id, r.worker, r.lease_until FROM perdure_runs r
WHERE r.status = 'running' AND r.lease_until > 0 AND r.lease_until < ? ORDER BY r.id
"""

#: Parked runs with messages under names that their code has not asked for, a bounded number of them. In the order of an
#: index: by id, SQLite would read all runs that there are.
_UNREAD = """
SELECT id, token, waits FROM perdure_runs
WHERE status = 'waiting' AND reason IN ('message', 'paused') AND waits LIKE '%"unread":{%' LIMIT ?
"""

#: Runs that wait for messages, that a message has woken or that are paused, and that no worker has claimed since:
#: some of them, with what they wait for, and the names in their inboxes.
_WOKEN = [
    f"""
SELECT r.id, r.token, r.waits, m.name, COUNT(*) FROM (
  SELECT id, token, waits FROM perdure_runs
  WHERE {condition} AND inbox_seq > inbox_read AND waits LIKE '%"kind":"message"%'
  LIMIT ?
) AS r
JOIN perdure_messages m ON m.run_id = r.id
WHERE m.consumed = 0 AND m.kind = 'message'
GROUP BY r.id, r.token, r.waits, m.name ORDER BY r.id, m.name
"""
    for condition in ("status = 'pending'", "status = 'waiting' AND reason = 'paused'")
]

#: The statements of `unread_names`.
UNREAD_STATEMENTS = (_UNREAD, *_WOKEN)

#: Latest value that was sent to a run under a name: one that the run has taken in, or one in its inbox.
_VALUES = (
    """
SELECT payload FROM perdure_messages
WHERE run_id = ? AND consumed = 0 AND kind = 'message' AND name = ? ORDER BY seq DESC LIMIT 1
""",
    """
SELECT payload FROM perdure_history
WHERE run_id = ? AND kind = 'message' AND location = ? ORDER BY seq DESC LIMIT 1
""",
)

#: Rows of one broken invariant that are named.
_NAMED = 5


class ReadyRuns(Struct, frozen=True):
    """Runs of one type in one queue that are ready, and since when the oldest of them is."""

    type: str
    queue: str
    count: int
    oldest: int


class WorkCounts(Struct, frozen=True, kw_only=True):
    """Work in a database at one moment.

    Counts end just above `MOST_COUNTED`, those of recent and ready runs at `MOST_RECENT`.
    """

    ready: tuple[ReadyRuns, ...]
    #: Number of runs that each worker holds.
    held: dict[str, int]
    #: Number of blocked runs by type and reason.
    blocked: dict[tuple[str, str], int]
    #: Number of runs by status.
    counts: dict[str, int]
    #: Number of runs that were created, and that finished by status, since the time that was given.
    started: int
    finished: dict[str, int]


class ForgottenWaitlist(Struct, frozen=True):
    """A waitlist that was due for a look at a time that has passed."""

    gate: str
    due_at: int
    waiting: int


class BrokenInvariant(Struct, frozen=True):
    """An invariant that rows break: how many of them, and the ids of the first few."""

    invariant: Invariant
    count: int
    run_ids: tuple[str, ...]


async def read_settings(store: SqlStore, dialect: Dialect) -> dict[str, str]:
    """Read the settings of the server, or of the file, that durability depends on."""
    return {str(name): str(value).lower() for name, value in await store.query(_SETTINGS[dialect.name])}


async def missing_indexes(store: SqlStore, dialect: Dialect, tables: str) -> list[Index]:
    """List the indexes that migrations have made and that the database lacks, or cannot use."""
    schema = tables.rpartition(".")[0].strip('"')
    named = "'" + schema.replace("'", "''") + "'" if schema else "current_schema()"
    rows = await store.query(_INDEXES[dialect.name].replace("{schema}", named))
    there = {name for (name,) in rows}
    return [index for index in indexes(dialect, tables) if index.name not in there]


async def newest_time(store: SqlStore) -> int:
    """Return the latest time that a run was created or a worker sent a heartbeat."""
    [[time]] = await store.query(_NEWEST)
    return int(time)


async def ready_runs(store: SqlStore) -> list[ReadyRuns]:
    """Count the runs that are ready for a worker, by type and queue."""
    return [ReadyRuns(*row) for row in await store.query(_READY)]


async def held_runs(store: SqlStore) -> dict[str, int]:
    """Count the runs that each worker holds."""
    return {worker: count for worker, count in await store.query(_HELD) if worker is not None}


def work_counts_statement(since: int) -> str:
    """Make the statement of `read_work_counts`."""
    return "\nUNION ALL\n".join(_ACTIVITY).format(since=int(since), most=MOST_COUNTED + 1, recent=MOST_RECENT)


async def read_work_counts(store: SqlStore, since: int) -> WorkCounts:
    """Read the work in a database, in one statement whose cost is bounded."""
    found: dict[str, list[Row]] = {}
    for what, *row in await store.query(work_counts_statement(since)):
        found.setdefault(what, []).append(tuple(row))
    return WorkCounts(
        ready=tuple(sorted((ReadyRuns(*row) for row in found.get("ready", ())), key=lambda one: (one.queue, one.type))),
        held={worker: count for worker, _, count, _ in found.get("held", ()) if worker is not None},
        blocked={(type, reason or ""): count for type, reason, count, _ in found.get("blocked", ())},
        counts={status: min(count, MOST_COUNTED + 1) for status, _, count, _ in found["status"]},
        started=found["started"][0][2],
        finished={status: count for status, _, count, _ in found.get("finished", ())},
    )


async def forgotten_waitlists(store: SqlStore, before: int) -> list[ForgottenWaitlist]:
    """List the waitlists that no worker has looked at although they were due before this time."""
    return [ForgottenWaitlist(*row) for row in await store.query(_FORGOTTEN, [min(before, NEVER)])]


async def abandoned_runs(store: SqlStore, before: int) -> list[str]:
    """List the runs whose own lease, as workers in other languages have one, ended before this time."""
    return [row[0] for row in await store.query(_ABANDONED, [before])]


async def broken_invariants(store: SqlStore, invariants: Sequence[Invariant]) -> list[BrokenInvariant]:
    """List the invariants that rows break; one statement if there are none."""
    asked = ", ".join(f"EXISTS ({one.broken_by}) AS broken_{place}" for place, one in enumerate(invariants))
    [answers] = await store.query(f"SELECT {asked}")
    found = []
    for one, is_broken in zip(invariants, answers, strict=True):
        if is_broken:
            rows = await store.query(one.broken_by)
            found.append(BrokenInvariant(one, max(1, len(rows)), tuple(str(row[0]) for row in rows[:_NAMED])))
    return found


async def unread_names(store: SqlStore, limit: int) -> list[tuple[str, RunWaits]]:
    """Runs that wait for messages while others are unread, with what they wait for, by id.

    A paused run has not looked at its inbox, so the names in it count as unread.
    """
    found = [(run_id, token, waits_from_json(waits)) for run_id, token, waits in await store.query(_UNREAD, (limit,))]
    unread = {run_id: waits for run_id, token, waits in found if waits is not None and waits.token == token}
    for statement in _WOKEN:
        for run_id, token, cell, name, count in await store.query(statement, (limit,)):
            waits = unread.get(run_id) or waits_from_json(cell)
            if waits is not None and waits.token == token:
                unread[run_id] = replace(waits, unread={**waits.unread, name: waits.unread.get(name, 0) + count})
    return sorted(unread.items())


async def unread_value(store: SqlStore, run_id: str, name: str) -> str | None:
    """Read the latest value that was sent to a run under a name, as it is stored; None if it is not there any more."""
    for statement in _VALUES:
        for (payload,) in await store.query(statement, (run_id, name)):
            return payload if payload is None else str(payload)
    return None
