"""Undo of a run that has failed or was cancelled, before its outcome is final."""

from __future__ import annotations

import asyncio
from contextvars import Context as ContextVars
from typing import Any

from msgspec.structs import replace

from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import Failure
from perdure.replay.futures import RunTask
from perdure.replay.outcome import RunOutcome
from perdure.replay.run_loop import RunLoop
from perdure.workflow.saga import UndoLog

#: Failed undos that an outcome lists; the history has all of them.
_LISTED = 16


class UndoPhase:
    """Undoes what a run did. Its tasks are over or cancelled by then, so no cancellation can interrupt it."""

    def __init__(self, outcome: RunOutcome, undos: UndoLog, loop: RunLoop) -> None:
        self._outcome = outcome
        self._undos = undos
        self._loop = loop
        context = ContextVars()
        #: Task that undoes.
        self.task: RunTask[Any] = context.run(loop.create_task, self._undo(), context=context)

    @property
    def over(self) -> bool:
        """True if nothing is left to be undone."""
        return self.task.done()

    def outcome(self, codec: Codec) -> RunOutcome:
        """Outcome of the run, with the errors of failed undos."""
        self.task.result()
        outcome = replace(self._outcome, final=True)
        problems = list(self._undos.errors.items())[:_LISTED]
        if not problems or outcome.error is None:
            return outcome
        failures = {location: Failure.of(error, codec) for location, error in problems}
        return replace(outcome, payload=replace(Failure.of(outcome.error, codec), not_undone=failures).to_json())

    async def _undo(self) -> None:
        # A step under way is awaited: if it were cancelled, it would be unknown whether it has to be undone.
        await self._undos.settle()
        for task in tuple(self._loop.tasks):
            if task is not asyncio.current_task():
                task.cancel("the run has failed, and is being undone")
        await self._undos.settle_blocks()
        await self._undos.undo()
