"""Second attempts: reopening a finished run, resetting attempts, and creating a run with a history.

A reopened run continues as the next attempt of a new generation. Its unread inbox becomes part of the history of the
failed attempt, which the next one replays; so does the outcome of a child that ended after it. A child that was told to
stop is let go: it has no place in its parent any more, and its end is not delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from perdure.core.model.dead_letter import RequeueRecord
from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.reopen import Fork, ReopenOutcome, kept_seed
from perdure.core.model.run import CreatedRun, Reason, Run, Status
from perdure.core.model.turn import Lease, Turn
from perdure.core.time.duration import FAR
from perdure.errors import RunCancelled
from perdure.store.contract import Change
from perdure.store.sql.dialect import Row, Transaction
from perdure.store.sql.rows import MESSAGE, RUN, failure, to_json, to_message, to_run, values
from perdure.store.sql.runs.create import create
from perdure.store.sql.runs.outputs import write_outputs
from perdure.store.sql.singletons import hold_back_again
from perdure.store.sql.turn import INSERT_RECORD, RECORD_COLUMNS, record_row

_LOCK = f"""
SELECT {RUN}
FROM perdure_runs
WHERE id = :run_id
{{for_update}}
"""

_THERE = "SELECT 1 FROM perdure_runs WHERE id = :run_id"

_LAST = """
SELECT seq, at
FROM perdure_history
WHERE run_id = :run_id
ORDER BY run_id DESC, seq DESC
LIMIT 1
"""

_UNREAD = f"""
SELECT {MESSAGE}
FROM perdure_messages
WHERE run_id = :run_id AND consumed = 0
ORDER BY run_id, seq
"""

_CONSUME = """
UPDATE perdure_messages
SET consumed = 1, payload = NULL
WHERE run_id = :run_id AND consumed = 0
"""

#: Children whose end the parent was never told of, because it had ended before.
_UNTOLD = """
SELECT c.id, c.generation, c.parent_location, c.status, c.output, c.error,
  (SELECT COUNT(*) FROM perdure_messages m WHERE m.run_id = c.id AND m.kind = 'cancel')
FROM perdure_runs c
WHERE c.parent_id = :run_id AND c.parent_location IS NOT NULL AND (c.finished_at = 0 OR c.finished_at >= :since)
ORDER BY c.id
"""

_TOLD = """
SELECT message_key
FROM perdure_messages
WHERE run_id = :run_id AND kind = 'child'
"""

_LET_GO = """
UPDATE perdure_runs
SET parent_location = NULL
WHERE id = :run_id AND finished_at = 0
"""

#: The token is raised here and below because a run whose token is 0 is known to have no history.
_OPEN = """
UPDATE perdure_runs
SET status = 'pending', reason = NULL, generation = generation + 1, attempt = attempt + 1, token = token + 1,
    seed = :seed, output = NULL, started_at = 0, finished_at = 0, wake_at = :now, deadline = :deadline,
    inbox_read = inbox_seq, worker = NULL, home = NULL, marked = 0, claims = 0
