"""Commit turns on PostgreSQL: in one statement if they touch no other run, otherwise in a transaction of two.

In the transaction, the first statement locks every row that the turns touch, in the order of ids, and skips rows that
are locked. Then this process decides the new state of each row. The second statement writes everything. A turn that has
a skipped row is BUSY and leaves no trace. Two turns of one run are decided one after the other.

`commit_simply` is the fast path: records, reads, and an outcome or a park. Its statement locks the rows that are free,
checks their leases and writes the turns whose lease holds. It leaves out a turn whose row is busy or lost, whose run
got a message before it could park, or whose run has a parent or waiters to tell; the transaction handles those. There
is one statement for each shape of a batch, so that columns with the same value in every row are not sent and unused
parts do not run: for small batches the fixed cost of a statement exceeds the cost of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, product
from typing import NamedTuple

from msgspec.structs import astuple

from perdure.core.model.record import NewMessage, Record, RecordKind, SendOutcome
from perdure.core.model.run import NewRun, Status
from perdure.core.model.turn import Finish, NextState, Park, StepTurn, Turn, TurnOutcome
from perdure.store.contract import Change
from perdure.store.postgres.driver import AlreadyThere, PostgresConnection
from perdure.store.postgres.runs import NEW_RUNS, arrays_of
from perdure.store.postgres.transaction import (
    HISTORY,
    PostgresTransaction,
    StatementCache,
    Unjoinable,
    join_numbers,
    join_texts,
    rows_of,
    to_arrays,
    unnest_arrays,
    unnest_texts,
)
from perdure.store.server.batch_effects import COLUMNS, BatchEffects
from perdure.store.server.commit_batch import CommitBatch, RecordsExist, Written
from perdure.store.sql.audit import finish_event, park_event
from perdure.store.sql.dialect import Row
from perdure.store.sql.turn import record_row, split_by_run

_MESSAGES = {
    "run_id": "text", "seq": "bigint", "kind": "text", "name": "text", "payload": "text", "failed": "smallint",
    "message_key": "text", "sent_at": "bigint",
}  # fmt: skip
_RUNS = {
    "id": "text", "status": "text", "reason": "text", "token": "bigint", "wake_at": "bigint", "inbox_seq": "bigint",
    "inbox_read": "bigint", "marked": "smallint", "attempt": "bigint", "started_at": "bigint", "finished_at": "bigint",
    "let_go": "boolean", "moves": "boolean", "home": "text", "sets_output": "boolean", "output": "text",
    "sets_error": "boolean", "error": "text", "sets_waits": "boolean", "waits": "text",
}  # fmt: skip
_EVENTS = {"run_id": "text", "at": "bigint", "kind": "text", "actor": "text", "data": "text"}
_CONSUMED = {"run_id": "text", "upto": "bigint"}


#: A run never changes its parent, so that parents can be read before their rows are locked.
LOCK = f"""
SELECT {", ".join("r." + column for column in COLUMNS.split(", "))}
FROM (
  SELECT unnest($1::text[]) AS id
  UNION
  SELECT parent_id FROM perdure_runs WHERE id = ANY ($2::text[]) AND parent_id IS NOT NULL
) wanted
JOIN perdure_runs r ON r.id = wanted.id{{fence}}
ORDER BY r.id
FOR NO KEY UPDATE OF r SKIP LOCKED
"""

#: The same for writes that need no lease.
_LOCK_ANYWHERE = LOCK.replace("{fence}", "")

_THERE = "SELECT id FROM perdure_runs WHERE id = ANY ($1::text[])"

_WRITTEN = f"""
SELECT {", ".join("h." + column for column in HISTORY)}
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS given (run_id, first, last)
JOIN perdure_history h ON h.run_id = given.run_id AND h.seq BETWEEN given.first AND given.last
"""

_KNOWN = """
SELECT m.run_id, m.message_key
FROM unnest($1::text[], $2::text[]) AS given (run_id, message_key)
JOIN perdure_messages m ON m.run_id = given.run_id AND m.message_key = given.message_key
"""

_TO_BE_STOPPED = """
SELECT m.run_id
FROM unnest($1::text[], $2::bigint[]) AS given (run_id, read)
JOIN perdure_messages m ON m.run_id = given.run_id AND m.seq > given.read AND m.kind = 'cancel'
"""

_CHILDREN = f"{NEW_RUNS} ON CONFLICT DO NOTHING RETURNING id"

_AT = [1, 1 + len(HISTORY)]
for _columns in (_MESSAGES, _CONSUMED, _EVENTS):
    _AT.append(_AT[-1] + len(_columns))

#: Writes everything, each row once, because the parts of a statement do not see each other's effects.
WRITE = f"""
WITH records AS (
  INSERT INTO perdure_history ({", ".join(HISTORY)}) SELECT * FROM {unnest_arrays(HISTORY, _AT[0])}
), entries AS (
  INSERT INTO perdure_messages ({", ".join(_MESSAGES)}) SELECT * FROM {unnest_arrays(_MESSAGES, _AT[1])}
), taken_in AS (
  UPDATE perdure_messages m
  SET consumed = 1, payload = NULL
  FROM {unnest_arrays(_CONSUMED, _AT[2])}
  WHERE m.run_id = given.run_id AND m.seq <= given.upto AND m.consumed = 0
), noted AS (
  INSERT INTO perdure_events ({", ".join(_EVENTS)}) SELECT * FROM {unnest_arrays(_EVENTS, _AT[3])}
)
UPDATE perdure_runs r
SET status = given.status, reason = given.reason, token = given.token, wake_at = given.wake_at,
    inbox_seq = given.inbox_seq, inbox_read = given.inbox_read, marked = given.marked, attempt = given.attempt,
    started_at = given.started_at, finished_at = given.finished_at,
    worker = CASE WHEN given.let_go THEN NULL ELSE r.worker END,
    claims = CASE WHEN given.let_go THEN 0 ELSE r.claims END,
    home = CASE WHEN given.moves THEN given.home ELSE r.home END,
    output = CASE WHEN given.sets_output THEN given.output ELSE r.output END,
    error = CASE WHEN given.sets_error THEN given.error ELSE r.error END,
    waits = CASE WHEN given.sets_waits THEN given.waits ELSE r.waits END
