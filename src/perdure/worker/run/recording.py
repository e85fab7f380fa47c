"""What an attempt at a step, and at starting a child, leaves in the history."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from perdure.core.codec.failure import Failure
from perdure.core.model.run import Kind, Run
from perdure.errors import PerdureError
from perdure.replay.execution import Execution
from perdure.worker.commit.moment import Moment
from perdure.worker.run.policy import after_failed_attempt, why_given_up
from perdure.worker.services import Crew
from perdure.worker.steps.attempt import Attempt


def record_result(
    execution: Execution, attempt: Attempt, result: Any, run: Run, crew: Crew, moment: Moment
) -> PerdureError | None:
    """Record what a step returned, as the workflow will see it; the error if it cannot be stored or is of another type."""
    operation = attempt.operation
    returns = operation.request.spec.returns
    stored = crew.codec.store_quickly(result, returns)
    if stored is None:
        try:
            stored = crew.codec.store(result, returns, f"result of step {operation.location!r} of run {run.id!r}")
        except PerdureError as error:
            return error
    execution.step_succeeded(operation, *stored, moment.now, attempt.started_at, attempt.number, moment.around)
    return None


def record_failure(
    execution: Execution, attempt: Attempt, error: BaseException, run: Run, crew: Crew, moment: Moment
) -> bool:
    """Record that an attempt failed; whether another follows."""
    operation = attempt.operation
    now = moment.now
    failure = Failure.of(error, crew.codec)
    number = attempt.number - attempt.interrupted
    another = after_failed_attempt(operation, number, error, crew, run.deadline, now)
    if another is None:
        failure = replace(failure, given_up=why_given_up(operation, number, error, crew))
        execution.record(
            Kind.STEP, operation.location, failure.to_json(), now, failed=True,
            started_at=attempt.started_at, digest=operation.digest, attempts=attempt.number,
        )  # fmt: skip
        return False
    execution.record(
        Kind.ATTEMPT, operation.location, failure.to_json(), now, failed=True, started_at=attempt.started_at,
        digest=operation.digest, attempts=another.attempts, retry_at=another.retry_at,
    )  # fmt: skip
    return True
