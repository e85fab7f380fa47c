"""Making turns durable on PostgreSQL.

One transaction of two statements: the first locks every row that the turns touch, in the order of ids and skipping those that
somebody else holds; then it is decided here what becomes of each row; the second writes everything. A turn one of whose rows
was skipped is BUSY and leaves no trace. Two turns of one run are decided one after the other. See `simple` for the usual case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core.model import Again, Block, Finish, Kind, NewRun, Park, Release, Turn, Verdict
from perdure.store.children import adopt
from perdure.store.postgres.creating import NEW_RUNS, arrays_of
from perdure.store.postgres.driver import AlreadyThere
from perdure.store.postgres.history import HISTORY, arrays, given
from perdure.store.postgres.ledger import COLUMNS, Draft, Ledger
from perdure.store.postgres.transaction import PostgresTransaction
from perdure.store.protocol import Change
from perdure.store.rows import to_json
from perdure.store.turns import Standing, record_row, standing_of, waves

_MESSAGES = {
    "run_id": "text", "seq": "bigint", "kind": "text", "name": "text", "payload": "text", "failed": "smallint",
    "message_key": "text", "sent_at": "bigint",
}  # fmt: skip
_RUNS = {
    "id": "text", "status": "text", "reason": "text", "token": "bigint", "wake_at": "bigint", "inbox_seq": "bigint",
    "inbox_read": "bigint", "marked": "smallint", "attempt": "bigint", "started_at": "bigint", "finished_at": "bigint",
    "let_go": "boolean", "homeless": "boolean", "sets_output": "boolean", "output": "text", "sets_error": "boolean",
    "error": "text",
}  # fmt: skip
_EVENTS = {"run_id": "text", "at": "bigint", "kind": "text", "actor": "text", "data": "text"}
_CONSUMED = {"run_id": "text", "upto": "bigint"}


#: Parents never change, so that those of the finished may be looked up before anything is locked.
LOCK = f"""
SELECT {COLUMNS}
FROM perdure_runs
WHERE id = ANY ($1::text[] || ARRAY(
  SELECT parent_id FROM perdure_runs WHERE id = ANY ($2::text[]) AND parent_id IS NOT NULL
))
ORDER BY id
FOR NO KEY UPDATE SKIP LOCKED
"""

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

#: Everything, each row once: the statements in it do not see each other's effects.
WRITE = f"""
WITH records AS (
  INSERT INTO perdure_history ({", ".join(HISTORY)}) SELECT * FROM {given(HISTORY, _AT[0])}
), entries AS (
  INSERT INTO perdure_messages ({", ".join(_MESSAGES)}) SELECT * FROM {given(_MESSAGES, _AT[1])}
), taken_in AS (
  UPDATE perdure_messages m
  SET consumed = 1, payload = NULL
  FROM {given(_CONSUMED, _AT[2])}
  WHERE m.run_id = given.run_id AND m.seq <= given.upto AND m.consumed = 0
), noted AS (
  INSERT INTO perdure_events ({", ".join(_EVENTS)}) SELECT * FROM {given(_EVENTS, _AT[3])}
)
UPDATE perdure_runs r
SET status = given.status, reason = given.reason, token = given.token, wake_at = given.wake_at,
    inbox_seq = given.inbox_seq, inbox_read = given.inbox_read, marked = given.marked, attempt = given.attempt,
    started_at = given.started_at, finished_at = given.finished_at,
    worker = CASE WHEN given.let_go THEN NULL ELSE r.worker END,
    claims = CASE WHEN given.let_go THEN 0 ELSE r.claims END,
    home = CASE WHEN given.homeless THEN NULL ELSE r.home END,
    output = CASE WHEN given.sets_output THEN given.output ELSE r.output END,
    error = CASE WHEN given.sets_error THEN given.error ELSE r.error END