FROM {unnest_arrays(_RUNS, _AT[4])}
WHERE r.id = given.id
"""


async def commit(tx: PostgresTransaction, turns: Sequence[Turn], *, doubtful: bool) -> list[TurnOutcome]:
    """Write the turns; return one outcome each. Raises `RecordsExist`, unless that was expected."""
    verdicts = [TurnOutcome.APPLIED] * len(turns)
    busy: set[str] = set()
    try:
        for batch in split_by_run(turns):
            await _PostgresBatch(tx, turns, batch, verdicts, busy, doubtful=doubtful).commit()
    except AlreadyThere as error:
        if doubtful:
            raise
        raise RecordsExist from error
    return verdicts


async def deliver(tx: PostgresTransaction, messages: Sequence[NewMessage]) -> list[SendOutcome]:
    """Deliver messages to the inboxes of runs whose rows are locked."""
    return await _PostgresBatch(tx, [], [], [], set(), doubtful=False).deliver(messages)


class _PostgresBatch(CommitBatch[PostgresTransaction]):
    """A batch of turns of different runs."""

    async def _locked(self, touched: list[str], children: list[str]) -> Sequence[Row]:
        rows = await self._tx.run(LOCK if self._batch else _LOCK_ANYWHERE, touched, children)
        self._tx.locked()
        return rows

    async def _there(self, run_ids: list[str]) -> set[str]:
        return {row[0] for row in await self._tx.run(_THERE, run_ids)}

    async def _written(self, turns: Sequence[Turn]) -> Written:
        found: Written = {}
        spans = [(turn.lease.run_id, turn.records[0].seq, turn.records[-1].seq) for turn in turns]
        for row in await self._tx.run(_WRITTEN, *to_arrays(spans, 3)):
            found.setdefault(row[0], {})[row[1]] = row
        return found

    async def _known(self, keys: list[tuple[str, str]]) -> set[tuple[str, str]]:
        return {(row[0], row[1]) for row in await self._tx.run(_KNOWN, *to_arrays(keys, 2))}

    async def _made(self, new: list[NewRun]) -> set[str]:
        return {row[0] for row in await self._tx.run(_CHILDREN, *arrays_of(new, self._tx.now))}

    async def _to_be_stopped(self, read: dict[str, int]) -> set[str]:
        return {row[0] for row in await self._tx.run(_TO_BE_STOPPED, *to_arrays(list(read.items()), 2))}

    async def _write(self, effects: BatchEffects) -> None:
        notes = self._tx.take_notes()
        drafts = [draft for draft in effects.drafts.values() if draft.touched]
        if not (self._rows or effects.messages or effects.consumed or notes[0] or drafts):
            return
        await self._tx.run(
            WRITE,
            *to_arrays(self._rows, len(HISTORY)),
            *to_arrays(effects.messages, len(_MESSAGES)),
            *to_arrays(effects.consumed, len(_CONSUMED)),
            *notes,
            *([getattr(draft, column) for draft in drafts] for column in _RUNS),
        )


# Looking up an enum member through its class is slow, and these are needed for every step or run.
_STEP, _COMPLETED = RecordKind.STEP, Status.COMPLETED
_RECORD_FIELDS = Record.__struct_fields__

_LEASE = {"run_id": "text", "token": "bigint", "nonce": "text"}
#: `becomes` is the status of the run after the turn; `outcome` is what a run that parks waits for.
_STATE = {
    "becomes": "text", "outcome": "text", "wake_at": "bigint", "reason": "text", "seen": "bigint", "read": "bigint",
}  # fmt: skip
#: What is sent of the state of a run that completes.
_OUTCOME = {"outcome": "text"}
#: The data of the audit event; NULL: no event is written.
_SAID = {"said": "text"}
_SUCCESS = {
    "seq": "bigint", "location": "text", "payload": "text", "at": "bigint", "started_at": "bigint", "digest": "text",
}  # fmt: skip
_REST = {
    "kind": "text", "failed": "smallint", "attempts": "bigint", "retry_at": "bigint", "inbox_seq": "bigint",
    "run_attempt": "bigint",
}  # fmt: skip
_REST_OF_SUCCESS = {
    "kind": "'step'", "failed": "0", "attempts": "1", "retry_at": "0", "inbox_seq": "0", "run_attempt": "1",
}  # fmt: skip


class BatchShape(NamedTuple):
    """The properties of a batch of turns that select its statement."""

    #: No turn finishes, parks or has read a message.
    goes_on: bool
    #: Every record is of a step that succeeded at its first attempt.
    succeeds: bool
    #: Each turn has exactly one record.
    single: bool
    #: `noted`: audit events are written. `said`: they have data besides the new status.
    noted: bool
    said: bool
    #: Every turn completes its run and has read no message.
    completes: bool

    @property
    def turn(self) -> Mapping[str, str]:
        """The columns that are sent for each turn."""
        state = {} if self.goes_on else _OUTCOME if self.completes else _STATE | _SAID if self.said else _STATE
        return {**_LEASE, **state, **(self.record if self.single else {})}

    @property
    def record(self) -> Mapping[str, str]:
        """The columns that are sent for each record."""
        return _SUCCESS if self.succeeds else _SUCCESS | _REST


#: Holds for a locked row whose lease is that of the turn. The first comparison is always true, but makes the planner
#: expect one row and use an index; the second hides that all rows are running, so that it is the index of ids. No lock
#: is waited for, so that rows may be locked in any order. Behind a pooler, `{fence}` is true on the expected server
#: only.
_HOLDS = """given.run_id = given.run_id || '' AND r.status || '' = 'running' AND r.token = given.token
    AND r.nonce = given.nonce{fence}"""

#: Insert one record of one run, whose row is locked and checked but not written. The condition is checked on the row
#: as it was locked.
ONE_RECORD = f"""
INSERT INTO perdure_history ({", ".join(HISTORY)})
SELECT {", ".join(f"${place}::{kind}" for place, kind in enumerate(HISTORY.values(), 1))}
FROM perdure_runs
WHERE id = $1 AND status = 'running' AND token = $3 AND nonce = ${len(HISTORY) + 1}{{fence}}
FOR NO KEY UPDATE SKIP LOCKED
"""


def _one_record_each(shape: BatchShape) -> str:
    """Return the statement that inserts one record for each of many runs, as `ONE_RECORD` does for one."""
    sources = _sources(shape, "given") | {"run_id": "given.run_id", "token": "given.token"}
    return f"""
