"""Attempts at steps and activities that have a span, and the spans of claims and commits.

An engine without a tracer uses none of this: its attempts are of the usual classes, and nothing listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Protocol, cast

from perdure.core.middleware import Layers
from perdure.core.model.claim import ClaimedRun
from perdure.core.model.outputs import LOST, Interruption
from perdure.core.model.run import Run
from perdure.core.model.turn import Turn, TurnOutcome
from perdure.core.telemetry import Listener, ObservedRun
from perdure.core.tracing import AttemptSpan, RunTrace, Tracer
from perdure.replay.execution import Execution
from perdure.replay.operations import ChildOperation, StepOperation
from perdure.store.user_connections.errors import CommitUnknown, Interrupted
from perdure.worker.commit.attempt_log import ACTIVITY
from perdure.worker.services import AttemptMakers
from perdure.worker.steps.activity_attempt import ActivityAttempt
from perdure.worker.steps.attempt import Attempt
from perdure.worker.steps.middleware_attempt import (
    MiddlewareActivityAttempt,
    MiddlewareAttempt,
    MiddlewareTransactionAttempt,
)
from perdure.worker.steps.threads import StepThreads
from perdure.worker.steps.transaction_attempt import LeaseLost, TransactionAttempt
from perdure.workflow.step import StepInfo


class TracedRun(Protocol):
    """A held run, as its attempts see it."""

    run: Run
    scope: str
    trace: RunTrace | None
    is_recorded: bool


_WRITTEN = frozenset({TurnOutcome.APPLIED, TurnOutcome.AWAKE})
#: Claims that are remembered; those of runs that never begin here are forgotten.
MOST_CLAIMS = 10_000


class Traced(Attempt):
    """Part of an attempt that has a span. It comes before the class of the attempt itself."""

    span: AttemptSpan | None = None

    def start(self, threads: StepThreads, run_deadline: int) -> None:
        """Call the function, in the context of the span."""
        self._in_span(partial(super().start, threads, run_deadline))

    def _in_span(self, call: Callable[[], None], key: str = "") -> None:
        trace = cast("TracedRun", self.recipient).trace
        if trace is None:
            call()
            return
        operation, self.is_traced = self.operation, True
        now = self._system.now()
        span = self.span = trace.attempt_begun(operation.location, operation.request.name, self.number, now, key=key)
        token = span.attach()
        try:
            call()
        finally:
            span.detach(token)

    def report_end(self, result: Any, error: BaseException | None) -> None:
        """Report the end of the function to the run, and note it in the span."""
        is_needed = not self.over
        super().report_end(result, error)
        if not (is_needed and isinstance(error, CommitUnknown)):
            self._note_end(error, is_needed=is_needed)

    def function_ended(self, error: BaseException | None) -> None:
        """Note the end of the function in the span."""
        self._note_end(error, is_needed=not self.over)

    def _note_end(self, error: BaseException | None, *, is_needed: bool) -> None:
        trace = cast("TracedRun", self.recipient).trace
        if self.span is None or trace is None:
            return
        failed = self.timed_out or error
        lost = isinstance(failed, LeaseLost | Interrupted)
        outcome = "interrupted" if lost else "succeeded" if failed is None else "failed"
        self.span.ended(None if lost else failed, outcome=outcome, at=self._system.now())
        if is_needed and not lost:
            trace.keep(self.operation.location, self.span)
        else:
            # No record of it will be written.
            self.span.publish()

    def cancel(self) -> None:
        """Stop the attempt, and end the span."""
        super().cancel()
        if self.span is not None:
            self.span.ended(None, outcome="cancelled", at=self._system.now())
            self.span.publish()


class TracedAttempt(Traced):
    """An attempt at a step with a span."""

    def begin(self, due: int) -> None:
        """Call an async function soon that has no options, in the context of the span."""
        self._in_span(partial(super().begin, due))


class StepAttempt(Attempt):
    """An attempt at a step. Without a recorded trace it has no span, and only the context of the run travels."""

    # As in `Attempt`; a type checker would infer less from the assignments here.
    info: StepInfo | None
    context: Context | None

    def begin(self, due: int) -> None:
        """Call an async function soon that has no options, in the context of its span or of the run."""
        trace: RunTrace = self.recipient.trace  # type: ignore[attr-defined] # it is a held run, which has one
        variables = trace.variables
        if variables is None:
            if trace.sampled:
                # Few are: the others pay for no override of the end of an attempt.
                self.__class__ = TracedAttempt  # type: ignore[assignment]
                self.begin(due)
                return
            variables = trace.set_variables(self._results.context)
        self.info = StepInfo(self.run_id, self.operation.location, self.number, due, self)
        self.context = variables.copy()
        self._results.call(self)

    def start(self, threads: StepThreads, run_deadline: int) -> None:
        """Call the function, in the context of its span or of the run."""
        operation = self.operation
        if self.has_begin and operation.is_usual and self._system.telemetry.attempt_started is None:
            self.begin(run_deadline)
            return
        trace: RunTrace = self.recipient.trace  # type: ignore[attr-defined] # as above
        if trace.sampled:
            self.__class__ = TracedAttempt  # type: ignore[assignment]
            self.start(threads, run_deadline)
            return
        token = trace.attach()
        try:
            Attempt.start(self, threads, run_deadline)
        finally:
            trace.detach(token)


class TracedMiddlewareAttempt(Traced, MiddlewareAttempt):
    """An attempt at a step with a span, and middleware inside of it."""


class TracedActivityAttempt(Traced, ActivityAttempt):
    """An attempt at an activity with a span."""


class TracedMiddlewareActivityAttempt(Traced, MiddlewareActivityAttempt):
    """An attempt at an activity with a span, and middleware inside of it."""


class TracedTransaction(Traced, TransactionAttempt):
    """An attempt at a transaction step with a span, which begins when the function is called."""

    def start(self, threads: StepThreads, run_deadline: int) -> None:
        """Call the function, or request the commit lock first."""
        TransactionAttempt.start(self, threads, run_deadline)

    def call_in_context(self) -> None:
        """Call the function, in the context of the span."""
        # The database may interrupt the transaction; it begins again under the same number.
        self._in_span(super().call_in_context, f"{self.started_at}")


class TracedMiddlewareTransaction(TracedTransaction, MiddlewareTransactionAttempt):
    """An attempt at a transaction step with a span, and middleware inside of the transaction."""


def traced_makers(layers: Layers) -> AttemptMakers:
    """Return the makers of attempts with a span, and with middleware where there is some."""
    step, activity = layers.step, layers.activity
    return AttemptMakers(
        partial(TracedMiddlewareAttempt, step) if step else StepAttempt,
        partial(TracedMiddlewareActivityAttempt, activity) if activity else TracedActivityAttempt,
        partial(TracedMiddlewareTransaction, layers) if step else TracedTransaction,
    )


def trace_interruptions(
    trace: RunTrace,
    found: Sequence[Interruption],
    execution: Execution,
    counted: dict[str, int],
    steps: Iterable[StepOperation],
) -> None:
    """Make the spans of the attempts that ended with the holder before this one.

    A worker that stopped in order has made the spans itself. A later holder finds records that were written since. The
    start of an attempt is not stored: it is taken to be the time of the last record, or the time of the retry.
    """
    latest = max(found, key=lambda one: one.at, default=None)
    if latest is None or latest.reason != LOST or latest.last != execution.next_seq - 1:
        return
    for step in steps:
        if number := counted.get(step.location):
            since = max(execution.time, step.retry_at)
            trace.interrupted(step.location, step.request.name, step.attempts + number, since, latest)


def note_children(trace: RunTrace, execution: Execution) -> None:
    """Note the children that the run waits for since an earlier lease: those that it has not just asked for."""
    for operation in execution.open_operations():
        if isinstance(operation, ChildOperation) and operation not in execution.fresh:
            trace.awaits(operation.location, operation.asked_at)


def trace_interrupted_activity(
    trace: RunTrace, found: Sequence[Interruption], last: int, run: Run, interrupted: int
) -> None:
    """Make the span of the attempt at an activity that ended with the holder before this one; `last`: as above."""
    latest = max(found, key=lambda one: one.at, default=None)
    if latest is not None and latest.reason == LOST and latest.last == last:
        trace.interrupted(run.type, run.type, run.attempt + interrupted - 1, run.started_at, latest)


class TraceListener(Listener):
    """Makes the spans of commits, and notes claims until their runs begin."""

    def __init__(self) -> None:
        #: By run, the time of its claim, how long that took, and the number of runs; until the run begins.
        self.claims: dict[str, tuple[int, float, int]] = {}

    def claimed(self, runs: Sequence[ClaimedRun], asked: int, now: int, seconds: float) -> None:
        """Note a claim, for the runs that begin with it."""
        if len(self.claims) > MOST_CLAIMS:
            self.claims.clear()
        self.claims.update(dict.fromkeys([one.run.id for one in runs], (now, seconds, len(runs))))

    def committed(
        self, turns: Sequence[tuple[ObservedRun, Turn]], verdicts: Sequence[TurnOutcome], now: int, seconds: float
    ) -> None:
        """Make the spans of a commit, and of what its turns have recorded."""
        # Few are recorded: the others cost one look each.
        recorded: list[int] = [
            place
            for place, pair in enumerate(turns)
            if pair[0].is_recorded  # type: ignore[attr-defined] # all of them are held runs
        ]
        written: list[tuple[RunTrace, Turn]] = [
            (turns[place][0].trace, turns[place][1])  # type: ignore[attr-defined] # as above
            for place in recorded
            if verdicts[place] in _WRITTEN
        ]
        # First of all turns, because another worker that takes over from now on does not make these spans.
        for trace, turn in written:
            trace.publish_recorded(turn)
        for trace, turn in written:
            trace.committed(turn, now, seconds, len(turns))


class WorkerTracing:
    """Tracer of a worker, and the listener for its claims and commits."""

    def __init__(self, tracer: Tracer, listener: TraceListener) -> None:
        self._of_run = tracer.of_run
        self._claims = listener.claims

    def begin(self, held: TracedRun) -> None:
        """Give a run that was claimed its part of a trace."""
        run = held.run
        held.trace = trace = self._of_run(run, held.scope == ACTIVITY)
        claim = self._claims.pop(run.id, None)
        if trace.sampled:
            held.is_recorded = True
            if claim is not None:
                trace.claimed(run, *claim)

    def resume(self, held: TracedRun, run: Run) -> None:
        """Go on with a run that stayed in memory."""
        claim = self._claims.pop(run.id, None)
        if held.trace is not None and claim is not None:
            held.trace.claimed(run, *claim)
