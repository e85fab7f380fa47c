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

import pytest
from hypothesis import example, given, settings

from tests.replay.generation import ARRIVALS, plainest, programs, tapes
from tests.replay.nodes import Node
from tests.replay.programs import PRIMITIVES, Machine
from tests.replay.recording import Play, record, recording_of, verify
from tests.replay.replica import Replica

Law = Callable[..., None]

EXAMPLES = 250
#: Many short searches rather than a long one, because a search remembers all that it has tried.
SEARCHES = 40 if os.environ.get("PERDURE_PROVE") else 1


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
    somebody_moves_a_sleep = [40, 0, 2]
    return example(plainest("nap"), somebody_moves_a_sleep + then_all_is_completed)(law)


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
        records.update(str(each.kind) for each in play.history)
        play.close()
        wrong = next(turns).verify(recording_of(play))
        assert not wrong, wrong

    for _ in range(SEARCHES):
        law()
    report(coverage, "primitives that ran to their end")
    report(records, "records")
    assert set(coverage) == PRIMITIVES
    assert set(records) == {"step", "timer", "message", "child", "cancel", "attempt", "scope", "version", "wake"}


def test_every_primitive_is_one_that_a_machine_can_perform() -> None:
    assert [name for name in PRIMITIVES if not hasattr(Machine, f"_{name}")] == []


def test_the_law_sees_a_trace_that_differs_in_one_word() -> None:
    play = record(Node("seq", 1, body=(Node("step", 2, "a"), Node("step", 3, "b"))), [30, 0, 0, 0, 7] * 10)
    recording = recording_of(play)
    assert play.outcome is not None
    assert verify(recording) == ""
    recording.positions[1][-1] += "!"
    assert "cut after 1 happenings, it stands at" in verify(recording)


def test_iterating_a_set_of_text_is_found_out_by_a_process_with_another_hash_seed(replicas: list[Replica]) -> None:
    program = Node("seq", 1, body=(Node("set", 2, "a", number=12),))
    play = Play(program)
    while play.open:
        play.complete(play.open[0])
    answers = [replica.verify(recording_of(play)) for replica in replicas]
    assert any(
        "arguments of another recorded call" in answer or "with the same arguments, at" in answer for answer in answers
    )
