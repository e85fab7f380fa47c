"""Faults planted in steps that must not run twice, and in cancellations that decide the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.core.codec.failure import Failure
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


def partial_result_lost(patch: Patch) -> None:
    """The value that a cancelled run returned is not kept by the process that it was returned in."""
    won = Execution._won

    def ended(self: Execution, outcome: RunOutcome, main: Any) -> RunOutcome:
        kept = won(self, outcome, main)
        if self.replaying or kept.partial is None:
            return kept
        return replace(kept, payload=replace(Failure.from_json(kept.payload or ""), partial='"lost"').to_json())

    patch.setattr(Execution, "_won", ended)


def cancellation_not_taken_back(patch: Patch) -> None:
    """A cancellation that the code takes back decides the outcome in the process that was told, and not on replay."""
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
        partial_result_lost,
        cancellation_not_taken_back,
    )
}
