"""What follows: from a failure another attempt or the end, from open operations what to wait for."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.codec.failure import Failure
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Run, Status
from perdure.core.model.turn import Block, ContinueAsNew, Finish, NextState, RetryLater
from perdure.core.policy.retry import Retry
from perdure.errors import Diverged, Expired, Fatal, UsageError
from perdure.replay.execution import Execution
from perdure.replay.operations import StepOperation
from perdure.replay.outcome import RunOutcome, cancelled
from perdure.worker.run.turn_draft import TurnDraft
from perdure.worker.services import Services
from perdure.workflow.runtime import Subscription


class NextAttempt(Struct, frozen=True):
    """Another attempt follows."""

    #: Attempts used up so far.
    attempts: int
    retry_at: int


def after_failed_attempt(
    operation: StepOperation, number: int, error: BaseException, services: Services, deadline: int, now: int
) -> NextAttempt | None:
    """When to try a step again; None if this was its last attempt, or the next would come after the run's deadline."""
    requested = policy_of(operation, services).requested_delay(error, now)
    if requested is not None:
        again = NextAttempt(number - 1, now + int(requested * 1e6))
        return again if again.retry_at < deadline else None
    if isinstance(error, UsageError):
        return (
            None  # a result that cannot be stored, or a misuse of Perdure: trying again repeats the effect for nothing
        )
    delay = policy_of(operation, services).next_delay(number, error, services.system.random())
    if delay is None:
        return None
    retry_at = now + int(delay * 1e6)
    return NextAttempt(number, retry_at) if retry_at < deadline else None


def why_given_up(operation: StepOperation, number: int, error: BaseException, services: Services) -> str:
    """Why no other attempt follows: the error makes it useless, or else time or attempts are used up."""
    policy = policy_of(operation, services)
    if policy.attempts is not None and number >= policy.attempts:
        return "exhausted"
    return "fatal" if isinstance(error, UsageError) or not policy.is_worth_retrying(error) else "exhausted"


def policy_of(operation: StepOperation, services: Services) -> Retry:
    """When a step is tried again: by its own policy, or the worker's."""
    policy = operation.request.options.retry
    return policy if isinstance(policy, Retry) else services.options.retry


def after_failed_run(
    run: Run, policy: Retry | None, outcome: RunOutcome, services: Services, now: int
) -> RetryLater | None:
    """When to try the whole run again; None if it has failed for good."""
    error = outcome.error
    delay = None if error is None else delay_of_run(run, policy, error, services.system.random())
    if delay is None:
        return None
    wake_at = now + int(delay * 1e6)
    in_time = wake_at < run.deadline or outcome.final is False
    return RetryLater(wake_at, outcome.payload or "{}") if in_time else None


def delay_of_run(run: Run, policy: Retry | None, error: BaseException, random: float) -> float | None:
    """How many seconds after its failure a whole run is tried again; None if not at all."""
    if policy is None or isinstance(error, Fatal):
        return None
    return policy.next_delay(run.attempt, error, random)


def next_wake(execution: Execution, ready: Iterable[StepOperation], deadline: int) -> int:
    """When a run has something to do by itself: its first timer, its next attempt at a step, its deadline."""
    wake = deadline
    timer = execution.next_timer() if execution.timers.heap else None
    if timer is not None and timer.due < wake:
        wake = timer.due
    for operation in ready:
        if operation.retry_at < wake:
            wake = operation.retry_at
    return wake


def end_with(
    outcome: RunOutcome,
    execution: Execution,
    draft: TurnDraft,
    run: Run,
    seen: int,
    policy: Retry | None,
    services: Services,
    now: int,
) -> NextState:
    """What follows from a workflow's outcome: another attempt, or the end, for the children that nobody waits for too."""
    if outcome.final is False or (
        outcome.status is Status.FAILED and not execution.cancel_requested and not outcome.final
    ):
        again = after_failed_run(run, policy, outcome, services, now)
        if again is not None:
            # It takes its children up again, and at once what has come too late for this attempt: a cancellation.
            return replace(again, wake_at=now) if execution.cancel_requested else again
    for orphan in execution.orphans:
        draft.stop_child(orphan, run)
    if outcome.renewed is not None and not execution.cancel_requested:
        # Nobody else's key begins with a space.
        carried = [(name, payload, f" kept:{run.generation}:{seq}") for name, seq, payload in execution.unreceived()]
        return ContinueAsNew(outcome.renewed.type, outcome.payload or "{}", seen, tuple(carried), draft.read)
    if outcome.renewed is not None:
        outcome = cancelled(run.id, run.type, "", services.codec)
    if execution.topics:
        draft.add(Subscription(topic, False) for topic in sorted(execution.topics))
    return Finish(outcome.status, outcome.payload)


def reason_to_wait(execution: Execution) -> Reason:
    """What a run with nothing under way waits for, named by what a person would ask about first."""
    if execution.awaited_messages():
        return Reason.MESSAGE
    kinds = {operation.kind for operation in execution.open_operations()}
    if RecordKind.CHILD in kinds:
        return Reason.CHILD
    return Reason.RETRY if RecordKind.STEP in kinds else Reason.TIMER


def set_aside(error: Exception, services: Services) -> Block:
    """Block a run whose code does not follow its history, or whose data cannot be worked with."""
    reason = Reason.DIVERGED if isinstance(error, Diverged) else Reason.UNDECODABLE
    return Block(reason, Failure.of(error, services.codec).to_json())


def expired(run: Run, services: Services) -> Finish:
    """Fail a run that is past its deadline."""
    error = Expired(f"run {run.id!r} ({run.type}) was not finished by its deadline")
    return Finish(Status.FAILED, Failure.of(error, services.codec).to_json(), "schedule_to_close")
