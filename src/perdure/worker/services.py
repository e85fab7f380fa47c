"""What the runs of one worker share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import ErrorTypes
from perdure.core.model.turn import NextState, Park
from perdure.core.system import System
from perdure.store.contract import Store
from perdure.worker.callbacks import ClockReading, StepResults
from perdure.worker.commit.journal import Journal
from perdure.worker.limits.gatekeeper import Gatekeeper
from perdure.worker.options import WorkerOptions
from perdure.worker.steps.emit import EmitBuffer
from perdure.worker.steps.threads import StepThreads

if TYPE_CHECKING:
    from perdure.worker.run.activity_run import ActivityRun
    from perdure.worker.run.held_run import HeldRun
    from perdure.worker.run.workflow_run import WorkflowRun


class RunOwner(Protocol):
    """The worker, as its runs see it."""

    stopping: bool

    def parked(self, held: WorkflowRun, park: Park) -> None:
        """The run waits and holds no lease any more."""

    def ending(self, held: HeldRun) -> None:
        """The run has its outcome, which is about to be written."""

    def ended(self, held: HeldRun, after: NextState | None) -> None:
        """The run is over, here: finished, to be tried again, given back, set aside; or lost, with None."""

    def singletons_started(self, names: Sequence[str]) -> None:
        """Runs that wait for their turn have been started, or one of these singletons has ended."""

    def moving(self, held: HeldRun, leave: Callable[[str | None], None]) -> None:
        """The run is to go to another worker; `leave` is told to which, if there is one."""

    def unread(self, held: HeldRun) -> None:
        """The run's inbox has entries that it has not been given."""

    def recall_interruptions(self, held: WorkflowRun) -> None:
        """The run wants to know which of its steps an earlier holder did not finish."""

    def recall(self, performance: ActivityRun) -> None:
        """The activity wants to know what its last heartbeat said."""


class Services(Struct, frozen=True, kw_only=True):
    """The services that a held run uses."""

    system: System
    store: Store
    #: The worker's current life, for the audit trail.
    actor: Callable[[], str]
    #: A look at the clocks: the database's time, which is what goes into histories, and whether the lease is safe.
    read_clock: Callable[[], ClockReading]
    journal: Journal
    results: StepResults
    emit_buffer: EmitBuffer
    threads: StepThreads
    gatekeeper: Gatekeeper
    codec: Codec
    errors: ErrorTypes
    options: WorkerOptions
    owner: RunOwner
    #: What the one who asked for a run to be worked on gave for it, by the run's id.
    credentials: Callable[[str], Mapping[str, Any]]
    #: For `ctx.log`.
    logger: logging.Logger = logging.getLogger("perdure.workflow")
