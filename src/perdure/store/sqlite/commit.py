"""Commit turns on SQLite.

Records are inserted first, in one statement, each guarded by the lease of its turn. If as many rows were written as
were sent, every turn holds its lease and nothing needs to be read. Otherwise each turn is checked: its lease is lost,
or it was written before and only the answer was lost. Effects on other runs and outcomes follow. Parks and
continue-as-new come last, so that a run whose children finish in the same batch finds their messages in its inbox. Two
turns of one run are two batches in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

from perdure.core.model.record import RecordKind
from perdure.core.model.run import Status
from perdure.core.model.turn import (
    Block,
    ContinueAsNew,
    Finish,
    Lease,
    Park,
    Release,
    RetryLater,
    StepTurn,
    Turn,
    TurnOutcome,
)
from perdure.store.contract import Change
from perdure.store.sql.audit import block_event, note_again, note_finish, note_work, park_event
from perdure.store.sql.dialect import Row
from perdure.store.sql.rows import to_json
from perdure.store.sql.runs.children import start_children
from perdure.store.sql.runs.finish import message_to_parent
from perdure.store.sql.runs.inbox import deliver, deliver_all, send
from perdure.store.sql.runs.observers import Observer, leave_observer, messages_to_observers, observe
from perdure.store.sql.runs.waiters import forget_unheard, messages_to_waiters
from perdure.store.sql.turn import (
    TurnState,
    carried_messages,
    has_extras,
    inbox_position,
    record_row,
    release_instead,
    split_by_run,
    turn_state,
    write_extras,
    write_shown,
)
from perdure.store.sql.turn import renew as begin_anew
from perdure.store.sqlite.connection import SMALL_BATCH_ROWS, SqliteTransaction

_HISTORY = """
INSERT INTO perdure_history
  (run_id, seq, token, kind, location, payload, failed, at, started_at, digest, attempts, retry_at, inbox_seq,
   run_attempt)
"""

#: Insert one record if its lease holds; `RECORDS` inserts many, but costs more for a single one.
RECORD = f"""{_HISTORY}
SELECT id, ?, token, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
FROM perdure_runs
WHERE id = ? AND token = ? AND nonce = ? AND status = 'running'
ON CONFLICT DO NOTHING
"""
#: The parameters of `RECORD` from a row of `RECORDS`. Numbered parameters would avoid it, but Python 3.12 warns of
#: them.
_SINGLE = itemgetter(1, *range(3, 14), 0, 2, 14)

RECORDS = f"""{_HISTORY}
SELECT {", ".join(f"v.column{place}" for place in range(1, 15))}
FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) v
WHERE EXISTS (
  SELECT 1 FROM perdure_runs WHERE id = v.column1 AND token = v.column3 AND nonce = v.column15 AND status = 'running'
)
ON CONFLICT DO NOTHING
"""

#: As `RECORD`, of a step that succeeded at its first attempt. All such records share six columns, which are not bound.
SUCCESS = f"""{_HISTORY}
SELECT id, ?, token, 'step', ?, ?, 0, ?, ?, ?, 1, 0, 0, 1
FROM perdure_runs
WHERE id = ? AND token = ? AND nonce = ? AND status = 'running'
ON CONFLICT DO NOTHING
"""
#: The parameters of `SUCCESS` from a row of `SUCCESSES`.
_SINGLE_SUCCESS = itemgetter(1, *range(3, 8), 0, 2, 8)

SUCCESSES = f"""{_HISTORY}
SELECT v.column1, v.column2, v.column3, 'step', v.column4, v.column5, 0, v.column6, v.column7, v.column8, 1, 0, 0, 1
FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)) v
WHERE EXISTS (
  SELECT 1 FROM perdure_runs WHERE id = v.column1 AND token = v.column3 AND nonce = v.column9 AND status = 'running'
)
ON CONFLICT DO NOTHING
"""

_WRITTEN = """
SELECT run_id, seq, token, kind, location, payload, failed, at, started_at, digest, attempts, retry_at, inbox_seq,
  run_attempt
