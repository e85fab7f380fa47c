"""Lines of `perdure dev`: one for each event of a run, with the glyphs and words of the dashboard."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from perdure.cli.console.describe import when
from perdure.cli.console.document import moment
from perdure.cli.console.output import dump
from perdure.core.model.run import Status
from perdure.core.printed_text import harmless, harmless_lines
from perdure.core.status_signs import STATUS_SIGNS
from perdure.core.time.duration import NEVER, length

if TYPE_CHECKING:
    from rich.console import Console

#: Run, time, kind, actor and data of an audit event.
Observed = tuple[str, int, str, str, str]

#: Kinds of events by the word and the status whose sign they have. Other kinds are shown by their own name.
_KINDS: Mapping[str, tuple[str, Status]] = MappingProxyType(
    {
        "started": ("started", Status.RUNNING),
        "claimed": ("running", Status.RUNNING),
        "parked": ("waiting", Status.WAITING),
        "retried": ("retrying", Status.WAITING),
        "paused": ("paused", Status.WAITING),
        "reclaimed": ("interrupted", Status.BLOCKED),
        "blocked": ("blocked", Status.BLOCKED),
        "completed": ("completed", Status.COMPLETED),
        "failed": ("failed", Status.FAILED),
        "expired": ("expired", Status.FAILED),
        "terminated": ("terminated", Status.FAILED),
        "cancelled": ("cancelled", Status.CANCELLED),
    }
)
#: Statuses of the ends of attempts in the log.
_ENDS: Mapping[str, tuple[str, Status]] = MappingProxyType(
    {
        "success": ("completed", Status.COMPLETED),
        "retrying": ("retrying", Status.WAITING),
        "failed": ("failed", Status.FAILED),
        "cancelled": ("cancelled", Status.CANCELLED),
        "blocked": ("blocked", Status.BLOCKED),
    }
)
#: Kinds of events that the log of attempts reports with more detail.
LOGGED = frozenset({"completed", "failed", "cancelled", "blocked", "retried"})
_SILENT = frozenset({"heartbeat", "next"})
_EXECUTION = "perdure.execution"
#: Beginning of a warning that several processes share a SQLite file, as they always do here.
_EXPECTED = "%s is written by more than one process"


class Line(Struct, frozen=True, kw_only=True):
    """A line: a sign, a word, the run that it is about, details, and a traceback below it."""

    word: str
    glyph: str = "○"
    style: str = ""
    run: str = ""
    detail: str = ""
    below: str = ""
    #: Fields for programs, with `--json`.
    document: Mapping[str, Any] = {}


def _signed(word: str, status: Status, **fields: Any) -> Line:
    sign = STATUS_SIGNS[status]
    return Line(word=word, glyph=sign.glyph, style=sign.style, **fields)


def event_line(event: Observed) -> Line | None:
    """The line of an audit event; None for events that only repeat."""
    run_id, _, kind, actor, data = event
    if kind in _SILENT:
        return None
    details = _details(data)
    document = {"event": kind, "run_id": run_id, "actor": actor, "data": details}
    detail = _event_detail(kind, actor, details)
    if kind in _KINDS:
        word, status = _KINDS[kind]
        return _signed(word, status, run=run_id, detail=detail, document=document)
    return Line(word=kind.replace("_", " "), run=run_id, detail=detail, document=document)


def _details(data: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data or "{}")
    except (msgspec.MsgspecError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _event_detail(kind: str, actor: str, details: Mapping[str, Any]) -> str:
    match kind:
        case "started" | "claimed":
            attempt = details.get("attempt", 1)
            return f"attempt {attempt}" if attempt != 1 else ""
        case "parked":
            until = details.get("until", 0)
            limited = isinstance(until, int) and 0 < until < NEVER
            return f"{details.get('for', '')}{f', until {when(until)}' if limited else ''}"
        case "created":
            parent = f", child of {details['parent']}" if "parent" in details else ""
            return f"{details.get('type', '')}{parent}, by {actor}"
        case "sent":
            return f"{details.get('name', '')}, by {actor}"
        case "reclaimed":
            return "its worker was lost; another one takes over"
        case _:
            known = {**details, "until": when(details["until"])} if isinstance(details.get("until"), int) else details
            named = [f"{name} {value}" for name, value in known.items() if isinstance(value, str | int) and value]
            return ", ".join([*named, *([f"by {actor}"] if actor else [])])


def attempt_line(record: logging.LogRecord, trace: str) -> Line:
    """The line of the end of an attempt at a step, an activity or a run."""
    fields = vars(record)
    word, status = _ENDS.get(fields["status"], (fields["status"], Status.RUNNING))
    scope, attempt, error = fields["scope"], fields["attempt"], fields["error"]
    parts = [f"step {fields['location']}" if scope == "step" else "", length(round(fields["duration"] * 1e6))]
    parts.append(f"attempt {attempt}" if attempt > 1 or status is not Status.COMPLETED else "")
    detail = ", ".join(part for part in parts if part) + (f": {error}" if error else "")
    document = {
        "event": "attempt",
        **{name: fields[name] for name in ("run_id", "scope", "location", "attempt", "duration", "status", "error")},
    }
    return _signed(word, status, run=fields["run_id"], detail=detail, below=trace, document=document)


def log_line(record: logging.LogRecord, trace: str) -> Line:
    """The line of any other log record."""
    level = record.levelname.lower()
    style = STATUS_SIGNS[Status.FAILED].style if record.levelno >= logging.ERROR else STATUS_SIGNS[Status.WAITING].style
    glyph = STATUS_SIGNS[Status.FAILED].glyph if record.levelno >= logging.ERROR else "!"
    text = record.getMessage()
    document = {"event": "log", "level": level, "logger": record.name, "message": text}
    return Line(word=level, glyph=glyph, style=style, detail=text, below=trace, document=document)


class LinePrinter:
    """Prints lines from any thread: coloured on a terminal, plain elsewhere, JSON for programs."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self._lock = threading.Lock()

    @cached_property
    def _console(self) -> Console | None:
        if self.json or not sys.stdout.isatty():
            return None
        from rich.console import Console

        return Console(highlight=False, markup=False, emoji=False)

    def show(self, line: Line) -> None:
        """Print a line."""
        with self._lock:
            if self.json:
                print(dump({"at": moment(time.time_ns() // 1000), **line.document}), flush=True)
                return
            clock, sign = time.strftime("%H:%M:%S"), f"{line.glyph} {harmless(line.word):<11}"
            rest = "  ".join(harmless(part) for part in (line.run, line.detail) if part)
            below = [f"    {one}" for one in harmless_lines(line.below)] if line.below else []
            if self._console is None:
                print("\n".join([f"{clock}  {sign} {rest}".rstrip(), *below]), flush=True)
                return
            from rich.text import Text

            text = Text.assemble((clock, "dim"), "  ", (sign, line.style), " ", rest)
            for one in below:
                text.append(f"\n{one}", "dim")
            self._console.print(text, soft_wrap=True)

    def say(self, event: str, text: str, style: str = "", below: str = "", **document: Any) -> None:
        """Print a line about the processes themselves."""
        shown = Line(
            word="dev", glyph="·", style=style, detail=text, below=below, document={"event": event, **document}
        )
        self.show(shown)


class LineHandler(logging.Handler):
    """Prints log records as lines."""

    def __init__(self, lines: LinePrinter) -> None:
        super().__init__()
        self._lines = lines
        self._plain = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        if str(record.msg).startswith(_EXPECTED):
            return
        try:
            trace = self._plain.formatException(record.exc_info) if record.exc_info else record.exc_text or ""
            is_end = record.name == _EXECUTION and hasattr(record, "status")
            self._lines.show(attempt_line(record, trace) if is_end else log_line(record, trace))
        except Exception:
            self.handleError(record)


def configure_log(lines: LinePrinter, level: str) -> None:
    """Print the log of this process as lines; the ends of all attempts, and other records from a level on.

    Handlers of the user's code stay, and get the records of other loggers.
    """
    perdure, root, handler = logging.getLogger("perdure"), logging.getLogger(), LineHandler(lines)
    perdure.setLevel(level.upper())
    logging.getLogger(_EXECUTION).setLevel(logging.DEBUG)
    perdure.addHandler(handler)
    perdure.propagate = False
    if not root.handlers:
        root.addHandler(handler)


class EventLines:
    """Prints audit events of this process in an order that makes sense.

    The event of a run that parks comes from the commit, before the log of the steps in the same commit. It is held back
    for a moment, or until the next event of the run.
    """

    def __init__(self, lines: LinePrinter, *, without: frozenset[str] = frozenset(), delay: float = 0.05) -> None:
        """`without`: kinds to leave out; `delay`: seconds for which events of parked runs are held back."""
        self._lines = lines
        self._delay = delay
        self._without = without
        self._held: dict[str, tuple[Line, threading.Timer]] = {}
        self._lock = threading.Lock()

    def observe(self, events: Sequence[Observed]) -> None:
        """Take the events of a commit; called from any thread."""
        for event in events:
            if event[2] in self._without:
                continue
            line = event_line(event)
            if line is None:
                continue
            self._release(event[0])
            if event[2] == "parked":
                self._hold(event[0], line)
            else:
                self._lines.show(line)

    def _hold(self, run_id: str, line: Line) -> None:
        timer = threading.Timer(self._delay, self._release, (run_id,))
        timer.daemon = True
        with self._lock:
            self._held[run_id] = line, timer
        timer.start()

    def _release(self, run_id: str) -> None:
        with self._lock:
            held = self._held.pop(run_id, None)
        if held is not None:
            held[1].cancel()
            self._lines.show(held[0])
