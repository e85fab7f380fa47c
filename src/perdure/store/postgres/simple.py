"""Turns that reach nobody else: records, what was read, and an outcome or a wait, all in one statement.

It locks the rows that are free, sees for whom the lease holds, writes for those and names the others. A turn that it does not
write for (its row is busy or lost, something came in before it could park, or it has a parent to be told) is left to the
transaction that can do everything. What is the same in every record of the batch does not travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.core.model import Finish, Kind, Next, Park, Record, Turn
from perdure.store.postgres.history import HISTORY
from perdure.store.postgres.joined import Unjoinable, given, numbers, split, texts
from perdure.store.postgres.transaction import PostgresTransaction
from perdure.store.protocol import Change
from perdure.store.turns import record_row

# A member of an enum is slow to find by its class; this one is looked at for every step.
_STEP = Kind.STEP

_LEASE = {"run_id": "text", "token": "bigint", "nonce": "text"}
#: `status` is what the run becomes, if it can.
_TURN = {
    **_LEASE, "status": "text", "payload": "text", "wake_at": "bigint", "reason": "text", "seen": "bigint", "read": "bigint",
}  # fmt: skip
#: What tells one step that succeeded at once from another. `turn` is the place of its turn.
_STEPS = {
    "turn": "bigint", "seq": "bigint", "location": "text", "payload": "text", "at": "bigint", "started_at": "bigint",
    "digest": "text",
}  # fmt: skip
_OF_ANY_KIND = {
    **_STEPS, "kind": "text", "failed": "smallint", "attempts": "bigint", "retry_at": "bigint", "inbox_seq": "bigint",
    "run_attempt": "bigint",
}  # fmt: skip
_OF_EVERY_STEP = {
    "kind": "'step'", "failed": "0", "attempts": "1", "retry_at": "0", "inbox_seq": "0", "run_attempt": "1",
}  # fmt: skip

_OF_ALL = {
    "run_id": "live.run_id", "token": "live.token", "location": "COALESCE(given.location, '')",
    "digest": "COALESCE(given.digest, '')",
}  # fmt: skip

_LOCKED = f"""
locked AS MATERIALIZED (
  SELECT id, token, nonce, status, inbox_seq, parent_id, deadline
  FROM perdure_runs
  WHERE id = ANY ({split(1, "text")})
  ORDER BY id
  FOR NO KEY UPDATE SKIP LOCKED
)"""

_HOLDS = "locked.id = given.run_id AND locked.token = given.token AND locked.nonce = given.nonce"

#: The runs of the turns that were not written.
_LEFT_OUT = f"SELECT run_id FROM {given({'run_id': 'text'}, 1)} WHERE run_id NOT IN (SELECT run_id FROM live)"

#: One record of one run, whose row is locked and looked at, but not written.
ONE_RECORD = f"""
WITH locked AS MATERIALIZED (
  SELECT token, nonce, status FROM perdure_runs WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED
)
INSERT INTO perdure_history ({", ".join(HISTORY)})
SELECT {", ".join(f"${place}::{kind}" for place, kind in enumerate(HISTORY.values(), 1))}
FROM locked
WHERE locked.status = 'running' AND locked.token = $3 AND locked.nonce = ${len(HISTORY) + 1}
"""


def _records(columns: Mapping[str, str], first: int) -> str:
    """The records of the turns that may be written, given as arrays."""
    sources = _OF_EVERY_STEP | {name: f"given.{name}" for name in columns} | _OF_ALL
    return f"""
  INSERT INTO perdure_history ({", ".join(HISTORY)})
  SELECT {", ".join(sources[name] for name in HISTORY)}
  FROM {given(columns, first)}
  JOIN live ON live.place = given.turn"""


def _only_records(columns: Mapping[str, str]) -> str:
    return f"""
WITH {_LOCKED}, live AS MATERIALIZED (
  SELECT given.run_id, given.token, given.place
  FROM {given(_LEASE, 1, "place")}
  JOIN locked ON {_HOLDS}
  WHERE locked.status = 'running'
), written AS ({_records(columns, 1 + len(_LEASE))}
)
{_LEFT_OUT}"""


def _with_states(columns: Mapping[str, str]) -> str:
    now = f"${1 + len(_TURN) + len(columns)}::bigint"
    actor = f"${2 + len(_TURN) + len(columns)}::text"
    return f"""
