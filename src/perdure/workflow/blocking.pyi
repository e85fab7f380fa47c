"""Types of blocking workflow code, by `python -m tests.typing.blocking_stub`; do not edit."""

# `gather` is typed as `asyncio.gather` is.
# mypy: disable-error-code="overload-overlap"
# pyright: reportOverlappingOverload=false

import asyncio
import datetime
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    Never,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    overload,
)

from perdure.core.model.attributes import AttributeValue
from perdure.core.model.headers import Headers
from perdure.core.model.outputs import StreamItem
from perdure.core.time.duration import Duration, Moment
from perdure.workflow.branches import NamedBranch, RaceEnd, RaceResult
from perdure.workflow.channels import Channel, Question, ReceivedQuestion
from perdure.workflow.context import Context as AsyncContext
from perdure.workflow.context import NotAStep
from perdure.workflow.definition import Call, Definition
from perdure.workflow.endless_loop import Break, Continue
from perdure.workflow.outcomes import CAUGHT, Failed, FailureKind, Succeeded
from perdure.workflow.runtime import ReceivedMessage
from perdure.workflow.scopes import WorkflowRandom
from perdure.workflow.step import StepOptions

A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")
Q = TypeVar("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
V = TypeVar("V")

#: The body of a loop.
Body = Callable[["Context", S], Continue[S] | Break[V]]

class Context:
    """The durable side of a `def` workflow; the function gets it as its first argument."""
    @overload
    def step(self, function: Definition[..., Any], /, *args: Any, **kwargs: Any) -> NotAStep: ...
    @overload
    def step(self, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def step(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def transaction(
        self, function: Callable[Concatenate[Any, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    def transaction(self, function: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def options(
        self,
        *,
        using: Callable[[], Any] | None = None,
        undo: Callable[[Any], Any] | None = None,
        **options: Unpack[StepOptions],
    ) -> Context:
        """A copy of this context whose steps have other options: `ctx.options(timeout="5s").step(...)`.

        `using` opens the connection of a `transaction`. `undo` is called with a step's result to undo it; see `saga`.
        The other options are those of `@step`: `name`, `retry`, `timeout`, `ephemeral`, `at_most_once`, `process`,
        `limit` and `breaker`.
        """
    def sleep(self, duration: Duration) -> None:
        """Wait for any duration without holding a slot or a thread."""
    def sleep_until(self, when: datetime.datetime) -> None:
        """Wait until a point in time, given with a time zone."""
    def shield(self, function: Callable[[], R]) -> R:
        """Call a function, protected from a timeout around it and from the cancellation of the run.

        `ctx.shield(lambda: ctx.step(...))` waits until the step has ended, and raises the interruption only then.
        """
    def uncancel(self) -> bool:
        """Take the cancellation of the run back, after `except asyncio.CancelledError`; True if there was one.

        A cancelled run ends as cancelled, however its code ends. After this call the run goes on as if it had not been
        cancelled, and can be cancelled again. Only the workflow function itself may call it, not one of its tasks.
        """
    def now(self) -> datetime.datetime:
        """The workflow's time: the time of the last record that was applied; the same on replay."""
    @overload
    def receive(self, channel: Channel[T], *, timeout: Duration | None = None, correlation: str | None = None) -> T: ...
    @overload
    def receive(
        self, channel: str, type: type[T], *, timeout: Duration | None = None, correlation: str | None = None
    ) -> T: ...
    @overload
    def receive(
        self, channel: str, type: Any = ..., *, timeout: Duration | None = None, correlation: str | None = None
    ) -> Any: ...
    @overload
    def receive_any(
        self, first: Channel[T], second: Channel[Q], /, *, timeout: Duration | None = None
    ) -> ReceivedMessage[T | Q]: ...
    @overload
    def receive_any(
        self, first: Channel[T], second: Channel[Q], third: Channel[A], /, *, timeout: Duration | None = None
    ) -> ReceivedMessage[T | Q | A]: ...
    @overload
    def receive_any(self, *channels: Channel[T], timeout: Duration | None = None) -> ReceivedMessage[T]: ...
    @overload
    def receive_any(self, *channels: Channel[Any], timeout: Duration | None = None) -> ReceivedMessage[Any]: ...
    def receive_many(
        self, channel: Channel[T] | str, type: type[T] | Any = Any, *, limit: int, timeout: Duration | None = None
    ) -> list[T]:
        """Take up to `limit` messages of a channel.

        Without a timeout: waits for the first message, then returns all that have arrived; a worker reads at most 1,000
        at once. With a timeout: waits for `limit` messages or until the time is over, and returns what there is,
        possibly nothing.
        """
    @overload
    def receive_question(
        self, question: Question[Q, A], *, timeout: Duration | None = None
    ) -> ReceivedQuestion[Q, A]: ...
    @overload
    def receive_question(
        self, question: str, type: type[T], *, timeout: Duration | None = None
    ) -> ReceivedQuestion[T, Any]: ...
    @overload
    def receive_question(
        self, question: str, type: Any = ..., *, timeout: Duration | None = None
    ) -> ReceivedQuestion[Any, Any]: ...
    @overload
    def answer(
        self,
        question: Question[Q, A],
        handler: Callable[[Q], A | Awaitable[A]],
        *,
        validate: Callable[[Q], object] | None = None,
    ) -> None: ...
    @overload
    def answer(
        self,
        question: str,
        handler: Callable[[T], Any],
        type: type[T],
        *,
        validate: Callable[[T], object] | None = None,
    ) -> None: ...
    @overload
    def answer(
        self,
        question: str,
        handler: Callable[[Any], Any],
        type: Any = ...,
        *,
        validate: Callable[[Any], object] | None = None,
    ) -> None: ...
    def send(self, run: str, channel: Channel[T] | str, value: T | Any = None, *, key: str | None = None) -> None:
        """Send a message to another run, in the same turn as the record that led to it.

        The message is sent exactly once. Messages with the same `key` are delivered once, from whichever run. A run
        that has finished or does not exist gets nothing.
        """
    def publish(self, key: str, value: object) -> None:
        """Publish the latest value of a key; others read it with `handle.state(key)`."""
    def publish_event(
        self,
        type: str,
        data: object = None,
        *,
        key: str | None = None,
        subject: str | None = None,
        source: str = "perdure",
        id: str | None = None,
    ) -> str:
        """Publish an event for other systems, in the same turn as the record that led to it; returns the event's id.

        Workers of an engine with `Engine(outbox=[...])` deliver it at least once to each subscription that wants it, as
        a CloudEvent. Events of a `key` are delivered in the order of their publication. With an `id`, the event is
        published once, by whichever run.
        """
    def set_attributes(self, attributes: Mapping[str, AttributeValue | None]) -> None:
        """Set attributes of the run, by which others find it; None removes one, and others stay as they are.

        A value is text of up to 255 bytes, a number, a bool or an aware datetime. It is stored as plain text.
        """
    def emit(self, stream: str, value: object) -> None:
        """Append an item to a stream; others follow it with `handle.stream(name)`."""
    @overload
    def branch(self, body: Callable[[Context], T]) -> NamedBranch[T]: ...
    @overload
    def branch(self, body: Callable[[], T]) -> NamedBranch[T]: ...
    @overload
    def branch(self, body: Callable[[Context], T] | Callable[[], T]) -> NamedBranch[T]: ...
    @overload
    def join(self, branches: Mapping[str, Callable[[Context], T]], *, name: str = "join") -> dict[str, T]: ...
    @overload
    def join(self, branches: Mapping[str, Callable[[], T]], *, name: str = "join") -> dict[str, T]: ...
    @overload
    def join(
        self, branches: Mapping[str, Callable[[Context], T] | Callable[[], T]], *, name: str = "join"
    ) -> dict[str, T]: ...
    @overload
    def join(self, branches: B, *, name: str = "join") -> B: ...
    @overload
    def race(
        self, branches: Mapping[str, Callable[[Context], T]], *, until: RaceEnd = "success", name: str = "race"
    ) -> RaceResult[T]: ...
    @overload
    def race(
        self, branches: Mapping[str, Callable[[], T]], *, until: RaceEnd = "success", name: str = "race"
    ) -> RaceResult[T]: ...
    @overload
    def race(
        self,
        branches: Mapping[str, Callable[[Context], T] | Callable[[], T]],
        *,
        until: RaceEnd = "success",
        name: str = "race",
    ) -> RaceResult[T]: ...
    @overload
    def map(
        self,
        function: Callable[Concatenate[Context, T, ...], R],
        items: Iterable[T],
        *,
        limit: int | None = None,
        name: str = "map",
    ) -> list[R]: ...
    @overload
    def map(
        self, function: Callable[[T], Awaitable[R]], items: Iterable[T], *, limit: int | None = None, name: str = "map"
    ) -> list[R]: ...
    @overload
    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, limit: int | None = None, name: str = "map"
    ) -> list[R]: ...
    def loop(self, state: S, body: Body[S, V], *, name: str = "loop", commit_every: int = 20, keep: int = 0) -> V:
        """Call `body(ctx, state)` until it returns `Break(value)`; `Continue(state)` begins the next iteration.

        The loop records its state every `commit_every` iterations and deletes the history of finished iterations,
        except for the last `keep`. What an iteration starts has to end within it; only the state passes on to the next
        one.
        """
    def continue_as_new(self, call: Call[Any]) -> NoReturn:
        """End here and begin again under the same id with an empty history: `ctx.continue_as_new(poll(cursor))`.

        Messages that were not received stay in the inbox. Call it in the workflow function itself, not in a task.
        """
    def call(
        self,
        call: Call[R],
        *misplaced: Never,
        id: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        deadline: Moment | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> R:
        """Start another workflow or activity as a child run and wait for its result; its error is raised here.

        Giving up the wait, by a timeout or a cancellation, cancels the child.
        """
    def spawn(
        self,
        call: Call[R],
        *misplaced: Never,
        id: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        deadline: Moment | None = None,
        on_close: Literal["cancel", "abandon", "wait"] = "cancel",
        attributes: Mapping[str, AttributeValue] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Child[R]:
        """Start another workflow or activity as a child run without waiting; `child.result()` gives its result.

        `on_close` decides about a child that is still running when this run ends: "cancel" it, "abandon" it to go on by
        itself, or "wait" for it.
        """
    def start(
        self,
        call: Call[Any],
        *misplaced: Never,
        id: str | None = None,
        at: Moment | None = None,
        queue: str | None = None,
        priority: int | None = None,
        deadline: Moment | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Start an independent run, like `engine.start`; returns its id.

        The new run is not a child: it reports nothing back and outlives this run. If a run with that id exists, it is
        left as it is.
        """
    @overload
    def event(self, name: str, type: type[T]) -> T: ...
    @overload
    def event(self, name: str, type: Any = ...) -> Any: ...
    def run(self, id: str) -> OtherRun:
        """Any run, by its id: `ctx.run("order-17").result(Order)` waits for its end."""
    @overload
    def outcome(
        self, what: Callable[[Context], T], *, name: str | None = None, catch: Collection[FailureKind] = CAUGHT
    ) -> Succeeded[T] | Failed: ...
    @overload
    def outcome(
        self, what: Callable[[], T], *, name: str | None = None, catch: Collection[FailureKind] = CAUGHT
    ) -> Succeeded[T] | Failed: ...
    @overload
    def outcome(
        self,
        what: Callable[[Context], T] | Callable[[], T],
        *,
        name: str | None = None,
        catch: Collection[FailureKind] = CAUGHT,
    ) -> Succeeded[T] | Failed: ...
    def saga(self) -> Saga:
        """A block that undoes its steps, latest first, if an exception leaves it: `with ctx.saga():`.

        A step is undone by its option `undo`, or by a call of `ctx.undo`. The exception is then raised again. A block
        that is left without an exception hands its undos to the saga around it. The run as a whole is the outermost
        saga.
        """
    def undo(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Register a function and its arguments, to be run as a step if the saga fails."""
    def keep(self) -> None:
        """Make the work of the innermost saga so far final: it will not be undone."""
    def patched(self, name: str) -> bool:
        """Tell whether this run follows the changed code; False if it passed this place before the change was deployed.

        `if ctx.patched("new-tax"): ...` keeps unfinished runs on the old path. The answer is recorded at each place.
        """
    def version(self, name: str, latest: int) -> int:
        """The version of the code that this run follows here: `latest`, or the latest one when the run came here.

        It is 0 for a run that passed this place before the call of `version` was added. The answer is recorded at each
        place; each iteration of a loop has its own.
        """
    def removed(self, name: str, kind: Literal["step", "timer", "child", "version"]) -> Any:
        """Stand in for an operation that was removed from the code, so that older runs still replay.

        `ctx.removed("charge", "step")` replaces a call of `charge`, `("sleep", "timer")` a sleep,
        `("shop.ship.v1", "child")` a child, `("new-tax", "version")` a `patched` or `version`. New runs skip it.
        The value is the recorded result of the step or child as plain data (numbers, texts, lists, dicts), or None.
        """
    @property
    def run_id(self) -> str:
        """The id of this run."""
    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is silent during replay, so that each line appears once."""
    @property
    def headers(self) -> Headers:
        """Headers of the run: texts by name, given at its start or inherited from the run that started it.

        Steps read them with `step_info().headers`, activities with `activity_info().headers`.
        """
    @property
    def random(self) -> WorkflowRandom:
        """Random numbers that are the same on replay: `ctx.random()`, `ctx.random.choice(...)`."""
    def uuid(self) -> uuid.UUID:
        """A UUID that is the same on replay; good as an idempotency key."""
    @overload
    def gather(
        self, first: Callable[[], T1], second: Callable[[], T2], /, *, return_exceptions: Literal[False] = False
    ) -> tuple[T1, T2]: ...
    @overload
    def gather(
        self,
        first: Callable[[], T1],
        second: Callable[[], T2],
        third: Callable[[], T3],
        /,
        *,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1, T2, T3]: ...
    @overload
    def gather(
        self,
        first: Callable[[], T1],
        second: Callable[[], T2],
        third: Callable[[], T3],
        fourth: Callable[[], T4],
        /,
        *,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1, T2, T3, T4]: ...
    @overload
    def gather(
        self,
        first: Callable[[], T1],
        second: Callable[[], T2],
        third: Callable[[], T3],
        fourth: Callable[[], T4],
        fifth: Callable[[], T5],
        /,
        *,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1, T2, T3, T4, T5]: ...
    @overload
    def gather(self, *functions: Callable[[], T], return_exceptions: Literal[False] = False) -> list[T]: ...
    @overload
    def gather(self, *functions: Callable[[], T], return_exceptions: Literal[True]) -> list[T | BaseException]: ...
    def timeout(self, duration: Duration | None) -> AbstractContextManager[asyncio.Timeout]:
        """Bound a block: `with ctx.timeout("5m"): ...` raises `TimeoutError` in it when the time is over.

        It is `asyncio.timeout` of an async workflow; `expired()` of what it gives tells whether the time was over.
        """
    def wait(self, awaitable: Awaitable[R]) -> R:
        """Wait for an awaitable of this workflow, such as `queue.get()` of an `asyncio.Queue` that branches share."""
    def enter(self, manager: AbstractAsyncContextManager[T]) -> AbstractContextManager[T]:
        """Enter an async context manager of this workflow: `with ctx.enter(lock): ...` of an `asyncio.Lock`."""

class Child(Generic[R_co]):
    """A child run. `result()` waits for it, any number of times; giving up the wait does not cancel the child."""
    @property
    def id(self) -> str:
        """The id of the child run."""
    def result(self) -> R_co:
        """Wait for the child's result; raises its error."""
    def send(self, name: str, value: object = None) -> None:
        """Send the child a message."""
    def cancel(self, reason: str = "") -> None:
        """Cancel the child; `result()` raises `RunCancelled` once it has ended."""

class OtherRun:
    """A run that another part of the system has started. It holds no state: two of one id are the same."""
    @property
    def id(self) -> str:
        """The id of the run."""
    @overload
    def result(self, returns: type[T]) -> T: ...
    @overload
    def result(self, returns: Any = ...) -> Any: ...
    @overload
    def state(self, key: str, type: type[T], *, default: T) -> T: ...
    @overload
    def state(self, key: str, type: type[T]) -> T | None: ...
    @overload
    def state(self, key: str, type: Any = ..., *, default: Any = ...) -> Any: ...
    @overload
    def wait_state(
        self, key: str, wanted: T | Callable[[T], bool], type: type[T], *, timeout: Duration | None = None
    ) -> T: ...
    @overload
    def wait_state(self, key: str, wanted: Any = ..., type: Any = ..., *, timeout: Duration | None = None) -> Any: ...
    @overload
    def stream(
        self, name: str, type: type[T], *, after: int | None = None, follow: bool = True
    ) -> Generator[StreamItem[T]]: ...
    @overload
    def stream(
        self, name: str, type: Any = ..., *, after: int | None = None, follow: bool = True
    ) -> Generator[StreamItem[Any]]: ...
    def send(self, channel: Channel[T] | str, value: T | Any = None, *, key: str | None = None) -> None:
        """Send the run a message, exactly once; see `ctx.send`."""
    def cancel(self, reason: str = "") -> None:
        """Cancel the run; `result()` raises `RunCancelled` once it has ended.

        A run that has finished or does not exist stays as it is.
        """

class Saga:
    """A block that undoes its steps if an exception leaves it. Made by `ctx.saga()`, for `with`."""
    @property
    def errors(self) -> Mapping[str, Exception]:
        """Errors of undos that failed, by the location of the step that was to be undone."""
    def keep(self) -> None:
        """Make the block's work so far final: it will not be undone."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

def begin(function: Callable[..., Any], given: AsyncContext) -> Coroutine[Any, Any, Any]:
    """Begin a `def` workflow: a coroutine that calls it with the blocking view of a context."""

def view(target: Any) -> Any:
    """Make the blocking view of an object; values of other classes stay as they are."""
