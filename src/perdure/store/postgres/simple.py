"""Turns that reach nobody else: records, what was read, and an outcome or a wait, all in one statement.

It locks the rows that are free, sees for whom the lease holds, and writes for those. A turn that it does not write for (its row
is busy or lost, something came in before it could park, or it has a parent to be told) is left to the transaction that can do
everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model import Finish, Park, Status, Turn
from perdure.store.postgres.history import HISTORY, arrays, given
from perdure.store.postgres.transaction import PostgresTransaction
from perdure.store.protocol import Change
from perdure.store.turns import record_row

_TURNS = {
    "run_id": "text", "token": "bigint", "nonce": "text", "leaves": "text", "status": "text", "output": "text",
    "error": "text", "wake_at": "bigint", "reason": "text", "seen": "bigint", "read": "bigint",
}  # fmt: skip

_LOCKED = """
locked AS MATERIALIZED (
  SELECT id, token, nonce, status, inbox_seq, parent_id, deadline
  FROM perdure_runs
  WHERE id = ANY ($1::text[])
  ORDER BY id
  FOR NO KEY UPDATE SKIP LOCKED
)"""

#: Nothing but records: the run's row is locked and looked at, but not written.
RECORDS = f"""
WITH {_LOCKED}, live AS MATERIALIZED (
  SELECT locked.id AS run_id
  FROM unnest($1::text[], $2::bigint[], $3::text[]) AS lease (run_id, token, nonce)
  JOIN locked ON locked.id = lease.run_id AND locked.token = lease.token AND locked.nonce = lease.nonce
  WHERE locked.status = 'running'
), written AS (
  INSERT INTO perdure_history ({", ".join(HISTORY)})
  SELECT {", ".join("given." + column for column in HISTORY)}
  FROM {given(HISTORY, 4)}
  JOIN live ON live.run_id = given.run_id
)
SELECT run_id FROM live
"""

_FIRST = 1 + len(_TURNS)
_NOW = f"${_FIRST + len(HISTORY)}::bigint"
_ACTOR = f"${_FIRST + len(HISTORY) + 1}::text"

#: In the order in which `_TURNS` has them; `due` is when a parked run wakes up.
TURNS = f"""
WITH {_LOCKED}, live AS MATERIALIZED (
  SELECT given.*, LEAST(given.wake_at, locked.deadline) AS due
  FROM {given(_TURNS, 1)}
  JOIN locked ON locked.id = given.run_id AND locked.token = given.token AND locked.nonce = given.nonce
  WHERE locked.status = 'running'
    AND CASE given.leaves
      WHEN 'finish' THEN locked.parent_id IS NULL
      WHEN 'park' THEN locked.inbox_seq = given.seen
      ELSE TRUE
    END
), written AS (
  INSERT INTO perdure_history ({", ".join(HISTORY)})
  SELECT {", ".join("given." + column for column in HISTORY)}
  FROM {given(HISTORY, _FIRST)}
  JOIN live ON live.run_id = given.run_id
), taken_in AS (
  UPDATE perdure_messages m
  SET consumed = 1, payload = NULL
  FROM live
  WHERE live.read > 0 AND m.run_id = live.run_id AND m.seq <= live.read AND m.consumed = 0
), changed AS (
  UPDATE perdure_runs r
  SET status = CASE live.leaves
        WHEN 'finish' THEN live.status
        WHEN 'park' THEN CASE WHEN live.due <= {_NOW} THEN 'pending' ELSE 'waiting' END
        ELSE r.status
      END,
      reason = CASE
        WHEN live.leaves = '' THEN r.reason
        WHEN live.leaves = 'park' AND live.due > {_NOW} THEN live.reason
      END,
      wake_at = CASE WHEN live.leaves = 'park' THEN live.due ELSE r.wake_at END,
      output = CASE WHEN live.leaves = 'finish' THEN live.output ELSE r.output END,
      error = CASE WHEN live.leaves = 'finish' THEN live.error ELSE r.error END,
      finished_at = CASE WHEN live.leaves = 'finish' THEN {_NOW} ELSE r.finished_at END,
      worker = CASE WHEN live.leaves = '' THEN r.worker END,
      claims = CASE WHEN live.leaves = '' THEN r.claims ELSE 0 END,
      marked = CASE WHEN live.leaves = '' AND r.inbox_seq > live.read THEN 1 ELSE 0 END,
      inbox_read = GREATEST(r.inbox_read, live.read)
  FROM live
  WHERE r.id = live.run_id AND (live.leaves <> '' OR live.read > 0)
), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT live.run_id, {_NOW}, live.status, {_ACTOR}, '{{}}' FROM live WHERE live.leaves = 'finish'
)
SELECT run_id FROM live
"""


def is_simple(turns: Sequence[Turn]) -> bool:
    """Whether one statement can write them."""
    if len({turn.lease.run_id for turn in turns}) != len(turns):
        return False
    # A run that parks has to see the outcomes of its children in the same batch, which this statement leaves alone.
    kinds = {type(turn.next) for turn in turns} - {type(None)}
    return len(kinds) == 1 and kinds <= {Finish, Park} and not any(turn.children or turn.sends for turn in turns)


def only_records(turns: Sequence[Turn]) -> bool:
    """Whether they do not even touch the rows of their runs."""
    runs = {turn.lease.run_id for turn in turns}
    return bool(turns) and len(runs) == len(turns) and all(map(_plain, turns))


def _plain(turn: Turn) -> bool:
    return bool(turn.records) and turn.next is None and not (turn.read or turn.children or turn.sends)


async def commit_simply(tx: PostgresTransaction, turns: Sequence[Turn]) -> set[str]:
    """Write what can be written; of which runs. Raises `AlreadyThere`, and writes nothing, if a record is there already."""
    records = arrays([record_row(turn, record) for turn in turns for record in turn.records], len(HISTORY))
    if only_records(turns):
        leases = [(turn.lease.run_id, turn.lease.token, turn.lease.nonce) for turn in turns]
        return {row[0] for row in await tx.run(RECORDS, *arrays(leases, 3), *records)}
    rows = [_row(turn) for turn in turns]
    written = {row[0] for row in await tx.run(TURNS, *arrays(rows, len(_TURNS)), *records, tx.now, tx.actor)}
    for turn in turns:
        if turn.lease.run_id not in written:
            continue
        if isinstance(turn.next, Finish):
            tx.stir(Change.FINISHED)
        elif isinstance(turn.next, Park) and turn.next.wake_at <= tx.now:
            tx.stir(Change.READY)
    return written


def _row(turn: Turn) -> tuple[object, ...]:
    lease = (turn.lease.run_id, turn.lease.token, turn.lease.nonce)
    match turn.next:
        case Finish(status=status, payload=payload):
            completed = status is Status.COMPLETED
            outcome = (payload, None) if completed else (None, payload)
            return (*lease, "finish", status.value, *outcome, 0, None, 0, turn.read)
        case Park(wake_at=wake_at, reason=reason, seen=seen):
            return (*lease, "park", None, None, None, wake_at, reason.value, seen, turn.read)
        case _:
            return (*lease, "", None, None, None, 0, None, 0, turn.read)
