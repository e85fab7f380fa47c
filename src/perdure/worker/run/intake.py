"""Taking in what came into a run's inbox."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.model.run import Kind, Message
from perdure.replay.execution import Execution
from perdure.worker.run.orders import UNRECORDED
from perdure.worker.run.turn_draft import Draft

# A member of an enum is slow to find by its class.
_MESSAGE = Kind.MESSAGE


def take_in(execution: Execution, draft: Draft, messages: Iterable[Message], seen: int, now: int) -> int:
    """Record entries, in order, and let the workflow see them; up to which one was taken in."""
    together: list[Message] = []
    for message in messages:
        if message.kind is _MESSAGE and message.seq > seen and execution.outcome is None:
            seen = message.seq
            together.append(message)
            continue
        _record_messages(execution, draft, together, now)
        renewed = execution.outcome is not None and execution.outcome.renewed is not None
        if message.kind is not _MESSAGE and (message.kind in UNRECORDED or _says_nothing(message, execution)):
            # A message that came after the end is left unread, for another attempt; and so is all that came after it.
            if not renewed and (execution.outcome is None or message.seq == seen + 1):
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
        if renewed:
            seen = max(seen, message.seq)
            draft.carry(seen)
    _record_messages(execution, draft, together, now)
    return seen


def _record_messages(execution: Execution, draft: Draft, together: list[Message], now: int) -> None:
    if together:
        draft.read = together[-1].seq
        draft.urgent = True
        execution.record_messages([(message.name, message.payload, message.seq) for message in together], now)
        together.clear()


def _says_nothing(message: Message, execution: Execution) -> bool:
    if message.kind is Kind.WAKE:
        # One that only changed when the run begins says nothing more.
        return message.payload is None or execution.sleep() is None
    return execution.is_of_the_past(message)


def _record(execution: Execution, message: Message, now: int) -> None:
    location = message.name
    if message.kind is Kind.WAKE:
        sleep = execution.sleep()
        assert sleep is not None
        location = sleep.location
    execution.record(
        message.kind, location, message.payload, now, failed=message.failed, inbox_seq=message.seq
    )  # fmt: skip
