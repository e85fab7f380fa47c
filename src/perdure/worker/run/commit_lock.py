"""The exclusive right to commit for a run, which a transaction step needs.

A run has at most one commit in flight. A transaction step commits by itself, so it gets the run's commit lock once
everything before it is durable. Until it has ended, nothing else happens to the run: results and messages that come in
are kept, in order, for afterwards.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure.replay.operations import StepOperation
from perdure.store.user_connections.errors import Interrupted
from perdure.worker.batched_calls import ClockReading
from perdure.worker.run.held_run import Stage
from perdure.worker.steps.attempt import Attempt
from perdure.worker.steps.transaction_attempt import Committed, LeaseLost, TransactionAttempt

if TYPE_CHECKING:
    from perdure.worker.run.workflow_run import WorkflowRun
    from perdure.worker.services import Services


#: Interruptions by the database after which the next one counts as a failed attempt, and the longest pause before the
#: transaction begins again, in microseconds.
_TRIES = 5
_PAUSE = 50_000


class CommitLock:
    """The commit lock of one run."""

    def __init__(self, held: WorkflowRun, services: Services) -> None:
        self._held = held
        self._services = services
        self._requests: list[TransactionAttempt] = []
        self._holder: TransactionAttempt | None = None
        self._results: list[tuple[Attempt, Any, BaseException | None]] = []
        self._release_later = False
        #: By location, how often the database has interrupted the transaction.
        self._interruptions: dict[str, int] = {}

    def attempt(self, operation: StepOperation, now: int) -> TransactionAttempt:
        """Make an attempt that will request the lock."""
        make = self._services.attempts.transaction
        return make(operation, self._held.run, now, self._services, self._held, self)

    def request(self, attempt: TransactionAttempt) -> None:
        """Grant the lock to an attempt when it is next in line."""
        self._requests.append(attempt)
        if attempt.is_called:
            # A callback of its own: the caller may be a task, in which no workflow code may run.
            asyncio.get_running_loop().call_soon(self._settle, context=self._services.results.context)

    def may_begin_again(self, location: str) -> bool:
        """Count an interruption by the database; False if the attempt has to fail now."""
        count = self._interruptions[location] = self._interruptions.get(location, 0) + 1
        return count < _TRIES

    @property
    def is_requested(self) -> bool:
        """True if an attempt waits for the lock."""
        if self._requests:
            self._requests = [attempt for attempt in self._requests if attempt.wanted]
        return bool(self._requests)

    def grant(self) -> bool:
        """Grant the lock to the first attempt in line if everything is durable; True if it was granted."""
        if not self.is_requested:
            return False
        grant = self._held.lock_commits(emitted=self._requests[0].has_pending)
        if grant is None:
            return False
        self._holder = self._requests.pop(0)
        self._holder.granted(grant)
        return True

    def release_later(self) -> None:
        """Give the run back as soon as the transaction has ended."""
        self._release_later = True

    def attempt_ended(self, attempt: Attempt, result: Any, error: BaseException | None, reading: ClockReading) -> bool:
        """Handle the end of an attempt; False if the run is to handle it as that of an ordinary step."""
        if self._holder is not None and self._holder is not attempt:
            self._results.append((attempt, result, error))
            return True
        held = self._held
        if self._holder is attempt:
            self._holder = None
            held.stage = Stage.ACTIVE
        if not isinstance(attempt, TransactionAttempt):
            return False
        if isinstance(error, LeaseLost):
            held.lose()
        elif isinstance(error, Interrupted):
            held.begin_again(attempt, reading.now + int(_PAUSE * self._services.system.random()))
            self._catch_up(reading)
        elif isinstance(result, Committed):
            self._interruptions.pop(result.record.location, None)
            held.adopt(attempt, result, reading)
            self._catch_up(reading)
        else:
            asyncio.get_running_loop().call_soon(self._settle)
            return False
        return True

    def _settle(self) -> None:
        try:
            self._catch_up(self._services.read_clock())
        except Exception as error:
            self._held.block(error)

    def _catch_up(self, reading: ClockReading) -> None:
        """Apply what came in while the lock was held, until another attempt gets it."""
        held = self._held
        kept, self._results = self._results, []
        for attempt, result, error in kept:
            held.step_ended(attempt, result, error, reading)
        if held.stage is Stage.ACTIVE:
            held.take_backlog()
        if self._release_later and held.stage is Stage.ACTIVE:
            self._release_later = False
            held.release()
        held.settle(reading)
