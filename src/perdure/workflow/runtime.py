"""`Runtime`: the interface between a `Context` and the code that executes the workflow, and the values that cross it.

The replay layer implements it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct, structs

from perdure.core.codec.snapshot import all_fixed, snapshot_all
from perdure.core.model.attributes import Attribute
from perdure.core.model.headers import NO_HEADERS, Headers
from perdure.core.model.outputs import NewOutput, WantedOutput
from perdure.core.model.record import NewMessage, RecordKind
from perdure.core.model.run import NewRun, OnClose
from perdure.core.time.duration import NEVER
from perdure.workflow.scopes import Checkpoint, Scope, WorkflowRandom
from perdure.workflow.step import StepSettings, StepSpec, bind_step

if TYPE_CHECKING:
    from perdure.workflow.definition import Call
    from perdure.workflow.saga import UndoLog


R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:

    class Operation(asyncio.Future[R], Coroutine[Any, Any, R]):
        """A durable operation that has been started. Declared as a coroutine too, so that a `TaskGroup` takes it."""

else:
    Operation = asyncio.Future


class ContinueAsNewSignal(BaseException):
    """Ends a workflow that continues as a new generation.

    Not an `Exception`, so that `except Exception` lets it pass.
    """

    def __init__(self, call: Call[Any]) -> None:
        super().__init__(call.type)
        self.call = call


class StepRequest(Struct, frozen=True):
    """A call of a step: function, arguments and options."""

    name: str
    spec: StepSpec
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: StepSettings
    #: The function gets a connection; its writes there commit together with its record.
    transaction: bool = False
    #: The arguments have mutable parts; they are copies, and each attempt gets its own.
    mutable: bool = False

    def owned(self) -> StepRequest:
        """A request with copies of the arguments as they are now."""
        if all_fixed(map(type, self.args)) and all_fixed(map(type, self.kwargs.values())):
            return self
        args, kwargs, mutable = snapshot_all(self.args, self.kwargs)
        return structs.replace(self, args=args, kwargs=kwargs, mutable=True) if mutable else self

    def arguments(self) -> dict[str, Any]:
        """Arguments by name, with defaults, for the keys of limits. Raises `UsageError` and `TypeError`."""
        return bind_step(self.spec.function, self.args, self.kwargs, transaction=self.transaction)

    def copied(self) -> StepRequest:
        """A request with copies of the arguments for one attempt."""
        if not self.mutable:
            return self
        args, kwargs, _ = snapshot_all(self.args, self.kwargs)
        return structs.replace(self, args=args, kwargs=kwargs)


class ChildOptions(Struct, frozen=True, kw_only=True):
    """Options of a child run; None takes the value of the parent."""

    id: str | None = None
    queue: str | None = None
    priority: int | None = None
    deadline: int = NEVER
    on_close: OnClose = OnClose.CANCEL
    attributes: tuple[Attribute, ...] = ()
    #: Headers besides those of the parent, or in place of them.
    headers: Headers = NO_HEADERS


class SpawnedChild(Struct, frozen=True):
    """A child run that was started."""

    id: str
    #: Location in the parent that started it.
    location: str
    #: Resolves to the decoded result. Cancelling a wait for it does not cancel the child.
    ended: asyncio.Future[Any]


class ExpectedMessage(Struct, frozen=True):
    """A message that a workflow waits for: its name, and the type that its value is decoded to."""

    name: str
    type: Any


class ReceivedMessage(Struct, Generic[T_co], frozen=True):
    """A message that `receive_any` returned, with the name of its channel."""

    name: str
    value: T_co


class TopicSubscription(Struct, frozen=True):
    """A change of the run's subscription to broadcasts of a topic."""

    topic: str
    on: bool


#: Something that a workflow does without waiting. It commits with the record that led to it; replay does not repeat it.
Effect = NewOutput | NewMessage | NewRun | TopicSubscription


