"""What a worker keeps of a workflow's run in its hands, and the ends that the workflow does not choose."""

from __future__ import annotations

import logging
from typing import Any

from perdure.core.model.run import Block, ClaimedRun, Next, Record
from perdure.replay.execution import Execution
from perdure.replay.operations import StepOperation
from perdure.worker.run.commit_lock import Seal
from perdure.worker.run.kept import Kept
from perdure.worker.run.policy import expired
from perdure.worker.run.stage import Stage
from perdure.worker.run.step_limits import Passing
from perdure.worker.run.turn_draft import Draft
from perdure.worker.services import Crew
from perdure.worker.steps.attempt import Attempt
from perdure.workflow.definition import Workflow

logger = logging.getLogger("perdure.worker")

AnyWorkflow = Workflow[Any, Any]


class Holding(Kept):
    """See the module."""

    # What most runs never set is theirs by the class.
    #: Whether items of its steps are pending that have to leave soon.
    _has_emitted = False
    #: By location, how many attempts at steps earlier holders did not finish; None: not asked for.
    _interrupted: dict[str, int] | None = None
    #: Of this attempt at the run, what failed and was to be tried again, until that is known.
    _failures: tuple[Record, ...] = ()

    def __init__(self, claimed: ClaimedRun, workflow: AnyWorkflow, records: tuple[Record, ...], crew: Crew) -> None:
        super().__init__(claimed, crew)
        self._workflow = workflow
        self._records = records
        self._execution: Execution | None = None
        self._attempts: dict[str, Attempt] = {}
        self._ready: list[StepOperation] = []
        self._draft = Draft(crew.codec)
        self._seal: Seal | None = None
        self._passing: Passing | None = None

    @property
    def last(self) -> int:
        """The number of the last record that it has made; -1: none."""
        return -1 if self._execution is None else self._execution.next_seq - 1

    @property
    def idle(self) -> bool:
        """Whether nothing of it is under way."""
        return not self._attempts and not self._committing and self.stage is not Stage.REPLAYING

    def release(self) -> None:
        """Give the run back unfinished, as it is."""
        if self.stage is Stage.SEALED and self._seal is not None:
            self._seal.release_later()
            return
        if self._attempts and self._execution is not None:
            self._draft.show([self._stopped(self._execution.next_seq - 1, tuple(self._attempts))])
        super().release()

    def drop(self) -> None:
        """Let go at once: the lease is lost, or the memory is wanted. Writes nothing."""
        self.stage = Stage.OVER
        self._cancel_attempts()
        if self._passing is not None:
            self._passing.close(ended=False)
        self._wakeup.disarm()
        self._seal = self._steering = None
        if self._draft.filled:
            self._draft.clear()
        if self._crew.emitting.pending:
            self._crew.emitting.take(self)
        execution, self._execution = self._execution, None
        if execution is not None and not execution.evict():
            logger.warning("run %s has code that would not end; it stays in memory", self.run.id)

    def _expire(self) -> None:
        self._draft.start_nobody()
        self._force(expired(self.run, self._crew))

    def _force(self, state: Next) -> None:
        if isinstance(state, Block) and self._execution is not None:
            self._execution.unsaved.clear()
            self._draft.clear_all_but_emitted()
        super()._force(state)

    def _cancel_attempts(self) -> None:
        attempts, self._attempts = self._attempts, {}
        for attempt in attempts.values():
            attempt.cancel()
