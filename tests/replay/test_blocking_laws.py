"""A workflow written as a `def` and as an `async def` makes the same history, and each continues the other's runs."""

from __future__ import annotations

import logging
import os
from collections import Counter

import pytest
from hypothesis import example, given, settings

from tests.replay.blocking_programs import PORTABLE, AsyncPlay, BlockingMachine, BlockingPlay, portable
from tests.replay.generation import programs, tapes
from tests.replay.nodes import Node
from tests.replay.recording import record, recording_of, verify
from tests.replay.test_laws import each_primitive_alone

EXAMPLES = 150
#: A saga that ends without an undo: the plainest one fails, so that chance decided whether one ended.
SAGA = Node("seq", 1, body=(Node("saga", 2, "x", 2, (Node("step", 3, "a"), Node("step", 4, "b"))),))
#: Many short searches rather than a long one, because a search remembers all that it has tried.
SEARCHES = 67 if os.environ.get("PERDURE_PROVE") else 1


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="tests.replay")


def test_both_kinds_perform_every_primitive() -> None:
    assert [name for name in sorted(PORTABLE) if not hasattr(BlockingMachine, f"act_{name}")] == []


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("search", range(SEARCHES))
def test_programs_written_as_def_and_as_async_def_replay_alike(search: int) -> None:
    coverage: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES)
    @each_primitive_alone
    @example(SAGA, [0] * 150)
    @given(programs(), tapes(200))
    def law(program: Node, events: list[int]) -> None:
        program = portable(program)
        first, second = record(program, events, AsyncPlay), record(program, events, BlockingPlay)
        coverage.update(second.machine.ended)
        try:
            assert second.history == first.history
            assert second.positions == first.positions
            assert second.left == first.left
            # Cut anywhere and continued by the other kind.
            assert verify(recording_of(first), BlockingPlay) == ""
            assert verify(recording_of(second), AsyncPlay) == ""
        finally:
            first.close()
            second.close()

    law()
    assert set(coverage) == PORTABLE, f"search {search}"
