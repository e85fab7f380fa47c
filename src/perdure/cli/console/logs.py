"""Log formats of a worker: text lines or JSON lines. A message never spans or imitates a line."""

from __future__ import annotations

import logging
import sys

from perdure.cli.console.document import moment
from perdure.core.printed_text import harmless, harmless_lines
from perdure.worker import JsonFormatter, current_fields

LEVELS = ("debug", "info", "warning", "error", "critical")
DEFAULT_LEVEL = "info"
FORMATS = ("text", "json")


class TextFormatter(logging.Formatter):
    """Formatter of time, level, logger, message and run, followed by the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; the lines of a traceback are indented."""
        at, message = moment(int(record.created * 1e6)) or "", record.getMessage()
        text = harmless(message + _place(record, message))
        line = f"{at[:23]}Z {record.levelname.lower():<7} {record.name}: {text}"
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        return "\n    ".join([line, *harmless_lines(trace)]) if trace else line


def _place(record: logging.LogRecord, message: str) -> str:
    """Return the run and the step that a record comes from, unless the message names the run."""
    fields = {**current_fields(), **vars(record)}
    run_id, location, attempt = (fields.get(name) for name in ("run_id", "location", "attempt"))
    if not run_id or f"{run_id}" in message:
        return ""
    later = f", attempt {attempt}" if isinstance(attempt, int) and attempt > 1 else ""
    return f" [run {run_id}{f', {location}' if location else ''}{later}]"


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
