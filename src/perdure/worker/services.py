"""Services that the runs of one worker share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import ErrorTypes
from perdure.core.middleware import NO_LAYERS, Layers
from perdure.core.model.turn import NextState, Park
from perdure.core.system import System
from perdure.store.contract import Store
from perdure.worker.batched_calls import ClockReading, StepResults
from perdure.worker.commit.journal import Journal
from perdure.worker.limits.gatekeeper import Gatekeeper
from perdure.worker.options import WorkerSettings
from perdure.worker.steps.emit import EmitBuffer
from perdure.worker.steps.threads import StepThreads
from perdure.worker.unserved_children import UnservedChildren
from perdure.worker.workflow_guard import IoGuard

if TYPE_CHECKING:
    from perdure.worker.run.activity_run import ActivityRun
    from perdure.worker.run.held_run import HeldRun
    from perdure.worker.run.packing import HistoryPacking
    from perdure.worker.run.workflow_run import WorkflowRun
    from perdure.worker.steps.activity_attempt import ActivityAttempt
    from perdure.worker.steps.attempt import Attempt
    from perdure.worker.steps.transaction_attempt import TransactionAttempt


class RunOwner(Protocol):
    """The worker, as its runs call it."""

    stopping: bool

    @property
    def is_lease_safe(self) -> bool:
        """True if the leases hold for long enough to begin something."""

    def parked(self, held: WorkflowRun, park: Park) -> None:
        """Handle a run that was parked and has no lease any more."""

    def ending(self, held: HeldRun) -> None:
        """Handle a run whose outcome is about to be written."""

    def ended(self, held: HeldRun, after: NextState | None) -> None:
        """Handle the end of a run in this worker; `after` is None if the lease was lost."""

    def start_successors(self, names: Sequence[str]) -> None:
        """Start the next runs of these singletons: one has ended, or new ones were started."""

    def relocate(self, held: HeldRun, leave: Callable[[str | None], None]) -> None:
        """Find another worker for a run, and call `leave` with its id, or with None."""

    def read_inbox(self, held: HeldRun) -> None:
        """Read inbox entries that the run has not received."""

    def read_interruptions(self, held: WorkflowRun) -> None:
        """Read which steps an earlier holder of the run did not finish."""

    def pack_history(self, held: WorkflowRun, packing: HistoryPacking) -> None:
        """Pack the history of a run."""

    def read_earlier_attempts(self, held: ActivityRun) -> None:
        """Read the last heartbeat of an earlier attempt at an activity."""


class AttemptMakers(Struct, frozen=True):
    """Classes of attempts, or functions that make attempts with middleware around the function."""

    step: Callable[..., Attempt]
    activity: Callable[..., ActivityAttempt]
    transaction: Callable[..., TransactionAttempt]


class Services(Struct, frozen=True, kw_only=True):
    """Services that a held run uses."""

    system: System
    store: Store
    #: Id of the worker's current life, for the audit trail.
    actor: Callable[[], str]
    #: Reads the clocks and the state of the lease.
    read_clock: Callable[[], ClockReading]
    journal: Journal
    results: StepResults
    emit_buffer: EmitBuffer
    threads: StepThreads
    gatekeeper: Gatekeeper
    codec: Codec
    errors: ErrorTypes
    settings: WorkerSettings
    owner: RunOwner
    #: Returns what the caller of `Engine.execute` gave for a run, by the run's id.
    credentials: Callable[[str], Mapping[str, Any]]
    unserved_children: UnservedChildren
    attempts: AttemptMakers
    #: Middleware of the engine.
    layers: Layers = NO_LAYERS
    #: Watches workflow code for I/O; None: nothing does.
    guard: IoGuard | None = None
    #: For `ctx.log`.
    logger: logging.Logger = logging.getLogger("perdure.workflow")
