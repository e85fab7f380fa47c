"""Commit turns on MySQL and MariaDB: in one packet if they touch no other run, otherwise in two round trips.

Of the two, the first round trip locks every row that the turns touch, skips rows that are locked, and reads what the
decision needs. Then this process decides the new state of each row. The second round trip writes everything and
commits. No statement waits for a lock, so that no deadlock is possible. A turn that has a skipped row is BUSY and
leaves no trace. Two turns of one run are decided one after the other.

`commit_simply` is the fast path: records, reads, and an outcome or a park. The first statement of its packet locks the
rows that are free and counts those whose lease holds. If that is not all of them, the statement fails, and with it the
packet, before anything is written. Then, or if a record exists, the transaction handles all turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perdure.core.model.record import NewMessage, Record, SendOutcome
from perdure.core.model.run import NewRun, Status
from perdure.core.model.turn import Finish, Park, RetryLater, StepTurn, Turn, TurnOutcome
from perdure.store.contract import Change
from perdure.store.mysql.runs import NEW_RUNS, rows_of
from perdure.store.mysql.transaction import MysqlTransaction, Sql, literal, sql_list, sql_row, sql_texts
from perdure.store.server.batch_effects import COLUMNS, BatchEffects, RunDraft
from perdure.store.server.commit_batch import CommitBatch, Written
from perdure.store.sql.audit import note_finish, park_event
from perdure.store.sql.dialect import Row
from perdure.store.sql.turn import KINDS, has_extras, message_keys, record_row, split_by_run

HISTORY = (
    "run_id, seq, token, kind, location, payload, failed, at, started_at, digest, attempts, retry_at, inbox_seq, "
    "run_attempt"
)

_LOCK = f"""
SELECT {COLUMNS}
FROM perdure_runs FORCE INDEX (PRIMARY)
WHERE id IN (:ids)
ORDER BY id
FOR UPDATE SKIP LOCKED
"""

#: A run never changes its parent. The children are locked already, or locked by another transaction.
_LOCK_PARENTS = f"""
SELECT {", ".join("p." + column for column in COLUMNS.split(", "))}
FROM perdure_runs c FORCE INDEX (PRIMARY)
STRAIGHT_JOIN perdure_runs p FORCE INDEX (PRIMARY) ON p.id = c.parent_id
WHERE c.id IN (:ids)
FOR UPDATE SKIP LOCKED
"""

_THERE = "SELECT id FROM perdure_runs WHERE id IN (:ids)"

#: Spelled as ranges of a key, because the planner does not use indexes for lists of pairs.
_WRITTEN = f"SELECT {HISTORY} FROM perdure_history FORCE INDEX (PRIMARY) WHERE :spans"
_KNOWN = "SELECT run_id, message_key FROM perdure_messages FORCE INDEX (perdure_messages_by_key) WHERE :keys"

_STOPS = "SELECT run_id, seq FROM perdure_messages WHERE run_id IN (:ids) AND kind = 'cancel' AND consumed = 0"

RECORDS = f"INSERT INTO perdure_history ({HISTORY}) VALUES :rows"

_ENTRIES = """
INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
VALUES :rows
"""

CONSUME = """
UPDATE perdure_messages
SET consumed = 1, payload = NULL
WHERE run_id = :run_id AND seq <= :upto AND consumed = 0
"""

#: Columns that are written for every row.
_ALWAYS = (
    "status", "reason", "token", "wake_at", "inbox_seq", "inbox_read", "marked", "attempt", "started_at", "finished_at",
)  # fmt: skip


async def commit(tx: MysqlTransaction, turns: Sequence[Turn], *, doubtful: bool) -> list[TurnOutcome]:
    """Decide the new state of each turn; return one outcome each. The end of the transaction writes everything."""
    tx.optimistic = not doubtful
    verdicts = [TurnOutcome.APPLIED] * len(turns)
    busy: set[str] = set()
    for batch in split_by_run(turns):
        await _MysqlBatch(tx, turns, batch, verdicts, busy, doubtful=doubtful).commit()
    return verdicts


async def deliver(tx: MysqlTransaction, messages: Sequence[NewMessage]) -> list[SendOutcome]:
    """Deliver messages to the inboxes of runs whose rows are locked."""
    return await _MysqlBatch(tx, [], [], [], set(), doubtful=False).deliver(messages)


class _MysqlBatch(CommitBatch[MysqlTransaction]):
    """A batch of turns of different runs. The packet that locks also reads what the decision needs."""

    _answers: dict[str, Sequence[Row]]

    async def _locked(self, touched: list[str], children: list[str]) -> Sequence[Row]:
        queries = {"runs": self._tx.fill(_LOCK, ids=sql_list(touched))}
        if children:
            queries["parents"] = self._tx.fill(_LOCK_PARENTS, ids=sql_list(children))
        turns = self._batch.values()
        if self._doubtful and any(turn.records for turn in turns):
            queries["written"] = self._tx.fill(_WRITTEN, spans=_spans(turns))
        if keys := [key for turn in turns for key in message_keys(turn)]:
            queries["known"] = self._tx.fill(_KNOWN, keys=_keys(keys))
        if new := [child.id for turn in turns for child in turn.children]:
            queries["there"] = self._tx.fill(_THERE, ids=sql_list(new))
        if again := [turn.lease.run_id for turn in turns if isinstance(turn.next, RetryLater)]:
            queries["stops"] = self._tx.fill(_STOPS, ids=sql_list(again))
        answers = await self._tx.send(*queries.values())
        self._tx.locked()
        self._answers = {name: answer.rows for name, answer in zip(queries, answers, strict=True)}
        return [*self._answers["runs"], *self._answers.get("parents", ())]

    async def _there(self, run_ids: list[str]) -> set[str]:
        [answer] = await self._tx.send(self._tx.fill(_THERE, ids=sql_list(run_ids)))
        return {row[0] for row in answer.rows}

    async def _written(self, turns: Sequence[Turn]) -> Written:
        rows = self._answers.get("written")
        if rows is None:
            [answer] = await self._tx.send(self._tx.fill(_WRITTEN, spans=_spans(turns)))
            rows = answer.rows
        found: Written = {}
        for row in rows:
            found.setdefault(row[0], {})[row[1]] = row
        return found

    async def _known(self, keys: list[tuple[str, str]]) -> set[tuple[str, str]]:
        rows = self._answers.pop("known", None)
        if rows is None:
            [answer] = await self._tx.send(self._tx.fill(_KNOWN, keys=_keys(keys)))
            rows = answer.rows
        return {(row[0], row[1]) for row in rows}

    async def _made(self, new: list[NewRun]) -> set[str]:
        there = {row[0] for row in self._answers["there"]}
        missing = [child for child in new if child.id not in there]
        self._tx.insert(NEW_RUNS, rows_of(missing, self._tx.now))
        return {child.id for child in missing}

    async def _to_be_stopped(self, read: dict[str, int]) -> set[str]:
        return {row[0] for row in self._answers["stops"] if row[0] in read and row[1] > read[row[0]]}

    def _prove(self, draft: RunDraft) -> None:
        if self._tx.connection.clustered:
            draft.wake_at += 1
            draft.touched = True

    async def _write(self, effects: BatchEffects) -> None:
        self._tx.insert(RECORDS, self._rows)
        self._tx.insert(_ENTRIES, effects.messages)
        for run_id, upto in effects.consumed:
            self._tx.enqueue(self._tx.fill(CONSUME, run_id=run_id, upto=upto))
        drafts: dict[tuple[bool, ...], list[RunDraft]] = {}
        for draft in effects.drafts.values():
            if draft.touched:
                kind = (draft.let_go, draft.moves, draft.sets_output, draft.sets_error, draft.sets_waits)
                drafts.setdefault(kind, []).append(draft)
        for alike in drafts.values():
            self._write_alike(alike)

    def _write_alike(self, drafts: Sequence[RunDraft]) -> None:
        # The rows exist and are locked, so that the INSERT always becomes an UPDATE of each.
        first = drafts[0]
        columns = [*_ALWAYS, *(["home"] if first.moves else [])]
        columns += [*(["output"] if first.sets_output else []), *(["error"] if first.sets_error else [])]
        columns += ["waits"] if first.sets_waits else []
        changes = [f"{column} = VALUES({column})" for column in columns]
        changes += ["worker = NULL, claims = 0"] if first.let_go else []
        template = f"INSERT INTO perdure_runs (id, {', '.join(columns)}) VALUES :rows"
        template += f" ON DUPLICATE KEY UPDATE {', '.join(changes)}"
        self._tx.insert(template, [[draft.id, *(getattr(draft, column) for column in columns)] for draft in drafts])


def _spans(turns: Iterable[Turn]) -> Sql:
    spans = [
        f"run_id = {literal(turn.lease.run_id)} AND seq BETWEEN {turn.records[0].seq} AND {turn.records[-1].seq}"
        for turn in turns
        if turn.records
    ]
    return Sql(" OR ".join(spans))


def _keys(keys: Iterable[tuple[str, str]]) -> Sql:
    pairs = [f"run_id = {literal(run_id)} AND message_key = {literal(key)}" for run_id, key in keys]
    return Sql(" OR ".join(pairs))


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
    if type(turn) is StepTurn:
        return True
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
                besides = " AND parent_id IS NULL AND watched = 0"
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
