"""A run in a worker's hands, as the worker sees it: a workflow's (`WorkflowRun`) or an activity's (`ActivityRun`)."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Any

from perdure.core.model.claim import ClaimedRun
from perdure.core.model.outputs import STOPPED, Interruption, NewOutput, interruption_output
from perdure.core.model.record import Message
from perdure.core.model.turn import NextState, Release, Turn, TurnOutcome
from perdure.errors import PerdureError
from perdure.worker.alarm import Wakeup
from perdure.worker.callbacks import ClockReading
from perdure.worker.commit.attempt_log import RUN
from perdure.worker.run.orders import RunOrders
from perdure.worker.run.policy import set_aside
from perdure.worker.services import Services


class Stage(Enum):
    """Where a held run stands."""

    REPLAYING = auto()
    ACTIVE = auto()
    #: One of its transactions is about to commit, and nothing else happens to it meanwhile.
    LOCKED = auto()
    PARKED = auto()
    OVER = auto()


logger = logging.getLogger("perdure.worker")


class HeldRun(ABC):
    """See the module."""

    #: What its end is the end of.
    scope = RUN

    def __init__(self, claimed: ClaimedRun, services: Services) -> None:
        self.run = claimed.run
        self.lease = claimed.lease
        self.stage = Stage.REPLAYING
        self.seen = claimed.run.inbox_read
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
        """Up to which entry it knows what is in its inbox, taken in or not."""
        kept_for_later = self._backlog[-1].seq if self._backlog else 0
        return max(self.seen, kept_for_later, 0 if self._orders is None else self._orders.inbox_known)

    def take_backlog(self) -> bool:
        """Receive what came in before it could be, and read on if that may not be all; False if there was nothing."""
        backlog, self._backlog = self._backlog, []
        if not backlog:
            return False
        self.receive(backlog)
        if len(backlog) >= self._services.store.inbox_page:
            self._services.owner.unread(self)
        return True

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether nothing of it is under way."""

    @abstractmethod
    def begin(self, reading: ClockReading, /) -> None:
        """Take it up. From a plain callback of the loop."""

    @abstractmethod
    def receive(self, messages: Iterable[Message], /) -> None:
        """Take in new inbox entries, in order."""

    @abstractmethod
    def settle(self, reading: ClockReading) -> None:
        """Look at where it stands, and write, begin something or wait."""

    @abstractmethod
    def make_turn(self, reading: ClockReading) -> Turn | None:
        """See `TurnAuthor`."""

    @abstractmethod
    def landed(self, verdict: TurnOutcome, reading: ClockReading) -> None:
        """See `TurnAuthor`."""

    @abstractmethod
    def emitted(self) -> None:
        """See `EmittingRun`."""

    def credentials(self) -> Mapping[str, Any]:
        """See `ResultRecipient`."""
        return self._services.credentials(self.run.id)

    def _stopped(self, last: int, steps: tuple[str, ...]) -> NewOutput:
        """Say that the worker stops before these have ended; `last` is the number of the run's last record."""
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
            self._force(Release())

    @abstractmethod
    def drop(self) -> None:
        """Let go at once: the lease is lost, or the memory is wanted. Writes nothing."""

    def block(self, error: Exception) -> None:
        """Code, history and data do not fit together; nothing of this pass is written."""
        known = isinstance(error, PerdureError)
        logger.error("run %s is blocked: %s", self.run.id, error, exc_info=None if known else error)
        self._force(set_aside(error, self._services))

    def _force(self, state: NextState) -> None:
        self._cancel_attempts()
        self._forced = state
        self.stage = Stage.ACTIVE
        if not self._committing:
            self._services.journal.submit(self)

    def lose(self) -> None:
        """Let go of a run whose lease another worker has."""
        logger.warning("lease_lost: run %s was taken over by another worker", self.run.id)
        self._finish_here()

    def _finish_here(self, after: NextState | None = None) -> None:
        self.drop()
        self._services.owner.ended(self, after)

    @abstractmethod
    def _cancel_attempts(self) -> None:
        """Nobody wants the results of what is under way."""