FROM perdure_history
WHERE run_id = ? AND seq >= ? AND seq <= ?
"""

_STATE = """
SELECT status, token, nonce, started_at
FROM perdure_runs
WHERE id = ?
"""

_READ = """
UPDATE perdure_runs
SET inbox_read = MAX(inbox_read, ?), marked = CASE WHEN inbox_seq > ? THEN 1 ELSE 0 END
WHERE id = ?
"""

#: Remove the records of a turn that does not follow from the records before it.
_DELETE_RECORDS = "DELETE FROM perdure_history WHERE run_id = ? AND seq >= ? AND token = ?"

_CONSUME = """
UPDATE perdure_messages
SET consumed = 1, payload = NULL
WHERE run_id = ? AND seq <= ? AND consumed = 0
"""

# Looking up an enum member through its class is slow; this one is needed for every record.
_STEP = RecordKind.STEP

#: Next states that are written last.
_LAST = (Park, ContinueAsNew)


async def commit(tx: SqliteTransaction, turns: Sequence[Turn]) -> list[TurnOutcome]:
    """Write the turns; return one outcome each."""
    outcomes = [TurnOutcome.APPLIED] * len(turns)
    for batch in ([0],) if len(turns) == 1 else split_by_run(turns):
        await _commit_batch(tx, turns, batch, outcomes)
    return outcomes


async def _commit_batch(
    tx: SqliteTransaction, turns: Sequence[Turn], batch: list[int], outcomes: list[TurnOutcome]
) -> None:
    incomplete = not await _write_records(tx, [turns[index] for index in batch])
    last: list[tuple[int, Park | ContinueAsNew]] = []
    finished: dict[str, Finish] = {}
    with_extras: list[Turn] = []
    observers: list[Observer] = []
    for index in batch:
        turn = turns[index]
        if type(turn) is StepTurn and not incomplete:
            continue
        if (incomplete if turn.records else _needs_lease_check(turn)) and (
            state := await _check_state(tx, turn)
        ) is not TurnState.LIVE:
            if state is TurnState.OVERTAKEN:
                await tx.execute(_DELETE_RECORDS, (turn.lease.run_id, turn.records[0].seq, turn.lease.token))
                await _write_next_state(tx, release_instead(turn))
            outcomes[index] = TurnOutcome.APPLIED if state is TurnState.DONE else TurnOutcome.LOST
            continue
        if turn.read or turn.children or turn.sends:
            observers += await _apply_reads_and_sends(tx, turn)
        if tx.repeats and (turn.notes or turn.outputs):
            note_work(tx, turn)
        if turn.next is None:
            pass
        elif isinstance(turn.next, _LAST):
            last.append((index, turn.next))
        elif not await _write_next_state(tx, turn):
            outcomes[index] = (
                TurnOutcome.APPLIED if await _check_state(tx, turn) is TurnState.DONE else TurnOutcome.LOST
            )
            continue
        elif isinstance(turn.next, Finish):
            finished[turn.lease.run_id] = turn.next
        if has_extras(turn):
            with_extras.append(turn)
    changed = await _tell_parents(tx, finished) if finished else []
    if with_extras:
        await write_shown(tx, with_extras)
        changed += [turn.lease.run_id for turn in with_extras if turn.outputs]
    if observers or changed:
        await _tell_observers(tx, observers, changed)
    for index, rest in last:
        outcomes[index] = await _park_or_continue(tx, turns[index], rest)
    if with_extras:
        await write_extras(tx, with_extras)


async def _write_records(tx: SqliteTransaction, turns: Sequence[Turn]) -> bool:
    """Insert the records of turns whose lease holds; True if all of them were inserted."""
    successes: list[Row] = []
    others: list[Row] = []
    for turn in turns:
        lease = turn.lease
        for record in turn.records:
            if (
                record.kind is not _STEP or record.failed or record.attempts != 1 or record.run_attempt != 1
                or record.retry_at or record.inbox_seq
            ):  # fmt: skip
                others.append((*record_row(turn, record), lease.nonce))
                continue
            successes.append(
                (
                    lease.run_id, record.seq, lease.token, record.location, record.payload, record.at,
                    record.started_at, record.digest, lease.nonce,
                )
            )  # fmt: skip
    written = await _insert(tx, SUCCESSES, SUCCESS, _SINGLE_SUCCESS, successes)
    written += await _insert(tx, RECORDS, RECORD, _SINGLE, others)
    return written == len(successes) + len(others)


async def _insert(
    tx: SqliteTransaction, many: str, one: str, params_of_one: Callable[[Row], Row], rows: list[Row]
) -> int:
    """Insert rows by the statement for many, and the rest by that for one; return the number of inserted rows."""
    in_batches = len(rows) - len(rows) % SMALL_BATCH_ROWS
    written = await tx.execute_many(many, rows[:in_batches])
    return written + await tx.execute_many(one, list(map(params_of_one, rows[in_batches:])))


def _needs_lease_check(turn: Turn) -> bool:
    return bool(turn.read or turn.children or turn.sends) or turn.next is None or has_extras(turn)


async def _apply_reads_and_sends(tx: SqliteTransaction, turn: Turn) -> list[Observer]:
    """Apply the first effects of a turn; returns the observers that are to be told when outputs are written."""
    run_id = turn.lease.run_id
    if read := inbox_position(turn):
        await tx.execute(_READ, (read, read, run_id))
        await tx.execute(_CONSUME, (run_id, read))
    if turn.children:
        await start_children(tx, run_id, turn.children)
    if turn.sends:
        await forget_unheard(tx, turn, read)
        await send(tx, [message for message in turn.sends if message.wants is None])
    observers: list[Observer] = []
    for message in turn.sends:
        if message.wants is not None:
            observer = Observer.asked_by(message, message.wants)
            await leave_observer(tx, observer)
            observers += [observer] if message.kind is RecordKind.WATCH else []
    return observers


async def _tell_observers(tx: SqliteTransaction, observers: Sequence[Observer], changed: Sequence[str]) -> None:
    """Register new observers, and tell those of runs that have ended or written outputs."""
    for observer in observers:
        await deliver(tx, await observe(tx, observer))
    for run_id in dict.fromkeys(changed):
        await deliver_all(tx, await messages_to_observers(tx, run_id))


async def _write_next_state(tx: SqliteTransaction, turn: Turn) -> bool:
    match turn.next:
        case Finish() as outcome:
            return await _finish(tx, turn.lease, outcome)
        case RetryLater() as retry:
            return await _retry_later(tx, turn.lease, retry)
        case Release() as release:
            return await _release(tx, turn.lease, release)
        case Block() as block:
            return await _block(tx, turn.lease, block)
        case _:
            return True


async def _park_or_continue(tx: SqliteTransaction, turn: Turn, rest: Park | ContinueAsNew) -> TurnOutcome:
    if isinstance(rest, ContinueAsNew):
        if await _continue_as_new(tx, turn.lease, rest, turn.read):
            await tx.execute(_CONSUME, (turn.lease.run_id, turn.read))
            for message in carried_messages(turn.lease.run_id, rest):
                await deliver(tx, message)
            return TurnOutcome.APPLIED
    elif await _park(tx, turn.lease, rest):
        return TurnOutcome.APPLIED
    match await _check_state(tx, turn):
        case TurnState.LIVE:
            return TurnOutcome.AWAKE
        case TurnState.DONE:
            return TurnOutcome.APPLIED
        case TurnState.LOST | TurnState.OVERTAKEN:
            return TurnOutcome.LOST


async def _check_state(tx: SqliteTransaction, turn: Turn) -> TurnState:
    rows = await tx.fetch(_STATE, (turn.lease.run_id,))
    state = (rows[0][0], rows[0][1], rows[0][2], rows[0][3]) if rows else None
    return turn_state(turn, state, await _written(tx, turn) if turn.records else {})


async def _written(tx: SqliteTransaction, turn: Turn) -> dict[int, Row]:
    span = (turn.lease.run_id, turn.records[0].seq, turn.records[-1].seq)
    return {row[1]: row for row in await tx.fetch(_WRITTEN, span)}


# The states that a run leaves 'running' for, each written under its lease. Every function returns whether the lease
# held; if not, nothing was written.

_LEASE = "id = :run_id AND token = :token AND nonce = :nonce AND status = 'running'"

PARK = f"""
UPDATE perdure_runs
SET status = CASE WHEN MIN(:wake_at, deadline) <= :now THEN 'pending' ELSE 'waiting' END,
    reason = CASE WHEN MIN(:wake_at, deadline) <= :now THEN NULL ELSE :reason END,
    wake_at = MIN(:wake_at, deadline), worker = NULL, marked = 0, claims = 0, waits = :waits
