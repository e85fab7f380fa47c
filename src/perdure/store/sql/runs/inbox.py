"""Inboxes: messages from outside, outcomes of children, and cancellations of a run.

An entry gets its number under the lock of the run's row, so numbers rise in commit order and the run's counter tells a
parking run whether anything came in since it last looked. The wake-up is part of the same write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from perdure.core.model.outputs import BroadcastResult
from perdure.core.model.record import NewMessage, RecordKind, SendOutcome
from perdure.core.model.run import ABANDONED, FINISHED, Reason, Status
from perdure.core.model.turn import Turn
from perdure.core.model.waits import is_not_taken, meant_by, waits_from_json
from perdure.errors import RunCancelled
from perdure.store.contract import Change
from perdure.store.sql.audit import note_inserted
from perdure.store.sql.dialect import Row, Transaction
from perdure.store.sql.rows import event_json, failure, to_json
from perdure.store.sql.runs.finish import finish
from perdure.store.sql.runs.waiters import Waiter, leave, watch

_TARGET = """
SELECT status, inbox_seq, started_at, attempt, parent_id, reason
FROM perdure_runs
WHERE id = :run_id
{for_update}
"""

#: What a send reads besides: the names of the messages that the run waits for.
_AWAITING_TARGET = _TARGET.replace("reason", "reason, token, waits")

KNOWN = """
SELECT 1
FROM perdure_messages
WHERE run_id = :run_id AND message_key = :key
"""

_CHILDREN = f"""
SELECT id, generation
FROM perdure_runs
WHERE parent_id = :run_id AND finished_at = 0 AND write_id NOT LIKE '{ABANDONED}%'
ORDER BY id
"""

INSERT = """
INSERT INTO perdure_messages (run_id, seq, kind, name, payload, failed, message_key, sent_at)
VALUES (:run_id, :seq, :kind, :name, :payload, :failed, :key, :now)
"""

_RAISE = """
UPDATE perdure_runs
SET inbox_seq = :seq, status = :status, reason = CASE WHEN :status = 'pending' THEN NULL ELSE reason END,
    wake_at = CASE WHEN :woken = 1 THEN :now ELSE wake_at END, marked = :marked