class Runtime(Protocol):
    """The executing side of a workflow."""

    run_id: str
    #: Workflow time, in microseconds.
    time: int
    #: Undos of the run; None until there is something to undo.
    undos: UndoLog | None

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is silent during replay."""

    @property
    def headers(self) -> Headers:
        """Headers of the run."""

    @property
    def random(self) -> WorkflowRandom:
        """Random numbers of the current scope."""

    def step(self, request: StepRequest) -> asyncio.Future[Any]:
        """Run a step; resolves to its decoded result."""

    def sleep_until(self, due: int) -> asyncio.Future[None]:
        """Resolve at a time."""

    def receive(self, expected: Sequence[ExpectedMessage], due: int | None, *, named: bool) -> asyncio.Future[Any]:
        """Resolve to the next message of those names (`ReceivedMessage` if `named`); raises `TimeoutError` at `due`."""

    def validate_questions(self, expected: ExpectedMessage, validate: Callable[[Any], object]) -> None:
        """Call a validator with the value of each question of that name, before the question is recorded."""

    def call(self, call: Call[Any], options: ChildOptions) -> asyncio.Future[Any]:
        """Start a child run; resolves to its decoded result."""

    def spawn(self, call: Call[Any], options: ChildOptions) -> SpawnedChild:
        """Start a child run without waiting for it."""

    def start(self, call: Call[Any], options: ChildOptions, wake_at: int) -> str:
        """Start an independent run; returns its id. Raises `EncodeError`."""

    def watch(
        self, name: str, target: str, returns: Any, *, event: bool = False, wants: WantedOutput | None = None
    ) -> asyncio.Future[Any]:
        """Wait for the end of any run, or for an event; resolves to its result, decoded to `returns`.

        With `wants`, wait for outputs of the run; resolves to `SeenOutputs`, which is `returns`.
        """

    def version(self, name: str, latest: int) -> int:
        """The version of the code that the run follows here."""

    def removed(self, name: str, kind: RecordKind) -> asyncio.Future[Any]:
        """Stand in for an operation that was removed from the code; resolves to the recorded result."""

    def encode(self, value: Any, what: str, declared: Any = Any) -> str:
        """Encode a value of a declared type as JSON. Raises `EncodeError`."""

    def decode(self, payload: str, type: Any, what: str) -> Any:
        """Decode JSON to a type. Raises `DecodeError`."""

    def describe(self, error: Exception) -> str:
        """Encode an error as JSON."""

    def restore(self, failure: str) -> Exception:
        """Decode an error that `describe` encoded."""

    def effect(self, name: str, make: Callable[[str], Effect]) -> None:
        """Do something without waiting; `make` gets a key that is unique in the run and the same on replay."""

    def child_cancelled(self, location: str) -> None:
        """Note that the workflow has cancelled a child that it has spawned; it may still wait for its end."""

    def subscribe(self, subscription: TopicSubscription) -> None:
        """Subscribe to broadcasts of a topic; does nothing if already subscribed."""

    def is_broken(self, error: BaseException) -> bool:
        """Tell whether an error says that the workflow's code is broken."""

    def halt(self, error: BaseException) -> asyncio.Future[None]:
        """Block the run because of such an error; never resolves."""

    def has_arrived(self, name: str) -> bool:
        """Tell whether a message of that name can be received now."""

    def check_main(self, what: str) -> None:
        """Raise `WorkflowError` in any other task than that of the workflow function itself."""

    def uncancel(self) -> bool:
        """Take the cancellation of the run back; True if there was one."""

    def interrupt_again(self) -> None:
        """Let each cancellation interrupt the code, also one that comes while it cleans up."""

    def open_scope(self, name: str) -> Scope:
        """Open a new scope inside the current one."""

    def digest_of_state(self, state: object) -> str:
        """Digest of the state that a loop begins with; empty if it has none."""

    def checkpoint(self, scope: Scope, begins: str = "") -> Checkpoint | None:
        """The recorded progress of a scope; None if there is none.

        Warns if it is of a loop that began with a state of another digest.
        """

    def save_checkpoint(
        self, scope: Scope, checkpoint: Checkpoint, type: Any, drop: Sequence[str]
    ) -> asyncio.Future[Any]:
        """Record the progress of a scope and drop the history at the paths in `drop`; resolves to the decoded value."""

    def finished_iterations(self, scope: Scope, upto: int) -> list[str]:
        """Paths of iterations before `upto` that still have records."""

    def reserve_location(self, request: StepRequest) -> str:
        """Reserve a location for a step that may run later. Raises `EncodeError`."""

    def observe(self, operation: asyncio.Future[Any], ended: Callable[[asyncio.Future[Any]], None]) -> str:
        """Call back when an operation has ended, without awaiting it; returns its location."""

    def step_at(self, location: str, request: StepRequest) -> asyncio.Future[Any]:
        """Run a step at a location that is not used otherwise. Raises `EncodeError`."""


def run_blocking(runtime: Runtime, function: Callable[[], R]) -> R:
    """Call a function of a `def` workflow: the outermost frame of a greenlet, where the loop watch finds the run."""
    return function()
