"""Attempts at steps and activities that have a span, and the spans of claims and commits.

An engine without a tracer uses none of this: its attempts are of the usual classes, and nothing listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from perdure.replay.operations import StepOperation
from perdure.store.user_connections.errors import Interrupted
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


class TracedRun(Protocol):
    """A held run, as its attempts see it."""

    trace: RunTrace | None


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
        operation = self.operation
        self.ends_plainly = False
        span = self.span = trace.attempt_begun(operation.location, operation.request.name, self.number, key=key)
        token = span.attach()
        try:
            call()
        finally:
            span.detach(token)

    def report_end(self, result: Any, error: BaseException | None) -> None:
        """Report the end of the function to the run, and end the span."""
        super().report_end(result, error)
        if self.span is not None:
            failed = self.timed_out or error
            lost = isinstance(failed, LeaseLost | Interrupted)
            outcome = "interrupted" if lost else "succeeded" if failed is None else "failed"
            self.span.end(None if lost else failed, outcome=outcome)

    def cancel(self) -> None:
        """Stop the attempt, and end the span."""
        super().cancel()
        if self.span is not None:
            self.span.end(None, outcome="cancelled")


class TracedAttempt(Traced):
    """An attempt at a step with a span."""


class StepAttempt(Attempt):
    """An attempt at a step. Without a recorded trace it has no span, and only the context of the run travels."""

    def start(self, threads: StepThreads, run_deadline: int) -> None:
        """Call the function, in the context of its span or of the run."""
        trace: RunTrace = self.recipient.trace  # type: ignore[attr-defined] # it is a held run, which has one
        if trace.sampled:
            # Few are: the others pay for no override of the end of an attempt.
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
        partial(TracedMiddlewareTransaction, step) if step else TracedTransaction,
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


def trace_interrupted_activity(
    trace: RunTrace, found: Sequence[Interruption], last: int, run: Run, interrupted: int
) -> None:
    """Make the span of the attempt at an activity that ended with the holder before this one; `last`: as above."""
    latest = max(found, key=lambda one: one.at, default=None)
    if latest is not None and latest.reason == LOST and latest.last == last:
        trace.interrupted(run.type, run.type, run.attempt + interrupted - 1, run.started_at, latest)


class TraceListener(Listener):
    """Makes the spans of claims and commits."""

    def __init__(self) -> None:
        #: By run, the time of its claim, how long that took, and the number of runs; until the run begins.
        self._claims: dict[str, tuple[int, float, int]] = {}

    def claimed(self, runs: Sequence[ClaimedRun], asked: int, now: int, seconds: float) -> None:
        """Note a claim, for the runs that begin with it."""
        if len(self._claims) > MOST_CLAIMS:
            self._claims.clear()
        claim = now, seconds, len(runs)
        for one in runs:
            self._claims[one.run.id] = claim

    def begun(self, run: Run, trace: RunTrace) -> None:
        """Make the span of the claim with which a run begins or goes on."""
        claim = self._claims.pop(run.id, None)
        if claim is not None:
            trace.claimed(run, *claim)

    def committed(
        self, turns: Sequence[tuple[ObservedRun, Turn]], verdicts: Sequence[TurnOutcome], now: int, seconds: float
    ) -> None:
        """Make the spans of a commit, and of what its turns have recorded."""
        for pair, verdict in zip(turns, verdicts, strict=True):
            trace: RunTrace | None = pair[0].trace  # type: ignore[attr-defined] # all of them are held runs
            if trace is not None and trace.sampled and verdict in _WRITTEN:
                trace.committed(pair[1], now, seconds, len(turns))


class WorkerTracing:
    """Tracer of a worker, and the listener for its claims and commits."""

    def __init__(self, tracer: Tracer, listener: TraceListener) -> None:
        self._tracer = tracer
        self._listener = listener

    def begin(self, held: TracedRun, run: Run, *, is_activity: bool) -> None:
        """Give a run that was claimed its part of a trace."""
        held.trace = trace = self._tracer.of_run(run, is_activity=is_activity)
        self._listener.begun(run, trace)

    def resume(self, held: TracedRun, run: Run) -> None:
        """Go on with a run that stayed in memory."""
        if held.trace is not None:
            self._listener.begun(run, held.trace)
