"""A run that a worker holds: what a workflow's run (`WorkflowRun`) and an activity's run (`ActivityRun`) share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any

from perdure.core.background_loops import Wakeup
from perdure.core.model.claim import ClaimedRun
from perdure.core.model.headers import Headers
from perdure.core.model.outputs import STOPPED, Interruption, NewOutput, interruption_output
from perdure.core.model.record import Message
from perdure.core.model.run import Status
from perdure.core.model.turn import Block, Finish, Lease, NextState, Release, RetryLater, Turn, TurnOutcome
from perdure.core.tracing import RunTrace, trace_id_of
from perdure.errors import PerdureError
from perdure.worker.batched_calls import ClockReading
from perdure.worker.commit.attempt_log import RUN
from perdure.worker.run.pause_and_evict import RunOrders
from perdure.worker.run.policy import block_for
from perdure.worker.services import Services
from perdure.worker.steps.attempt import Attempt


class Stage(Enum):
    """Stage of a held run."""

    REPLAYING = auto()
    ACTIVE = auto()
    #: A transaction step is about to commit; nothing else happens to the run meanwhile.
    LOCKED = auto()
    PARKED = auto()
    OVER = auto()


logger = logging.getLogger("perdure.worker")

# Looked up once: every run that begins or ends passes here.
_REPLAYING = Stage.REPLAYING
_COMPLETED = Status.COMPLETED
_FAILURES = (RetryLater, Block)


class HeldRun(ABC):
    """Base class of runs that a worker holds a lease on."""

    #: Kind of thing whose end the log reports: a run or an activity.
    scope = RUN
    #: Whether a run that is given up has inbox entries that it will not take in: it can neither park nor continue.
    _leaves_entries = False
    #: Whether the log of attempts was told to expect a failure.
    _failure_announced = False
    #: The run's part of a trace; None without a tracer.
    trace: RunTrace | None = None
    #: Whether that trace is recorded.
    is_recorded = False

    def __init__(self, claimed: ClaimedRun, services: Services) -> None:
        self.run = run = claimed.run
        self.lease = Lease(run.id, run.token, run.nonce)
        self.stage = _REPLAYING
        self.seen = run.inbox_read
        self._services = services
        self._backlog: list[Message] = []
        self._verdict_next: NextState | None = None
        self._committing = False
        self._forced: NextState | None = None
        self._wakeup = Wakeup(services.system)
        self._orders: RunOrders | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.run.id} {self.stage.name}>"

    @property
    def inbox_known(self) -> int:
        """Number of the last inbox entry that this run knows of, taken in or not."""
        kept_for_later = self._backlog[-1].seq if self._backlog else 0
        return max(self.seen, kept_for_later, 0 if self._orders is None else self._orders.inbox_known)

    def take_backlog(self) -> bool:
        """Receive the entries that came in too early; False if there were none. Reads on after a full page."""
        backlog, self._backlog = self._backlog, []
        if not backlog:
            return False
        self.receive(backlog)
        if len(backlog) >= self._services.store.inbox_page:
            self._services.owner.read_inbox(self)
        return True

    @property
    def log_fields(self) -> dict[str, object]:
        """Fields of log records about the run."""
        run = self.run
        return {"run_id": run.id, "attempt": run.attempt, "worker": self._services.actor(), **self.run_fields()}

    @property
    @abstractmethod
    def idle(self) -> bool:
        """True if no step and no commit is under way."""

    @abstractmethod
    def attempts_under_way(self) -> Sequence[Attempt]:
        """Return the attempts that are under way. Called from any thread."""

    @abstractmethod
    def begin(self, reading: ClockReading, /) -> None:
        """Begin to execute the run. Called from a plain callback of the loop."""

    @abstractmethod
    def receive(self, messages: Iterable[Message], /) -> None:
        """Take in new inbox entries, in order."""

    @abstractmethod
    def settle(self, reading: ClockReading) -> None:
        """Check what is to be done now: write a turn, begin a step, or wait."""

    @abstractmethod
    def make_turn(self, reading: ClockReading) -> Turn | None:
        """Make the run's next turn; None if there is nothing to write."""

    @abstractmethod
    def landed(self, verdict: TurnOutcome, reading: ClockReading) -> None:
        """Handle the verdict on the turn that was made last."""

    @abstractmethod
    def emitted(self) -> None:
        """Note that emitted items are pending. Called from a plain callback of the loop."""

    def credentials(self) -> Mapping[str, Any]:
        """Return what the caller of `Engine.execute` gave for this run. Called from any thread."""
        return self._services.credentials(self.run.id)

    def headers(self) -> Headers:
        """Return the headers of the run. Called from any thread."""
        return self.run.headers

    def run_fields(self) -> dict[str, object]:
        """Return type and trace, for log records inside of steps and about the run. Called from any thread."""
        trace_id = trace_id_of(self.run.headers) if self.trace is None else self.trace.trace_id
        return {"run_type": self.run.type, **({"trace_id": trace_id} if trace_id else {})}

    def _stop_notice(self, last: int, steps: tuple[str, ...]) -> NewOutput:
        """Make the notice that the worker stopped before these steps had ended; `last`: number of the last record."""
        run = self.run
        interruption = Interruption(
            worker=self._services.actor(), reason=STOPPED, generation=run.generation, attempt=run.attempt, last=last,
            steps=steps,
        )  # fmt: skip
        return interruption_output(interruption, self.lease.token)

    def release(self) -> None:
        """Give the run back unfinished, as it is."""
        if self.stage in (Stage.ACTIVE, Stage.REPLAYING):
            self._cancel_attempts()
            self.end_as(Release())

    @abstractmethod
    def drop(self) -> None:
        """Let go of the run at once, writing nothing: the lease is lost, or the memory is needed."""

    def block(self, error: Exception) -> None:
        """Block the run because code, history and data do not fit together. Nothing else of this pass is written."""
        # The log of attempts reports the run once it is blocked. Any other error is a defect, whatever follows.
        if not isinstance(error, PerdureError):
            logger.error("run %s cannot go on: %s", self.run.id, error, exc_info=error, extra=self.log_fields)
        self.end_as(block_for(error, self._services))

    def end_as(self, state: NextState) -> None:
        """End the lease with this state in the next turn, whatever the code of the run does."""
        self._cancel_attempts()
        self._forced = state
        self.stage = Stage.ACTIVE
        if not self._committing:
            self._services.journal.submit(self)

    @property
    def is_stable(self) -> bool:
        """True if the run is held and no turn of it is being written, which could end its lease."""
        return self.stage in (Stage.REPLAYING, Stage.ACTIVE, Stage.LOCKED) and not self._committing

    def lose(self, why: str = "it was taken over by another worker, or ended") -> None:
        """Let go of a run whose lease is gone, and stop its steps."""
        logger.warning("lease_lost: run %s is dropped: %s", self.run.id, why, extra=self.log_fields)
        if (tell := self._services.system.telemetry.lease_lost) is not None:
            tell(self.run)
        self._let_go()

    def _expect_failure(self, after: NextState | None) -> None:
        """Announce a state that the log reports as a failure."""
        if after.status is not _COMPLETED if type(after) is Finish else type(after) in _FAILURES:
            self._announce_failure()

    def _announce_failure(self) -> None:
        """Announce that the next turn contains a failure."""
        self._failure_announced = True
        self._services.journal.attempt_log.expect(self.run.id)

    def _let_go(self, after: NextState | None = None) -> None:
        services = self._services
        if self._failure_announced:
            services.journal.attempt_log.forget(self.run.id)
        self.drop()
        if self.is_recorded and self.trace is not None:
            self.trace.let_go()
        services.owner.ended(self, after)

    @abstractmethod
    def _cancel_attempts(self) -> None:
        """Cancel what is under way; its results are not needed any more."""
