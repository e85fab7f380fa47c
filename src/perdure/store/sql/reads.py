"""Reading: single runs, histories, inboxes and audit trails."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perdure.core.audit import Event
from perdure.core.model.claim import LoadedRun
from perdure.core.model.outputs import Interruption, Output, OutputKind, interruption_of
from perdure.core.model.record import Message, Record, RecordKind
from perdure.core.model.reports import ChildLink, RunSnapshot
from perdure.core.model.run import Run
from perdure.core.model.waits import RunWaits, waits_from_json
from perdure.core.run_log import LoggedLine, line_of
from perdure.core.time.duration import NEVER
from perdure.errors import StoreCorrupt
from perdure.store.contract import BRIEF, SNAPSHOT_OUTPUTS, Store
from perdure.store.sql.dialect import Row, Transaction, padded, placeholders
from perdure.store.sql.packing import PACKED, SEGMENT
from perdure.store.sql.rows import (
    EVENT,
    MESSAGE,
    OUTPUT,
    RECORD,
    SHOWN_RUN,
    to_event,
    to_histories,
    to_message,
    to_output,
    to_records,
    to_run,
    values,
)
from perdure.store.sql.runs.create import CHUNK

_RUN = f"""
SELECT {SHOWN_RUN}
FROM perdure_runs
WHERE id = :run_id
"""

_WAITS = """
SELECT waits
FROM perdure_runs
WHERE id = :run_id
"""

#: A page needs few packed rows, although it may have many rows.
_HISTORY = f"""
SELECT {RECORD}
FROM perdure_history
WHERE run_id = :run_id AND seq > :after AND (kind <> '{PACKED}' OR seq <= :upto)
ORDER BY run_id, seq
LIMIT :limit
"""  # equivalent: sql <=: the records of that row are past the page

# The time that a step took identifies a result that is left out.
_BRIEF_HISTORY = _HISTORY.replace(
    " payload,",
    f" CASE WHEN kind = 'step' AND failed = 0 AND started_at > 0 AND {{size payload}} > {BRIEF} "
    "THEN NULL ELSE payload END,",
)

# Large cells of the run come once, not with every record. An output has the columns of a record that are like its own.
_LARGE = ("input", "output", "error", "options", "waits")
_CELLS = ", ".join(
    f"CASE WHEN x.part = 0 THEN r.{name} END" if name in _LARGE else f"r.{name}"
    for name in (*SHOWN_RUN.split(", "), "waits")
)
_SNAPSHOT = f"""
SELECT x.part, {", ".join(f"x.{name}" for name in RECORD.split(", "))}, {_CELLS}
FROM (
  SELECT 0 AS part, 0 AS seq, '' AS kind, '' AS location, '' AS payload, 0 AS failed, 0 AS at, 0 AS started_at,
    '' AS digest, 0 AS attempts, 0 AS retry_at, 0 AS inbox_seq, 0 AS run_attempt
  UNION ALL
  {_BRIEF_HISTORY.replace("SELECT", "SELECT 1 AS part,").partition("ORDER BY")[0]}
  UNION ALL
  SELECT 2 AS part, position, kind, name, payload, failed, at, 0, COALESCE(output_key, ''), 0, 0, 0, 0
  FROM (
    SELECT {OUTPUT}
    FROM perdure_outputs
    WHERE run_id = :run_id AND kind IN ({{kinds}})
    ORDER BY run_id, kind, name, position
    LIMIT {SNAPSHOT_OUTPUTS}
  ) o
  UNION ALL
  SELECT 3 AS part, 0, '', parent_location, id, 0, created_at, 0, '', 0, 0, 0, 0
  FROM (
    SELECT id, parent_location, created_at
    FROM perdure_runs
    WHERE parent_id = :run_id
    ORDER BY parent_id DESC, created_at DESC
    LIMIT :children
  ) c
) x
JOIN perdure_runs r ON r.id = :run_id
"""

_RECORDS = f"""
SELECT {RECORD}
FROM perdure_history
WHERE run_id = :run_id AND seq IN ({{chosen}})
ORDER BY run_id, seq
"""

#: Rows that may hold these records, too.
_PACKED_RECORDS = f"""
SELECT {RECORD}
FROM perdure_history
WHERE run_id = :run_id AND seq BETWEEN :first AND :last AND kind = '{PACKED}'
ORDER BY run_id, seq
"""

_INBOX = f"""
SELECT {MESSAGE}
FROM perdure_messages
WHERE run_id = :run_id AND seq > :after AND consumed = 0
ORDER BY run_id, seq
LIMIT :limit
"""

#: Place of the first cell of the run in a row of `_SNAPSHOT`.
_PLACE = 1 + len(RECORD.split(", "))

#: More than any inbox or history has.
_ALL = 1_000_000_000

_EVENTS = f"""
SELECT {EVENT}
FROM perdure_events
WHERE run_id = :run_id
ORDER BY run_id, id
"""

_HISTORIES = f"""
SELECT run_id, {RECORD}
FROM perdure_history
WHERE run_id IN ({{}})
ORDER BY run_id, seq
"""

_UNREAD = f"""
SELECT {", ".join("m." + column for column in MESSAGE.split(", "))}
FROM perdure_runs r
JOIN perdure_messages m ON m.run_id = r.id AND m.seq > r.inbox_read AND m.seq <= r.inbox_read + :page
WHERE r.id IN ({{}})
ORDER BY m.run_id, m.seq
"""

_MARKED = f"""
SELECT {", ".join("m." + column for column in MESSAGE.split(", "))}
FROM perdure_runs r
JOIN perdure_messages m ON m.run_id = r.id AND m.seq > r.inbox_read AND m.seq <= r.inbox_read + :page
WHERE r.status = 'running' AND r.marked = 1 AND r.worker = :worker
ORDER BY m.run_id, m.seq
"""


async def get(tx: Transaction, run_id: str) -> Run | None:
    """One run."""
    rows = await tx.fetch(_RUN, {"run_id": run_id})
    return to_run(rows[0]) if rows else None


async def waits(tx: Transaction, run_id: str) -> RunWaits | None:
    """Names of what a run waited for when it was last parked."""
    rows = await tx.fetch(_WAITS, {"run_id": run_id})
    return waits_from_json(rows[0][0]) if rows else None


async def get_many(tx: Transaction, run_ids: Sequence[str]) -> list[Run]:
    """The existing ones of these runs."""
    found: list[Run] = []
    for start in range(0, len(run_ids), CHUNK):
        chosen, params = placeholders("id", run_ids[start : start + CHUNK])
        found += values(to_run, await tx.fetch(f"SELECT {SHOWN_RUN} FROM perdure_runs WHERE id IN ({chosen})", params))
    return found


async def history(
    tx: Transaction, run_id: str, after: int = -1, limit: int = 0, *, brief: bool = False
) -> list[Record]:
    """The records of a run past a number, or the first of them; if brief, without long results."""
    statement = _BRIEF_HISTORY if brief else _HISTORY
    params = {"run_id": run_id, "after": after, "limit": limit or _ALL, "upto": _ALL}
    if limit:
        rows = await tx.fetch(statement, {**params, "upto": min(after + limit + SEGMENT, _ALL)})
        page = _past(after, to_records(rows), len(rows), brief=brief)[:limit]
        if not page or page[-1].seq == after + len(page):
            return page
        # Some records are missing: they were trimmed, or they are in packed rows further on.
    rows = await tx.fetch(statement, params)
    found = _past(after, to_records(rows), len(rows), brief=brief)
    return found[:limit] if limit else found


def _past(after: int, records: list[Record], rows: int, *, brief: bool) -> list[Record]:
    """Of the records of so many rows, those past a number; packed ones are made brief here, others by the query."""
    if len(records) == rows:
        return records
    past = [record for record in records if record.seq > after]
    return [_brief(record) for record in past] if brief else past


def _brief(record: Record) -> Record:
    is_long = record.kind is RecordKind.STEP and not record.failed and record.started_at > 0
    return replace(record, payload=None) if is_long and len(record.payload or "") > BRIEF else record


async def records(tx: Transaction, run_id: str, numbers: Sequence[int]) -> list[Record]:
    """The existing ones of these records of a run."""
    found: dict[int, Record] = {}
    wanted = sorted(set(numbers))
    for start in range(0, len(wanted), 100):
        some = wanted[start : start + 100]
        chosen, params = padded("seq", some)
        rows = await tx.fetch(_RECORDS.replace("{chosen}", chosen), {**params, "run_id": run_id})
        found |= {record.seq: record for record in to_records(rows)}
        if not found.keys() >= set(some):
            # A packed row has the number of its last record.
            bounds = {"run_id": run_id, "first": some[0], "last": some[-1] + SEGMENT - 1}
            found |= {record.seq: record for record in to_records(await tx.fetch(_PACKED_RECORDS, bounds))}
    return [found[seq] for seq in wanted if seq in found]


async def snapshot(
    tx: Transaction, run_id: str, after: int = -1, kinds: Sequence[OutputKind] = (), children: int = 0
) -> RunSnapshot | None:
    """A run, what it waits for, its records past a number, its outputs of these kinds and some of its children."""
    chosen, params = placeholders("kind", [kind.value for kind in kinds] or [""])
    given = {**params, "run_id": run_id, "after": after, "upto": _ALL, "children": children}
    rows = await tx.fetch(_SNAPSHOT.replace("{kinds}", chosen), given)
    parts: tuple[list[Row], ...] = ([], [], [], [])
    for row in rows:
        parts[row[0]].append(row)
    if not parts[0]:
        return None
    cells = parts[0][0][_PLACE:]
    records = _past(after, to_records([row[1:_PLACE] for row in parts[1]]), len(parts[1]), brief=True)
    shown = [
        (run_id, kind, name, position, payload, failed, at, key or None)
        for _, position, kind, name, payload, failed, at, _, key, *_ in parts[2]
    ]
    return RunSnapshot(
        run=to_run(cells[:-1]),
        waits=waits_from_json(cells[-1]),
        records=tuple(sorted(records, key=lambda one: one.seq)),
        outputs=tuple(sorted(values(to_output, shown), key=lambda one: (one.kind, one.name, one.position))),
        children=tuple(
            ChildLink(id=id, parent_location=location, created_at=at)
            for _, _, _, location, id, _, at, *_ in sorted(parts[3], key=lambda row: (row[6], row[4]), reverse=True)
        ),
    )


async def inbox(tx: Transaction, run_id: str, after: int, limit: int = 0) -> list[Message]:
    """The unread entries of a run, or the first of them."""
    return values(to_message, await tx.fetch(_INBOX, {"run_id": run_id, "after": after, "limit": limit or _ALL}))


async def events(tx: Transaction, run_id: str) -> list[Event]:
    """The audit trail of a run."""
    return values(to_event, await tx.fetch(_EVENTS, {"run_id": run_id}))


async def load(tx: Transaction, run_ids: Sequence[str], page: int) -> list[LoadedRun]:
    """Runs with their histories and a page of what is unread."""
    runs = await get_many(tx, run_ids)
    records: dict[str, list[Record]] = {run.id: [] for run in runs}
    inboxes: dict[str, list[Message]] = {run.id: [] for run in runs}
    for start in range(0, len(runs), CHUNK):
        chosen, params = placeholders("id", [run.id for run in runs[start : start + CHUNK]])
        records |= to_histories(await tx.fetch(_HISTORIES.format(chosen), params))
    for message in await unread_messages(tx, [run.id for run in runs if run.inbox_seq > run.inbox_read], page):
        inboxes[message.run_id].append(message)
    for run in runs:
        check_whole(run.id, records[run.id])
    return [LoadedRun(run=run, records=tuple(records[run.id]), inbox=tuple(inboxes[run.id])) for run in runs]


async def unread_messages(tx: Transaction, run_ids: Sequence[str], page: int) -> list[Message]:
    """The unread entries of some runs, a page of each."""
    found: list[Message] = []
    for start in range(0, len(run_ids), CHUNK):
        chosen, params = placeholders("id", run_ids[start : start + CHUNK])
        found += values(to_message, await tx.fetch(_UNREAD.format(chosen), {**params, "page": page}))
    return found


def check_whole(run_id: str, records: Sequence[Record]) -> None:
    """Raise `StoreCorrupt` for a history with gaps; records before the last checkpoint may have been trimmed."""
    if not records or records[-1].seq == len(records) - 1:
        return
    marks = (place for place in range(len(records) - 1, -1, -1) if records[place].kind is RecordKind.SCOPE)
    mark = next(marks, 0)
    whole = records[mark].kind is RecordKind.SCOPE and records[-1].seq - records[mark].seq == len(records) - 1 - mark
    if not whole:
        raise StoreCorrupt(
            f"the history of run {run_id!r} has {len(records)} records, but the last one has number {records[-1].seq}: "
            "some are missing; restore them from a backup, or cancel the run"
        )


def check_counters(run: Run) -> None:
    """Raise `StoreCorrupt` for a run whose inbox counters contradict each other."""
    if not 0 <= run.inbox_read <= run.inbox_seq:
        raise StoreCorrupt(
            f"run {run.id!r} (perdure_runs) has read {run.inbox_read} of {run.inbox_seq} inbox entries, which cannot "
            "be; correct inbox_read and inbox_seq by a backup, or cancel the run"
        )


async def unread_messages_of_worker(tx: Transaction, worker_id: str, page: int) -> list[Message]:
    """New inbox entries of a worker's running runs, a page of each, by number, since unread entries have no gaps."""
    return values(to_message, await tx.fetch(_MARKED, {"worker": worker_id, "page": page}))


