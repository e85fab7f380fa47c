"""Letting a run go again: retrying it, as its state allows, unblocking runs for new code, and forking.

Each retry leaves a row among the outputs, whose key tells a repeated request. A run that had ended continues as the
next attempt of a new generation. Its unread inbox becomes part of the history of the failed attempt, which the next one
replays; so does the outcome of a child that ended after it. A child that was told to stop is let go: it has no place in
its parent any more, and its end is not delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from perdure.core.model.dead_letter import RequeueRecord, dead_letter_reason
from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import (
    CreatedRun,
    Fork,
    Reason,
    RetryCause,
    RetryOutcome,
    RetryRequest,
    RetryResult,
    Run,
    Status,
    kept_seed,
)
from perdure.core.model.turn import Lease, Turn
from perdure.store.contract import Change
from perdure.store.sql.dialect import Row, Transaction, placeholders
from perdure.store.sql.packing import PACKED
from perdure.store.sql.rows import (
    MESSAGE,
    RECORD,
    RUN,
    event_json,
    to_json,
    to_message,
    to_records,
    to_run,
    values,
)
from perdure.store.sql.runs.create import CHUNK, create
from perdure.store.sql.runs.late_children import REOPENED, heard, untold
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

#: Every way to go again raises the token: a run whose token is 0 is known to have no history, and a worker that has the
#: run in memory drops it.
_GO_ON = """
UPDATE perdure_runs
SET status = 'pending', reason = NULL, generation = :generation, attempt = :attempt, token = token + 1, seed = :seed,
    output = NULL, error = NULL, started_at = :started_at, finished_at = 0, wake_at = :now,
    deadline = :deadline, close_by = :close_by, inbox_read = :inbox_read, worker = NULL, home = NULL, marked = 0,
    claims = 0,
    input = :input, options = :options, max_attempts = :max_attempts, queue = :queue, priority = :priority
WHERE id = :run_id
"""

_KNOWN = """
SELECT 1
FROM perdure_outputs
WHERE run_id = :run_id AND output_key IN (:ended, :unfinished)
"""

#: Whether the registry knows what a type is.
_KIND = "SELECT kind FROM perdure_registry WHERE type = :type"

#: What an activity's history does not have.
_STEPS = """
SELECT 1
FROM perdure_history
WHERE run_id = :run_id AND NOT (kind = 'attempt' AND digest = '' AND location = :type)
LIMIT 1
"""

_ANY_RECORD = "SELECT 1 FROM perdure_history WHERE run_id = :run_id LIMIT 1"

#: Last failed attempts at steps that have not ended. An attempt at an activity is one at its run, too.
_FAILING = """
SELECT MAX(seq), location
FROM perdure_history
WHERE run_id = :run_id AND (run_attempt = :attempt OR (location = :type AND digest = ''))
  AND kind IN ('attempt', 'step')
GROUP BY location
HAVING MAX(CASE WHEN kind = 'step' THEN 1 ELSE 0 END) = 0
"""

_PACKED = f"""
SELECT {RECORD}
FROM perdure_history
WHERE run_id = :run_id AND run_attempt = :attempt AND kind = '{PACKED}'
"""

_ANEW = """
UPDATE perdure_history
SET attempts = 0, retry_at = 0
WHERE run_id = :run_id AND seq = :seq
"""

_FORGET_HEARTBEAT = "DELETE FROM perdure_outputs WHERE run_id = :run_id AND kind = 'beat'"

_BLOCKED = """
SELECT id
FROM perdure_runs
WHERE status = 'blocked' AND reason IN ({reasons}) AND type IN ({types})
ORDER BY id
{for_update}
"""

#: The code is another one, the run is as it was: it keeps its token, its attempts and its input.
_UNBLOCK = """
UPDATE perdure_runs
SET status = 'pending', reason = NULL, error = NULL, wake_at = :now, claims = 0, home = NULL
WHERE id = :run_id AND status = 'blocked'
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
#: A run that ended while it waited for a limit is still in its waitlist.
_LEAVE_WAITLISTS = "DELETE FROM perdure_lines WHERE run_id = :run_id"

