"""What a `Context` asks of whatever executes the workflow. The replay layer answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct, structs

from perdure.core.codec.snapshot import all_fixed, snapshot_all
from perdure.core.model.outputs import NewOutput
from perdure.core.model.record import NewMessage, RecordKind
from perdure.core.model.run import NewRun, OnClose
from perdure.core.time.duration import FAR
from perdure.workflow.scopes import Scope, WorkflowRandom
from perdure.workflow.step import StepSettings, StepSpec

if TYPE_CHECKING:
    from perdure.workflow.definition import Call
    from perdure.workflow.saga import UndoLog


R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:

    class Operation(asyncio.Future[R], Coroutine[Any, Any, R]):
        """Something durable under way. Declared as a coroutine too, so that a `TaskGroup` takes it."""

else:
    Operation = asyncio.Future


class ContinueAsNewSignal(BaseException):
    """Ends a workflow that goes on as a new generation. Not an `Exception`: nobody is to take it for a failure."""

    def __init__(self, call: Call[Any]) -> None:
        super().__init__(call.type)
        self.call = call


class StepRequest(Struct, frozen=True):
    """A step that a workflow asks for."""

    name: str
    spec: StepSpec
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: StepSettings
    #: Whether the function gets a connection, and its writes there are durable together with its record.
    transaction: bool = False
    #: Whether something in the arguments can change. They are copies then, of which each attempt gets one.
    mutable: bool = False

    def owned(self) -> StepRequest:
        """The request with the arguments as they are now."""
        if all_fixed(map(type, self.args)) and all_fixed(map(type, self.kwargs.values())):
            return self
        args, kwargs, mutable = snapshot_all(self.args, self.kwargs)
        return structs.replace(self, args=args, kwargs=kwargs, mutable=True) if mutable else self

    def copied(self) -> StepRequest:
        """The request with arguments for one attempt."""
        if not self.mutable:
            return self
        args, kwargs, _ = snapshot_all(self.args, self.kwargs)
        return structs.replace(self, args=args, kwargs=kwargs)


class ChildOptions(Struct, frozen=True, kw_only=True):
    """How a child run differs from its parent; None: as the parent."""

    id: str | None = None
    queue: str | None = None
    priority: int | None = None
    deadline: int = FAR
    on_close: OnClose = OnClose.CANCEL


class SpawnedChild(Struct, frozen=True):
    """A child run that was started."""

    id: str
    #: Where the parent started it.
    location: str
    #: Resolves to its decoded result. Whoever gives up waiting for it leaves it as it is.
    ended: asyncio.Future[Any]


class ExpectedMessage(Struct, frozen=True):
    """A message that a workflow is ready to take: its name, and what its value is decoded to."""

    name: str
    type: Any


class ReceivedMessage(Struct, Generic[T_co], frozen=True):
    """A message, and which of those that were waited for it is."""

    name: str
    value: T_co


class Checkpoint(Struct, frozen=True):
    """How far a scope has got."""

    #: JSON of what it goes on with, or of what came out of it.
    value: str
    #: Iterations before this one are over.
    upto: int = 0
    ended: bool = False
    #: What is gone with it and could not be undone: by location, the `Failure` of that as JSON.
    errors: dict[str, str] = {}


class Subscription(Struct, frozen=True):
    """The run wants broadcasts of a topic, or no longer wants them."""

    topic: str
    on: bool


#: What a workflow does without waiting for it: durable with the record that led to it, and not repeated by replay.
Effect = NewOutput | NewMessage | NewRun | Subscription


class Runtime(Protocol):
    """The executing side of a workflow."""

    run_id: str
    #: Workflow time, in microseconds.
    time: int
    #: How to undo what the run has done, once there is something to undo.
    undos: UndoLog | None

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is silent during replay."""

    @property
    def random(self) -> WorkflowRandom:
        """Where the current scope's random numbers come from."""

    def step(self, request: StepRequest) -> asyncio.Future[Any]:
        """Run a step; resolves to its decoded result."""

    def sleep_until(self, due: int) -> asyncio.Future[None]:
        """Resolve at a time."""

    def receive(self, expected: Sequence[ExpectedMessage], due: int | None, *, named: bool) -> asyncio.Future[Any]:
        """Resolve to the next message of those names (as `ReceivedMessage` if `named`), or raise `TimeoutError` at `due`."""

    def call(self, call: Call[Any], options: ChildOptions) -> asyncio.Future[Any]:
        """Start a child run; resolves to its decoded result."""

    def spawn(self, call: Call[Any], options: ChildOptions) -> SpawnedChild:
        """Start a child run without waiting for it."""

    def start(self, call: Call[Any], options: ChildOptions, wake_at: int) -> str:
        """Start a run that is nobody's child; its id. Raises `EncodeError`."""

    def version(self, name: str, latest: int) -> int:
        """The version of the code that the run follows here."""

    def removed(self, name: str, kind: RecordKind) -> asyncio.Future[None]:
        """Stand in for what the code no longer does here."""

    def encode(self, value: Any, what: str, declared: Any = Any) -> str:
        """A value of a declared type as JSON. Raises `EncodeError`."""

    def describe(self, error: Exception) -> str:
        """An error as JSON."""

    def restore(self, failure: str) -> Exception:
        """The error that was described so."""

    def effect(self, name: str, make: Callable[[str], Effect]) -> None:
        """Do something without waiting for it; `make` is given a key that is unique in the run and the same on replay."""

    def subscribe(self, subscription: Subscription) -> None:
        """Want broadcasts of a topic from now on; said once."""

    def has_arrived(self, name: str) -> bool:
        """Whether a message of that name is there to be received."""

    def check_main(self, what: str) -> None:
        """Raise `WorkflowError` in any other task than that of the workflow function itself."""

    def open_scope(self, name: str) -> Scope:
        """A new part of the workflow, with a place of its own in the current one."""

    def checkpoint(self, scope: Scope) -> Checkpoint | None:
        """How far the history says that a scope has got."""

    def save_checkpoint(
        self, scope: Scope, checkpoint: Checkpoint, type: Any, drop: Sequence[str]
    ) -> asyncio.Future[Any]:
        """Record how far a scope has got, and forget what is at the paths in `drop`; resolves to the mark's decoded value."""

    def finished_iterations(self, scope: Scope, upto: int) -> list[str]:
        """Paths of those iterations before `upto` that still have records."""

    def reserve_location(self, request: StepRequest) -> str:
        """Take a location for a step that may be run later. Raises `EncodeError`."""

    def observe(self, operation: asyncio.Future[Any], ended: Callable[[asyncio.Future[Any]], None]) -> str:
        """Call back when an operation has ended, without waiting for it. Gives its location."""

    def step_at(self, location: str, request: StepRequest) -> asyncio.Future[Any]:
        """Run a step at a location that nothing else has. Raises `EncodeError`."""
