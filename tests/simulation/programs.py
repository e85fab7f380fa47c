"""Random workflows, as values that one workflow function interprets.

A program is a list of operations. It is written into the run's input, so that every worker executes the same one.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for

MESSAGES = ("go", "stop", "more")
QUESTION = "what"
NEWS = "news"
CORRELATIONS = ("east", "west")
STEPS = ("a", "b", "c")
#: Step with an undo that is not part of anything else.
REVERSIBLE = "r"
#: Step that must not run twice.
ONCE = "o"
KEYS = ("red", "blue")
#: Question that a handler answers, unless its validator refuses it.
DEMAND = "demand"
#: Sticky events.
EVENTS = ("dawn", "dusk")
#: Types and keys of events for other systems.
TOLD = ("told.odd", "told.even")
DEEDS = ("x", "y")
#: Of those that have to pass gates.
GUARDED_DEEDS = ("u", "v")


class Answers(Enum):
    """What becomes of a question."""

    REFUSED = 0
    ERROR = 1
    LATER = 2
    AT_ONCE = 3


def answer_of(asked: str) -> Answers:
    """Tell what becomes of a question, by its number."""
    return Answers(int(asked.rpartition(".")[2]) % len(Answers))


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


class Once(Struct, frozen=True, tag="once"):
    """A step that must not run twice."""

    seconds: float = 0.0


class Stand(Struct, frozen=True, tag="stand"):
    """A body whose cancellation, if it is the run's own, is swallowed, or taken back."""

    body: Program
    back: bool = False


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
    #: Whether its end is reported from outside.
    pending: bool = False


class Guarded(Struct, frozen=True, tag="guarded"):
    """A step that has to pass gates: those of one of the world's guards, for one of its keys. With a `deed`, a
    transaction."""

    guard: int
    key: str
    seconds: float = 0.0
    failures: int = 0
    fatal: bool = False
    timeout: float | None = None
    deed: str | None = None


class Lined(Struct, frozen=True, tag="lined"):
    """An activity that has to pass gates, by its code or, if they are `given`, for this call alone."""

    guard: int
    key: str
    act: Act
    given: bool = False


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


class Other(Struct, frozen=True, tag="other"):
    """A run that is no child, whose end is waited for, for a while; before, perhaps, for a state and its stream."""

    body: Program
    seconds: float = 0.0
    follow: bool = False


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


class Typed(Struct, frozen=True, tag="typed"):
    """Branches under `ctx.join`, with names and states of their own."""

    branches: tuple[Program, ...]


class FirstEnd(Struct, frozen=True, tag="firstend"):
    """Branches under `ctx.race`, until the first one ends."""

    branches: tuple[Program, ...]


class Handle(Struct, frozen=True, tag="handle"):
    """A handler of questions, with a validator."""


class Await(Struct, frozen=True, tag="await"):
    """A sticky event, perhaps waited for only so long."""

    name: str
    timeout: float | None = None


class Announce(Struct, frozen=True, tag="announce"):
    """An event for other systems."""

    topic: str
    key: str | None = None
    #: Whether the code gives it an id.
    named: bool = False


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


class Bug(Struct, frozen=True, tag="bug"):
    """A line that is wrong where the code is broken."""


Op = (
    Step | Once | Other | Act | Guarded | Lined | Deed | Sleep | Receive | Gather | Group | Race | Limit | Try | Stand
    | Cleanup
    | Child | Show | Tell | ReceiveAny | Answer
    | Listen | Version | Bug | Handle | Await | Announce
    | Join | Contest | Typed | FirstEnd | Map | Loop | Saga | Outcome | Shield | Spawn | Anew
)  # fmt: skip
Program = tuple[Op, ...]

_DECODER = decoder_for(Program)


def encode(program: Program) -> str:
    """A program as text."""
    return msgspec.json.encode(program).decode()


def decode(text: str) -> Program:
    """The program that `encode` wrote."""
    return _DECODER.decode(text)
