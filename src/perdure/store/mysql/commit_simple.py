"""Commit turns that touch no other run on MySQL and MariaDB, in one packet: records, reads, and an outcome or a park.

The first statement of the packet locks the rows that are free and counts those whose lease holds. If that is not all of
them, the statement fails, and with it the packet, before anything is written. Then, or if a record exists, the
transaction in `commit` handles all turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.core.model.record import Record
from perdure.core.model.run import Status
from perdure.core.model.turn import Finish, Park, Turn
from perdure.store.contract import Change
from perdure.store.mysql.commit import CONSUME, HISTORY, RECORDS
from perdure.store.mysql.transaction import MysqlTransaction, Sql, literal, sql_list, sql_row, sql_texts
from perdure.store.sql.audit import note_finish, park_event
from perdure.store.sql.turn import KINDS, has_extras, record_row

#: The largest number plus a difference is an error, so that the statement fails unless all leases hold. Leases of one
#: claim share their nonce, and mostly their token, so that one condition per group is faster than one per lease.
FENCE = """
SELECT 9223372036854775807 + ABS(COUNT(*) - :count)
FROM perdure_runs FORCE INDEX (PRIMARY)
WHERE status = 'running' AND (:groups)
FOR UPDATE SKIP LOCKED
"""

#: In a cluster a lock is local to one server and only written rows are compared, so the row has to be written.
_PROVE = "UPDATE perdure_runs SET wake_at = wake_at + 1 WHERE id IN (:ids)"

#: Inserts the only record of the only turn, without a transaction around it.
_RECORD = f"""
INSERT INTO perdure_history ({HISTORY})
SELECT :row
FROM perdure_runs FORCE INDEX (PRIMARY)
WHERE id = :run_id AND token = :token AND nonce = :nonce AND status = 'running'
FOR UPDATE SKIP LOCKED
"""

#: Most records have the default values in all other columns, and the server spends time on every value that it gets.
_PLAIN_RECORDS = """
INSERT INTO perdure_history (run_id, seq, token, kind, location, payload, at, started_at, digest, attempts)
VALUES :rows
"""

#: Number of quotes around the five texts of a record.
_QUOTES = 10

#: The rows exist and are locked, so that the INSERT always becomes an UPDATE of each.
_READ = """
INSERT INTO perdure_runs (id, inbox_read)
VALUES :rows
ON DUPLICATE KEY UPDATE marked = inbox_seq > VALUES(inbox_read), inbox_read = GREATEST(inbox_read, VALUES(inbox_read))
"""

_FINISH = """
INSERT INTO perdure_runs (id, inbox_read, status, output, error, finished_at)
VALUES :rows
ON DUPLICATE KEY UPDATE status = VALUES(status), reason = NULL, output = VALUES(output), error = VALUES(error),
  finished_at = VALUES(finished_at), worker = NULL, marked = 0, claims = 0, waits = NULL,
  inbox_read = GREATEST(inbox_read, VALUES(inbox_read))
"""

#: `started_at` carries the current time and keeps its stored value.
_PARK = """
INSERT INTO perdure_runs (id, inbox_read, wake_at, reason, started_at, waits)
VALUES :rows
ON DUPLICATE KEY UPDATE
  status = IF(LEAST(VALUES(wake_at), deadline) <= VALUES(started_at), 'pending', 'waiting'),
  reason = IF(LEAST(VALUES(wake_at), deadline) <= VALUES(started_at), NULL, VALUES(reason)),
  wake_at = LEAST(VALUES(wake_at), deadline), worker = NULL, marked = 0, claims = 0, waits = VALUES(waits),
  inbox_read = GREATEST(inbox_read, VALUES(inbox_read))
