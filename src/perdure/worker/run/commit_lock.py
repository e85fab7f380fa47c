"""Whose turn it is to commit for a run.

A run has at most one commit in flight, whoever issues it. So a transaction of the workflow's gets the run's seal when everything
before it is durable, and until it has ended nothing else happens to the run: what comes in is kept, in order, for afterwards.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure.replay.operations import StepOperation
from perdure.store.user_connections.errors import Interrupted
from perdure.worker.callbacks import ClockReading
from perdure.worker.run.held_run import Stage
from perdure.worker.steps.attempt import Attempt
from perdure.worker.steps.transaction_attempt import Committed, LeaseLost, TransactionAttempt

if TYPE_CHECKING:
    from perdure.worker.run.workflow_run import WorkflowRun
    from perdure.worker.services import Services


#: How often a transaction that the database interrupted is begun again before that counts as a failed attempt, and the longest
#: pause in between, in microseconds.
_TRIES = 5
_PAUSE = 50_000


class CommitLock:
    """The seal of one held run."""

    def __init__(self, held: WorkflowRun, services: Services) -> None:
        self._held = held
        self._services = services
        self._wanting: list[TransactionAttempt] = []
        self._holder: TransactionAttempt | None = None
        self._kept: list[tuple[Attempt, Any, BaseException | None]] = []
        self._released = False
        #: How often the database has interrupted each, by location.
        self._interruptions: dict[str, int] = {}

    def attempt(self, operation: StepOperation, now: int) -> TransactionAttempt:
        """An attempt that will want it."""
        return TransactionAttempt(operation, self._held.run, now, self._services, self._held, self)

    def want(self, attempt: TransactionAttempt) -> None:
        """Give it to that attempt when it is its turn."""
        self._wanting.append(attempt)
        if attempt.begun:
            # From a callback of its own: this may be a task, in which no workflow code may run.
            asyncio.get_running_loop().call_soon(self._settle)

    def may_begin_again(self, location: str) -> bool:
        """Whether a transaction that the database interrupted is not yet one too many."""
        count = self._interruptions[location] = self._interruptions.get(location, 0) + 1
        return count < _TRIES

    @property
    def wanted(self) -> bool:
        """Whether anybody waits for it."""
        if self._wanting:
            self._wanting = [attempt for attempt in self._wanting if attempt.wanted]
        return bool(self._wanting)

    def grant(self) -> bool:
        """Give it away, if everything is durable and somebody wants it; whether that was done."""
        if not self.wanted:
            return False
        grant = self._held.lock_commits(emitted=self._wanting[0].has_pending)
        if grant is None:
            return False
        self._holder = self._wanting.pop(0)
        self._holder.granted(grant)
        return True

    def release_later(self) -> None:
        """Give the run back as soon as the transaction has ended."""
        self._released = True

    def took(self, attempt: Attempt, result: Any, error: BaseException | None, reading: ClockReading) -> bool:
        """Deal with the end of an attempt; False if that is as the end of any step."""
        if self._holder is not None and self._holder is not attempt:
            self._kept.append((attempt, result, error))
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
        """Let happen what has come in meanwhile, until somebody else has the seal."""
        held = self._held
        kept, self._kept = self._kept, []
        for attempt, result, error in kept:
            held.step_ended(attempt, result, error, reading)
        if held.stage is Stage.ACTIVE:
            held.take_backlog()
        if self._released and held.stage is Stage.ACTIVE:
            self._released = False
            held.release()
        held.settle(reading)
