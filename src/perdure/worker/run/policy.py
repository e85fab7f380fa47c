"""Decides what happens next: retry or fail after an error; wake-up time and reason when parking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.codec.failure import Failure
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Run, Status
from perdure.core.model.turn import Block, ContinueAsNew, Finish, NextState, Park, RetryLater
from perdure.core.model.waits import NAMED_WAITS, Wait, WaitKind, waits_to_json
from perdure.core.policy.retry import Retry
from perdure.core.time.duration import NEVER
from perdure.errors import Diverged, Expired, Fatal
from perdure.replay.execution import Execution
from perdure.replay.operations import (
    RECEIVE_TIMEOUT,
    ChildOperation,
    OpenOperation,
    StepOperation,
    TimerOperation,
    WatchOperation,
)
from perdure.replay.outcome import BrokenCode, RunOutcome, cancelled
from perdure.worker.run.turn_draft import TurnDraft
from perdure.worker.services import Services
from perdure.worker.steps.attempt import is_misuse
from perdure.workflow.runtime import TopicSubscription

#: Policy of a step that is not retried.
_ONCE = Retry(attempts=1)


class NextAttempt(Struct, frozen=True):
    """Time of the next attempt at a step."""

    #: Attempts used up so far.
    attempts: int
    retry_at: int


def after_failed_attempt(
    operation: StepOperation, number: int, error: BaseException, services: Services, deadline: int, now: int
) -> NextAttempt | None:
    """Time of the next attempt at a step; None if this was the last, or the next would miss the run's deadline."""
    requested = policy_of(operation, services).requested_delay(error, now)
    if requested is not None:
        again = NextAttempt(number - 1, now + int(requested * 1e6))
        return again if again.retry_at < deadline else None
    if is_misuse(error):
        return None
    delay = policy_of(operation, services).next_delay(number, error, services.system.random())
    if delay is None:
        return None
    retry_at = now + int(delay * 1e6)
    return NextAttempt(number, retry_at) if retry_at < deadline else None


def why_given_up(operation: StepOperation, number: int, error: BaseException, services: Services) -> str:
    """Reason why no attempt follows: `fatal` if the error makes it useless, otherwise `exhausted`."""
    policy = policy_of(operation, services)
    if policy.attempts is not None and number >= policy.attempts:
        return "exhausted"
    return "fatal" if is_misuse(error) or not policy.is_worth_retrying(error) else "exhausted"


def policy_of(operation: StepOperation, services: Services) -> Retry:
    """Retry policy of a step: its own, or else the worker's. A step with `at_most_once` has only its own."""
    options = operation.request.options
    if isinstance(options.retry, Retry):
        return options.retry
    return _ONCE if options.at_most_once is True else services.settings.retry


def after_failed_run(
    run: Run, policy: Retry | None, outcome: RunOutcome, services: Services, now: int
) -> RetryLater | None:
    """Next attempt at the whole run; None if it has failed for good."""
    error = outcome.error
    delay = None if error is None else delay_of_run(run, policy, error, services.system.random())
    if delay is None:
        return None
    wake_at = now + int(delay * 1e6)
    in_time = wake_at < run.deadline or outcome.final is False
    return RetryLater(wake_at, outcome.payload or "{}") if in_time else None


def delay_of_run(run: Run, policy: Retry | None, error: BaseException, random: float) -> float | None:
    """Seconds until a failed run is tried again; None if it is not."""
    if policy is None or isinstance(error, Fatal):
        return None
    return policy.next_delay(run.attempt, error, random)


def next_wake(execution: Execution, ready: Iterable[StepOperation], deadline: int) -> int:
    """Next time at which a run has to act by itself: its first timer, the next attempt at a step, its deadline."""
    wake = deadline
    timer = execution.next_timer() if execution.timers.heap else None
    if timer is not None and timer.due < wake:
        wake = timer.due
    for operation in ready:
        if operation.retry_at < wake:
            wake = operation.retry_at
    return wake