FROM {given(_RUNS, _AT[4])}
WHERE r.id = given.id
"""


class Doubtful(Exception):
    """Something is there already; nothing was written."""


async def commit(tx: PostgresTransaction, turns: Sequence[Turn], *, doubtful: bool) -> list[Verdict]:
    """Write the turns; one verdict each. Raises `Doubtful`, unless told that the records may be there already."""
    verdicts = [Verdict.APPLIED] * len(turns)
    busy: set[str] = set()
    try:
        for wave in waves(turns):
            await _Wave(tx, turns, wave, verdicts, busy, doubtful=doubtful).commit()
    except AlreadyThere as error:
        if doubtful:
            raise
        raise Doubtful from error
    return verdicts


class _Wave:
    """Turns of different runs."""

    def __init__(
        self,
        tx: PostgresTransaction,
        turns: Sequence[Turn],
        wave: list[int],
        verdicts: list[Verdict],
        busy: set[str],
        *,
        doubtful: bool,
    ) -> None:
        self._tx = tx
        self._wave = {index: turns[index] for index in wave}
        self._verdicts = verdicts
        self._busy = busy
        self._doubtful = doubtful
        self._rows: list[tuple[Any, ...]] = []

    async def commit(self) -> None:
        """Lock, decide, write."""
        drafts = await self._lock()
        live = await self._stand(drafts)
        ledger = Ledger(self._tx, iter(drafts.values()), await self._known(live))
        await self._start_children(ledger, live)
        stopped = await self._to_be_stopped(ledger, live)
        for turn in live.values():
            draft = ledger.drafts[turn.lease.run_id]
            if turn.read:
                ledger.read(draft.id, turn.read)
            for message in turn.sends:
                ledger.send(message)
            _leave(ledger, draft, turn, stopped)
        # Last of all, so that a run whose children finish in the same batch finds its inbox grown.
        for index, turn in live.items():
            draft = ledger.drafts[turn.lease.run_id]
            if isinstance(turn.next, Park) and not ledger.park(draft, turn.next):
                self._verdicts[index] = Verdict.AWAKE
        await self._write(ledger)

    async def _lock(self) -> dict[str, Draft]:
        """The rows that the turns touch; turns one of whose rows somebody else holds are taken out."""
        touched: dict[str, None] = {}
        children: list[str] = []
        for turn in self._wave.values():
            touched[turn.lease.run_id] = None
            touched.update(dict.fromkeys(message.run_id for message in turn.sends))
            if isinstance(turn.next, Finish):
                children.append(turn.lease.run_id)
            children += [message.run_id for message in turn.sends if message.kind is Kind.CANCEL]
        drafts = {row[0]: Draft(row) for row in await self._tx.run(LOCK, list(touched), children)}
        self._tx.locked()
        parents = {drafts[child].parent_id for child in children if child in drafts} - {None}
        missing = [run_id for run_id in (*touched, *parents) if run_id not in drafts]
        held = {row[0] for row in await self._tx.run(_THERE, missing)} if missing else set[str]()
        for index, turn in list(self._wave.items()):
            run_id = turn.lease.run_id
            if run_id in self._busy or not held.isdisjoint(_touches(turn, drafts)):
                self._busy.add(run_id)
                self._verdicts[index] = Verdict.BUSY
                del self._wave[index]
        return drafts

    async def _stand(self, drafts: dict[str, Draft]) -> dict[int, Turn]:
        """The turns whose lease holds. What is there of their records already is not written again."""
        written = await self._written(drafts)
        live: dict[int, Turn] = {}
        for index, turn in self._wave.items():
            draft = drafts.get(turn.lease.run_id)
            state = None if draft is None else (draft.status, draft.token, draft.nonce)
            there = written.get(turn.lease.run_id, {})
            standing = standing_of(turn, state, there)
            if standing is Standing.LIVE:
                live[index] = turn
                self._rows += [record_row(turn, record) for record in turn.records if record.seq not in there]
            elif standing is Standing.LOST:
                self._verdicts[index] = Verdict.LOST
        return live

    async def _written(self, drafts: dict[str, Draft]) -> dict[str, dict[int, tuple[Any, ...]]]:
        # Of a turn that holds its lease, only a repetition can be there; the unique key tells.
        turns = [
            turn
            for turn in self._wave.values()
            if turn.records and (self._doubtful or not _holds(turn, drafts.get(turn.lease.run_id)))
        ]
        found: dict[str, dict[int, tuple[Any, ...]]] = {}
        if turns:
            spans = [(turn.lease.run_id, turn.records[0].seq, turn.records[-1].seq) for turn in turns]
            for row in await self._tx.run(_WRITTEN, *arrays(spans, 3)):
                found.setdefault(row[0], {})[row[1]] = row
        return found

    async def _known(self, live: dict[int, Turn]) -> set[tuple[str, str]]:
        keys = [(message.run_id, message.key) for turn in live.values() for message in turn.sends]
        return {(row[0], row[1]) for row in await self._tx.run(_KNOWN, *arrays(keys, 2))} if keys else set()

    async def _start_children(self, ledger: Ledger, live: dict[int, Turn]) -> None:
        wanted: dict[str, tuple[str, NewRun]] = {}
        again: list[tuple[str, NewRun]] = []
        for turn in live.values():
            for child in turn.children:
                if child.id in wanted:
                    again.append((turn.lease.run_id, child))
                else:
                    wanted[child.id] = turn.lease.run_id, child
        if not wanted:
            return
        new = [child for _, child in wanted.values()]
        made = {row[0] for row in await self._tx.run(_CHILDREN, *arrays_of(new, self._tx.now))}
        for parent, child in (*wanted.values(), *again):
            if child.id in made and wanted[child.id][1] is child:
                ledger.add(child)
                self._tx.note(child.id, "created", to_json({"type": child.type}))
                self._tx.stir(Change.READY)
            else:
                word = await adopt(self._tx, parent, child)
                if word is not None and not await self._tx.run(_KNOWN, [word.run_id], [word.key]):
                    ledger.put(word)

    async def _to_be_stopped(self, ledger: Ledger, live: dict[int, Turn]) -> set[str]:
        ids = {turn.lease.run_id: turn.read for turn in live.values() if isinstance(turn.next, Again)}
        unread = [(id, max(read, ledger.drafts[id].inbox_read)) for id, read in ids.items()]
        behind = [(id, read) for id, read in unread if ledger.drafts[id].inbox_seq > read]
        return {row[0] for row in await self._tx.run(_TO_BE_STOPPED, *arrays(behind, 2))} if behind else set()

    async def _write(self, ledger: Ledger) -> None:
        notes = self._tx.take_notes()
        drafts = [draft for draft in ledger.drafts.values() if draft.touched]
        if not (self._rows or ledger.messages or ledger.consumed or notes[0] or drafts):
            return
        await self._tx.run(
            WRITE,
            *arrays(self._rows, len(HISTORY)),
            *arrays(ledger.messages, len(_MESSAGES)),
            *arrays(ledger.consumed, len(_CONSUMED)),
            *notes,
            *([getattr(draft, column) for draft in drafts] for column in _RUNS),
        )


def _holds(turn: Turn, draft: Draft | None) -> bool:
    return draft is not None and draft.held_under(turn.lease)


def _touches(turn: Turn, drafts: dict[str, Draft]) -> set[str | None]:
    touched: set[str | None] = {turn.lease.run_id, *(message.run_id for message in turn.sends)}
    return touched | {drafts[run_id].parent_id for run_id in touched if run_id in drafts}


def _leave(ledger: Ledger, draft: Draft, turn: Turn, stopped: set[str]) -> None:
    match turn.next:
        case Finish() as outcome:
            ledger.finish(draft, outcome)
        case Again() as retry:
            ledger.again(draft, retry, to_be_stopped=draft.id in stopped)
        case Release() as release:
            ledger.release(draft, release)
        case Block() as block:
            ledger.block(draft, block)
        case _:
            pass