INSERT INTO perdure_history ({", ".join(HISTORY)})
SELECT {", ".join(sources[name] for name in HISTORY)}
FROM {unnest_texts(shape.turn, 1)}
JOIN perdure_runs r ON r.id = given.run_id
WHERE {_HOLDS}
FOR NO KEY UPDATE OF r SKIP LOCKED
"""


def _general_statement(shape: BatchShape) -> str:
    """Return the statement for a shape.

    Its first parameter is the number of turns. Its result is empty if all of them were written, else the places of
    those that were.
    """
    return f"""
WITH live AS MATERIALIZED (
  SELECT given.*, r.deadline
  FROM {unnest_texts(shape.turn, 2, "place")}
  JOIN perdure_runs r ON r.id = given.run_id
  WHERE {_HOLDS}{_allowed(shape)}
  FOR NO KEY UPDATE OF r SKIP LOCKED
), written AS ({_records(shape)}
){_states(shape)}
SELECT string_agg(place::text, ' ') FROM live HAVING COUNT(*) <> $1
"""


def _records(shape: BatchShape) -> str:
    sources = _sources(shape, "live" if shape.single else "record") | {"run_id": "live.run_id", "token": "live.token"}
    several = unnest_texts({"turn": "bigint", **shape.record}, 2 + len(shape.turn), name="record")
    return f"""
  INSERT INTO perdure_history ({", ".join(HISTORY)})
  SELECT {", ".join(sources[name] for name in HISTORY)}
  FROM live{"" if shape.single else f" JOIN {several} ON record.turn = live.place"}"""


def _sources(shape: BatchShape, row: str) -> dict[str, str]:
    """Return the SQL expression for each column of a record. An empty text has arrived as NULL."""
    sources = _REST_OF_SUCCESS | {name: f"{row}.{name}" for name in shape.record}
    return sources | {name: f"COALESCE({sources[name]}, '')" for name in ("location", "digest")}


#: Holds for a run whose end is to be told to no other run.
_ALONE = "r.parent_id IS NULL AND r.watched = 0"


def _allowed(shape: BatchShape) -> str:
    if shape.goes_on:
        return ""
    if shape.completes:
        return f"\n    AND {_ALONE}"
    return f"""
    AND CASE given.becomes
      WHEN 'running' THEN TRUE WHEN 'waiting' THEN r.inbox_seq = given.seen ELSE {_ALONE}
    END"""


def _states(shape: BatchShape) -> str:
    if shape.goes_on:
        return ""
    first = 2 + len(shape.turn) + (0 if shape.single else 1 + len(shape.record))
    now, actor = f"${first}::bigint", f"${first + 1}::text"
    if shape.completes:
        return _completions(shape, now, actor)
    noted = f"""
), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT run_id, {now}, CASE WHEN parks THEN 'parked' ELSE becomes END, {actor}, {"said" if shape.said else "'{}'"}
  FROM changing WHERE {"said IS NOT NULL" if shape.said else "ends"}"""
    return f""", taken_in AS (
  UPDATE perdure_messages m
  SET consumed = 1, payload = NULL
  FROM live
  WHERE live.read > 0 AND m.run_id = live.run_id AND m.seq <= live.read AND m.consumed = 0
), changing AS MATERIALIZED (
  SELECT run_id, becomes, outcome, reason, read{", said" if shape.said else ""}, LEAST(wake_at, deadline) AS due,
    becomes = 'running' AS stays, becomes = 'waiting' AS parks, becomes NOT IN ('running', 'waiting') AS ends
  FROM live
  WHERE becomes <> 'running' OR read > 0
), changed AS (
  UPDATE perdure_runs r
  SET status = CASE WHEN parks AND due <= {now} THEN 'pending' ELSE becomes END,
      reason = CASE WHEN stays THEN r.reason WHEN parks AND due > {now} THEN changing.reason END,
      wake_at = CASE WHEN parks THEN due ELSE r.wake_at END,
      output = CASE WHEN NOT ends THEN r.output WHEN becomes = 'completed' THEN outcome END,
      error = CASE WHEN NOT ends THEN r.error WHEN becomes <> 'completed' THEN outcome END,
      waits = CASE WHEN parks THEN outcome WHEN stays THEN r.waits END,
      finished_at = CASE WHEN ends THEN {now} ELSE r.finished_at END,
      worker = CASE WHEN stays THEN r.worker END,
      claims = CASE WHEN stays THEN r.claims ELSE 0 END,
      marked = CASE WHEN stays AND r.inbox_seq > read THEN 1 ELSE 0 END,
      inbox_read = GREATEST(r.inbox_read, read)
  FROM changing
  WHERE r.id = changing.run_id{noted if shape.noted else ""}
)"""


def _completions(shape: BatchShape, now: str, actor: str) -> str:
    """Return the rest of the statement for a batch that only completes runs, the most frequent of those with states."""
    noted = f"""
), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT run_id, {now}, 'completed', {actor}, '{{}}' FROM live"""
    return f""", changed AS (
  UPDATE perdure_runs r
  SET status = 'completed', reason = NULL, output = live.outcome, error = NULL, waits = NULL, finished_at = {now},
      worker = NULL, claims = 0, marked = 0
  FROM live
  WHERE r.id = live.run_id{noted if shape.noted else ""}
)"""


STATEMENTS = {
    shape: _one_record_each(shape) if shape.goes_on and shape.single else _general_statement(shape)
    for shape in (BatchShape(*flags) for flags in product((False, True), repeat=6))
    if shape.noted >= shape.said and not (shape.goes_on and (shape.noted or shape.completes))
    if not (shape.completes and shape.said)
}


def is_simple(turns: Sequence[Turn]) -> bool:
    """Tell whether one statement can write these turns."""
    kinds: set[type[object]] = set()
    for turn in turns:
        if type(turn) is StepTurn:
            continue
        if turn.children or turn.sends or turn.outputs or turn.trim or turn.subscribes or turn.unsubscribes:
            return False
        # These write more than one audit event.
        if turn.notes or (type(turn.next) is Finish and turn.next.timeout):
            return False
        kinds.add(type(turn.next))
    kinds.discard(type(None))
    # A run that parks has to see outcomes of its children in the same batch, which one statement cannot do.
    if len(kinds) > 1 or not kinds <= {Finish, Park}:
        return False
    return 0 < len(turns) == len({turn.lease.run_id for turn in turns})


def only_append(turns: Sequence[Turn]) -> bool:
    """Tell whether no turn finishes, parks or has read a message, so that only records are written."""
    return all(type(turn) is StepTurn or (turn.next is None and not turn.read) for turn in turns)


async def append_records(connection: PostgresConnection, statements: StatementCache, turns: Sequence[Turn]) -> set[str]:
    """Write turns that have records only; return the ids of the runs that were left out.

    There is no transaction around it, because no audit event and no notification goes with it.
    """
    if len(turns) == 1 and len(turns[0].records) == 1:
        [turn] = turns
        status = await connection.execute(
            statements.plain(ONE_RECORD), *record_row(turn, turn.records[0]), turn.lease.nonce
        )
        return set() if rows_of(status) else {turn.lease.run_id}
    try:
        shape, columns = _columns_of(turns, None, goes_on=True)
    except Unjoinable:
        return {turn.lease.run_id for turn in turns}
    if shape.single:
        # The transaction in `commit` finds out which of them were not written.
        status = await connection.execute(statements.plain(STATEMENTS[shape]), *columns)
        return set() if rows_of(status) == len(turns) else {turn.lease.run_id for turn in turns}
    answer = await connection.fetch(statements.plain(STATEMENTS[shape]), len(turns), *columns)
    return _left_out(turns, answer[0][0]) if answer else set()


async def commit_simply(tx: PostgresTransaction, turns: Sequence[Turn]) -> set[str]:
    """Write the turns that can be written; return the ids of the runs that were left out.

    Raises `AlreadyThere` and writes nothing if a record exists.
    """
    try:
        shape, columns = _columns_of(turns, _said(tx, turns), goes_on=False)
    except Unjoinable:
        return {turn.lease.run_id for turn in turns}
    columns += [tx.now, tx.actor] if shape.noted else [tx.now]
    answer = await tx.run(STATEMENTS[shape], len(turns), *columns)
    left_out = _left_out(turns, answer[0][0]) if answer else set[str]()
    _announce(tx, [turn for turn in turns if turn.lease.run_id not in left_out] if left_out else turns)
    return left_out


def _announce(tx: PostgresTransaction, written: Sequence[Turn]) -> None:
    """Announce the turns that were written, after the commit."""
    states = [turn.next for turn in written if turn.next is not None]
    if tx.observed is not None:
        for turn in written:
            if turn.next is not None and (tx.repeats or not isinstance(turn.next, Park)):
                tx.observe(turn.lease.run_id, *_event(turn.next))
    # A batch has either outcomes or parks, never both.
    if states and type(states[0]) is Finish:
        tx.notify(Change.FINISHED)
    elif any(isinstance(after, Park) and after.wake_at <= tx.now for after in states):
        tx.notify(Change.READY)


def _left_out(turns: Sequence[Turn], places: str | None) -> set[str]:
    written = {int(place) for place in places.split(" ")} if places else set[int]()
    return {turn.lease.run_id for place, turn in enumerate(turns, 1) if place not in written}


def _said(tx: PostgresTransaction, turns: Sequence[Turn]) -> list[str | None] | None:
    """Return the data of the audit event of each turn; empty if no event has data, None if there are no events."""
    # A batch has either outcomes or parks, never both.
    first = next((turn.next for turn in turns if turn.next is not None), None)
    if first is None or not tx.audit.writes(_event(first)[0]):
        return None
    if type(first) is Finish:
        outcomes = [turn.next.status for turn in turns if type(turn.next) is Finish]
        if outcomes.count(_COMPLETED) == len(outcomes):
            return []
    return [None if turn.next is None else _event(turn.next)[1] for turn in turns]


def _event(after: NextState) -> tuple[str, str]:
    if isinstance(after, Park):
        return park_event(after)
    assert isinstance(after, Finish)
    return finish_event(after)


def _columns_of(
    turns: Sequence[Turn], said: Sequence[str | None] | None, *, goes_on: bool
) -> tuple[BatchShape, list[object]]:
    """Return the shape of a batch and all of its parameters but the first and the last."""
    run_ids, tokens, nonces = zip(*[astuple(turn.lease) for turn in turns], strict=True)
    written = [turn.records for turn in turns]
    records = list(chain.from_iterable(written))
    single = len(records) == len(turns) and all(written)
    columns: list[object] = [join_texts(run_ids), join_numbers(tokens), join_texts(nonces)]
    completes = not (goes_on or said) and _only_complete(turns)
    if completes:
        columns.append(join_texts([turn.next.payload for turn in turns if type(turn.next) is Finish]))
    elif not goes_on:
        becomes, outcomes, times, reasons, seen = zip(*[_state(turn.next) for turn in turns], strict=True)
        columns += [
            join_texts(becomes),
            join_texts(outcomes),
            join_numbers(times),
            join_texts(reasons),
            join_numbers(seen),
        ]
        columns.append(join_numbers([turn.read for turn in turns]))
    if said:
        columns.append(join_texts(said))
    if not single:
        columns.append(join_numbers([place for place, turn in enumerate(turns, 1) for _ in turn.records]))
    succeeds, columns_of_records = _columns_of_records(records)
    columns += columns_of_records
    return BatchShape(goes_on, succeeds, single, said is not None, bool(said), completes), columns


def _only_complete(turns: Sequence[Turn]) -> bool:
    return all(type(turn.next) is Finish and turn.next.status is _COMPLETED and not turn.read for turn in turns)


def _columns_of_records(records: Sequence[Record]) -> tuple[bool, list[object]]:
    """Return whether every record is of a step that succeeded at its first attempt, and the columns of the records."""
    # By columns and not by records: each step passes here, and functions of C look at all of a column at once.
    seq, kind, location, payload, failed, at, started_at, digest, attempts, retry_at, inbox_seq, run_attempt = (
        zip(*map(astuple, records), strict=True) if records else [()] * len(_RECORD_FIELDS)
    )
    count = len(records)
    succeeds = kind.count(_STEP) == attempts.count(1) == run_attempt.count(1) == count and not (
        any(failed) or any(retry_at) or any(inbox_seq)
    )
    columns: list[object] = [
        join_numbers(seq),
        join_texts(location),
        join_texts(payload),
        join_numbers(at),
        join_numbers(started_at),
        join_texts(digest),
    ]
    if not succeeds:
        columns += [
            join_texts(kind),
            join_numbers(map(int, failed)),
            join_numbers(attempts),
            join_numbers(retry_at),
            join_numbers(inbox_seq),
            join_numbers(run_attempt),
        ]
    return succeeds, columns


def _state(after: NextState | None) -> tuple[str, str | None, int, str | None, int]:
    if type(after) is Finish:
        return after.status, after.payload, 0, None, 0
    if type(after) is Park:
        return "waiting", after.waits, after.wake_at, after.reason, after.seen
    return "running", None, 0, None, 0