#: Kinds of inbox entries that become history records; others are only consumed.
_RECORDED = (RecordKind.MESSAGE, RecordKind.CHILD, RecordKind.CANCEL)


async def retry(tx: Transaction, request: RetryRequest) -> RetryResult:
    """Let a run go again, once for the token that it was read with; `RetryCause` says in which ways."""
    run = await locked(tx, request.run_id)
    if run is None:
        return RetryResult(RetryOutcome.UNKNOWN)
    # The token alone would not do: the claim of another worker raises it, too.
    keys = {"ended": f"{REOPENED}{request.token}", "unfinished": f"retry:{request.token}"}
    if await tx.fetch(_KNOWN, {"run_id": run.id, **keys}):
        return RetryResult(RetryOutcome.OPEN if _is_as_wanted(run, request) else RetryOutcome.OTHERWISE, run.generation)
    begins_anew = await _begins_anew(tx, run, request)
    failing = [] if run.status.finished else await _failing(tx, run)
    cause = _cause(run, failing=bool(failing))
    refused = await _refusal(tx, run, request, cause, begins_anew=begins_anew)
    if cause is None or refused is not None:
        return RetryResult(refused or RetryOutcome.ALIVE, run.generation)
    ended = cause is RetryCause.ENDED
    if ended:
        await absorb_inbox(tx, run)
    await _record(tx, run, cause, keys["ended" if ended else "unfinished"])
    if not begins_anew:
        await tx.execute_many(_ANEW, [{"run_id": run.id, "seq": seq} for seq in failing])
    await tx.execute(_GO_ON, {**_as_it_goes_on(run, request, ended=ended, anew=begins_anew), "now": tx.now})
    if request.input is not None:
        await tx.execute(_FORGET_HEARTBEAT, {"run_id": run.id})
    _note(tx, run, cause, request.reason, changed=request.changes or begins_anew)
    if ended:
        await hold_back_again(tx, run.id, run.options)
    tx.notify(Change.READY)
    return RetryResult(RetryOutcome.OPEN, run.generation + ended)


async def unblock(tx: Transaction, types: Sequence[str], reasons: Sequence[str]) -> int:
    """Make blocked runs of these types pending again, because their code is new; how many."""
    if not types or not reasons:
        return 0
    reason_list, params = placeholders("reason", reasons)
    found: list[str] = []
    for start in range(0, len(types), CHUNK):
        type_list, some = placeholders("type", types[start : start + CHUNK])
        sql = _BLOCKED.replace("{reasons}", reason_list).replace("{types}", type_list)
        found += [row[0] for row in await tx.fetch(sql, {**params, **some})]
    await tx.execute_many(_UNBLOCK, [{"run_id": run_id, "now": tx.now} for run_id in found])
    for run_id in found:
        tx.note(run_id, "unblocked")
    if found:
        tx.notify(Change.READY)
    return len(found)


def _cause(run: Run, *, failing: bool) -> RetryCause | None:
    """State from which a run may go again; None: it goes on by itself, or has completed."""
    match run.status:
        case Status.FAILED | Status.CANCELLED:
            return RetryCause.ENDED
        case Status.BLOCKED:
            return RetryCause.BLOCKED
        case Status.PENDING | Status.WAITING if failing or run.reason is Reason.RETRY:
            return RetryCause.FAILING
        case _:
            return None


async def _refusal(
    tx: Transaction, run: Run, request: RetryRequest, cause: RetryCause | None, *, begins_anew: bool
) -> RetryOutcome | None:
    if run.status is Status.COMPLETED:
        return RetryOutcome.COMPLETED
    may_change = cause is RetryCause.ENDED or dead_letter_reason(run.status, run.reason) is not None
    # The deadline of a run may have passed while it was blocked.
    changes = request.changes_more if cause is RetryCause.BLOCKED else request.changes
    if cause is None or (changes and not may_change):
        return RetryOutcome.ALIVE
    if run.deleted_at:
        return RetryOutcome.DELETED
    if (run.deadline if request.deadline is None else request.deadline) <= tx.now:
        return RetryOutcome.EXPIRED
    if request.input is not None and not begins_anew and await tx.fetch(_ANY_RECORD, {"run_id": run.id}):
        return RetryOutcome.BEGUN
    return None