WHERE {_LEASE} AND inbox_seq = :seen
"""

#: Without RETURNING, which doubles the cost on SQLite: parents are read once for all runs that finished.
FINISH = """
UPDATE perdure_runs
SET status = ?, reason = NULL, output = ?, error = ?, finished_at = ?, worker = NULL, marked = 0, claims = 0,
    waits = NULL
WHERE id = ? AND token = ? AND nonce = ? AND status = 'running'
"""

PARENTS = """
SELECT id, parent_id, parent_location, generation, watched
FROM perdure_runs
WHERE id IN (SELECT value FROM json_each(?)) AND (parent_id IS NOT NULL OR watched = 1)
ORDER BY id
"""

_RETRY_LATER = f"""
UPDATE perdure_runs
SET status = 'waiting', reason = 'retry', attempt = attempt + 1, started_at = 0, wake_at = MIN(:wake_at, deadline),
    error = :error, worker = NULL, marked = 0, claims = 0
WHERE {_LEASE}
RETURNING attempt, wake_at, inbox_seq, inbox_read
"""

_CANCELLED = """
SELECT 1
FROM perdure_messages
WHERE run_id = :run_id AND seq > :read AND kind = 'cancel'
"""

_AT_ONCE = """
UPDATE perdure_runs
SET status = 'pending', reason = NULL, wake_at = :now
WHERE id = :run_id
"""

_RELEASE = f"""
UPDATE perdure_runs
SET status = 'pending', reason = NULL, token = token + 1, wake_at = :now, worker = NULL,
    home = :home, marked = 0, claims = 0
