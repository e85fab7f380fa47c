"""Commit turns of any kind on MySQL and MariaDB, in two round trips.

The first round trip locks every row that the turns touch, skips rows that are locked, and reads what the decision
needs. Then this process decides the new state of each row. The second round trip writes everything and commits. No
statement waits for a lock, so that no deadlock is possible. A turn that has a skipped row is BUSY and leaves no trace.
Two turns of one run are decided one after the other. `commit_simple` is the fast path for turns that touch no other
run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.core.model.record import NewMessage, SendOutcome
from perdure.core.model.run import NewRun
from perdure.core.model.turn import RetryLater, Turn, TurnOutcome
from perdure.store.mysql.runs import NEW_RUNS, rows_of
from perdure.store.mysql.transaction import MysqlTransaction, Sql, literal, sql_list
from perdure.store.server.batch_effects import COLUMNS, BatchEffects, RunDraft
from perdure.store.server.commit_batch import CommitBatch, Written
from perdure.store.sql.dialect import Row
from perdure.store.sql.turn import message_keys, split_by_run

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
