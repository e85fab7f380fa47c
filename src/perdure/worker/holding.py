"""What a worker keeps of a run in its hands, and the ends that the workflow does not choose."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Any

from perdure.core.errors import PerdureError
from perdure.core.model import Block, ClaimedRun, Message, Next, Record, Release, Turn, Verdict
from perdure.replay.execution import Execution
from perdure.replay.operations import StepOperation
from perdure.worker.alarm import Wakeup
from perdure.worker.attempts import Attempt
from perdure.worker.crew import Crew
from perdure.worker.draft import Draft
from perdure.worker.moment import Moment
from perdure.worker.policy import expired, set_aside
from perdure.worker.sealing import Seal
from perdure.worker.stage import Stage
from perdure.worker.steering import Steering
from perdure.workflow.definition import Workflow

logger = logging.getLogger("perdure.worker")

AnyWorkflow = Workflow[Any, Any]


class Holding(ABC):
    """See the module."""

    def __init__(self, claimed: ClaimedRun, workflow: AnyWorkflow, records: tuple[Record, ...], crew: Crew) -> None:
        self.run = claimed.run
        self.lease = claimed.lease
        self.stage = Stage.REPLAYING
        self.seen = claimed.run.inbox_read
        self._crew = crew
        self._workflow = workflow
        self._records = records
        self._execution: Execution | None = None
        self._attempts: dict[str, Attempt] = {}
        self._ready: list[StepOperation] = []
        self._draft = Draft(crew.codec)
        self._backlog: list[Message] = []
        self._verdict_next: Next | None = None
        self._committing = False
        self._forced: Next | None = None
        self._wakeup = Wakeup(crew.system)
        self._seal: Seal | None = None
        self._steering: Steering | None = None

    def __repr__(self) -> str:
        return f"<held {self.run.id} {self.stage.name}>"

    @property
    def idle(self) -> bool:
        """Whether nothing of it is under way."""
        return not self._attempts and not self._committing and self.stage is not Stage.REPLAYING

    @abstractmethod
    def make_turn(self, moment: Moment) -> Turn | None:
        """See `Author`."""

    @abstractmethod
    def landed(self, verdict: Verdict, moment: Moment) -> None:
        """See `Author`."""

    def release(self) -> None:
        """Give the run back unfinished, as it is."""
        if self.stage in (Stage.ACTIVE, Stage.REPLAYING):
            self._cancel_attempts()
            self._force(Release())
        elif self.stage is Stage.SEALED and self._seal is not None:
            self._seal.release_later()

    def drop(self) -> None:
        """Let go at once: the lease is lost, or the memory is wanted. Writes nothing."""
        self.stage = Stage.OVER
        self._cancel_attempts()
        self._wakeup.disarm()
        self._seal = self._steering = None
        if self._draft.filled:
            self._draft.clear()
        execution, self._execution = self._execution, None
        if execution is not None and not execution.evict():
            logger.warning("run %s has code that would not end; it stays in memory", self.run.id)

    def break_off(self, error: Exception) -> None:
        """Code, history and data do not fit together; nothing of this pass is written."""
        known = isinstance(error, PerdureError)
        logger.error("run %s is blocked: %s", self.run.id, error, exc_info=None if known else error)
        self._force(set_aside(error, self._crew))

    def _expire(self) -> None:
        self._draft.start_nobody()
        self._force(expired(self.run, self._crew))

    def _force(self, state: Next) -> None:
        self._cancel_attempts()
        self._forced = state
        if isinstance(state, Block) and self._execution is not None:
            self._execution.unsaved.clear()
            self._draft.clear()
        self.stage = Stage.ACTIVE
        if not self._committing:
            self._crew.journal.submit(self)

    def _cancel_attempts(self) -> None:
        attempts, self._attempts = self._attempts, {}
        for attempt in attempts.values():
            attempt.cancel()
