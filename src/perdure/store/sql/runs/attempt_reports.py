"""Reports about attempts at activities from outside, each decided and written under the lock of the run's row.

A completion ends the run in the same transaction, in whatever unfinished status it is, and needs no worker: the answer
to it is final. A worker that holds the run has lost its lease. If the activity is behind a breaker, the completion
counts as a success there: the turn that parked the run has named its gate. A failure goes into the inbox, because the
retry policy is that of the activity's code: a worker decides whether another attempt follows. From then on the attempt
is over.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from perdure.core.audit import error_summary
from perdure.core.limits.limit import LimitBounds
from perdure.core.model.attempt_reports import (
    AttemptReport,
    AttemptToken,
    PendingAttempt,
    ReportKind,
    ReportOutcome,
    pending_from_json,
)
from perdure.core.model.outputs import OutputKind
from perdure.core.model.record import NewMessage, RecordKind
from perdure.core.model.run import FINISHED, Reason, Status
from perdure.store.contract import Change
from perdure.store.sql.audit import heartbeat_event
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.limits.breakers import count_success
from perdure.store.sql.limits.gates import lock_gates
from perdure.store.sql.rows import to_json
from perdure.store.sql.runs.finish import message_to_parent, messages_of_end
from perdure.store.sql.runs.inbox import KNOWN, deliver, deliver_all
from perdure.store.sql.runs.outputs import outputs

_TARGET = """
SELECT status, reason, generation, seed, output, deadline, inbox_read, parent_id, parent_location
FROM perdure_runs
WHERE id = :run_id
{for_update}
"""

_LAST = """
SELECT MAX(seq)
FROM perdure_history
WHERE run_id = :run_id
"""

#: A worker ends a run with this in its inbox as cancelled.
_CANCELLED = """
SELECT 1
FROM perdure_messages
WHERE run_id = :run_id AND seq > :read AND kind = 'cancel'
"""

#: Raises the token, so that a worker that holds the run cannot take the outcome for its own.
_COMPLETE = """
UPDATE perdure_runs
SET status = 'completed', reason = NULL, output = :output, error = NULL, finished_at = :now, token = token + 1,
    worker = NULL, home = NULL, lease_until = 0, marked = 0, claims = 0, waits = NULL
WHERE id = :run_id
"""

#: Unlike a state, a heartbeat that says the same again has a new time.
_BEAT_AGAIN = """
UPDATE perdure_outputs
SET payload = COALESCE(:payload, payload), at = :now
WHERE run_id = :run_id AND kind = 'beat' AND name = '' AND position = 0
"""

_FIRST_BEAT = """
INSERT INTO perdure_outputs (run_id, kind, name, position, payload, failed, at)
VALUES (:run_id, 'beat', '', 0, :payload, 0, :now)
"""

_HAS_BEATEN = """
SELECT 1
FROM perdure_outputs
WHERE run_id = :run_id AND kind = 'beat' AND name = '' AND position = 0
"""

_PUT_OFF = """
UPDATE perdure_runs
SET wake_at = :wake_at
WHERE id = :run_id AND status = 'waiting' AND reason = 'completion'
"""


class _ReportedRun(Struct, frozen=True):
    """A run's row as far as a report needs it."""

    status: str
    reason: str | None
    generation: int
    seed: str
    output: str | None
    deadline: int
    inbox_read: int
    parent_id: str | None
    parent_location: str | None


async def lock_breaker(tx: Transaction, report: AttemptReport) -> None:
    """Lock the gate of the breaker that a completion counts at: admissions lock gates before runs."""
    if report.kind is ReportKind.COMPLETED and (pending := await _pending(tx, report.token)) and pending.breaker:
        await lock_gates(tx, {pending.breaker: LimitBounds()})


