"""The law of replay: a run resumed anywhere, in any process, is in the same state and goes on in the same way.

Random programs over every primitive, random courses of events, every prefix of the history. Recorded here, replayed in
processes with other hash seeds.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import pytest
from hypothesis import example, given, settings

from perdure.core.model.outputs import SeenOutputs, WantedOutput
from perdure.core.model.record import Record
from perdure.errors import Diverged
from perdure.replay.execution import Execution
from perdure.replay.mailbox import Mailbox
from perdure.replay.operations import StepOperation
from perdure.workflow import branches
from perdure.workflow.channels import question_name
from perdure.workflow.other_run import OtherRun
from tests.replay.generation import ARRIVALS, plainest, programs, tapes
from tests.replay.language import QUESTION
from tests.replay.nodes import Node
from tests.replay.programs import PRIMITIVES, Machine
from tests.replay.recording import Play, record, recording_of, verify
from tests.replay.replica import Replica

Law = Callable[..., None]

EXAMPLES = 250
#: Many short searches rather than a long one, because a search remembers all that it has tried.
SEARCHES = 40 if os.environ.get("PERDURE_PROVE") else 1

#: A program that answers questions while it does something else.
QUESTIONED = Node("seq", 1, body=(Node("answer", 2), Node("nap", 3, "a"), Node("step", 4, "a")))


@pytest.fixture(scope="module")
def replicas() -> Iterator[list[Replica]]:
    with Replica(1) as first, Replica(2) as second:
        yield [first, second]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    # Programs that drop failing tasks are told so by asyncio, at the whim of the garbage collector.
    caplog.set_level(logging.CRITICAL, logger="tests.replay")


def each_primitive_alone(law: Law) -> Law:
    """So that none is ever left out, nor any kind of record, however few examples there are."""
    messages = [number for which in range(len(ARRIVALS)) for number in (54, 0, 0, which, 7)]
    then_all_is_completed = [0] * 150
    events = messages + then_all_is_completed
    for op in sorted(PRIMITIVES):
        law = example(plainest(op), events)(law)
    a_sleep_is_moved = [40, 0, 2]
    question = ARRIVALS.index(question_name(QUESTION))
    some_are_refused = [number for value in range(9) for number in (54, 0, 0, question, value)]
    law = example(QUESTIONED, some_are_refused + then_all_is_completed)(law)
    return example(plainest("nap"), a_sleep_is_moved + then_all_is_completed)(law)


def report(coverage: Counter[str], title: str) -> None:
    counts = ", ".join(f"{name} {count}" for name, count in sorted(coverage.items()))
    print(f"\n{title}: {counts}")


@pytest.mark.timeout(3600)
def test_replay_cut_anywhere_and_in_another_process_is_the_same_run(replicas: list[Replica]) -> None:
    coverage: Counter[str] = Counter()
    records: Counter[str] = Counter()
    turns = cycle(replicas)

    @settings(max_examples=EXAMPLES)
    @each_primitive_alone
    @given(programs(), tapes(200))
    def law(program: Node, events: list[int]) -> None:
        play = record(program, events)
        coverage.update(play.machine.ended)
        coverage["refused"] += play.refused
        records.update(str(each.kind) for each in play.history)
        play.close()
        wrong = next(turns).verify(recording_of(play))
        assert not wrong, wrong

    for _ in range(SEARCHES):
        law()
    report(coverage, "primitives that ran to their end")
    report(records, "records")
    assert coverage.pop("refused") > 0
    assert set(coverage) == PRIMITIVES
    assert set(records) == {
        "step",
        "timer",
        "message",
        "child",
        "cancel",
        "attempt",
        "scope",
        "version",
        "wake",
        "begin",
    }


def test_every_primitive_is_one_that_a_machine_can_perform() -> None:
    assert [name for name in PRIMITIVES if not hasattr(Machine, f"_{name}")] == []


def test_the_law_sees_a_trace_that_differs_in_one_word() -> None:
    play = record(Node("seq", 1, body=(Node("step", 2, "a"), Node("step", 3, "b"))), [30, 0, 0, 0, 7] * 10)
    recording = recording_of(play)
    assert play.outcome is not None
    assert verify(recording) == ""
    recording.positions[1][-1] += "!"
    assert "cut after 1 happenings, it stands at" in verify(recording)


def validated_again(patch: pytest.MonkeyPatch) -> None:
    """Replay lets validators see the questions that are recorded."""
    arrive = Mailbox.arrive

    def judged(self: Mailbox, name: str, seq: int, payload: str) -> None:
        execution = executions[-1]
        if execution.replaying and name in execution.validators:
            execution.refusal(name, payload)
        arrive(self, name, seq, payload)

    init, executions = Execution.__init__, list[Execution]()

    def remembered(self: Execution, *args: Any, **options: Any) -> None:
        executions.append(self)
        init(self, *args, **options)

    patch.setattr(Execution, "__init__", remembered)
    patch.setattr(Mailbox, "arrive", judged)


def another_winner(patch: pytest.MonkeyPatch) -> None:
    """Replay takes the first branch of a race for the one that has won."""
    patch.setattr(branches, "_winner_of", lambda scope, checkpoint, given: next(iter(given)))


def interrupted_again(patch: pytest.MonkeyPatch) -> None:
    """The record of an interruption does not end what it interrupts."""

    def again(self: Execution, operation: StepOperation, begun: Record, now: int) -> None:
        self.record_beginning(operation, now, begun.attempts)

    patch.setattr(Execution, "_record_interruption", again)


def looked_at_again(patch: pytest.MonkeyPatch) -> None:
    """Replay sees what another run shows now, in place of what was recorded."""
    look = OtherRun._look

    async def anew(self: OtherRun, name: str, wants: WantedOutput) -> SeenOutputs:
        found = await look(self, name, wants)
        assert isinstance(self._runtime, Execution)
        return SeenOutputs() if self._runtime.replaying else found

    patch.setattr(OtherRun, "_look", anew)


BRANCH = Node("seq", 3, body=(Node("step", 4, "a"), Node("step", 5, "b")))
RACED = Node("seq", 1, body=(Node("first", 2, body=(BRANCH, BRANCH)), Node("step", 6, "c")))
ONCE = Node("seq", 1, body=(Node("once", 2, "a"), Node("step", 3, "b")))
SHOWN = Node("seq", 1, body=(Node("state", 2, "a"), Node("step", 3, "b")))


@pytest.mark.parametrize(
    ("plant", "program", "finding"),
    [
        (validated_again, QUESTIONED, "a validator was called by replay"),
        (another_winner, RACED, "does not follow its history"),
        (interrupted_again, ONCE, "a step is interrupted for the second time"),
        (looked_at_again, SHOWN, "state 2: -1"),
    ],
    ids=["validated again", "another winner", "interrupted again", "looked at again"],
)
def test_the_law_finds_a_planted_fault(
    plant: Callable[[pytest.MonkeyPatch], None], program: Node, finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = ARRIVALS.index(question_name(QUESTION))
    events = [54, 0, 0, question, 7] + [0, 0, 1, 0, 0] * 8
    assert verify(recording_of(record(program, events))) == ""
    plant(monkeypatch)
    try:
        found = verify(recording_of(record(program, events)))
    except Diverged as error:
        found = str(error)
    assert finding in found


def test_iterating_a_set_of_text_is_found_out_by_a_process_with_another_hash_seed(replicas: list[Replica]) -> None:
    program = Node("seq", 1, body=(Node("set", 2, "a", number=12),))
    play = Play(program)
    while play.open:
        play.complete(play.open[0])
    answers = [replica.verify(recording_of(play)) for replica in replicas]
    assert any(
        "arguments of another recorded call" in answer or "with the same arguments, at" in answer for answer in answers
    )
