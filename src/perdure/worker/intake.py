"""Taking in what came into a run's inbox."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.model import Kind, Message
from perdure.replay.execution import Execution
from perdure.worker.draft import Draft
from perdure.worker.steering import UNRECORDED


def take_in(execution: Execution, draft: Draft, messages: Iterable[Message], seen: int, now: int) -> int:
    """Record entries, in order, and let the workflow see them; up to which one was taken in."""
    for message in messages:
        if message.kind in UNRECORDED or (message.kind is Kind.WAKE and not _wakes(message, execution)):
            # A message that came after the end is left unread, for another attempt; and so is all that came after it.
            if execution.outcome is None or message.seq == seen + 1:
                seen = max(seen, message.seq)
                draft.took_in(seen)
        elif message.seq > seen and execution.outcome is None:
            seen = draft.read = message.seq
            draft.urgent = True
            _record(execution, message, now)
        elif message.kind is Kind.CANCEL:
            # Too late for this attempt, which has its outcome; but no other is to follow.
            execution.cancel_requested = True
        elif message.kind is Kind.MESSAGE and message.seq > seen:
            execution.carry(message)
        if execution.outcome is not None and execution.outcome.renewed is not None:
            seen = max(seen, message.seq)
            draft.took_in(seen)
    return seen


def _wakes(message: Message, execution: Execution) -> bool:
    # One that only changed when the run begins says nothing more.
    return message.payload is not None and execution.sleep() is not None


def _record(execution: Execution, message: Message, now: int) -> None:
    location = message.name
    if message.kind is Kind.WAKE:
        sleep = execution.sleep()
        assert sleep is not None
        location = sleep.location
    execution.record(
        message.kind, location, message.payload, now, failed=message.failed, inbox_seq=message.seq
    )  # fmt: skip
