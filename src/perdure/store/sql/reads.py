"""Reading: single runs, listings, histories, inboxes and audit trails.

A listing goes from the newest run to the oldest. Its cursor names the last run that was shown, so that runs created
meanwhile neither shift the pages nor appear twice.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from msgspec.structs import replace

from perdure.core.audit import Event
from perdure.core.model.claim import LoadedRun
from perdure.core.model.outputs import Interruption, Output, OutputKind, interruption_of
from perdure.core.model.record import Message, Record, RecordKind
from perdure.core.model.run import Run, RunFilter, RunPage, Status
from perdure.core.model.waits import RunWaits, waits_from_json
from perdure.core.printed_text import brief
from perdure.errors import InvalidCursor, StoreCorrupt
from perdure.store.contract import Store
from perdure.store.sql.dialect import Params, Transaction, placeholders
from perdure.store.sql.rows import EVENT, MESSAGE, RECORD, RUN, to_event, to_message, to_record, to_run, values
from perdure.store.sql.runs.create import CHUNK

_RUN = f"""
SELECT {RUN}
FROM perdure_runs
WHERE id = :run_id
"""

_WAITS = """
SELECT waits
FROM perdure_runs
WHERE id = :run_id
"""

_NEWEST = "ORDER BY created_at DESC, id DESC LIMIT :limit"
_PAGE = f"SELECT {RUN} FROM perdure_runs {{}} {_NEWEST}"

_HISTORY = f"""
SELECT {RECORD}
FROM perdure_history
WHERE run_id = :run_id
ORDER BY run_id, seq
"""

_INBOX = f"""
SELECT {MESSAGE}
FROM perdure_messages
WHERE run_id = :run_id AND seq > :after AND consumed = 0
ORDER BY run_id, seq
LIMIT :limit
"""

#: More than any inbox has.
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
        found += values(to_run, await tx.fetch(f"SELECT {RUN} FROM perdure_runs WHERE id IN ({chosen})", params))
    return found


async def list_runs(
    tx: Transaction, filter: RunFilter, limit: int, cursor: str | None, *, apart: bool = False
) -> RunPage:
    """A page of runs, newest first. `apart` looks for each status by itself, where each has an index of its own."""
    statuses = filter.status or ()
    if apart and len(statuses) > 1:
        sql, params = _each(filter, statuses, cursor)
    else:
        where, params = _where(filter, cursor)
        sql = _PAGE.format(where)
    rows = await tx.fetch(sql, {**params, "limit": limit + 1})
    runs = tuple(values(to_run, rows[:limit]))
    return RunPage(runs, _encode(runs[-1]) if len(rows) > limit and runs else None)


def _each(filter: RunFilter, statuses: Sequence[Status], cursor: str | None) -> tuple[str, Params]:
    params: dict[str, object] = {}
    pages: list[str] = []
    for number, status in enumerate(dict.fromkeys(statuses)):
        where, given = _where(replace(filter, status=(status,)), cursor)
        params = {**given, **params, f"status{number}": status.value}
        pages.append(f"({_PAGE.format(where.replace(':status0', f':status{number}'))})")
    return f"SELECT * FROM ({' UNION ALL '.join(pages)}) page {_NEWEST}", params


async def history(tx: Transaction, run_id: str) -> list[Record]:
    """Every record of a run."""
    return values(to_record, await tx.fetch(_HISTORY, {"run_id": run_id}))


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
        rows = await tx.fetch(_HISTORIES.format(chosen), params)
        for row, record in zip(rows, values(to_record, [row[1:] for row in rows]), strict=True):
            records[row[0]].append(record)
    for message in await unread(tx, [run.id for run in runs if run.inbox_seq > run.inbox_read], page):
        inboxes[message.run_id].append(message)
    for run in runs:
        check_whole(run.id, records[run.id])
    return [LoadedRun(run=run, records=tuple(records[run.id]), inbox=tuple(inboxes[run.id])) for run in runs]


async def unread(tx: Transaction, run_ids: Sequence[str], page: int) -> list[Message]:
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


async def marked(tx: Transaction, worker_id: str, page: int) -> list[Message]:
    """New inbox entries of a worker's running runs, a page of each, by number, since unread entries have no gaps."""
    return values(to_message, await tx.fetch(_MARKED, {"worker": worker_id, "page": page}))


def _where(filter: RunFilter, cursor: str | None) -> tuple[str, Params]:
    terms: list[str] = []
    params: dict[str, object] = {}
    if filter.status is not None:
        chosen, statuses = placeholders("status", [status.value for status in filter.status])
        terms.append(f"status IN ({chosen})" if statuses else "1 = 0")
        if Status.COMPLETED not in filter.status:
            # Says the obvious so that the index of all others can be used.
            terms.append("status <> 'completed'")
        params |= statuses
    if filter.deleted is not None:
        terms.append("deleted_at > 0" if filter.deleted else "deleted_at = 0")
    for column in ("type", "queue", "parent_id"):
        value = getattr(filter, column)
        if value is not None:
            terms.append(f"{column} = :{column}")
            params[column] = value
    if filter.created_after is not None:
        terms.append("created_at > :created_after")
        params["created_after"] = filter.created_after
    if filter.created_before is not None:
        terms.append("created_at < :created_before")
        params["created_before"] = filter.created_before
    if cursor is not None:
        params["last_at"], params["last_id"] = _decode(cursor)
        # The first term is implied, but some planners find no range of the index in the second.
        terms.append("created_at <= :last_at AND (created_at, id) < (:last_at, :last_id)")
    return ("WHERE " + " AND ".join(terms) if terms else ""), params


def _encode(run: Run) -> str:
    return base64.urlsafe_b64encode(f"{run.created_at}:{run.id}".encode()).decode().rstrip("=")


def _decode(cursor: str) -> tuple[int, str]:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
        created_at, _, run_id = text.partition(":")
        if not run_id or "\0" in run_id or not 0 <= int(created_at) < 2**63:
            raise ValueError(cursor)
        return int(created_at), run_id
    except (TypeError, ValueError, binascii.Error) as error:
        raise InvalidCursor(
            f"{brief(cursor)} is not a cursor of a listing; pass the cursor of the page before"
        ) from error


_INTERRUPTIONS = 500


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
