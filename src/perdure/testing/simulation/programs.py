"""Random workflows, as values that one workflow function interprets.

A program is a list of operations. It is written into the run's input, so that every worker executes the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal

import msgspec
from msgspec import Struct

MESSAGES = ("go", "stop", "more")
QUESTION = "what"
NEWS = "news"
CORRELATIONS = ("east", "west")
STEPS = ("a", "b", "c")
DEEDS = ("x", "y")


class Step(Struct, frozen=True, tag="step"):
    """A step that takes a while, fails some times, and may be too slow for its timeout."""

    name: str
    seconds: float = 0.0
    failures: int = 0
    attempts: int = 3
    fatal: bool = False
    timeout: float | None = None
    ephemeral: bool = False
    undo: bool = False


class Act(Struct, frozen=True, tag="act"):
    """An activity that takes a while, gives signs of life, fails some times, and may miss any of its limits."""

    seconds: float = 0.0
    beats: int = 0
    failures: int = 0
    attempts: int = 3
    fatal: bool = False
    start: float | None = None
    close: float | None = None
    total: float | None = None
    heartbeat: float | None = None


class Deed(Struct, frozen=True, tag="deed"):
    """A transaction that writes a row of its own, and fails some times."""

    name: str
    failures: int = 0


class Sleep(Struct, frozen=True, tag="sleep"):
    """A durable sleep, of the context's or of asyncio's."""

    seconds: float
    plain: bool = False


class Receive(Struct, frozen=True, tag="receive"):
    """A message, perhaps waited for only so long."""

    name: str
    timeout: float | None = None


class Gather(Struct, frozen=True, tag="gather"):
    """Branches under `asyncio.gather`."""

    branches: tuple[Program, ...]
    tolerant: bool = False


class Group(Struct, frozen=True, tag="group"):
    """Branches in a `TaskGroup`."""

    branches: tuple[Program, ...]


class Race(Struct, frozen=True, tag="race"):
    """Branches of which the first to end ends the others."""

    branches: tuple[Program, ...]


class Limit(Struct, frozen=True, tag="limit"):
    """A body under `asyncio.timeout`."""

    seconds: float
    body: Program


class Try(Struct, frozen=True, tag="try"):
    """A body whose errors are caught."""

    body: Program


class Cleanup(Struct, frozen=True, tag="cleanup"):
    """A body with a durable step in its `finally`."""

    body: Program
    name: str


class Child(Struct, frozen=True, tag="child"):
    """A run of its own."""

    body: Program
    stubborn: bool = False


class Show(Struct, frozen=True, tag="show"):
    """A state and items of a stream."""

    items: int = 1


class Tell(Struct, frozen=True, tag="tell"):
    """A message of the run to itself."""

    name: str


class ReceiveAny(Struct, frozen=True, tag="any"):
    """Whichever message comes first, or several of one name."""

    timeout: float | None = None
    many: bool = False


class Answer(Struct, frozen=True, tag="answer"):
    """A question that is waited for so long, and answered."""

    timeout: float


class Listen(Struct, frozen=True, tag="listen"):
    """A broadcast, perhaps waited for only so long."""

    correlation: str
    timeout: float | None = None


class Version(Struct, frozen=True, tag="version"):
    """A version of the code that is pinned."""

    name: str


class Join(Struct, frozen=True, tag="join"):
    """Branches under `ctx.join`."""

    branches: tuple[Program, ...]


class Contest(Struct, frozen=True, tag="contest"):
    """Branches under `ctx.race`."""

    branches: tuple[Program, ...]


class Map(Struct, frozen=True, tag="map"):
    """A body for each of some items, so many at a time."""

    body: Program
    count: int
    limit: int


class Loop(Struct, frozen=True, tag="loop"):
    """A body over and over, under `ctx.loop`."""

    body: Program
    rounds: int
    commit_every: int
    keep: int = 0


class Saga(Struct, frozen=True, tag="saga"):
    """A body that is undone if it fails, or is made to."""

    body: Program
    fails: bool = False


class Outcome(Struct, frozen=True, tag="outcome"):
    """A body whose outcome is a value."""

    body: Program


class Shield(Struct, frozen=True, tag="shield"):
    """A body that is not interrupted."""

    body: Program


class Spawn(Struct, frozen=True, tag="spawn"):
    """A child that is not waited for at once, if at all."""

    body: Program
    on_close: Literal["cancel", "abandon", "wait"]
    awaited: bool = False


class Anew(Struct, frozen=True, tag="anew"):
    """The end of a program that goes on as another."""

    body: Program


Op = (
    Step | Act | Deed | Sleep | Receive | Gather | Group | Race | Limit | Try | Cleanup | Child | Show | Tell | ReceiveAny | Answer
    | Listen | Version
    | Join | Contest | Map | Loop | Saga | Outcome | Shield | Spawn | Anew
)  # fmt: skip
Program = tuple[Op, ...]

_DECODER = msgspec.json.Decoder(Program)


def encode(program: Program) -> str:
    """A program as text."""
    return msgspec.json.encode(program).decode()


def decode(text: str) -> Program:
    """The program that `encode` wrote."""
    return _DECODER.decode(text)


class Author:
    """Writes programs; with activities in them, if that is wanted."""

    def __init__(self, rng: Random, *, activities: bool = False) -> None:
        self._rng = rng
        #: Each simulation uses its own few kinds of operation, so that rare combinations come up.
        leaves: list[tuple[Callable[[], Op], int]] = [
            (self._step, 8), (self._deed, 6), (self._sleep, 3), (self._receive, 3), (self._effect, 3), (self._listen, 2),
        ]  # fmt: skip
        nests: list[tuple[Callable[[int], Op], int]] = [
            (self._gather, 3), (self._group, 2), (self._race, 2), (self._limit, 2), (self._try, 3), (self._cleanup, 2),
            (self._child, 6), (self._parallel, 5), (self._loop, 5), (self._saga, 4), (self._spawn, 4), (self._anew, 6),
        ]  # fmt: skip
        self._leaves = [*leaves, (self.act, 12)] if activities else leaves
        self._nests = [each for each in nests if rng.random() < 0.7] or nests

    def program(self, depth: int = 2) -> Program:
        """A program whose operations nest at most so deep."""
        return tuple(self._op(depth) for _ in range(self._rng.randint(1, 4 if depth == 2 else 2)))

    def _op(self, depth: int) -> Op:
        if depth > 0 and self._rng.random() < 0.4:
            makers, weights = zip(*self._nests, strict=True)
            nest: Callable[[int], Op] = self._rng.choices(makers, weights)[0]
            return nest(depth - 1)
        leaves, weights = zip(*self._leaves, strict=True)
        leaf: Callable[[], Op] = self._rng.choices(leaves, weights)[0]
        return leaf()

    def _step(self) -> Op:
        rng = self._rng
        return Step(
            name=rng.choice(STEPS),
            seconds=rng.choice((0.0, 0.0, 0.01, 0.1, 1.0, 5.0)),
            failures=rng.choice((0, 0, 0, 1, 2, 3)),
            fatal=rng.random() < 0.05,
            timeout=rng.choice((None, None, 0.5, 3.0)),
            ephemeral=rng.random() < 0.15,
            undo=rng.random() < 0.2,
        )

    def act(self) -> Act:
        """An activity."""
        rng = self._rng
        return Act(
            seconds=rng.choice((0.0, 0.0, 0.1, 1.0, 5.0)),
            beats=rng.choice((0, 0, 1, 4)),
            failures=rng.choice((0, 0, 0, 1, 2, 3)),
            attempts=rng.choice((1, 2, 3)),
            fatal=rng.random() < 0.05,
            start=rng.choice((None, None, None, 0.5, 5.0)),
            close=rng.choice((None, None, 0.5, 3.0)),
            total=rng.choice((None, None, None, 2.0, 10.0)),
            heartbeat=rng.choice((None, None, 1.0)),
        )

    def _deed(self) -> Op:
        return Deed(self._rng.choice(DEEDS), self._rng.choice((0, 0, 1, 3)))

    def _sleep(self) -> Op:
        return Sleep(self._rng.choice((0.0, 0.01, 0.2, 1.0, 6.0)), plain=self._rng.random() < 0.4)

    def _receive(self) -> Op:
        return Receive(self._rng.choice(MESSAGES), self._rng.choice((None, 0.2, 1.0, 4.0)))

    def _effect(self) -> Op:
        rng = self._rng
        kinds: tuple[Callable[[], Op], ...] = (
            lambda: Show(rng.randint(0, 3)),
            lambda: Tell(rng.choice(MESSAGES)),
            lambda: ReceiveAny(rng.choice((None, 0.2, 3.0)), many=rng.random() < 0.5),
            lambda: Version(rng.choice(STEPS)),
            lambda: Answer(rng.choice((0.5, 3.0, 8.0))),
        )
        return rng.choice(kinds)()

    def _listen(self) -> Op:
        return Listen(self._rng.choice(CORRELATIONS), self._rng.choice((None, 1.0, 4.0)))

    def _parallel(self, depth: int) -> Op:
        rng = self._rng
        if rng.random() < 0.3:
            return Map(self.program(depth), rng.randint(1, 4), rng.randint(1, 3))
        return (Join if rng.random() < 0.5 else Contest)(self._branches(depth))

    def _loop(self, depth: int) -> Op:
        rng = self._rng
        return Loop(self.program(depth), rng.randint(1, 5), rng.randint(1, 3), rng.choice((0, 0, 1, 2)))

    def _saga(self, depth: int) -> Op:
        rng = self._rng
        if rng.random() < 0.3:
            return (Outcome if rng.random() < 0.5 else Shield)(self.program(depth))
        return Saga((Step(rng.choice(STEPS), undo=True), *self.program(depth)), fails=rng.random() < 0.5)

    def _spawn(self, depth: int) -> Op:
        rng = self._rng
        return Spawn(self.program(depth), rng.choice(("cancel", "abandon", "wait")), awaited=rng.random() < 0.4)

    def _anew(self, depth: int) -> Op:
        return Anew(self.program(depth))

    def _branches(self, depth: int) -> tuple[Program, ...]:
        return tuple(self.program(depth) for _ in range(self._rng.randint(2, 3)))

    def _gather(self, depth: int) -> Op:
        return Gather(self._branches(depth), tolerant=self._rng.random() < 0.5)

    def _group(self, depth: int) -> Op:
        return Group(self._branches(depth))

    def _race(self, depth: int) -> Op:
        return Race(self._branches(depth))

    def _limit(self, depth: int) -> Op:
        return Limit(self._rng.choice((0.1, 0.5, 2.0, 8.0)), self.program(depth))

    def _try(self, depth: int) -> Op:
        return Try(self.program(depth))

    def _cleanup(self, depth: int) -> Op:
        return Cleanup(self.program(depth), self._rng.choice(STEPS))

    def _child(self, depth: int) -> Op:
        return Child(self.program(depth), stubborn=self._rng.random() < 0.2)
