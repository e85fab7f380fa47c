"""Performing a program against a random course of events, and replaying what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from perdure.core.model import Kind, Record
from perdure.replay.operations import ChildOperation, StepOperation
from tests.replay.driver import Driver
from tests.replay.generation import MESSAGES, Tape
from tests.replay.programs import Machine, Node

_MOST_RECORDS = 30


class Play(Driver):
    """A program being performed."""

    def __init__(self, program: Node, history: Sequence[Record] = ()) -> None:
        self.program = program
        self.machine = Machine()
        super().__init__(self.machine.perform, program, history=history)

    @property
    def position(self) -> list[str]:
        """Where it stands, and everything that it has seen."""
        return [*super().position, *self.machine.trace]

    def again(self, history: Any = None) -> Play:
        """The same program taken up with its history, or the one given."""
        return Play(self.program, tuple(self.history if history is None else history))

    def close(self) -> None:
        """Let go of what is left."""
        if self.outcome is None:
            assert self.execution.evict()


class Recording(Struct, frozen=True):
    """What another process needs to replay a performance, and to tell whether it did."""

    program: Node
    history: tuple[Record, ...]
    positions: tuple[list[str], ...]


def record(program: Node, events: Sequence[int]) -> Play:
    """Perform a program while things happen to it in a random order."""
    play = Play(program)
    tape = Tape(events)
    lost: list[str] = []
    while play.outcome is None and not tape.is_exhausted and len(play.history) < _MOST_RECORDS:
        _happen(play, tape, lost)
        lost += [each.location for each in play.execution.dropped if isinstance(each, ChildOperation)]
        play.execution.dropped.clear()
    return play


def _happen(play: Play, tape: Tape, lost: list[str]) -> None:
    """One thing that could happen now, happens."""
    kind = 60 - tape.pick(60)
    after = tape.pick(4) / 2
    if kind == 1 and not play.execution.cancel_requested:
        play.cancel()
    elif kind < 7:
        play.message(MESSAGES[tape.pick(len(MESSAGES))], tape.pick(100), after=after)
    elif kind < 16 and lost:
        play.late(lost.pop())
    elif kind < 22 and play.execution.next_timer() is not None:
        play.fire()
    else:
        _complete(play, tape, after)


def _complete(play: Play, tape: Tape, after: float) -> None:
    awaited = [each for each in play.execution.open_operations() if isinstance(each, StepOperation | ChildOperation)]
    if not awaited:
        if play.execution.next_timer() is not None:
            play.fire()
        return
    operation = awaited[tape.pick(len(awaited))]
    how = tape.pick(12)
    if how == 1:
        play.fail(operation.location, ValueError(tape.pick(100)), after=after)
    elif how == 2 and isinstance(operation, StepOperation) and operation.attempts < 3:
        play.stumble(operation.location, ValueError("again"), attempts=operation.attempts + 1, retry_at=1)
    else:
        play.complete(operation.location, tape.pick(100), after=after)


def recording_of(play: Play) -> Recording:
    """What was recorded."""
    return Recording(play.program, tuple(play.history), tuple(play.positions))


def verify(recording: Recording) -> str:
    """Replay, cut at every record, must stand where the recorded run stood, and go on as it went on. Gives what is wrong."""
    records, positions = recording.history, recording.positions
    for cut in reversed(range(len(records) + 1)):
        play = Play(recording.program, records[:cut])
        if play.execution.warnings:
            return f"after {cut} records it warns: {play.execution.warnings}"
        if play.position != positions[cut]:
            return f"after {cut} records it stands at\n{play.position}\ninstead of\n{positions[cut]}"
        waiting = [each for each in play.execution.fresh if each.open]
        if waiting != play.execution.open_operations():
            return f"after {cut} records the worker is not told of all that is open"
        for each in records[cut:]:
            play.feed(each)
        if play.position != positions[-1] or tuple(play.history) != records:
            return f"cut at {cut} records and gone on it ends at\n{play.position}\ninstead of\n{positions[-1]}"
        play.close()
    return ""


def recorded_locations(history: Sequence[Record]) -> set[str]:
    """Where something was recorded that belongs to an operation."""
    return {each.location for each in history if each.kind not in (Kind.MESSAGE, Kind.CANCEL)}
