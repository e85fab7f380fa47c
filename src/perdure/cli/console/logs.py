"""Log formats of a worker: text lines or JSON lines. A message never spans or imitates a line."""

from __future__ import annotations

import logging
import sys

from perdure.cli.console.document import moment
from perdure.cli.console.output import dump
from perdure.core.printed_text import harmless, harmless_lines
from perdure.worker import current_fields

LEVELS = ("debug", "info", "warning", "error", "critical")
DEFAULT_LEVEL = "info"
FORMATS = ("text", "json")

#: Extra fields of log records about steps, activities and runs.
FIELDS = (
    "run_id", "run_type", "scope", "step", "location", "attempt", "worker", "retry_count", "duration", "status",
    "error", "retry_at", "trace_id",
)  # fmt: skip


class TextFormatter(logging.Formatter):
    """Formatter of time, level, logger and message, followed by the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; the lines of a traceback are indented."""
        at = moment(int(record.created * 1e6)) or ""
        line = f"{at[:23]}Z {record.levelname.lower():<7} {record.name}: {harmless(record.getMessage())}"
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        return "\n    ".join([line, *harmless_lines(trace)]) if trace else line


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as an object."""
        line: dict[str, object] = {
            "at": moment(int(record.created * 1e6)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        # A record of the user's own logger, inside a step or a workflow, has no fields by itself.
        line |= current_fields()
        line |= {name: vars(record)[name] for name in FIELDS if name in vars(record)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["traceback"] = record.exc_text
        return dump(line)


def configure(level: str | None, form: str | None, *, json: bool) -> None:
    """Write the log of this process to standard error, in a form of `FORMATS`, or as JSON if `json` is the default.

    Only Perdure's own level is set. What the user's code has configured stays: its handlers get Perdure's records, too,
    unless a form is asked for, and its level of Perdure's logger counts, unless another one is asked for.
    """
    perdure, root = logging.getLogger("perdure"), logging.getLogger()
    if level is not None or perdure.level == logging.NOTSET:
        perdure.setLevel((level or DEFAULT_LEVEL).upper())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" or (form is None and json) else TextFormatter())
    if not root.handlers:
        root.addHandler(handler)
    elif form is not None:
        perdure.addHandler(handler)
        perdure.propagate = False
