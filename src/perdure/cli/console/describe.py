"""Values as short text for people."""

from __future__ import annotations

import datetime

from perdure.cli.console.document import Document, failure, moment
from perdure.core.model.record import Message, Record
from perdure.core.model.run import Run, Status

_STYLES = {
    Status.RUNNING: "cyan",
    Status.WAITING: "yellow",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "magenta",
    Status.BLOCKED: "bold red",
}
_LONGEST = 160


def status(run: Run) -> str:
    """Where a run stands, and what for."""
    return run.status.value if run.reason is None else f"{run.status.value}: {run.reason.value}"


def status_style(text: str) -> str:
    """The colour of a status, as `status` gives it."""
    return _STYLES.get(Status(text.partition(":")[0]), "")


def when(time: int) -> str:
    """A time, to the second."""
    text = moment(time)
    return "" if text is None else f"{text[:10]} {text[11:19]}Z"


def span(microseconds: int) -> str:
    """How long something took or will take."""
    if abs(microseconds) < 60_000_000:
        return f"{microseconds / 1e6:.3f}s"
    return str(datetime.timedelta(seconds=round(microseconds / 1e6)))


def short(text: str | None) -> str:
    """A payload, cut to what fits a line."""
    text = text or ""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"


def error(text: str | None) -> str:
    """A stored error in a line."""
    stored = failure(text)
    return "" if stored is None else _error(stored)


def _error(stored: Document) -> str:
    name = stored["type"].rpartition(".")[2]
    return short(f"{name}: {stored['message']}" if name and stored["message"] else name or stored["message"])


def content(message: Message) -> str:
    """What an entry of an inbox carries."""
    return error(message.payload) if message.failed else short(message.payload)


def outcome(record: Record) -> str:
    """What a line of a history says happened."""
    if not record.failed:
        tries = f" (attempt {record.attempts})" if record.attempts > 1 else ""
        return f"{short(record.payload)}{tries}"
    what = error(record.payload)
    if record.retry_at:
        return f"attempt {record.attempts} failed, the next is due {span(record.retry_at - record.at)} later: {what}"
    return f"failed at attempt {record.attempts}: {what}" if record.attempts else f"failed: {what}"
