"""Commit turns of any kind on PostgreSQL, in one transaction of two statements.

The first statement locks every row that the turns touch, in the order of ids, and skips rows that are locked. Then this
process decides the new state of each row. The second statement writes everything. A turn that has a skipped row is BUSY
and leaves no trace. Two turns of one run are decided one after the other. `commit_simple` is the fast path for turns
that touch no other run.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model.record import NewMessage, SendOutcome
from perdure.core.model.run import NewRun
from perdure.core.model.turn import Turn, TurnOutcome
from perdure.store.postgres.columns import HISTORY, to_arrays, unnest_arrays
from perdure.store.postgres.driver import AlreadyThere
from perdure.store.postgres.runs import NEW_RUNS, arrays_of
from perdure.store.postgres.transaction import PostgresTransaction
from perdure.store.server.batch_effects import COLUMNS, BatchEffects
from perdure.store.server.commit_batch import CommitBatch, RecordsExist, Written
from perdure.store.sql.dialect import Row
from perdure.store.sql.turn import split_by_run

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
