"""Fields of the run on log records that a user's own loggers make inside of steps, activities and workflows."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from perdure.replay.run_loop import current_log_fields
from perdure.workflow.step import current_step

#: Names of the fields.
NAMES = ("run_id", "run_type", "location", "attempt", "trace_id")

#: Attributes of each record.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def current_fields() -> dict[str, object]:
    """Return the fields of the attempt or the workflow whose code calls; none elsewhere."""
    step = current_step.get(None)
    return current_log_fields() if step is None else step.log_fields


class RunFields(logging.Filter):
    """Filter of a handler: adds fields of the run to the records that its steps, activities and workflow code make.

    They are `run_id`, `run_type`, `location`, `attempt` and `trace_id`. No record is refused. A field that a
    record has already stays. One that is not known is empty, so that every format finds all of them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; always True."""
        fields = current_fields()
        for name in NAMES:
            if not hasattr(record, name):
                setattr(record, name, fields.get(name, ""))
        return True


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object a line.

    It has `at`, `level`, `logger` and `message`, the fields that `RunFields` adds, what was given with `extra`, and
    `traceback` and `stack` if there are any. A value that JSON does not have is written as text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as an object."""
        at = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
        line: dict[str, object] = {
            "at": f"{at.isoformat(timespec='microseconds')}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        # A record of the user's own logger, inside a step or a workflow, has no fields by itself.
        fields = current_fields() | {name: value for name, value in vars(record).items() if name not in _USUAL}
        line |= {name: value for name, value in fields.items() if name not in line}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["traceback"] = record.exc_text
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        try:
            return _json(line)
        except (TypeError, ValueError, RecursionError):
            return _json({name: _writable(value) for name, value in line.items()})


def _json(value: object) -> str:
    """Encode a value as one line of ASCII JSON, which every terminal and encoding can show."""
    return json.dumps(value, allow_nan=False, default=_text)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return object.__repr__(value)


def _writable(value: object) -> object:
    """Return the value, or its text if JSON has no such value."""
    try:
        _json(value)
    except (TypeError, ValueError, RecursionError):
        return _text(value)
    return value