async def report_attempt(tx: Transaction, report: AttemptReport) -> ReportOutcome:
    """Write a report, unless the attempt was over before."""
    token = report.token
    rows = await tx.fetch(_TARGET, {"run_id": token.run_id})
    run = _ReportedRun(*rows[0]) if rows else None
    if run is None or not token.is_genuine(run.seed):
        return ReportOutcome.UNKNOWN
    if await tx.fetch(KNOWN, {"run_id": token.run_id, "key": token.key}):
        return ReportOutcome.DONE if report.kind is ReportKind.FAILED else ReportOutcome.OVER
    [(last,)] = await tx.fetch(_LAST, {"run_id": token.run_id})
    if run.generation != token.generation or token.number != (0 if last is None else last + 1):
        return ReportOutcome.OVER
    if run.status in FINISHED:
        return ReportOutcome.DONE if _is_repeated(report, run) else ReportOutcome.ENDED
    if await tx.fetch(_CANCELLED, {"run_id": token.run_id, "read": run.inbox_read}):
        return ReportOutcome.CANCELLED
    if report.kind is ReportKind.COMPLETED:
        await _complete(tx, token, run, report.payload)
    elif report.kind is ReportKind.FAILED:
        await _fail(tx, token, report.payload)
    else:
        await _beat(tx, token, run, report.payload)
    return ReportOutcome.DONE


def _is_repeated(report: AttemptReport, run: _ReportedRun) -> bool:
    """Tell whether a run that has ended was completed with the same result."""
    if report.kind is not ReportKind.COMPLETED or run.status != Status.COMPLETED:
        return False
    return report.payload == run.output or _canonical(report.payload) == _canonical(run.output)


def _canonical(payload: str | None) -> bytes:
    text = payload or "null"
    try:
        return msgspec.json.encode(msgspec.json.decode(text), order="sorted")
    except msgspec.MsgspecError:
        return text.encode()


async def _complete(tx: Transaction, token: AttemptToken, run: _ReportedRun, payload: str | None) -> None:
    run_id, output = token.run_id, payload or "null"
    await tx.execute(_COMPLETE, {"run_id": run_id, "output": output, "now": tx.now})
    tx.note(run_id, "completed", to_json({"from": "outside"}))
    tx.notify(Change.FINISHED | Change.ENDED)
    word = message_to_parent(run_id, run.parent_id, run.parent_location, run.generation, output, failed=False)
    await deliver_all(tx, await messages_of_end(tx, run_id, word, output, failed=False))
    pending = await _pending(tx, token)
    if pending and pending.breaker and (pending.generation, pending.number) == (token.generation, token.number):
        await count_success(tx, pending.breaker, pending.admitted_at)


async def _fail(tx: Transaction, token: AttemptToken, payload: str | None) -> None:
    entry = NewMessage(
        run_id=token.run_id, kind=RecordKind.REPORT, name=f"{token.generation}.{token.number}", payload=payload,
        failed=True, key=token.key,
    )  # fmt: skip
    await deliver(tx, entry)
    tx.note(token.run_id, "failure_reported", to_json(error_summary(payload)))


async def _beat(tx: Transaction, token: AttemptToken, run: _ReportedRun, details: str | None) -> None:
    run_id = token.run_id
    row = {"run_id": run_id, "payload": details, "now": tx.now}
    if await tx.fetch(_HAS_BEATEN, {"run_id": run_id}):
        await tx.execute(_BEAT_AGAIN, row)
    else:
        await tx.execute(_FIRST_BEAT, {**row, "payload": details or "null"})
    if tx.repeats:
        tx.note(run_id, *heartbeat_event(details or "null"))
    pending = await _pending(tx, token) if run.reason == Reason.COMPLETION else None
    if pending is not None:
        due = min(pending.due(tx.now), run.deadline)
        await tx.execute(_PUT_OFF, {"run_id": run_id, "wake_at": due})
    tx.notify(Change.OUTPUT)


async def _pending(tx: Transaction, token: AttemptToken) -> PendingAttempt | None:
    found = await outputs(tx, token.run_id, OutputKind.PENDING, "", -1, 1)
    return pending_from_json(found[0].payload) if found else None
