"""Performing a program against a random course of events, and replaying what was recorded."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from perdure import Context
from perdure.core.codec.failure import Failure
from perdure.core.model.outputs import NewOutput, OutputKind, SeenOutput, SeenOutputs, WantedOutput
from perdure.core.model.record import Record, RecordKind
from perdure.replay.checkpoints import is_part_over
from perdure.replay.operations import ChildOperation, OpenOperation, RunOperation, StepOperation, WatchOperation
from perdure.workflow.channels import question_name
from perdure.workflow.scopes import read_checkpoint
from tests.replay.driver import SECOND, Driver, Together, codec
from tests.replay.generation import ARRIVALS, Tape
from tests.replay.language import QUESTION
from tests.replay.nodes import Node
from tests.replay.programs import DEED, Machine

_MOST_HAPPENINGS = 40


class Play(Driver):
    """A program being performed."""

    def __init__(self, program: Node, history: Sequence[Record] = ()) -> None:
        self.program = program
        self.machine = self.make_machine()
        #: Effects that have left the run each time, and children that were started or stopped.
        self.left: list[str] = []
        self.lefts: list[int] = []
        #: Children that were given up.
        self.lost: list[str] = []
        self._looked = 0
        #: How many questions were refused, which leave no trace.
        self.refused = 0
        #: Whether it is unknown if the effects of the last record have left: the record was written without them.
        self.is_uncertain = not history or _was_committed_alone(history[-1])
        super().__init__(self.start, program, history=history)

    def make_machine(self) -> Machine:
        """A machine that performs the program."""
        return Machine()

    def start(self, ctx: Context, program: Node) -> Coroutine[Any, Any, Any]:
        """The workflow."""
        return self.machine.perform(ctx, program)

    @property
    def position(self) -> list[str]:
        """Return the state of the run, with all observations in parts that are not over."""
        marks = {each.location: read_checkpoint(each) for each in self.history if each.kind is RecordKind.SCOPE}

        def is_over(path: str) -> bool:
            parts = path.split("/")
            for number in range(1, len(parts) - 1):
                mark = marks.get("/".join(parts[:number]))
                if mark is not None and is_part_over(parts[number], mark):
                    return True
            return False

        return [*super().position, *self.machine.trace(is_over)]

    def again(self, history: Any = None) -> Play:
        """The same program taken up with its history, or the one given."""
        return type(self)(self.program, tuple(self.history if history is None else history))

    def interrupt(self) -> int:
        """As a worker after the replay: see to steps that have begun and not ended; return their number."""
        count = self.execution.record_interruptions(self.execution.time)
        if count:
            self._save()
        return count

    def close(self) -> None:
        """Let go of what is left."""
        if self.outcome is None:
            assert self.execution.evict()

    def _save(self) -> None:
        super()._save()
        execution = self.execution
        known = bool(self.history) and not self.lefts
        effects = execution.effects[execution.known_effects :] if known else execution.effects
        fresh = execution.fresh[execution.known_fresh if known else self._looked :]
        # Wanting the same broadcasts twice is wanting them once.
        lines = [_line(effect) for effect in effects]
        self.left += [line for line in lines if not line.startswith("TopicSubscription") or line not in self.left]
        self.left += [f"start {each.child_id}" for each in fresh if isinstance(each, ChildOperation) and each.open]
        self.left += [f"watch {each.key}" for each in fresh if isinstance(each, WatchOperation) and each.open]
        dropped = [each for each in execution.dropped if isinstance(each, ChildOperation)]
        self.lost += [each.location for each in dropped]
        if not known or self.is_uncertain:
            dropped += execution.orphans
        self.left += [f"stop {each.child_id}" for each in dropped]
        self._looked = len(execution.fresh)
        execution.effects, execution.dropped = [], []
        self.lefts.append(len(self.left))


def _line(effect: object) -> str:
    """An effect, without the lines of code that an error names."""
    if isinstance(effect, NewOutput) and effect.failed:
        failure = Failure.from_json(effect.payload)
        return repr(msgspec.structs.replace(effect, payload=f"{failure.type}: {failure.message}"))
    return repr(effect)


class Recording(Struct, frozen=True):
    """Data that another process needs to replay a performance and to check it."""

    program: Node
    happened: tuple[Record | Together, ...]
    stages: tuple[tuple[Record, ...], ...]
    positions: tuple[list[str], ...]
    left: list[str]
    lefts: list[int]


def record(program: Node, events: Sequence[int], kind: type[Play] = Play) -> Play:
    """Perform a program while things happen to it in a random order."""
    play = kind(program)
    tape = Tape(events)
    while play.outcome is None and not tape.is_exhausted and len(play.happened) < _MOST_HAPPENINGS:
        _happen(play, tape)
    return play


def _happen(play: Play, tape: Tape) -> None:
    """One thing that could happen now, happens."""
    kind = 60 - tape.pick(60)
    after = tape.pick(4) / 2
    if kind == 1 and not play.execution.cancel_requested:
        play.cancel()
    elif kind < 7:
        _arrive(play, [_arrival(play, tape, number) for number in range(1 + tape.pick(4))], after)
    elif kind < 16 and play.lost:
        play.late(play.lost.pop())
    elif kind < 20 and play.execution.next_timer() is not None:
        play.fire()
    elif kind < 22 and (sleep := play.execution.sleep()) is not None:
        play.wake(sleep.location, play.execution.time + SECOND * tape.pick(5))
    else:
        _complete(play, tape, after)


def _arrive(play: Play, messages: Sequence[tuple[str, Any]], after: float) -> None:
    """Messages come in together, except that a validator sees the state to which those before have led."""
    together: list[tuple[str, Any]] = []
    for name, value in messages:
        if name in play.execution.validators:
            _hand_over(play, together, after)
            if play.outcome is None and play.execution.refusal(name, codec.encode(value, "question")) is not None:
                play.refused += 1
                continue
        together.append((name, value))
    _hand_over(play, together, after)


def _hand_over(play: Play, together: list[tuple[str, Any]], after: float) -> None:
    if play.outcome is None and len(together) > 1:
        play.messages(*together, after=after)
    elif play.outcome is None and together:
        play.message(*together[0], after=after)
    together.clear()


def _arrival(play: Play, tape: Tape, number: int) -> tuple[str, Any]:
    name, value = ARRIVALS[tape.pick(len(ARRIVALS))], tape.pick(100)
    question = {"key": f"k{len(play.happened)}.{number}", "value": value}
    return name, question if name == question_name(QUESTION) else value


def _complete(play: Play, tape: Tape, after: float) -> None:
    awaited = [each for each in play.execution.open_operations() if isinstance(each, StepOperation | RunOperation)]
    if not awaited:
        if play.execution.next_timer() is not None:
            play.fire()
        return
    operation = awaited[tape.pick(len(awaited))]
    if _is_to_begin(play, operation):
        play.begin(operation.location)
        return
    how = tape.pick(12)
    if how == 1:
        play.fail(operation.location, ValueError(tape.pick(100)), after=after)
    elif how == 2 and isinstance(operation, StepOperation) and operation.attempts < 3:
        play.stumble(operation.location, ValueError("again"), attempts=operation.attempts + 1, retry_at=1)
    elif isinstance(operation, WatchOperation) and operation.wants is not None:
        play.complete(operation.location, _outputs(operation.wants, tape), after=after)
    else:
        play.complete(operation.location, tape.pick(100), after=after)


def _outputs(wants: WantedOutput, tape: Tape) -> SeenOutputs:
    """Answer to a wait for outputs of another run, which has ended if there are none, and sometimes if there are."""
    if wants.kind is OutputKind.STATE:
        # Nothing, now and then, of what a wait or a reader asks for.
        seen = tuple(SeenOutput(str(tape.pick(100))) for _ in range(tape.pick(5) != 1))
    else:
        seen = tuple(SeenOutput(str(tape.pick(9)), wants.position + number, "run") for number in range(tape.pick(3)))
    return SeenOutputs(seen, ended=not seen or tape.pick(4) == 1, more=bool(seen) and tape.pick(2) == 1)


def _is_to_begin(play: Play, operation: OpenOperation) -> bool:
    """True of a step that must not run twice and has not begun."""
    return (
        isinstance(operation, StepOperation)
        and operation.request.options.at_most_once is True
        and not any(each.kind is RecordKind.BEGIN and each.location == operation.location for each in play.history)
    )


def recording_of(play: Play) -> Recording:
    """Make the recording of a performance."""
    return Recording(
        play.program, tuple(play.happened), tuple(play.stages), tuple(play.positions), play.left, play.lefts
    )


def verify(recording: Recording, kind: type[Play] = Play) -> str:
    """Replay, cut after anything that happened, must stand where the recorded run stood, and go on as it went on.

    Gives what is wrong.
    """
    for cut in reversed(range(len(recording.stages))):
        for history in _histories(recording, cut):
            play = kind(recording.program, history)
            wrong = (
                _taken_up(play, recording, cut)
                or _gone_on(play, recording, cut)
                or _interrupted(recording.program, history, kind)
            )
            if wrong:
                return f"cut after {cut} happenings, {wrong}"
            play.close()
    return ""


def _histories(recording: Recording, cut: int) -> Iterator[tuple[Record, ...]]:
    """Return the histories that may be stored at that point.

    That is the turn, and before it the record of a transaction, which is committed alone.
    """
    yield recording.stages[cut]
    before = recording.stages[cut - 1] if cut else ()
    after = [each for each in recording.stages[cut] if not before or each.seq > before[-1].seq]
    if len(after) > 1 and _was_committed_alone(after[0]):
        yield (*before, after[0])


def _was_committed_alone(record: Record) -> bool:
    """True if a transaction committed the record."""
    return record.kind is RecordKind.STEP and record.location.rpartition("/")[2].startswith(DEED)


def _taken_up(play: Play, recording: Recording, cut: int) -> str:
    if play.execution.warnings:
        return f"it warns: {play.execution.warnings}"
    if play.position != recording.positions[cut]:
        return f"it stands at\n{play.position}\ninstead of\n{recording.positions[cut]}"
    if play.machine.validated:
        return "a validator was called by replay"
    # A child that outlives an ended workflow may be open: it has yet to be started, and nothing waits for it.
    if (
        play.outcome is None
        and [each for each in play.execution.fresh if each.open] != play.execution.open_operations()
    ):
        return "the worker is not told of all that is open"
    return ""


def _interrupted(program: Node, history: Sequence[Record], kind: type[Play]) -> str:
    """A step that must not run twice and has begun is interrupted for the next worker, once, and that replays."""
    if not any(each.kind is RecordKind.BEGIN for each in history):
        return ""
    play = kind(program, history)
    count = play.interrupt()
    again = kind(program, play.history)
    wrong = ""
    if count and again.interrupt():
        wrong = "a step is interrupted for the second time"
    elif again.position != play.position:
        wrong = f"after an interruption it stands at\n{again.position}\ninstead of\n{play.position}"
    play.close()
    again.close()
    return wrong


def _gone_on(play: Play, recording: Recording, cut: int) -> str:
    before = recording.left[: recording.lefts[cut]]
    left = [*before, *play.left] if not play.is_uncertain else list(dict.fromkeys([*before, *play.left]))
    already = len(play.left)
    for each in recording.happened[cut:]:
        play.feed(each)
    if play.position != recording.positions[-1] or tuple(play.history) != recording.stages[-1]:
        return f"it ends at\n{play.position}\ninstead of\n{recording.positions[-1]}"
    left += [line for line in play.left[already:] if not line.startswith("TopicSubscription") or line not in left]
    if left != recording.left:
        return f"these left it\n{left}\ninstead of\n{recording.left}"
    return ""


def recorded_locations(history: Sequence[Record]) -> set[str]:
    """Return the locations of recorded operations."""
    return {each.location for each in history if each.kind not in (RecordKind.MESSAGE, RecordKind.CANCEL)}
