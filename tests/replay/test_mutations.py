"""The law of divergence: a change to recorded calls is found before anything is written, and no other change is.

Reordering means that calls that follow one another change places. Parallel calls of different names may be listed in
any order, since their locations in the history stay the same.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.core.model.record import RecordKind
from perdure.errors import Diverged
from tests.replay.generation import Tape, programs, tapes
from tests.replay.mutations import (
    BRANCHED,
    NAMED,
    Subject,
    followed,
    preceded,
    removed,
    renamed,
    reordered,
    replaced,
    swapped,
    with_other_arguments,
)
from tests.replay.nodes import Node
from tests.replay.recording import Play, record

# A program that diverges is let go of in the middle, and may have made coroutines that it had not begun to await.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

EXAMPLES = 150
#: Many short searches rather than a long one, because a search remembers all that it has tried.
SEARCHES = 70 if os.environ.get("PERDURE_PROVE") else 1
#: Changes that are tried on one recorded program.
CHANGES = 12

Changed = list[tuple[str, Node]]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="tests.replay")


def subject_of(program: Node, events: list[int], cut: int) -> Subject:
    """A run of the program that lacks the last `cut` records."""
    play = record(program, events)
    play.close()
    return Subject(program, play.stages[-1 - cut % len(play.stages)])


def some(changes: Changed, tape: Tape) -> Changed:
    """A few of them."""
    if len(changes) <= CHANGES:
        return changes
    first, stride = tape.pick(len(changes)), 1 + tape.pick(len(changes) - 1)
    return [changes[(first + number * stride) % len(changes)] for number in range(CHANGES)]


def search(names: tuple[str, ...] | None, law: Callable[[Subject, Tape], None]) -> None:
    """Hold many subjects to a law.

    Two of them leave nothing to chance: three steps that are all recorded, and those of which only the first one is.
    """
    named = enumerate(names or ("x", "y", "z"), 2)
    three_steps = Node("seq", 1, body=tuple(Node("step", node_id, name) for node_id, name in named))
    all_is_completed = [0] * 150

    @settings(max_examples=EXAMPLES)
    @example(three_steps, all_is_completed, 0, [])
    @example(three_steps, all_is_completed, 2, [])
    @given(programs(names), tapes(120), st.integers(0, 1000), tapes(60))
    def holds(program: Node, events: list[int], cut: int, choices: list[int]) -> None:
        law(subject_of(program, events, cut), Tape(choices))

    for _ in range(SEARCHES):
        holds()


def divergence(program: Node, subject: Subject) -> str | None:
    """Return the divergence of a changed program; None if it passes for the recorded one."""
    try:
        play = Play(program, subject.history)
    except Diverged as error:
        return str(error)
    warnings = play.execution.warnings
    play.close()
    return "; ".join(warnings) or None


@pytest.mark.timeout(3600)
def test_removing_renaming_or_reordering_what_was_recorded_diverges() -> None:
    tried: Counter[str] = Counter()

    def law(subject: Subject, tape: Tape) -> None:
        changes = [
            ("removed", removed(subject.program, node)) for node in subject.nodes[1:] if subject.holds_a_record(node)
        ]
        calls = [node for node in subject.calls if node.id in subject.recorded]
        changes += [("renamed", renamed(subject.program, node)) for node in calls]
        changes += [("swapped", swapped(subject.program, *each)) for each in subject.sequences()]
        changes += [
            ("branches renamed", renamed(subject.program, node))
            for node in subject.nodes
            if node.op in BRANCHED and subject.branches_hold_a_record(node)
        ]
        for what, changed in some(changes, tape):
            tried[what] += 1
            with pytest.raises(Diverged, match="does not follow its history"):
                Play(changed, subject.history)

    search(None, law)
    print(f"\nchanges that were found: {dict(tried)}")
    assert min(tried[what] for what in ("removed", "renamed", "swapped")) > 0


@pytest.mark.timeout(3600)
def test_no_other_change_raises_a_false_alarm() -> None:
    tried: Counter[str] = Counter()

    def law(subject: Subject, tape: Tape) -> None:
        program = subject.program
        changes: Changed = []
        for node in subject.unreached:
            changes += [("removed", removed(program, node)), ("replaced", replaced(program, node, tape))]
            changes += [("preceded", preceded(program, node, tape)), ("renamed", renamed(program, node))]
        for node in subject.calls:
            if node.id not in subject.recorded:
                changes += [("open, renamed", renamed(program, node))]
                changes += [("open, with other arguments", with_other_arguments(program, node))]
                if node.id not in subject.given:
                    changes += [("open, followed", followed(program, node, tape))]
        for what, changed in some(changes, tape):
            tried[what] += 1
            play = Play(changed, subject.history)
            assert play.execution.warnings == []
            if what != "open, with other arguments":
                assert [line.replace("-renamed", "") for line in play.position] == subject.position
            play.close()

    search(None, law)
    print(f"\nchanges that were let pass: {dict(tried)}")
    assert len(tried) == 7


@pytest.mark.timeout(3600)
def test_where_calls_share_their_names_no_change_to_what_was_recorded_passes_in_silence() -> None:
    tried: Counter[str] = Counter()

    def law(subject: Subject, tape: Tape) -> None:
        calls = [node for node in subject.calls if node.id in subject.completed]
        changes = [("removed", removed(subject.program, node)) for node in calls]
        changes += [("renamed", renamed(subject.program, node)) for node in calls]
        for sequence, first, second in subject.sequences():
            if first.id in subject.completed:
                alike = (first.op, first.name) == (second.op, second.name) and second.id in subject.completed
                what = "swapped, of one name" if alike else "swapped"
                changes.append((what, swapped(subject.program, sequence, first, second)))
        for node, done in subject.iterations():
            what = "reordered, all of it done" if done == node.number else "reordered"
            changes.append((what, reordered(subject.program, node)))
        for what, changed in some(changes, tape):
            said = divergence(changed, subject)
            assert said is not None, f"{what}: {changed}"
            found = "does not follow its history" in said
            assert found or what not in ("swapped, of one name", "reordered, all of it done")
            tried[f"{what}: {'diverged' if found else 'warned'}"] += 1

    search(("a", "a", "b"), law)
    print(f"\nwhat became of them: {dict(tried)}")
    assert tried["swapped, of one name: diverged"] > 0


def performed(program: Node, most: int = 100) -> Subject:
    """The program with its first operations completed."""
    play = Play(program)
    for _ in range(most):
        if not play.open:
            break
        if play.operation(play.open[0]).kind is RecordKind.TIMER:
            play.fire()
        else:
            play.complete(play.open[0], 1)
    history = play.history
    play.close()
    return Subject(program, history)


@pytest.mark.parametrize("op", BRANCHED)
@pytest.mark.parametrize("done", [1, 100])
def test_branches_under_other_names_diverge_before_and_after_the_end(op: str, done: int) -> None:
    parts = tuple(Node("seq", 3 + n, body=(Node("step", 5 + n, "a"), Node("step", 7 + n, "b"))) for n in range(2))
    branched = Node(op, 2, body=parts)
    subject = performed(Node("seq", 1, body=(branched, Node("step", 10, "c"))), done)
    assert subject.branches_hold_a_record(branched)
    with pytest.raises(Diverged, match="does not follow its history"):
        Play(renamed(subject.program, branched), subject.history)


@pytest.mark.parametrize("op", ["for_each", "map_steps"])
def test_iterating_the_other_way_round_over_what_is_done_diverges(op: str) -> None:
    iteration = Node(op, 2, "a", number=4)
    subject = performed(Node("seq", 1, body=(iteration, Node("step", 3, "b"))))
    with pytest.raises(Diverged, match="with the arguments of another recorded call"):
        Play(reordered(subject.program, iteration), subject.history)


def test_named_operations_are_those_with_a_location() -> None:
    program = Node("seq", 1, body=tuple(Node(op, number, f"s{number}") for number, op in enumerate(NAMED, start=2)))
    play = Play(program)
    while play.open:
        play.complete(play.open[0], 1)
    assert [play.machine.begun[each.id] for each in program.body] == [{"s2"}, {"d-s3"}, {"s4.v1"}, {"s5"}]
