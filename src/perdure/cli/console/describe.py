"""Short texts for values in tables and fields."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from perdure.cli.console.document import Document, attributes_document, failure, moment
from perdure.cli.console.output import dump
from perdure.core.codec.failure import Failure
from perdure.core.model.attributes import AttributeValue
from perdure.core.model.record import Message, Record
from perdure.core.model.run import Run, Status
from perdure.core.status_signs import STATUS_SIGNS

_LONGEST = 160


def status(run: Run) -> str:
    """Describe the status of a run and its reason: `waiting: timer`."""
    return run.status.value if run.reason is None else f"{run.status.value}: {run.reason.value}"


def status_style(text: str) -> str:
    """Return the colour of a status text that `status` made."""
    return STATUS_SIGNS[Status(text.partition(":")[0])].style


def when(time: int) -> str:
    """Format a time to the second."""
    text = moment(time)
    return "" if text is None else f"{text[:10]} {text[11:19]}Z"


def span(microseconds: int) -> str:
    """Format a length of time."""
    if abs(microseconds) < 60_000_000:
        return f"{microseconds / 1e6:.3f}s"
    return str(datetime.timedelta(seconds=round(microseconds / 1e6)))


def short(text: str | None) -> str:
    """Cut a payload to the length of a line."""
    text = text or ""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"


def error(text: str | None) -> str:
    """Describe a stored error in a line."""
    stored = failure(text)
    return "" if stored is None else _error(stored)


def traceback(text: str) -> str:
    """Describe a stored error as Python prints one; empty if it is not in Perdure's format, or has no more to say."""
    stored = Failure.read(text)
    more = stored.traceback or stored.notes or stored.cause or stored.members or stored.not_undone or stored.partial
    return stored.format() if more else ""


def _error(stored: Document) -> str:
    name = stored["type"].rpartition(".")[2]
    return short(f"{name}: {stored['message']}" if name and stored["message"] else name or stored["message"])


def content(message: Message) -> str:
    """Describe the value or the error of a message."""
    return error(message.payload) if message.failed else short(message.payload)


def outcome(record: Record) -> str:
    """Describe the outcome of a record of a history."""
    if not record.failed:
        tries = f" (attempt {record.attempts})" if record.attempts > 1 else ""
        return f"{short(record.payload)}{tries}"
    what = error(record.payload)
    if record.retry_at:
        return f"attempt {record.attempts} failed, the next is due {span(record.retry_at - record.at)} later: {what}"
    return f"failed at attempt {record.attempts}: {what}" if record.attempts else f"failed: {what}"


def attributes(values: Mapping[str, AttributeValue] | None) -> str:
    """Describe attributes in a line: `customer=acme amount=12.5`."""
    shown = attributes_document(values)
    return " ".join(f"{name}={value if isinstance(value, str) else dump(value)}" for name, value in shown.items())
