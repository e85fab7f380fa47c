"""Changing programs that have been recorded, as people change code that is running."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import msgspec

from perdure.core.model.record import Record, RecordKind
from tests.replay.generation import Author, Tape
from tests.replay.nodes import Node, given_as_it_is, walk
from tests.replay.recording import Play, recorded_locations

#: Nodes with named branches.
BRANCHED = ("join", "race", "join_named", "first")

#: Operations whose name is the program's own.
NAMED = ("step", "deed", "child", "undoable")

#: Nodes that perform their parts one after the other.
SEQUENTIAL = (
    "seq", "nested", "timeout", "timeout_at", "wait_for", "shield", "lock", "semaphore", "bounded", "variable",
    "generator",
    "map", "loop", "protect", "saga",
)  # fmt: skip


class Subject:
    """A program, what of it was begun within the history, and what of that is recorded there."""

    def __init__(self, program: Node, history: Sequence[Record]) -> None:
        play = Play(program, history)
        locations = recorded_locations(history)
        self.program = program
        self.history = tuple(history)
        self.position = play.position
        self.nodes = list(walk(program))
        self.begun = set(play.machine.begun)
        self.recorded = {node_id for node_id, places in play.machine.begun.items() if places & locations}
        completed = {each.location for each in history if each.kind in (RecordKind.STEP, RecordKind.CHILD)}
        self.completed = {node_id for node_id, places in play.machine.begun.items() if places & completed}
        self._begun, self._completed = play.machine.begun, completed
        play.close()

    def holds_a_record(self, node: Node) -> bool:
        """True if a call within the node is recorded."""
        return any(each.op in NAMED and each.id in self.recorded for each in walk(node))

    def branches_hold_a_record(self, node: Node) -> bool:
        """True if a call that was made within a branch of the node is recorded."""
        given = [each.op == "step" and given_as_it_is(node, number) for number, each in enumerate(node.body)]
        return any(not outside and self.holds_a_record(each) for each, outside in zip(node.body, given, strict=True))

    @property
    def calls(self) -> list[Node]:
        """The calls that were begun."""
        return [node for node in self.nodes if node.op in NAMED and node.id in self.begun]

    @property
    def given(self) -> set[int]:
        """Ids of the steps that are branches as they are: in place of one of them, a part is something else."""
        branched = [node for node in self.nodes if node.op in BRANCHED]
        return {
            each.id
            for node in branched
            for number, each in enumerate(node.body)
            if each.op == "step" and given_as_it_is(node, number)
        }

    @property
    def unreached(self) -> list[Node]:
        """Return the nodes that the history did not reach."""
        return [node for node in self.nodes if node.id not in self.begun and node is not self.program]

    def iterations(self) -> Iterator[tuple[Node, int]]:
        """Return nodes that iterate over at least two items, with the number of finished ones.

        Each once only, because more would be mixed up.
        """
        for node in self.nodes:
            if node.op == "for_each" and node.number > 1 and len(scopes := self._scopes(node)) == 1:
                done = self._begun[node.id] & self._completed
                if done and scopes:
                    yield node, len(done)

    def _scopes(self, node: Node) -> set[str]:
        return {place.rpartition("/")[0] for place in self._begun.get(node.id, ())}

    def sequences(self) -> Iterator[tuple[Node, Node, Node]]:
        """A sequence, and two calls of which one follows the other in it, the first of them recorded."""
        for node in self.nodes:
            if node.op in SEQUENTIAL:
                calls = [each for each in node.body if each.op in NAMED]
                for first, second in combinations(calls, 2):
                    if first.id in self.recorded:
                        yield node, first, second


def change(program: Node, node_id: int, how: Callable[[Node], Node]) -> Node:
    """The program with one node made into another."""
    if program.id == node_id:
        return how(program)
    return msgspec.structs.replace(program, body=tuple(change(each, node_id, how) for each in program.body))


def removed(program: Node, node: Node) -> Node:
    """The program without a node; its place stays, for those around it that count."""
    return change(program, node.id, lambda _: Node("nothing", node.id))


def renamed(program: Node, node: Node) -> Node:
    """The program with a call under another name."""
    return change(program, node.id, lambda each: msgspec.structs.replace(each, name=f"{each.name}-renamed"))


def swapped(program: Node, sequence: Node, first: Node, second: Node) -> Node:
    """The program with two nodes of a sequence in each other's place."""
    exchange = {first.id: second, second.id: first}
    body = tuple(exchange.get(each.id, each) for each in sequence.body)
    return change(program, sequence.id, lambda each: msgspec.structs.replace(each, body=body))


def reordered(program: Node, node: Node) -> Node:
    """The program with a node that iterates the other way round."""
    return change(program, node.id, lambda each: msgspec.structs.replace(each, number=-each.number))


def with_other_arguments(program: Node, node: Node) -> Node:
    """The program with a call that is given something else."""
    return change(program, node.id, lambda each: msgspec.structs.replace(each, id=each.id + 50_000))


def replaced(program: Node, node: Node, tape: Tape) -> Node:
    """The program with something altogether different in place of a node."""
    return change(program, node.id, lambda _: Author(tape, None, first_id=100_000).node(3))


def preceded(program: Node, node: Node, tape: Tape) -> Node:
    """The program with something new before a node."""
    new = Author(tape, None, first_id=100_000).node(3)
    return change(program, node.id, lambda each: Node("seq", 90_000, body=(new, each)))


def followed(program: Node, node: Node, tape: Tape) -> Node:
    """The program with something new after a node."""
    new = Author(tape, None, first_id=100_000).node(3)
    return change(program, node.id, lambda each: Node("seq", 90_000, body=(each, new)))