"""


def is_simple(turns: Sequence[Turn]) -> bool:
    """Tell whether one packet can write these turns, as far as this process knows."""
    return len({turn.lease.run_id for turn in turns}) == len(turns) > 0 and all(map(_touches_no_other_run, turns))


def _touches_no_other_run(turn: Turn) -> bool:
    if turn.children or turn.sends or has_extras(turn):
        return False
    after = turn.next
    if type(after) is Finish:
        # Ids of children usually have a slash. The fence stops a child without one, for one more round trip.
        return "/" not in turn.lease.run_id
    return after is None or type(after) is Park


async def commit_simply(tx: MysqlTransaction, turns: Sequence[Turn]) -> bool:
    """Write all of the turns or none; return whether they were written.

    Raises errors that `errors.is_refusal` knows.
    """
    clustered = tx.connection.clustered
    if not clustered and len(turns) == 1 and len(turns[0].records) == 1 and turns[0].next is None and not turns[0].read:
        return await _commit_record(tx, turns[0])
    groups: dict[tuple[int, str, str], list[str]] = {}
    read: list[tuple[object, ...]] = []
    finished: list[tuple[object, ...]] = []
    parked: list[tuple[object, ...]] = []
    for turn in turns:
        lease = turn.lease
        run_id = lease.run_id
        besides = ""
        match turn.next:
            # The most frequent case, a step, comes first.
            case None if not turn.read:
                pass
            case Finish(status=status, payload=payload):
                besides = " AND parent_id IS NULL"
                outcome = (payload, None) if status is Status.COMPLETED else (None, payload)
                finished.append((run_id, turn.read, status.value, *outcome, tx.now))
                if tx.notes:
                    note_finish(tx, run_id, turn.next)
                tx.notify(Change.FINISHED)
            case Park(wake_at=wake_at, reason=reason, seen=seen, waits=waits):
                besides = f" AND inbox_seq = {seen}"
                parked.append((run_id, turn.read, wake_at, reason.value, tx.now, waits))
                if tx.repeats:
                    tx.note(run_id, *park_event(turn.next))
                if wake_at <= tx.now:
                    tx.notify(Change.READY)
            case _:
                read.append((run_id, turn.read))
        groups.setdefault((lease.token, lease.nonce, besides), []).append(run_id)
    tx.begin()
    tx.enqueue(tx.fill(FENCE, count=len(turns), groups=_conditions(groups)))
    if clustered and (stay := [turn.lease.run_id for turn in turns if turn.next is None]):
        tx.enqueue(tx.fill(_PROVE, ids=sql_list(stay)))
    plain, others = list[str](), list[str]()
    for turn in turns:
        for record in turn.records:
            row = _plain_row(turn, record)
            if row is not None:
                plain.append(row)
            else:
                others.append(sql_row(record_row(turn, record)))
    tx.insert_sql_rows(_PLAIN_RECORDS, plain)
    tx.insert_sql_rows(RECORDS, others)
    for turn in turns:
        if turn.read:
            tx.enqueue(tx.fill(CONSUME, run_id=turn.lease.run_id, upto=turn.read))
    tx.insert(_READ, read)
    tx.insert(_FINISH, finished)
    tx.insert(_PARK, parked)
    tx.write_notes()
    await tx.commit()
    return True


async def _commit_record(tx: MysqlTransaction, turn: Turn) -> bool:
    lease, row = turn.lease, sql_list(record_row(turn, turn.records[0]))
    [answer] = await tx.send(tx.fill(_RECORD, row=row, run_id=lease.run_id, token=lease.token, nonce=lease.nonce))
    return answer.count == 1


def _plain_row(turn: Turn, record: Record) -> str | None:
    """Return the row of an ordinary record; None if it needs another column, or a value has to be escaped."""
    if record.failed or record.retry_at or record.inbox_seq or record.run_attempt != 1 or record.payload is None:
        return None
    lease = turn.lease
    row = (
        f"('{lease.run_id}',{record.seq},{lease.token},'{KINDS[record.kind]}','{record.location}','{record.payload}',"
        f"{record.at},{record.started_at},'{record.digest}',{record.attempts})"
    )
    # Any other quote, or a backslash, belongs to a value.
    return row if row.count("'") == _QUOTES and "\\" not in row else None


def _conditions(groups: Mapping[tuple[int, str, str], Sequence[str]]) -> Sql:
    return Sql(
        " OR ".join(
            f"token = {token} AND nonce = {literal(nonce)}{besides} AND id IN ({sql_texts(ids)})"
            for (token, nonce, besides), ids in groups.items()
        )
    )
