"""Commit turns that touch no other run on PostgreSQL, in one statement: records, reads, and an outcome or a park.

The statement locks the rows that are free, checks their leases and writes the turns whose lease holds. It leaves out a
turn whose row is busy or lost, whose run got a message before it could park, or whose run has a parent to tell; the
transaction in `commit` handles those. There is one statement for each shape of a batch, so that columns with the same
value in every row are not sent and unused parts do not run: for small batches the fixed cost of a statement exceeds the
cost of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import Status
from perdure.core.model.turn import Finish, NextState, Park, Turn
from perdure.store.contract import Change
from perdure.store.postgres.columns import HISTORY, Unjoinable, join_numbers, join_texts, unnest_texts
from perdure.store.postgres.driver import PostgresConnection
from perdure.store.postgres.transaction import PostgresTransaction, StatementCache, rows_of
from perdure.store.sql.audit import finish_event, park_event
from perdure.store.sql.turn import record_row

# Looking up an enum member through its class is slow, and these are needed for every step or run.
_STEP, _COMPLETED = RecordKind.STEP, Status.COMPLETED

_LEASE = {"run_id": "text", "token": "bigint", "nonce": "text"}
#: `becomes` is the status of the run after the turn; `outcome` is what a run that parks waits for.
_STATE = {
    "becomes": "text", "outcome": "text", "wake_at": "bigint", "reason": "text", "seen": "bigint", "read": "bigint",
}  # fmt: skip
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

    @property
    def turn(self) -> Mapping[str, str]:
        """The columns that are sent for each turn."""
        state = {} if self.goes_on else _STATE | _SAID if self.said else _STATE
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


def _allowed(shape: BatchShape) -> str:
    return (
        ""
        if shape.goes_on
        else """
    AND CASE given.becomes
      WHEN 'running' THEN TRUE WHEN 'waiting' THEN r.inbox_seq = given.seen ELSE r.parent_id IS NULL
    END"""
    )


def _states(shape: BatchShape) -> str:
    if shape.goes_on:
        return ""
    first = 2 + len(shape.turn) + (0 if shape.single else 1 + len(shape.record))
    now, actor = f"${first}::bigint", f"${first + 1}::text"
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


STATEMENTS = {
    shape: _one_record_each(shape) if shape.goes_on and shape.single else _general_statement(shape)
    for shape in (BatchShape(*flags) for flags in product((False, True), repeat=5))
    if shape.noted >= shape.said and not (shape.goes_on and shape.noted)
}


def is_simple(turns: Sequence[Turn]) -> bool:
    """Tell whether one statement can write these turns."""
    kinds: set[type[object]] = set()
    for turn in turns:
        if turn.children or turn.sends or turn.outputs or turn.trim or turn.subscribes or turn.unsubscribes:
            return False
        # A timeout writes more than one audit event.
        if type(turn.next) is Finish and turn.next.timeout:
            return False
        kinds.add(type(turn.next))
    kinds.discard(type(None))
    # A run that parks has to see outcomes of its children in the same batch, which one statement cannot do.
    if len(kinds) > 1 or not kinds <= {Finish, Park}:
        return False
    return 0 < len(turns) == len({turn.lease.run_id for turn in turns})


def only_append(turns: Sequence[Turn]) -> bool:
    """Tell whether no turn finishes, parks or has read a message, so that only records are written."""
    return all(turn.next is None and not turn.read for turn in turns)


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
    for turn in turns:
        if turn.next is None or turn.lease.run_id in left_out:
            continue
        if tx.observed is not None and (tx.repeats or not isinstance(turn.next, Park)):
            tx.observe(turn.lease.run_id, *_event(turn.next))
        if isinstance(turn.next, Finish):
            tx.notify(Change.FINISHED)
        elif isinstance(turn.next, Park) and turn.next.wake_at <= tx.now:
            tx.notify(Change.READY)
    return left_out


def _left_out(turns: Sequence[Turn], places: str | None) -> set[str]:
    written = {int(place) for place in places.split(" ")} if places else set[int]()
    return {turn.lease.run_id for place, turn in enumerate(turns, 1) if place not in written}


def _said(tx: PostgresTransaction, turns: Sequence[Turn]) -> list[str | None] | None:
    """Return the data of the audit event of each turn; empty if no event has data, None if there are no events."""
    # A batch has either outcomes or parks, never both.
    first = next((turn.next for turn in turns if turn.next is not None), None)
    if first is None or not tx.audit.writes(_event(first)[0]):
        return None
    if all(turn.next is None or (type(turn.next) is Finish and turn.next.status is _COMPLETED) for turn in turns):
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
    leases = [turn.lease for turn in turns]
    records = [record for turn in turns for record in turn.records]
    succeeds = all(map(_succeeds, records))
    single = len(records) == len(turns) and all(turn.records for turn in turns)
    columns: list[object] = [
        join_texts([lease.run_id for lease in leases]),
        join_numbers([lease.token for lease in leases]),
        join_texts([lease.nonce for lease in leases]),
    ]
    if not goes_on:
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
    columns += _columns_of_records(records, succeeds=succeeds)
    return BatchShape(goes_on, succeeds, single, said is not None, bool(said)), columns


def _columns_of_records(records: Sequence[Record], *, succeeds: bool) -> list[object]:
    columns: list[object] = [
        join_numbers([record.seq for record in records]),
        join_texts([record.location for record in records]),
        join_texts([record.payload for record in records]),
        join_numbers([record.at for record in records]),
        join_numbers([record.started_at for record in records]),
        join_texts([record.digest for record in records]),
    ]
    if not succeeds:
        columns += [
            join_texts([record.kind for record in records]),
            join_numbers([int(record.failed) for record in records]),
            join_numbers([record.attempts for record in records]),
            join_numbers([record.retry_at for record in records]),
            join_numbers([record.inbox_seq for record in records]),
            join_numbers([record.run_attempt for record in records]),
        ]
    return columns


def _succeeds(record: Record) -> bool:
    return (
        record.kind is _STEP
        and record.attempts == 1
        and record.run_attempt == 1
        and not (record.failed or record.retry_at or record.inbox_seq)
    )


def _state(after: NextState | None) -> tuple[str, str | None, int, str | None, int]:
    match after:
        case Finish(status=status, payload=payload):
            return status.value, payload, 0, None, 0
        case Park(wake_at=wake_at, reason=reason, seen=seen, waits=waits):
            return "waiting", waits, wake_at, reason.value, seen
        case _:
            return "running", None, 0, None, 0
