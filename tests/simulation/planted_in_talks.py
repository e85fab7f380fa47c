"""Faults planted in joins and races, in questions that are refused, and in sticky events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.core.model.events import EmitOutcome, NewStickyEvent, event_id
from perdure.core.model.record import NewMessage
from perdure.replay.execution import Execution
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.runs import events, waiters
from perdure.worker.run import workflow_run
from perdure.workflow import branches
from perdure.workflow.answers import Replies
from perdure.workflow.branches import NamedBranch

Patch = pytest.MonkeyPatch


def another_winner_on_replay(patch: Patch) -> None:
    """Replay takes the first branch of a race for the one that has won."""
    patch.setattr(branches, "_winner_of", lambda scope, checkpoint, given: next(iter(given)))


def states_of_the_process(patch: Patch) -> None:
    """A branch that ended in another process is taken to run."""
    status, replay = NamedBranch.status, Execution.replay
    replaying: set[object] = set()

    def read(self: NamedBranch[Any]) -> str:
        known: str = status.__get__(self)
        forgotten = self._task is not None and self._task.get_loop() in replaying
        return "running" if known == "completed" and forgotten else known

    def watched(self: Execution, budget: Callable[[], bool]) -> bool:
        replaying.add(self.loop)
        try:
            return replay(self, budget)
        finally:
            replaying.discard(self.loop)

    patch.setattr(NamedBranch, "status", property(read))
    patch.setattr(Execution, "replay", watched)


def refused_question_recorded(patch: Patch) -> None:
    """A question that is refused is recorded all the same."""
    is_refused = workflow_run._is_refused

    def refuse(execution: Any, draft: Any, message: Any) -> bool:
        is_refused(execution, draft, message)
        return False

    patch.setattr(workflow_run, "_is_refused", refuse)


def validated_on_replay(patch: Patch) -> None:
    """Replay shows recorded questions to their validators."""
    apply = Execution._apply

    def judged(self: Execution, record: Any) -> None:
        if self.replaying and record.location in self.validators:
            self.refusal(record.location, record.payload)
        apply(self, record)

    patch.setattr(Execution, "_apply", judged)


def handlers_error_is_an_answer(patch: Patch) -> None:
    """The error of a handler is sent as if it were the answer."""
    patch.setattr(Replies, "fail", lambda self, error: self.reply(str(error)))


def listeners_of_an_event_not_told(patch: Patch) -> None:
    """A sticky event is emitted, and those that wait for it are not told."""

    async def nothing(
        tx: Transaction, target: str, word: NewMessage | None, payload: str | None, *, failed: bool
    ) -> list[NewMessage]:
        await waiters.forget(tx, target)
        return []

    patch.setattr(events, "messages_of_end", nothing)


def emission_not_repeatable(patch: Patch) -> None:
    """An emission whose answer was lost takes its own value for another one."""

    async def emit(tx: Transaction, event: NewStickyEvent) -> EmitOutcome:
        rows = await tx.fetch("SELECT output FROM perdure_runs WHERE id = :id", {"id": event_id(event.name)})
        again = bool(rows) and rows[0][0] == event.payload
        return EmitOutcome.KEPT if again and not event.replace else await emit_event(tx, event)

    emit_event = events.emit_event
    patch.setattr("perdure.store.sql.store.emit_event", emit)


def last_emission_wins(patch: Patch) -> None:
    """An event that was emitted takes another value that was not to replace it."""

    async def emit(tx: Transaction, event: NewStickyEvent) -> EmitOutcome:
        return await emit_event(tx, NewStickyEvent(name=event.name, payload=event.payload, replace=True, write_id=""))

    emit_event = events.emit_event
    patch.setattr("perdure.store.sql.store.emit_event", emit)


PLANTED_IN_TALKS: dict[str, Callable[[Patch], None]] = {
    plant.__name__: plant
    for plant in (
        another_winner_on_replay,
        states_of_the_process,
        refused_question_recorded,
        validated_on_replay,
        handlers_error_is_an_answer,
        listeners_of_an_event_not_told,
        emission_not_repeatable,
        last_emission_wins,
    )
}