def state_after_outcome(
    outcome: RunOutcome,
    execution: Execution,
    draft: TurnDraft,
    run: Run,
    seen: int,
    policy: Retry | None,
    services: Services,
    now: int,
) -> NextState:
    """Next state of a run whose workflow has an outcome.

    That is another attempt, the next generation, or the end. At the end, children that are bound to the run are
    stopped.
    """
    if outcome.broken:
        return Block(Reason.BROKEN, outcome.payload or "{}")
    if outcome.final is False or (
        outcome.status is Status.FAILED and not execution.cancel_requested and not outcome.final
    ):
        again = after_failed_run(run, policy, outcome, services, now)
        if again is not None:
            if execution.unobeyed is not None:
                draft.stop_next_attempt(execution.unobeyed, run)
            execution.record_given_up()
            # The next attempt takes the children up again. A cancellation that came too late for this attempt ends it
            # at once.
            return replace(again, wake_at=now) if execution.cancel_requested else again
    for orphan in execution.orphans:
        draft.stop_child(orphan, run)
    if outcome.renewed is not None and not execution.cancel_requested:
        # No other key begins with a space.
        carried = [(name, payload, f" kept:{run.generation}:{seq}") for name, seq, payload in execution.unreceived()]
        return ContinueAsNew(outcome.renewed.type, outcome.payload or "{}", seen, tuple(carried), draft.read)
    if outcome.renewed is not None:
        outcome = cancelled(run.id, run.type, "", services.codec)
    if execution.topics:
        draft.add(TopicSubscription(topic, False) for topic in sorted(execution.topics))
    return Finish(outcome.status, outcome.payload)


def park(
    execution: Execution, held_back: Mapping[str, Wait], token: int, wake_at: int, seen: int, *, closed: bool = False
) -> Park:
    """Park a run with nothing under way, naming all that it waits for.

    The reason is the first of message, child, limit or breaker, retry, timer. `held_back`: steps in waitlists, by
    location. `closed`: the code takes no other messages than the awaited ones.
    """
    messages, operations = execution.message_waits(), execution.open_operations()
    # The timer of a receive bounds a wait, and is none by itself.
    bounds = sum(timer.open and timer.name == RECEIVE_TIMEOUT for timer in execution.timers.heap)
    waits = messages[:NAMED_WAITS]
    for operation in operations:
        if len(waits) >= NAMED_WAITS:
            break
        if (wait := held_back.get(operation.location) or _wait_for(operation)) is not None:
            waits.append(wait)
    unread = Counter([name for name, _, _ in execution.unreceived()])
    named = waits_to_json(token, waits, len(messages) + len(operations) - bounds, unread, closed=closed)
    return Park(wake_at, _reason_to_wait(messages, operations, held_back), seen, named)


def _reason_to_wait(
    messages: Sequence[Wait], operations: Sequence[OpenOperation], held_back: Mapping[str, Wait]
) -> Reason:
    if messages:
        return Reason.MESSAGE
    kinds = {operation.kind for operation in operations}
    if RecordKind.CHILD in kinds:
        return Reason.CHILD
    if held_back:
        only_breakers = all(wait.kind is WaitKind.BREAKER for wait in held_back.values())
        return Reason.BREAKER if only_breakers else Reason.LIMIT
    return Reason.RETRY if RecordKind.STEP in kinds else Reason.TIMER


def _wait_for(operation: OpenOperation) -> Wait | None:
    if isinstance(operation, ChildOperation):
        return Wait(kind=WaitKind.CHILD, name=operation.child_id, since=operation.asked_at, detail=operation.call.type)
    if isinstance(operation, WatchOperation):
        wants = operation.wants
        detail = "" if wants is None else f"{wants.kind} {wants.name!r}"
        return Wait(kind=WaitKind.RUN, name=operation.target, since=operation.asked_at, detail=detail)
    if isinstance(operation, StepOperation):
        return Wait(kind=WaitKind.RETRY, name=operation.location, until=operation.retry_at)
    if isinstance(operation, TimerOperation) and operation.name != RECEIVE_TIMEOUT:
        until = operation.due if operation.due < NEVER else 0
        return Wait(kind=WaitKind.TIMER, name=operation.location, since=operation.asked_at, until=until)
    return None


def block_for(error: Exception, services: Services) -> Block:
    """Make the state of a run whose code does not follow its history, or whose data cannot be decoded."""
    if isinstance(error, BrokenCode):
        return Block(Reason.BROKEN, Failure.of(error.__cause__ or error, services.codec).to_json())
    reason = Reason.DIVERGED if isinstance(error, Diverged) else Reason.UNDECODABLE
    return Block(reason, Failure.of(error, services.codec).to_json())


def fail_expired(run: Run, services: Services) -> Finish:
    """Make the end of a run that is past its deadline."""
    error = Expired(f"run {run.id!r} ({run.type}) was not finished by its deadline")
    return Finish(Status.FAILED, Failure.of(error, services.codec).to_json(), "schedule_to_close")