WHERE id = :run_id
"""


async def send(tx: Transaction, messages: Sequence[NewMessage]) -> list[SendOutcome]:
    """Put messages into inboxes; a cancellation among them acts as one."""
    return [await _SENDS.get(one.kind, _send)(tx, one) for one in messages]


async def cancel(tx: Transaction, run_id: str, reason: str, key: str) -> SendOutcome:
    """Ask a run to stop, and stop it at once where no code of it can be under way."""
    return await _stop(tx, NewMessage(run_id=run_id, kind=RecordKind.CANCEL, payload=to_json(reason), key=key))


async def deliver(tx: Transaction, message: NewMessage | None) -> None:
    """Put an entry into an inbox, waking or marking the run, with no line in the audit trail."""
    if message is not None:
        await _put(tx, message, await _target(tx, message.run_id))


async def deliver_all(tx: Transaction, messages: Iterable[NewMessage]) -> None:
    """Put entries into inboxes, as `deliver` does."""
    for message in messages:
        await deliver(tx, message)


async def _send(tx: Transaction, message: NewMessage) -> SendOutcome:
    target = await _target(tx, message.run_id, _AWAITING_TARGET)
    outcome = await _put(tx, message, target)
    if outcome is SendOutcome.ACCEPTED and target is not None:
        tx.note(message.run_id, "sent", event_json(message.reason, name=message.name, key=message.key))
        return SendOutcome.MISSPELT if _is_misspelt(message.name, target) else outcome
    return outcome


def _is_misspelt(name: str, target: Row) -> bool:
    status, token, waits = target[0], target[6], target[7]
    if status != Status.WAITING or not waits or f'"name":"{name}"' in waits:
        return False
    found = waits_from_json(waits)
    if found is None or found.token != token:
        return False
    return is_not_taken(name, found) or meant_by(name, found) is not None


async def _stop(tx: Transaction, request: NewMessage) -> SendOutcome:
    run_id = request.run_id
    target = await _target(tx, run_id)
    outcome = await _put(tx, request, target)
    if outcome is not SendOutcome.ACCEPTED or target is None:
        return outcome
    status, _, started_at, attempt, _, _ = target
    if started_at == 0:
        await note_inserted(tx, [run_id])
    tx.note(run_id, "cancel_requested", f'{{"reason":{request.payload or "null"}}}')
    if status == Status.BLOCKED or (started_at == 0 and attempt == 1 and status != Status.RUNNING):
        reason = msgspec.json.decode(request.payload or "null")
        because = f": {reason}" if reason else ""
        error = failure(RunCancelled, f"run {run_id!r} was cancelled before it could go on{because}")
        await deliver_all(tx, await finish(tx, run_id, Status.CANCELLED, error, "cancelled"))
        if status == Status.BLOCKED:
            await stop_children(tx, run_id)
    return outcome


async def _watch(tx: Transaction, request: NewMessage) -> SendOutcome:
    await deliver(tx, await watch(tx, Waiter.of(request)))
    return SendOutcome.ACCEPTED


async def _unwatch(tx: Transaction, request: NewMessage) -> SendOutcome:
    await leave(tx, Waiter.of(request))
    return SendOutcome.ACCEPTED


#: What a turn sends besides messages.
_SENDS = {RecordKind.CANCEL: _stop, RecordKind.WATCH: _watch, RecordKind.UNWATCH: _unwatch}


async def stop_children(tx: Transaction, run_id: str, how: str = "cancelled") -> None:
    """Cancel the children of a run that was ended without its code, which would have done so."""
    reason = to_json(f"its parent {run_id!r} was {how}")
    for child, generation in await tx.fetch(_CHILDREN, {"run_id": run_id}):
        # A child that was stopped before and is opened again is stopped again.
        key = f"cancel:{run_id}" if generation == 1 else f"cancel:{run_id}:{generation}"
        await _stop(tx, NewMessage(run_id=child, kind=RecordKind.CANCEL, payload=reason, key=key))


async def _target(tx: Transaction, run_id: str, sql: str = _TARGET) -> Row | None:
    rows = await tx.fetch(sql, {"run_id": run_id})
    return rows[0] if rows else None


async def _put(tx: Transaction, message: NewMessage, target: Row | None) -> SendOutcome:
    if target is None or message.only_child_of not in (None, target[4]):
        return SendOutcome.UNKNOWN
    status, inbox_seq, started_at, _, _, reason, *_ = target
    if await tx.fetch(KNOWN, {"run_id": message.run_id, "key": message.key}):
        return SendOutcome.DUPLICATE
    if status in FINISHED:
        return SendOutcome.FINISHED
    # A message does not start a run that waits for its start, a retry or a resume; a cancellation does.
    stirs = message.kind is RecordKind.CANCEL or (started_at != 0 and reason != Reason.PAUSED)
    woken = status == Status.WAITING and stirs
    running = status == Status.RUNNING
    entry = {
        "run_id": message.run_id,
        "seq": inbox_seq + 1,
        "kind": message.kind.value,
        "name": message.name,
        "payload": message.payload,
        "failed": int(message.failed),
        "key": message.key,
        "now": tx.now,
    }
    await tx.execute(INSERT, entry)
    change = {
        "run_id": message.run_id,
        "seq": inbox_seq + 1,
        "status": "pending" if woken else status,
        "woken": int(woken),
        "marked": int(running),
        "now": tx.now,
    }
    await tx.execute(_RAISE, change)
    if woken:
        tx.notify(Change.READY)
    elif running:
        tx.notify(Change.MARKED)
    return SendOutcome.ACCEPTED


#: Puts messages into inboxes.
Deliver = Callable[[Sequence[NewMessage]], Awaitable[Sequence[SendOutcome]]]

_LISTENERS = """
SELECT run_id
FROM perdure_topics
WHERE topic = :topic AND run_id > :after
ORDER BY topic, run_id
LIMIT :limit
"""

_LEAVE = """
DELETE FROM perdure_topics
WHERE topic = :topic AND run_id = :run_id
"""

_JOIN = """
INSERT INTO perdure_topics (topic, run_id)
VALUES (:topic, :run_id)
"""


async def subscribe(tx: Transaction, turns: Iterable[Turn]) -> None:
    """Apply the subscriptions of turns, and the removals; a topic in both is subscribed to."""
    joined = [
        {"topic": topic, "run_id": turn.lease.run_id} for turn in turns for topic in dict.fromkeys(turn.subscribes)
    ]
    left = [{"topic": topic, "run_id": turn.lease.run_id} for turn in turns for topic in turn.unsubscribes]
    # The lock of the run excludes other writers, and not every database can insert only the missing rows.
    await tx.execute_many(_LEAVE, [*left, *joined])
    await tx.execute_many(_JOIN, joined)


async def broadcast(
    tx: Transaction, topic: str, payload: str | None, key: str, after: str | None, limit: int, deliver: Deliver
) -> BroadcastResult:
    """Send a message to the runs that listen to a topic, from a run id on."""
    rows = await tx.fetch(_LISTENERS, {"topic": topic, "after": after or "", "limit": limit})
    if not rows:
        return BroadcastResult(0, None)
    messages = [NewMessage(run_id=row[0], name=topic, payload=payload, key=f"broadcast:{key}") for row in rows]
    outcomes = dict(zip([row[0] for row in rows], await deliver(messages), strict=True))
    gone = [id for id, outcome in outcomes.items() if outcome in (SendOutcome.FINISHED, SendOutcome.UNKNOWN)]
    await tx.execute_many(_LEAVE, [{"topic": topic, "run_id": run_id} for run_id in gone])
    return BroadcastResult(len(outcomes) - len(gone), rows[-1][0] if len(rows) == limit else None)
