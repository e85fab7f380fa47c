"""Faults planted in steps that must not run twice, and in cancellations that decide the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from perdure.core.model.record import Record
from perdure.replay.execution import Execution
from perdure.replay.outcome import RunOutcome
from perdure.replay.reused_results import EarlierAttempts
from perdure.worker.run.workflow_run import WorkflowRun
from perdure.worker.steps.attempt import Attempt

Patch = pytest.MonkeyPatch


def beginning_after_the_start(patch: Patch) -> None:
    """A step is executed before its beginning is durable."""
    announce = WorkflowRun._announce

    def start(self: WorkflowRun, attempt: Attempt, now: int) -> None:
        announce(self, attempt, now)
        self._announced = self._announced[:-1]
        attempt.start(self._services.threads, self.run.deadline)

    patch.setattr(WorkflowRun, "_announce", start)


def interruption_not_noticed(patch: Patch) -> None:
    """A step that has begun is begun again by the next holder of the run."""
    patch.setattr(Execution, "record_interruptions", lambda self, now: 0)


def interruption_forgotten_by_the_next_attempt(patch: Patch) -> None:
    """A step that has begun is begun again by the next attempt at the run."""
    init = EarlierAttempts.__init__

    def forgetful(self: EarlierAttempts, earlier: Sequence[Record]) -> None:
        init(self, earlier)
        self.begun.clear()

    patch.setattr(EarlierAttempts, "__init__", forgetful)


def code_wins(patch: Patch) -> None:
    """A cancelled run whose code returns has completed."""

    def ended(self: Execution, outcome: RunOutcome, main: Any) -> RunOutcome:
        return outcome

    patch.setattr(Execution, "_won", ended)


def cancellation_not_taken_back(patch: Patch) -> None:
    """A run whose code takes its cancellation back ends as cancelled in the process that was told, and not on replay."""
    uncancel = Execution.uncancel

    def deaf(self: Execution) -> bool:
        return uncancel(self) if self.replaying else True

    patch.setattr(Execution, "uncancel", deaf)


PLANTED_ONCE: dict[str, Callable[[Patch], None]] = {
    plant.__name__: plant
    for plant in (
        beginning_after_the_start,
        interruption_not_noticed,
        interruption_forgotten_by_the_next_attempt,
        code_wins,
        cancellation_not_taken_back,
    )
}
