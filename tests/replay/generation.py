"""Programs and courses of events, drawn by Hypothesis.

Both are read off a tape of numbers, which is fast to draw and shrinks well: an exhausted tape gives zeros, and zero is
always the simplest choice.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from perdure.workflow.channels import question_name, topic
from tests.replay.language import QUESTION, TOPIC
from tests.replay.nodes import Node
from tests.replay.programs import BRANCHES, LEAVES

#: Names that steps share, so that calls of one name are counted; None gives every node a name of its own.
SHARED = ("a", "b", "c")
MESSAGES = ("x", "y")
#: Events that may arrive; those that programs wait for most are more frequent.
ARRIVALS = (*MESSAGES, question_name(QUESTION), topic(*TOPIC), *MESSAGES)

#: Steps are what most programs are made of.
_LEAVES = ("step",) * 6 + LEAVES
#: Operations that often do not run to their end are tried more often.
_BRANCHES = (
    *BRANCHES, "timeout", "timeout_at", "wait_for", "wait_for", "manager", "as_completed", "lock", "condition",
    "loop", "loop",
    "race", "saga", "saga",
)  # fmt: skip
_DEPTH = 5


class Tape:
    """Numbers to decide by."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self._position = 0

    def pick(self, count: int) -> int:
        """A number below `count`."""
        if self._position >= len(self._numbers):
            return 0
        number = self._numbers[self._position]
        self._position += 1
        return number % count

    @property
    def is_exhausted(self) -> bool:
        return self._position >= len(self._numbers)


class Author:
    """Writes a program."""

    def __init__(self, tape: Tape, names: Sequence[str] | None, first_id: int = 0) -> None:
        self._tape = tape
        self._names = names
        self._next_id = first_id

    def program(self) -> Node:
        """A sequence of anything."""
        number, count = 1 + self._tape.pick(4), 2 + self._tape.pick(5)
        return Node("seq", self._id(), number=number, body=tuple(self.node(1) for _ in range(count)))

    def node(self, depth: int) -> Node:
        """Anything."""
        pick = self._tape.pick
        if depth >= _DEPTH or self._tape.is_exhausted or pick(2) == 0:
            return self._leaf(_LEAVES[pick(len(_LEAVES))])
        op = _BRANCHES[pick(len(_BRANCHES))]
        count = 1 + pick(3)
        return Node(op, self._id(), number=1 + pick(12), body=tuple(self.node(depth + 1) for _ in range(count)))

    def _leaf(self, op: str) -> Node:
        node_id = self._id()
        if op.startswith("receive"):
            name = MESSAGES[self._tape.pick(len(MESSAGES))]
        elif self._names is None:
            name = f"s{node_id}"
        else:
            name = self._names[self._tape.pick(len(self._names))]
        return Node(op, node_id, name, 1 + self._tape.pick(6))

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id


def plainest(op: str) -> Node:
    """The least that uses a primitive."""
    parts = () if op in LEAVES else (Node("step", 3, "a"), Node("step", 4, "b"))
    return Node("seq", 1, body=(Node(op, 2, MESSAGES[0], 5, parts),))


def tapes(length: int) -> st.SearchStrategy[list[int]]:
    """Numbers to decide by."""
    return st.lists(st.integers(0, 9_999), min_size=length // 2, max_size=length)


def programs(names: Sequence[str] | None = SHARED) -> st.SearchStrategy[Node]:
    """Programs over every primitive."""
    return tapes(120).map(lambda numbers: Author(Tape(numbers), names).program())
