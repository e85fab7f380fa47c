"""Log formats of a worker: text lines or JSON lines. A message never spans or imitates a line."""

from __future__ import annotations

import logging
import sys

from perdure.cli.console.document import moment
from perdure.cli.console.output import dump, harmless

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

#: Extra fields of log records about steps, activities and runs.
FIELDS = (
    "run_id", "run_type", "scope", "step", "attempt", "retry_count", "duration", "status", "error", "retry_at",
)  # fmt: skip


class TextFormatter(logging.Formatter):
    """Formatter of time, level, logger and message, followed by the traceback if there is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        """Format the line of a record."""
        at = moment(int(record.created * 1e6)) or ""
        return f"{at[:23]}Z {record.levelname.lower():<7} {record.name}: {harmless(record.message)}"


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
        line |= {name: vars(record)[name] for name in FIELDS if name in vars(record)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return dump(line)


def configure(level: str, *, json: bool) -> None:
    """Send the log of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
