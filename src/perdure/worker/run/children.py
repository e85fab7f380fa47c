"""Starting a run's children, within limits."""

from __future__ import annotations

import logging

from perdure.core.codec.failure import Failure
from perdure.core.model.run import Kind, Run
from perdure.errors import ChildLimit, PerdureError
from perdure.replay.execution import Execution
from perdure.replay.operations import ChildOperation
from perdure.worker.options import WorkerOptions
from perdure.worker.run.turn_draft import Draft
from perdure.worker.services import Crew

logger = logging.getLogger("perdure.worker")


def start_child(execution: Execution, draft: Draft, operation: ChildOperation, run: Run, crew: Crew, now: int) -> None:
    """Have a child started by the run's next turn, or record at once that it cannot be."""
    try:
        _check(operation, run, crew.options)
        draft.start_child(operation, run, crew.options.child_depth, now)
    except PerdureError as error:
        # Nobody may ever wait for it, and then this is the only word of it.
        logger.warning("run %s cannot start a child: %s", run.id, error)
        if execution.outcome is None:
            draft.urgent = True
            failure = Failure.of(error, crew.codec).to_json()
            execution.record(Kind.CHILD, operation.location, failure, now, failed=True)


def _check(operation: ChildOperation, run: Run, options: WorkerOptions) -> None:
    if operation.siblings >= options.open_children:
        raise ChildLimit(
            f"run {run.id!r} ({run.type}) has {operation.siblings} children under way and starts another one; the limit is "
            f"{options.open_children}. Start them in portions, or raise the worker's open_children"
        )