_INTERRUPTIONS = 500


async def read_log(store: Store, run_id: str, after: int, limit: int) -> list[LoggedLine]:
    """The first lines of a run's log past a number; the latest ones if it is -1."""
    before = NEVER if after < 0 else None
    return [line_of(one) for one in await store.outputs(run_id, OutputKind.LOG, "", after, limit, before=before)]


async def interruptions(store: Store, run_id: str) -> tuple[Interruption, ...]:
    """All interruptions of a run that can be read, in order."""
    found = await _all_outputs(store, run_id, OutputKind.INTERRUPTION)
    return tuple(one for output in found if (one := interruption_of(output)) is not None)


async def interruptions_since_requeue(store: Store, run_id: str) -> tuple[Interruption, ...]:
    """The interruptions of a run since it was last requeued or reopened. A run without interruptions costs one read."""
    found = await interruptions(store, run_id)
    requeues = await _all_outputs(store, run_id, OutputKind.REQUEUE) if found else []
    return tuple(one for one in found if one.at > requeues[-1].at) if requeues else found


async def _all_outputs(store: Store, run_id: str, kind: OutputKind) -> list[Output]:
    found: list[Output] = []
    while True:
        page = await store.outputs(run_id, kind, "", found[-1].position if found else -1, _INTERRUPTIONS)
        found += page
        if len(page) < _INTERRUPTIONS:
            return found


#: A column of its own would have to be written at every step. A pending or blocked run is so since `wake_at`.
_UPDATED = """
SELECT r.id, r.created_at, r.started_at, r.finished_at, r.deleted_at,
  CASE WHEN r.status IN ('pending', 'blocked') THEN r.wake_at ELSE 0 END,
  COALESCE((SELECT h.at FROM perdure_history h WHERE h.run_id = r.id ORDER BY h.seq DESC LIMIT 1), 0),
  COALESCE((SELECT e.at FROM perdure_events e WHERE e.run_id = r.id ORDER BY e.id DESC LIMIT 1), 0)
FROM perdure_runs r
WHERE r.id IN ({names})
"""


async def updated_at(tx: Transaction, run_ids: Sequence[str]) -> dict[str, int]:
    """Time of the last change of each of these runs."""
    found: dict[str, int] = {}
    for start in range(0, len(run_ids), CHUNK):
        chosen, params = placeholders("name", run_ids[start : start + CHUNK])
        rows = await tx.fetch(_UPDATED.replace("{names}", chosen), params)
        found |= {id: max(times) for id, *times in rows}
    return found
