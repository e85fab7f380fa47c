"""How a worker's log looks: lines for people, or JSON lines for programs; a message never spans or forges a line."""

from __future__ import annotations

import logging
import sys

from perdure.cli.console.document import moment
from perdure.cli.console.output import dump, harmless

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

#: What records about steps, activities and runs carry besides their text.
FIELDS = (
    "run_id", "run_type", "scope", "step", "attempt", "retry_count", "duration", "status", "error", "retry_at",
)  # fmt: skip


class Lines(logging.Formatter):
    """Time, level, logger and message, and below them a traceback where there is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        """The line."""
        at = moment(int(record.created * 1e6)) or ""
        return f"{at[:23]}Z {record.levelname.lower():<7} {record.name}: {harmless(record.message)}"


class JsonLines(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
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
    """Send the process's log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if json else Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
