"""JSON documents of the values that commands print. Keys are stable: they are added, never renamed or removed.

Times are ISO 8601 in UTC, or null. Payloads appear as the JSON that they are. The proof of a lease (token, nonce) is
left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.core.audit import Event
from perdure.core.codec.failure import Failure
from perdure.core.model.attributes import AttributeValue, attributes_from_json
from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Message, Record
from perdure.core.model.run import Run
from perdure.core.model.waits import RunWaits
from perdure.core.model.worker_info import RunningStep
from perdure.core.time.cron import Window, to_stored
from perdure.core.time.duration import NEVER
from perdure.core.time.schedule import Schedule
from perdure.errors import InvalidSchedule

Document = dict[str, Any]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def moment(time: int) -> str | None:
    """Format a time; None for "never" and for "not yet"."""
    if time <= 0 or time >= NEVER:
        return None
    at = _EPOCH + datetime.timedelta(microseconds=time)
    return f"{at.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def payload(text: str | None) -> Any:
    """Decode a payload; return the text itself if a foreign writer stored text that is not JSON."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text


def failure(text: str | None) -> Document | None:
    """Convert a stored error, also one that is not in Perdure's format."""
    if text is None:
        return None
    return _failure(Failure.read(text))


def _failure(error: Failure) -> Document:
    return {
        "type": error.type,
        "message": error.message,
        "notes": list(error.notes),
        "traceback": error.traceback,
        "cause": None if error.cause is None else _failure(error.cause),
        "members": [_failure(member) for member in error.members],
        "not_undone": {location: _failure(problem) for location, problem in error.not_undone.items()},
        "partial": None if error.partial is None else payload(error.partial),
    }


def waits_document(waits: RunWaits | None) -> Document | None:
    """Convert what a run waits for."""
    if waits is None:
        return None
    named = [
        {
            "kind": one.kind.value,
            "name": one.name,
            "since": moment(one.since),
            "until": moment(one.until),
            "detail": one.detail,
        }
        for one in waits.waits
    ]
    return {"waits": named, "more": waits.more}


def step_document(step: RunningStep) -> Document:
    """Convert a step that is under way."""
    return {
        "run_id": step.run_id,
        "type": step.type,
        "location": step.location,
        "attempt": step.attempt,
        "since": moment(step.since),
        "heartbeat_at": moment(step.heartbeat_at),
    }


def run_document(run: Run) -> Document:
    """Convert a run."""
    return {
        "id": run.id,
        "type": run.type,
        "status": run.status.value,
        "reason": None if run.reason is None else run.reason.value,
        "queue": run.queue,
        "priority": run.priority,
        "input": payload(run.input),
        "output": payload(run.output),
        "error": failure(run.error),
        "attempt": run.attempt,
        "generation": run.generation,
        "claims": run.claims,
        "worker": run.worker,
        "build": run.build,
        "pinned_to": run.pinned_to,
        "created_at": moment(run.created_at),
        "started_at": moment(run.started_at),
        "finished_at": moment(run.finished_at),
        "wake_at": None if run.status.finished else moment(run.wake_at),
        "deadline": moment(run.deadline),
        "deleted_at": moment(run.deleted_at),
        "last_retry_at": moment(run.last_retry_at),
        "parent_id": run.parent_id,
        "parent_location": run.parent_location,
        "idempotency_key": run.idempotency_key,
        "attributes": attributes_document(run.attributes),
        "headers": dict(run.headers),
    }


def attributes_document(attributes: Mapping[str, AttributeValue] | None) -> Document:
    """Convert attributes by name; a time becomes text, as all times here."""
    return {
        name: moment_text(value) if isinstance(value, datetime.datetime) else value
        for name, value in (attributes or {}).items()
    }


def moment_text(at: datetime.datetime) -> str:
    """Format a time in UTC."""
    utc = at.astimezone(datetime.UTC).replace(tzinfo=None)
    return f"{utc.isoformat(timespec='microseconds')}Z"


def record_document(record: Record) -> Document:
    """Convert a record of a history."""
    return {
        "seq": record.seq,
        "kind": record.kind.value,
        "location": record.location,
        "failed": record.failed,
        "result": None if record.failed else payload(record.payload),
        "error": failure(record.payload) if record.failed else None,
        "at": moment(record.at),
        "started_at": moment(record.started_at),
        "attempts": record.attempts,
        "retry_at": moment(record.retry_at),
        "run_attempt": record.run_attempt,
    }


def interruption_document(interruption: Interruption) -> Document:
    """Convert an interruption: a worker that did not finish the steps that it had begun."""
    return {
        "at": moment(interruption.at),
        "worker": interruption.worker,
        "reason": interruption.reason,
        "generation": interruption.generation,
        "attempt": interruption.attempt,
        "last": interruption.last,
        "steps": None if interruption.steps is None else list(interruption.steps),
    }


def message_document(message: Message) -> Document:
    """Convert a message of an inbox."""
    return {
        "seq": message.seq,
        "kind": message.kind.value,
        "name": message.name,
        "value": None if message.failed else payload(message.payload),
        "error": failure(message.payload) if message.failed else None,
        "key": message.key,
        "sent_at": moment(message.sent_at),
    }


def schedule_document(one: Schedule) -> Document:
    """Convert a schedule."""
    try:
        window: Window | None = one.window
    except InvalidSchedule:
        window = None
    return {
        "id": one.id,
        "when": payload(one.spec if window is None else to_stored(window.timing)),
        "starts": window.starts.isoformat() if window and window.starts else None,
        "ends": window.ends.isoformat() if window and window.ends else None,
        "skip": [day.isoformat() for day in window.skip] if window else [],
        "type": one.type,
        "input": payload(one.input),
        "queue": one.queue,
        "priority": one.priority,
        "deadline_seconds": one.deadline / 1e6 if one.deadline else None,
        "jitter_seconds": one.jitter / 1e6,
        "misfire": msgspec.to_builtins(one.misfire),
        "overlap": one.overlap.value,
        "paused": one.paused,
        "reason": one.reason,
        "next_fire_time": moment(one.next_fire_time),
        "due_at": moment(one.due_at),
        "waiting": [moment(time) for time in one.waiting],
        "last_fire_time": moment(one.last_fire_time),
        "last_run": one.last_run or None,
        "error": one.error or None,
        "created_at": moment(one.created_at),
        "changed_at": moment(one.changed_at),
        "attributes": attributes_document(_attributes(one)),
        "headers": dict(one.headers),
    }


def _attributes(one: Schedule) -> dict[str, AttributeValue]:
    try:
        return {attribute.name: attribute.value for attribute in attributes_from_json(one.attributes)}
    except (msgspec.MsgspecError, ValueError, OverflowError):
        return {}


def event_document(event: Event) -> Document:
    """Convert an event of the audit trail."""
    return {
        "id": event.id,
        "at": moment(event.at),
        "kind": event.kind,
        "actor": event.actor,
        "data": payload(event.data),
    }