WHERE id = :run_id
"""

_STUMBLED = """
SELECT MAX(seq)
FROM perdure_history
WHERE run_id = :run_id AND run_attempt = :attempt AND kind IN ('attempt', 'step')
GROUP BY location
HAVING MAX(CASE WHEN kind = 'step' THEN 1 ELSE 0 END) = 0
"""

_ANEW = """
UPDATE perdure_history
SET attempts = 0, retry_at = 0
WHERE run_id = :run_id AND seq = :seq
"""

_GO_ON = """
UPDATE perdure_runs
SET status = 'pending', reason = NULL, error = NULL, wake_at = :now, token = token + 1, home = NULL, claims = 0
WHERE id = :run_id
"""

_BEGUN = """
UPDATE perdure_runs
SET token = token + 1, started_at = :started_at, seed = :seed, inbox_seq = :entries, inbox_read = :entries
WHERE id = :run_id
"""

_TOUCHED = "UPDATE perdure_runs SET token = token + 1 WHERE id = :run_id"

_TAKEN_IN = """
INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at, consumed)
VALUES (:run_id, :seq, :kind, :name, NULL, :failed, :key, :now, 1)
"""

_DROP_PERMITS = "DELETE FROM perdure_permits WHERE run_id = :run_id"

#: Kinds of inbox entries that become history records; others are only consumed.
_RECORDED = (RecordKind.MESSAGE, RecordKind.CHILD, RecordKind.CANCEL)


async def reopen(tx: Transaction, run_id: str, generation: int, deadline: int | None) -> ReopenOutcome:
    """Let a run whose `generation` failed or was cancelled go on as the next one. Said twice, it is done once."""
    run = await locked(tx, run_id)
    if run is None:
        return ReopenOutcome.UNKNOWN
    if run.generation > generation:
        return ReopenOutcome.OPEN
    if run.status not in (Status.FAILED, Status.CANCELLED):
        return ReopenOutcome.COMPLETED if run.status is Status.COMPLETED else ReopenOutcome.UNFINISHED
    if run.deleted_at:
        return ReopenOutcome.DELETED
    due = run.deadline if deadline is None else deadline
    if due <= tx.now:
        return ReopenOutcome.EXPIRED
    await absorb_inbox(tx, run)
    await record_requeue(tx, run, f"reopen:{generation}")
    seed = kept_seed(run.seed, run.generation, run.generation + 1)
    await tx.execute(_OPEN, {"run_id": run_id, "seed": seed, "deadline": due, "now": tx.now})
    tx.note(run_id, "reopened", to_json({"generation": run.generation + 1}))
    await hold_back_again(tx, run_id, run.options)
    tx.notify(Change.READY)
    return ReopenOutcome.OPEN


async def recover(tx: Transaction, run_id: str, token: int) -> bool:
    """Reset the attempts of a waiting or poison run at once; False if none were used up.

    `token` is the one that the run was seen with. It is raised, so that a worker that has the run in memory drops it.
    """
    run = await locked(tx, run_id)
    if run is None or run.token != token:
        return run is not None and run.token == token + 1
    stumbled = await tx.fetch(_STUMBLED, {"run_id": run_id, "attempt": run.attempt})
    poison = run.status is Status.BLOCKED and run.reason is Reason.POISON
    waiting = run.status in (Status.PENDING, Status.WAITING) and (bool(stumbled) or run.reason is Reason.RETRY)
    if not poison and not waiting:
        return False
    await tx.execute_many(_ANEW, [{"run_id": run_id, "seq": seq} for (seq,) in stumbled])
    await tx.execute(_GO_ON, {"run_id": run_id, "now": tx.now})
    tx.note(run_id, "recovered", to_json({"token": token + 1}))
    tx.notify(Change.READY)
    return True


async def fork(tx: Transaction, fork: Fork) -> CreatedRun:
    """Create a run with a history. May be repeated, as `create`; an existing run of that id is left as it is."""
    new = fork.run
    there = await tx.fetch(_THERE, {"run_id": new.id})
    [answer] = await create(tx, [new])
    if there or not answer.created:
        return answer
    # The same request, sent before and late, may have been faster since we looked. It has raised the token.
    known = await locked(tx, new.id)
    if known is not None and known.token > 0:
        return CreatedRun(known, True)
    taken = [record for record in fork.records if record.inbox_seq]
    entries = [_entry(new.id, record, tx.now) for record in taken]
    await tx.execute_many(_TAKEN_IN, entries)
    begun = {"run_id": new.id, "started_at": fork.started_at, "seed": fork.seed, "entries": len(entries)}
    await tx.execute(_BEGUN if fork.records else _TOUCHED, begun)
    await _write(tx, new.id, answer.run.token, answer.run.nonce, fork.records)
    tx.note(new.id, "forked", to_json({"run": fork.source, "step": fork.step}))
    made = await locked(tx, new.id)
    return answer if made is None else CreatedRun(made, True)


async def record_requeue(tx: Transaction, run: Run, key: str) -> None:
    """Keep the error of a locked run among its outputs before it continues, and drop its permits."""
    if run.finished_at:
        await tx.execute(_DROP_PERMITS, {"run_id": run.id})
    payload = RequeueRecord(
        at=tx.now,
        by=tx.actor,
        dead_since=run.finished_at or run.wake_at,
        attempt=run.attempt,
        generation=run.generation,
        error=run.error or "{}",
    )
    await write_outputs(tx, [(run.id, NewOutput(kind=OutputKind.REQUEUE, name="", payload=to_json(payload), key=key))])


async def locked(tx: Transaction, run_id: str) -> Run | None:
    """Lock and read a run."""
    rows = await tx.fetch(_LOCK, {"run_id": run_id})
    return to_run(rows[0]) if rows else None


async def absorb_inbox(tx: Transaction, run: Run) -> None:
    """Append everything that came too late to the history of the failed attempt."""
    of_run = {"run_id": run.id}
    last = await tx.fetch(_LAST, of_run)
    seq, at = (last[0][0] + 1, max(last[0][1], tx.now)) if last else (0, tx.now)
    late = [
        Record(
            seq=0, kind=message.kind, location=message.name, payload=message.payload, failed=message.failed, at=at,
            inbox_seq=message.seq, run_attempt=run.attempt,
        )
        for message in values(to_message, await tx.fetch(_UNREAD, of_run))
        if message.kind in _RECORDED
    ]  # fmt: skip
    late += await _untold(tx, run, at)
    await _write(tx, run.id, run.token, run.nonce, _numbered(late, seq))
    await tx.execute(_CONSUME, of_run)


async def _untold(tx: Transaction, run: Run, at: int) -> list[Record]:
    since = run.finished_at or FAR
    children = await tx.fetch(_UNTOLD, {"run_id": run.id, "since": since})
    if not children:
        return []
    told = {key for (key,) in await tx.fetch(_TOLD, {"run_id": run.id})}
    records: list[Record] = []
    for child_id, generation, location, status, output, error, stops in children:
        if f"child:{child_id}:{generation}" in told or not (stops or Status(status).finished):
            continue
        completed = status == Status.COMPLETED
        reason = error or failure(RunCancelled, f"run {child_id!r} was told to stop when its parent {run.id!r} ended")
        records.append(
            Record(
                seq=0,  # equivalent: constant: `_numbered` sets it
                kind=RecordKind.CHILD, location=location, payload=output if completed else reason,
                failed=not completed, at=at, run_attempt=run.attempt,
            )
        )  # fmt: skip
        if not Status(status).finished:
            await tx.execute(_LET_GO, {"run_id": child_id})
    return records


def _numbered(records: Iterable[Record], first: int) -> list[Record]:
    return [replace(record, seq=first + place) for place, record in enumerate(records)]


async def _write(tx: Transaction, run_id: str, token: int, nonce: str, records: Sequence[Record]) -> None:
    if not records:
        return
    turn = Turn(lease=Lease(run_id, token, nonce))
    rows: list[Row] = [record_row(turn, record) for record in records]
    await tx.execute_many(INSERT_RECORD, [dict(zip(RECORD_COLUMNS, row, strict=True)) for row in rows])


def _entry(run_id: str, record: Record, now: int) -> dict[str, object]:
    return {
        "run_id": run_id,
        "seq": record.inbox_seq,
        "kind": record.kind.value,
        "name": record.location,
        "failed": int(record.failed),
        "key": f"fork:{record.inbox_seq}",
        "now": now,
    }
