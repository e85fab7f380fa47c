"""Fields of the run on log records that a user's own loggers make inside of steps, activities and workflows."""

from __future__ import annotations

import logging

from perdure.replay.run_loop import current_log_fields
from perdure.workflow.step import current_step

#: Names of the fields.
NAMES = ("run_id", "run_type", "location", "attempt", "trace_id")


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