WHERE {_LEASE}
"""

_CONTINUE_AS_NEW = f"""
UPDATE perdure_runs
SET status = 'pending', reason = NULL, token = token + 1, attempt = 1, started_at = 0, wake_at = :now, error = NULL,
    inbox_read = MAX(inbox_read, :read), worker = NULL, marked = 0, claims = 0
WHERE {_LEASE} AND inbox_seq = :seen
RETURNING generation
"""

_BLOCK = f"""
UPDATE perdure_runs
SET status = 'blocked', reason = :reason, error = :error, wake_at = :now, worker = NULL, marked = 0, claims = 0
WHERE {_LEASE}
"""


async def _park(tx: SqliteTransaction, lease: Lease, park: Park) -> bool:
    """Park the run; also refused if messages came in after those that it has seen."""
    change = {
        "wake_at": park.wake_at, "reason": park.reason.value, "seen": park.seen, "waits": park.waits, "now": tx.now,
    }  # fmt: skip
    if await tx.execute(PARK, {**change, **_proof(lease)}) != 1:
        return False
    if tx.repeats:
        tx.note(lease.run_id, *park_event(park))
    if park.wake_at <= tx.now:
        tx.notify(Change.READY)
    return True


async def _finish(tx: SqliteTransaction, lease: Lease, outcome: Finish) -> bool:
    """Finish the run. The caller tells its parent and its waiters in the same transaction with `_tell_parents`."""
    status = outcome.status.value
    output, error = (outcome.payload, None) if outcome.status is Status.COMPLETED else (None, outcome.payload)
    change = (status, output, error, tx.now, lease.run_id, lease.token, lease.nonce)
    if await tx.execute(FINISH, change) != 1:
        return False
    if tx.notes:
        note_finish(tx, lease.run_id, outcome)
    tx.notify(Change.FINISHED)
    return True


async def _tell_parents(tx: SqliteTransaction, finished: Mapping[str, Finish]) -> list[str]:
    """Deliver outcomes of runs that have just finished to their parents and waiters; return the watched runs."""
    ended: list[str] = []
    for run_id, parent_id, location, generation, watched in await tx.fetch(PARENTS, (to_json(list(finished)),)):
        outcome = finished[run_id]
        failed = outcome.status is not Status.COMPLETED
        await deliver(tx, message_to_parent(run_id, parent_id, location, generation, outcome.payload, failed=failed))
        if watched:
            ended.append(run_id)
            await deliver_all(tx, await messages_to_waiters(tx, run_id, outcome.payload, failed=failed))
    return ended


async def _retry_later(tx: SqliteTransaction, lease: Lease, retry: RetryLater) -> bool:
    """Schedule the next attempt at the whole run; at once if a cancellation waits in its inbox."""
    rows = await tx.fetch(_RETRY_LATER, {"wake_at": retry.wake_at, "error": retry.error, **_proof(lease)})
    if not rows:
        return False
    attempt, wake_at, inbox_seq, inbox_read = rows[0]
    note_again(tx, lease.run_id, retry, attempt, wake_at)
    unread = {"run_id": lease.run_id, "read": inbox_read}
    if wake_at <= tx.now or (inbox_seq > inbox_read and await tx.fetch(_CANCELLED, unread)):
        await tx.execute(_AT_ONCE, {"run_id": lease.run_id, "now": tx.now})
        tx.notify(Change.READY)
    return True


async def _release(tx: SqliteTransaction, lease: Lease, release: Release) -> bool:
    """Give the run back, so that any worker can claim it."""
    if await tx.execute(_RELEASE, {"now": tx.now, "home": release.home, **_proof(lease)}) != 1:
        return False
    tx.note(lease.run_id, "released", to_json({"token": lease.token + 1}))
    tx.notify(Change.READY)
    return True


async def _continue_as_new(tx: SqliteTransaction, lease: Lease, renew: ContinueAsNew, read: int) -> bool:
    """Continue as new, having read the inbox up to `read`; also refused if messages came in after those seen."""
    rows = await tx.fetch(_CONTINUE_AS_NEW, {"seen": renew.seen, "read": read, "now": tx.now, **_proof(lease)})
    if not rows:
        return False
    await begin_anew(tx, {lease.run_id: renew})
    tx.note(lease.run_id, "continued", to_json({"generation": rows[0][0] + 1}))
    tx.notify(Change.READY)
    return True


async def _block(tx: SqliteTransaction, lease: Lease, block: Block) -> bool:
    """Block the run until an operator releases it."""
    change = {"reason": block.reason.value, "error": block.error, "now": tx.now, **_proof(lease)}
    if await tx.execute(_BLOCK, change) != 1:
        return False
    tx.note(lease.run_id, *block_event(block))
    return True


def _proof(lease: Lease) -> dict[str, object]:
    return {"run_id": lease.run_id, "token": lease.token, "nonce": lease.nonce}