async def _failing(tx: Transaction, run: Run) -> list[int]:
    found = await tx.fetch(_FAILING, {"run_id": run.id, "attempt": run.attempt, "type": run.type})
    if not found:
        return []
    # The result of a step may be packed, while its failed attempts are not.
    packed = to_records(await tx.fetch(_PACKED, {"run_id": run.id, "attempt": run.attempt}))
    ended = {record.location for record in packed if record.kind is RecordKind.STEP}
    return [seq for seq, location in found if location not in ended]


async def _begins_anew(tx: Transaction, run: Run, request: RetryRequest) -> bool:
    """True for an activity: a claim is an attempt, so it gets its attempts anew with the number 1."""
    if request.is_activity is not None:
        return request.is_activity
    known = await tx.fetch(_KIND, {"type": run.type})
    if known:
        return bool(known[0][0] == "activity")
    return not await tx.fetch(_STEPS, {"run_id": run.id, "type": run.type})


def _as_it_goes_on(run: Run, request: RetryRequest, *, ended: bool, anew: bool) -> dict[str, object]:
    generation = run.generation + ended
    return {
        "run_id": run.id,
        "generation": generation,
        "attempt": 1 if anew else run.attempt + ended,
        "seed": kept_seed(run.seed, run.generation, generation) if ended else run.seed,
        "started_at": 0 if ended or anew else run.started_at,
        "deadline": run.deadline if request.deadline is None else request.deadline,
        "close_by": run.close_by if request.deadline is None else request.close_by,
        "inbox_read": run.inbox_seq if ended else run.inbox_read,
        "input": run.input if request.input is None else request.input,
        "options": run.options if request.options is None else request.options,
        "max_attempts": run.max_attempts if request.max_attempts is None else request.max_attempts,
        "queue": run.queue if request.queue is None else request.queue,
        "priority": run.priority if request.priority is None else request.priority,
    }


def _is_as_wanted(run: Run, request: RetryRequest) -> bool:
    wanted = ((request.input, run.input), (request.options, run.options), (request.queue, run.queue))
    return all(given is None or given == there for given, there in wanted)


def _note(tx: Transaction, run: Run, cause: RetryCause, reason: str, *, changed: bool) -> None:
    """Write the event, which names the cause, or that a dead letter begins anew or differently."""
    generation = run.generation + (cause is RetryCause.ENDED)
    if changed and cause is not RetryCause.FAILING:
        tx.note(run.id, "requeued", event_json(reason, generation=generation, was=run.reason or run.status))
    elif cause is RetryCause.ENDED:
        tx.note(run.id, "reopened", event_json(reason, generation=generation))
    elif cause is RetryCause.BLOCKED:
        tx.note(run.id, "unblocked", event_json(reason))
    else:
        tx.note(run.id, "recovered", event_json(reason, token=run.token + 1))


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
    tx.note(new.id, "forked", event_json(fork.reason, run=fork.source, step=fork.step))
    made = await locked(tx, new.id)
    return answer if made is None else CreatedRun(made, True)


async def _record(tx: Transaction, run: Run, cause: RetryCause, key: str) -> None:
    """Keep the state of a locked run among its outputs before it continues, and drop its permits and its places."""
    if run.finished_at:
        await tx.execute(_DROP_PERMITS, {"run_id": run.id})
        await tx.execute(_LEAVE_WAITLISTS, {"run_id": run.id})
    failing = cause is RetryCause.FAILING
    payload = RequeueRecord(
        at=tx.now,
        by=tx.actor,
        dead_since=tx.now if failing else run.finished_at or run.wake_at,
        attempt=run.attempt,
        generation=run.generation,
        # The error of a failed attempt is in the history.
        error="{}" if failing else run.error or "{}",
        inbox=run.inbox_seq,
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
        for message in await heard(tx, run, values(to_message, await tx.fetch(_UNREAD, of_run)))
        if message.kind in _RECORDED
    ]  # fmt: skip
    late += await untold(tx, run, at)
    await _write(tx, run.id, run.token, run.nonce, _numbered(late, seq))
    await tx.execute(_CONSUME, of_run)


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