WITH {_LOCKED}, live AS MATERIALIZED (
  SELECT given.*, LEAST(given.wake_at, locked.deadline) AS due,
    given.status NOT IN ('running', 'waiting') AS ends, given.status = 'waiting' AS parks
  FROM {given(_TURN, 1, "place")}
  JOIN locked ON {_HOLDS}
  WHERE locked.status = 'running'
    AND CASE given.status WHEN 'running' THEN TRUE WHEN 'waiting' THEN locked.inbox_seq = given.seen ELSE locked.parent_id IS NULL END
), written AS ({_records(columns, 1 + len(_TURN))}
), taken_in AS (
  UPDATE perdure_messages m
  SET consumed = 1, payload = NULL
  FROM live
  WHERE live.read > 0 AND m.run_id = live.run_id AND m.seq <= live.read AND m.consumed = 0
), changed AS (
  UPDATE perdure_runs r
  SET status = CASE
        WHEN live.ends THEN live.status
        WHEN live.parks THEN CASE WHEN live.due <= {now} THEN 'pending' ELSE 'waiting' END
        ELSE r.status
      END,
      reason = CASE
        WHEN live.parks THEN CASE WHEN live.due > {now} THEN live.reason END
        WHEN NOT live.ends THEN r.reason
      END,
      wake_at = CASE WHEN live.parks THEN live.due ELSE r.wake_at END,
      output = CASE WHEN NOT live.ends THEN r.output WHEN live.status = 'completed' THEN live.payload END,
      error = CASE WHEN NOT live.ends THEN r.error WHEN live.status <> 'completed' THEN live.payload END,
      finished_at = CASE WHEN live.ends THEN {now} ELSE r.finished_at END,
      worker = CASE WHEN live.status = 'running' THEN r.worker END,
      claims = CASE WHEN live.status = 'running' THEN r.claims ELSE 0 END,
      marked = CASE WHEN live.status = 'running' AND r.inbox_seq > live.read THEN 1 ELSE 0 END,
      inbox_read = GREATEST(r.inbox_read, live.read)
  FROM live
  WHERE r.id = live.run_id AND (live.status <> 'running' OR live.read > 0)
), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT run_id, {now}, status, {actor}, '{{}}' FROM live WHERE ends
)
{_LEFT_OUT}"""


#: Whether all records are steps that succeeded at once -> the statement.
RECORDS = {True: _only_records(_STEPS), False: _only_records(_OF_ANY_KIND)}
TURNS = {True: _with_states(_STEPS), False: _with_states(_OF_ANY_KIND)}


def is_simple(turns: Sequence[Turn]) -> bool:
    """Whether one statement can write them."""
    if not turns:
        return False
    kinds: set[type[object]] = set()
    for turn in turns:
        if turn.children or turn.sends:
            return False
        kinds.add(type(turn.next))
    kinds.discard(type(None))
    # A run that parks has to see the outcomes of its children in the same batch, which this statement leaves alone.
    if len(kinds) > 1 or not kinds <= {Finish, Park}:
        return False
    return len({turn.lease.run_id for turn in turns}) == len(turns)


async def commit_simply(tx: PostgresTransaction, turns: Sequence[Turn]) -> set[str]:
    """Write what can be written; for which runs it was not. Raises `AlreadyThere`, and writes nothing, if a record is there."""
    try:
        if all(turn.next is None and not turn.read for turn in turns):
            return await _commit_records(tx, turns)
        steps, records = _records_of(turns)
        arguments = *_leases_of(turns), *_states_of(turns), *records, tx.now, tx.actor
    except Unjoinable:
        return {turn.lease.run_id for turn in turns}
    left_out = {row[0] for row in await tx.run(TURNS[steps], *arguments)}
    for turn in turns:
        if turn.next is None or turn.lease.run_id in left_out:
            continue
        if isinstance(turn.next, Finish):
            tx.stir(Change.FINISHED)
        elif isinstance(turn.next, Park) and turn.next.wake_at <= tx.now:
            tx.stir(Change.READY)
    return left_out


async def _commit_records(tx: PostgresTransaction, turns: Sequence[Turn]) -> set[str]:
    if len(turns) == 1 and len(turns[0].records) == 1:
        [turn] = turns
        written = await tx.count(ONE_RECORD, *record_row(turn, turn.records[0]), turn.lease.nonce)
        return set() if written else {turn.lease.run_id}
    steps, records = _records_of(turns)
    return {row[0] for row in await tx.run(RECORDS[steps], *_leases_of(turns), *records)}


def _leases_of(turns: Sequence[Turn]) -> tuple[str, str, str]:
    """The columns of `_LEASE`."""
    leases = [turn.lease for turn in turns]
    return (
        texts([lease.run_id for lease in leases]),
        numbers([lease.token for lease in leases]),
        texts([lease.nonce for lease in leases]),
    )


def _states_of(turns: Sequence[Turn]) -> tuple[str, ...]:
    """The columns of `_TURN` after those of `_LEASE`."""
    statuses, payloads, times, reasons, seen = zip(*[_state(turn.next) for turn in turns], strict=True)
    return (
        texts(statuses), texts(payloads), numbers(times), texts(reasons), numbers(seen),
        numbers([turn.read for turn in turns]),
    )  # fmt: skip


def _state(after: Next | None) -> tuple[str, str | None, int, str | None, int]:
    match after:
        case Finish(status=status, payload=payload):
            return status.value, payload, 0, None, 0
        case Park(wake_at=wake_at, reason=reason, seen=seen):
            return "waiting", None, wake_at, reason.value, seen
        case _:
            return "running", None, 0, None, 0


def _records_of(turns: Sequence[Turn]) -> tuple[bool, list[str]]:
    """Whether all are steps that succeeded at once; the columns of `_STEPS`, or of any kind."""
    places: list[int] = []
    records: list[Record] = []
    for place, turn in enumerate(turns, 1):
        for record in turn.records:
            places.append(place)
            records.append(record)
    columns = [
        numbers(places),
        numbers([record.seq for record in records]),
        texts([record.location for record in records]),
        texts([record.payload for record in records]),
        numbers([record.at for record in records]),
        numbers([record.started_at for record in records]),
        texts([record.digest for record in records]),
    ]
    if all(map(_succeeded_at_once, records)):
        return True, columns
    columns += [
        texts([record.kind for record in records]),
        numbers([int(record.failed) for record in records]),
        numbers([record.attempts for record in records]),
        numbers([record.retry_at for record in records]),
        numbers([record.inbox_seq for record in records]),
        numbers([record.run_attempt for record in records]),
    ]
    return False, columns


def _succeeded_at_once(record: Record) -> bool:
    return (
        record.kind is _STEP
        and record.attempts == 1
        and record.run_attempt == 1
        and not (record.failed or record.retry_at or record.inbox_seq)
    )
