"""What a workflow has asked for and given up since the worker last looked."""

from __future__ import annotations

from perdure.core.model.run import Run
from perdure.replay.execution import Execution
from perdure.replay.operations import ChildOperation, Operation, ScopeOperation, StepOperation
from perdure.worker.run.children import start_child
from perdure.worker.run.turn_draft import Draft
from perdure.worker.services import Crew
from perdure.worker.steps.attempt import Attempt


def collect(
    execution: Execution,
    draft: Draft,
    ready: list[StepOperation],
    attempts: dict[str, Attempt],
    run: Run,
    crew: Crew,
    now: int,
) -> None:
    """Put steps among those that are ready, and what leaves the run into its draft; stop what is not wanted any more."""
    while execution.fresh or execution.dropped or execution.effects:
        if execution.effects:
            effects, execution.effects = execution.effects, []
            draft.add(effects)
        dropped, execution.dropped = execution.dropped, []
        for operation in dropped:
            _give_up(operation, draft, attempts, run)
        fresh, execution.fresh = execution.fresh, []
        for operation in fresh:
            # With an outcome there is nobody left to be told of what was done before.
            if not operation.open or (execution.outcome is None and execution.recall(operation, now)):
                continue
            if isinstance(operation, StepOperation):
                ready.append(operation)
            elif isinstance(operation, ScopeOperation):
                draft.urgent = True
                execution.reached(operation, now)
            elif isinstance(operation, ChildOperation):
                start_child(execution, draft, operation, run, crew, now)


def _give_up(operation: Operation, draft: Draft, attempts: dict[str, Attempt], run: Run) -> None:
    if isinstance(operation, StepOperation):
        attempt = attempts.pop(operation.location, None)
        if attempt is not None:
            attempt.cancel()
    elif isinstance(operation, ChildOperation):
        draft.stop_child(operation, run)
