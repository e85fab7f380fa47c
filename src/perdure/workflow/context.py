"""`Context`: the durable operations that a workflow can ask for.

Each method that does something durable takes its location in the history when it is *called*, and returns an
`Operation`: await it, or pass it to `asyncio.gather`, `asyncio.wait` or a `TaskGroup`, like any other future.
"""

from __future__ import annotations

import datetime
import logging
import uuid
from asyncio.events import _get_running_loop
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Literal, Never, NoReturn, ParamSpec, TypeVar, Unpack, cast, overload

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from perdure.core.ids import check_id, check_name
from perdure.core.model.attributes import AttributeValue, attribute_outputs, make_attributes
from perdure.core.model.cloud_event import event_attributes, event_run_id, make_event
from perdure.core.model.events import event_id
from perdure.core.model.headers import NO_HEADERS, Headers, check_headers
from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.model.record import RecordKind
from perdure.core.model.run import OnClose
from perdure.core.option_checks import check_priority, check_whole
from perdure.core.printed_text import brief
from perdure.core.time.duration import NEVER, Duration, Moment, instant, microseconds, moment_of
from perdure.errors import BadArguments, InvalidName, UsageError
from perdure.workflow.answers import QuestionHandler, QuestionType, Replies, check_callables
from perdure.workflow.branches import Branch, JoinableBranch, NamedBranch, RaceEnd, RaceResult, each, join, race
from perdure.workflow.channels import (
    Channel,
    Envelope,
    Question,
    ReceivedQuestion,
    expected_message,
    topic,
)
from perdure.workflow.child import Child
from perdure.workflow.endless_loop import Body, loop
from perdure.workflow.other_run import OtherRun
from perdure.workflow.outcomes import CAUGHT, Failed, FailureKind, Succeeded, outcome
from perdure.workflow.runtime import (
    ChildOptions,
    ContinueAsNewSignal,
    ExpectedMessage,
    Operation,
    ReceivedMessage,
    Runtime,
    StepRequest,
    TopicSubscription,
)
from perdure.workflow.saga import Saga, current_undos
from perdure.workflow.scopes import WorkflowRandom, shielded
from perdure.workflow.signature import describe
from perdure.workflow.step import (
    NO_STEP_SETTINGS,
    StepOptions,
    StepSettings,
    check_at_most_once,
    check_for_process,
    make_step_settings,
    spec_of,
)

if TYPE_CHECKING:
    from perdure.workflow.definition import Call, Definition

A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")
Q = TypeVar("Q")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
V = TypeVar("V")

_REMOVABLE = {
    "step": RecordKind.STEP,
    "timer": RecordKind.TIMER,
    "child": RecordKind.CHILD,
    "version": RecordKind.VERSION,
}


class NotAStep:
    """Type of `ctx.step(activity)`, which type checkers refuse to await; an activity is called by `ctx.call`."""


class Context:
    """The durable side of a workflow; the workflow function gets it as its first argument."""

    __slots__ = ("_options", "_runtime")
    __perdure_advice__ = "which only workflow code can use"

    def __init__(self, runtime: Runtime, options: StepSettings = NO_STEP_SETTINGS) -> None:
        self._runtime = runtime
        self._options = options

    # Steps

    # An activity or a workflow looks like a function. Its own overload gives it a type that cannot be awaited.
    @overload
    def step(  # type: ignore[overload-overlap] # the narrower overload is meant to differ
        self, function: Definition[..., Any], /, *args: Any, **kwargs: Any
    ) -> NotAStep: ...

    @overload
    def step(self, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> Operation[R]: ...

    @overload
    def step(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Operation[R]: ...

    def step(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function once and record its result; replay returns the recorded result.

        Async functions run on the worker's event loop, others in a thread. The workflow gets the result as decoded from
        the database. The step's retry policy repeats failed attempts; the last error is raised here.
        """
        spec = spec_of(function)
        options = spec.options if self._options is NO_STEP_SETTINGS else self._options.over(spec.options)
        if options is NO_STEP_SETTINGS and spec.name is not None:
            return self._runtime.step(StepRequest(spec.name, spec, args, kwargs, options))
        name = options.name if isinstance(options.name, str) else spec.name
        if name is None:
            raise InvalidName(
                'a lambda has no name to record its result under; give it one: `ctx.options(name="...").step(...)`'
            )
        if options.process is True:
            check_for_process(function)
        if options.at_most_once is True:
            check_at_most_once(options, function)
        operation = self._runtime.step(StepRequest(name, spec, args, kwargs, options))
        if options.undo is not UNSET:
            current_undos(self._runtime).watch(operation, options.undo)
        return operation

    @overload
    def transaction(
        self, function: Callable[Concatenate[Any, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Operation[R]: ...

    @overload
    def transaction(
        self, function: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Operation[R]: ...

    def transaction(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function in a transaction of the engine's database; its writes there happen exactly once.

        The function gets a connection before its other arguments: one of the engine's own driver, or one of another
        library by `ctx.options(using=...)`. Its writes and the record of its result commit together. In all other
        respects it is a step.
        """
        spec = spec_of(function)
        options = replace(self._options.over(spec.options), ephemeral=UNSET)
        if options.at_most_once is True:
            check_at_most_once(options, function, transaction=True)
        if options.process is True:
            raise UsageError(f"{describe(function)} is to run in a transaction, which cannot be had in another process")
        name = options.name if isinstance(options.name, str) else spec.name
        if name is None:
            raise InvalidName(
                "a lambda has no name to record its result under; give it one: "
                '`ctx.options(name="...").transaction(...)`'
            )
        operation = self._runtime.step(StepRequest(name, spec, args, kwargs, options, transaction=True))
        if options.undo is not UNSET:
            current_undos(self._runtime).watch(operation, options.undo)
        return operation

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
        chosen = make_step_settings(options, using=using, undo=undo)
        return Context(self._runtime, chosen.over(self._options))

    # Time

    def sleep(self, duration: Duration) -> Operation[None]:
        """Wait for any duration without holding a slot or a thread. `asyncio.sleep` does the same."""
        return cast("Operation[None]", self._runtime.sleep_until(self._runtime.time + microseconds(duration)))

    def sleep_until(self, when: datetime.datetime) -> Operation[None]:
        """Wait until a point in time, given with a time zone."""
        return cast("Operation[None]", self._runtime.sleep_until(instant(when, self._runtime.time)))

    def shield(self, awaitable: Awaitable[R]) -> Coroutine[Any, Any, R]:
        """Protect an awaitable from a timeout around it and from the cancellation of the run.

        `await ctx.shield(ctx.step(...))` waits until the step has ended, and raises the interruption only then.
        """
        return shielded(awaitable)

    def uncancel(self) -> bool:
        """Take the cancellation of the run back, after `except asyncio.CancelledError`; True if there was one.

        A cancelled run ends as cancelled, however its code ends. After this call the run goes on as if it had not been
        cancelled, and can be cancelled again. Only the workflow function itself may call it, not one of its tasks.
        """
        return self._runtime.uncancel()

    def now(self) -> datetime.datetime:
        """The workflow's time: the time of the last record that was applied; the same on replay."""
        return moment_of(self._runtime.time)

    # Messages

    @overload
    def receive(
        self, channel: Channel[T], *, timeout: Duration | None = None, correlation: str | None = None
    ) -> Operation[T]: ...

    @overload
    def receive(
        self, channel: str, type: type[T], *, timeout: Duration | None = None, correlation: str | None = None
    ) -> Operation[T]: ...

    @overload
    def receive(
        self, channel: str, type: Any = ..., *, timeout: Duration | None = None, correlation: str | None = None
    ) -> Operation[Any]: ...

    def receive(
        self,
        channel: Channel[Any] | str,
        type: Any = Any,
        *,
        timeout: Duration | None = None,
        correlation: str | None = None,
    ) -> Operation[Any]:
        """Take the next message of a channel from the run's inbox; wait if there is none.

        A message stays in the inbox until it is received. Raises `TimeoutError` after `timeout`; a message that arrives
        later is left for the next receive. A message that is in the inbox when a worker takes up the run is received
        even if the time is over. With `correlation`, receives what `engine.runs.broadcast` sends under that
        name and value; the run is subscribed from its first such receive on.
        """
        wanted = expected_message(channel, type)
        if correlation is not None:
            wanted = ExpectedMessage(topic(wanted.name, correlation), wanted.type)
            self._runtime.subscribe(TopicSubscription(wanted.name, True))
        return cast("Operation[Any]", self._runtime.receive([wanted], self._due(timeout), named=False))

    @overload
    def receive_any(
        self, first: Channel[T], second: Channel[Q], /, *, timeout: Duration | None = None
    ) -> Operation[ReceivedMessage[T | Q]]: ...

    @overload
    def receive_any(
        self, first: Channel[T], second: Channel[Q], third: Channel[A], /, *, timeout: Duration | None = None
    ) -> Operation[ReceivedMessage[T | Q | A]]: ...

    @overload
    def receive_any(self, *channels: Channel[T], timeout: Duration | None = None) -> Operation[ReceivedMessage[T]]: ...

    @overload
    def receive_any(
        self, *channels: Channel[Any], timeout: Duration | None = None
    ) -> Operation[ReceivedMessage[Any]]: ...

    def receive_any(self, *channels: Channel[Any], timeout: Duration | None = None) -> Operation[ReceivedMessage[Any]]:
        """Take the next message of any of these channels, in order of arrival."""
        if not channels:
            raise BadArguments("receive_any() needs at least one channel to wait for")
        wanted = [expected_message(channel) for channel in channels]
        return cast("Operation[ReceivedMessage[Any]]", self._runtime.receive(wanted, self._due(timeout), named=True))

    async def receive_many(
        self, channel: Channel[T] | str, type: type[T] | Any = Any, *, limit: int, timeout: Duration | None = None
    ) -> list[T]:
        """Take up to `limit` messages of a channel.

        Without a timeout: waits for the first message, then returns all that have arrived; a worker reads at most 1,000
        at once. With a timeout: waits for `limit` messages or until the time is over, and returns what there is,
        possibly nothing.
        """
        check_whole("limit", limit, 1, error=BadArguments)
        wanted = expected_message(channel, type)
        due = self._due(timeout)
        taken: list[T] = []
        while len(taken) < limit:
            if due is None and taken and not self._runtime.has_arrived(wanted.name):
                break
            receiving = self._runtime.receive([wanted], due, named=False)
            if due is None and taken and not receiving.done():
                # The messages that had arrived were set aside.
                receiving.cancel()
                break
            try:
                taken.append(await receiving)
            except TimeoutError:
                break
        return taken

    @overload
    async def receive_question(
        self, question: Question[Q, A], *, timeout: Duration | None = None
    ) -> ReceivedQuestion[Q, A]: ...

    @overload
    async def receive_question(
        self, question: str, type: type[T], *, timeout: Duration | None = None
    ) -> ReceivedQuestion[T, Any]: ...

    @overload
    async def receive_question(
        self, question: str, type: Any = ..., *, timeout: Duration | None = None
    ) -> ReceivedQuestion[Any, Any]: ...

    async def receive_question(
        self, question: Question[Any, Any] | str, type: Any = Any, *, timeout: Duration | None = None
    ) -> ReceivedQuestion[Any, Any]:
        """Take the next question of that name, asked with `handle.ask(...)`; answer it with its `reply(...)`."""
        wanted = QuestionType(question, type)
        letter: Envelope[Any] = await self._runtime.receive([wanted.expected], self._due(timeout), named=False)
        replies = Replies(self._runtime, wanted, letter.key)
        return ReceivedQuestion(letter.value, replies.reply, replies.fail)

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

    def answer(
        self,
        question: Question[Any, Any] | str,
        handler: Callable[[Any], Any],
        type: Any = Any,
        *,
        validate: Callable[[Any], object] | None = None,
    ) -> None:
        """Answer every question of that name from now on, until the run ends. Call this first in a workflow.

        `handler` gets the value of a question and returns the answer, or awaits it. If the handler raises an error, the
        asking side gets that error, and the run goes on.

        `validate` gets the value before anything is recorded. If it raises an error, the asking side gets a
        `QuestionRefused` with its message, and the history has no record of the question. It may read the state of the
        workflow. It must not change it, and must not use the context: replay does not call it. A question that arrived
        before this call was recorded then; it is validated by the workflow's code.
        """
        check_callables(handler, validate)
        wanted = QuestionType(question, type)
        if validate is not None:
            self._runtime.validate_questions(wanted.expected, validate)
        QuestionHandler(self._runtime, wanted, handler, validate).listen()

    def send(self, run: str, channel: Channel[T] | str, value: T | Any = None, *, key: str | None = None) -> None:
        """Send a message to another run, in the same turn as the record that led to it.

        The message is sent exactly once. Messages with the same `key` are delivered once, from whichever run. A run
        that has finished or does not exist gets nothing.
        """
        OtherRun(self._runtime, check_id(run, "run id")).send(channel, value, key=key)

    def publish(self, key: str, value: object) -> None:
        """Publish the latest value of a key; others read it with `handle.state(key)`."""
        name = check_name(key, "key of a state")
        payload = self._runtime.encode(value, f"state {name!r}")
        output = NewOutput(kind=OutputKind.STATE, name=name, payload=payload, key=f"state:{name}")
        self._runtime.effect("publish", lambda _: output)

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
        # Imported late: definitions are made of this module.
        from perdure.workflow.definition import event_call

        plain = msgspec.json.decode(self._runtime.encode(data, f"data of event {brief(type)}"))
        event = make_event(type, plain, source=source, subject=subject, key=key, id=id, time=self.now())
        run_id = None if id is None else event_run_id(id)
        options = ChildOptions(id=run_id, attributes=make_attributes(event_attributes(event)))
        started = self._runtime.start(event_call(event), options, 0)
        return event.id or started

    def set_attributes(self, attributes: Mapping[str, AttributeValue | None]) -> None:
        """Set attributes of the run, by which others find it; None removes one, and others stay as they are.

        A value is text of up to 255 bytes, a number, a bool or an aware datetime. It is stored as plain text.
        """
        for output in attribute_outputs(attributes):
            self._runtime.effect("attribute", partial(_given, output))

    def emit(self, stream: str, value: object) -> None:
        """Append an item to a stream; others follow it with `handle.stream(name)`."""
        name = check_name(stream, "name of a stream")
        payload = self._runtime.encode(value, f"item of stream {name!r}")
        self._runtime.effect("emit", lambda key: NewOutput(kind=OutputKind.STREAM, name=name, payload=payload, key=key))

    def _due(self, timeout: Duration | None) -> int | None:
        return None if timeout is None else self._runtime.time + microseconds(timeout)

    # Branches and loops

    def branch(self, body: Branch[T]) -> NamedBranch[T]:
        """Make a branch for a field of the dataclass or of the `TypedDict` that `join` takes.

        The field names the branch and has the type of its result. The branch begins with the join.
        """
        return JoinableBranch(body)

    @overload
    def join(self, branches: Mapping[str, Branch[T]], *, name: str = "join") -> Operation[dict[str, T]]: ...

    @overload
    def join(self, branches: B, *, name: str = "join") -> Operation[B]: ...

    def join(self, branches: object, *, name: str = "join") -> Operation[Any]:
        """Run named branches concurrently, each in its own scope, until all have ended; returns their results by name.

        A branch is an awaitable, or a function that takes the context. If branches fail, `JoinError` has all of their
        errors; it is raised when every branch has ended. No branches give no results.

        Branches with results of different types stand in the fields of a dataclass or of a `TypedDict`, made by
        `branch`. The join returns that object, and each field has the status, the result and the error of its branch.
        """
        joined = join(self, self._runtime, branches, check_name(name, "name of a join"))
        return cast("Operation[Any]", joined)

    def race(
        self, branches: Mapping[str, Branch[T]], *, until: RaceEnd = "success", name: str = "race"
    ) -> Operation[RaceResult[T]]:
        """Run named branches concurrently until the first one succeeds; returns its name and value.

        The others are cancelled, may clean up, and leave no history. Raises `RaceError` if every branch fails, and
        `BadArguments` if there are none. `until="completion"` ends the race with the first branch that ends; if that
        branch failed, its error is raised.
        """
        raced = race(self, self._runtime, branches, until, check_name(name, "name of a race"))
        return cast("Operation[RaceResult[T]]", raced)

    @overload
    def map(
        self,
        function: Callable[Concatenate[Context, T, ...], Awaitable[R]],
        items: Iterable[T],
        *,
        limit: int | None = None,
        name: str = "map",
    ) -> Operation[list[R]]: ...

    @overload
    def map(
        self, function: Callable[[T], Awaitable[R]], items: Iterable[T], *, limit: int | None = None, name: str = "map"
    ) -> Operation[list[R]]: ...

    @overload
    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, limit: int | None = None, name: str = "map"
    ) -> Operation[list[R]]: ...

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], *, limit: int | None = None, name: str = "map"
    ) -> Operation[list[Any]]:
        """Run a function as a step for each item, at most `limit` at a time; returns the results in order.

        A function whose first parameter is a `Context` runs as workflow code instead of as a step. The first error
        cancels the other items and is raised.
        """
        mapped = each(self, self._runtime, function, items, limit, check_name(name, "name of a map"))
        return cast("Operation[list[Any]]", mapped)

    def loop(
        self, state: S, body: Body[S, V], *, name: str = "loop", commit_every: int = 20, keep: int = 0
    ) -> Operation[V]:
        """Call `body(ctx, state)` until it returns `Break(value)`; `Continue(state)` begins the next iteration.

        The loop records its state every `commit_every` iterations and deletes the history of finished iterations,
        except for the last `keep`. What an iteration starts has to end within it; only the state passes on to the next
        one.
        """
        looping = loop(self, self._runtime, state, body, check_name(name, "name of a loop"), commit_every, keep)
        return cast("Operation[V]", looping)

    def continue_as_new(self, call: Call[Any]) -> NoReturn:
        """End here and begin again under the same id with an empty history: `ctx.continue_as_new(poll(cursor))`.

        Messages that were not received stay in the inbox. Call it in the workflow function itself, not in a task.
        """
        self._runtime.check_main("continue_as_new")
        raise ContinueAsNewSignal(_check_call("ctx.continue_as_new", call, ()))

    # Other runs

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
    ) -> Operation[R]:
        """Start another workflow or activity as a child run and wait for its result; its error is raised here.

        Giving up the wait, by a timeout or a cancellation, cancels the child.
        """
        options = _child_options(self._runtime.time, id, queue, priority, deadline, "cancel", attributes, headers)
        return cast("Operation[R]", self._runtime.call(_check_call("ctx.call", call, misplaced), options))

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
        """Start another workflow or activity as a child run without waiting; `await child` gives its result.

        `on_close` decides about a child that is still running when this run ends: "cancel" it, "abandon" it to go on by
        itself, or "wait" for it.
        """
        options = _child_options(self._runtime.time, id, queue, priority, deadline, on_close, attributes, headers)
        return Child(self._runtime, self._runtime.spawn(_check_call("ctx.spawn", call, misplaced), options))

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
        options = _child_options(self._runtime.time, id, queue, priority, deadline, "abandon", attributes, headers)
        wake_at = 0 if at is None else instant(at, self._runtime.time)
        return self._runtime.start(_check_call("ctx.start", call, misplaced), options, wake_at)

    @overload
    def event(self, name: str, type: type[T]) -> Operation[T]: ...

    @overload
    def event(self, name: str, type: Any = ...) -> Operation[Any]: ...

    def event(self, name: str, type: Any = Any) -> Operation[Any]:
        """Wait for the sticky event of a name and return its value; at once if it was emitted before.

        `engine.events.emit(name, value)` emits it. The run keeps the value that it got here, whatever is emitted later.
        """
        return cast("Operation[Any]", self._runtime.watch("event", event_id(name), type, event=True))

    def run(self, id: str) -> OtherRun:
        """Any run, by its id: `await ctx.run("order-17").result(Order)` waits for its end."""
        return OtherRun(self._runtime, check_id(id, "run id"))

    # Failure

    def outcome(
        self,
        what: Awaitable[T] | Callable[[Context], Awaitable[T]],
        *,
        name: str | None = None,
        catch: Collection[FailureKind] = CAUGHT,
    ) -> Operation[Succeeded[T] | Failed]:
        """Await an operation, or call a function of the context; returns `Succeeded` or `Failed` instead of raising.

        A function runs in its own scope, called `name`. Kinds of failure that are not in `catch` are raised; by default
        only a rollback is. A cancellation is always raised.
        """
        scope = None if name is None else check_name(name, "name of a block")
        return cast("Operation[Succeeded[T] | Failed]", outcome(self, self._runtime, what, scope, catch))

    def saga(self) -> Saga:
        """A block that undoes its steps, latest first, if an exception leaves it: `async with ctx.saga():`.

        A step is undone by its option `undo`, or by a call of `ctx.undo`. The exception is then raised again. A block
        that is left without an exception hands its undos to the saga around it. The run as a whole is the outermost
        saga.
        """
        return Saga(self._runtime)

    def undo(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Register a function and its arguments, to be run as a step if the saga fails."""
        spec = spec_of(function)
        options = spec.options if self._options is NO_STEP_SETTINGS else self._options.over(spec.options)
        name = options.name if isinstance(options.name, str) else spec.name
        if name is None:
            raise InvalidName(
                'a lambda has no name to record its result under; give it one: `ctx.options(name="...").undo(...)`'
            )
        current_undos(self._runtime).add(StepRequest(name, spec, args, kwargs, options))

    def keep(self) -> None:
        """Make the work of the innermost saga so far final: it will not be undone."""
        current_undos(self._runtime).keep()

    # Changes of the code

    def patched(self, name: str) -> bool:
        """Tell whether this run follows the changed code; False if it passed this place before the change was deployed.

        `if ctx.patched("new-tax"): ...` keeps unfinished runs on the old path. The answer is recorded at each place.
        """
        return self.version(name, 1) > 0

    def version(self, name: str, latest: int) -> int:
        """The version of the code that this run follows here: `latest`, or the latest one when the run came here.

        It is 0 for a run that passed this place before the call of `version` was added. The answer is recorded at each
        place; each iteration of a loop has its own.
        """
        check_name(name, "version name")
        if not isinstance(latest, int) or isinstance(latest, bool) or not 1 <= latest < 2**31:
            raise UsageError(f"the latest version of {name!r} has to be a whole number from 1, not {brief(latest)}")
        return self._runtime.version(name, latest)

    def removed(self, name: str, kind: Literal["step", "timer", "child", "version"]) -> Operation[Any]:
        """Stand in for an operation that was removed from the code, so that older runs still replay; await it.

        `await ctx.removed("charge", "step")` replaces a call of `charge`, `("sleep", "timer")` a sleep,
        `("shop.ship.v1", "child")` a child, `("new-tax", "version")` a `patched` or `version`. New runs skip it.
        The value is the recorded result of the step or child as plain data (numbers, texts, lists, dicts), or None.
        """
        if not isinstance(kind, str) or kind not in _REMOVABLE:
            raise UsageError(f"what was removed is one of {', '.join(_REMOVABLE)}, not {brief(kind)}")
        return cast("Operation[Any]", self._runtime.removed(check_name(name, "name"), _REMOVABLE[kind]))

    # The run itself

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._runtime.run_id

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is silent during replay, so that each line appears once."""
        return self._runtime.log

    @property
    def headers(self) -> Headers:
        """Headers of the run: texts by name, given at its start or inherited from the run that started it.

        Steps read them with `step_info().headers`, activities with `activity_info().headers`.
        """
        return self._runtime.headers

    @property
    def random(self) -> WorkflowRandom:
        """Random numbers that are the same on replay: `ctx.random()`, `ctx.random.choice(...)`."""
        return self._runtime.random

    def uuid(self) -> uuid.UUID:
        """A UUID that is the same on replay; good as an idempotency key."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)


def runtime_of(context: Context) -> Runtime:
    """Return the runtime of a context, for modules that build on it. `Context` keeps it out of users' sight."""
    return context._runtime


def running_context() -> Context | None:
    """Return the context of the workflow whose code calls, for libraries that are called without it; None elsewhere."""
    runtime = getattr(_get_running_loop(), "runtime", None)
    return None if runtime is None else Context(runtime)


def _check_call(where: str, call: Call[R], misplaced: tuple[Never, ...]) -> Call[R]:
    if misplaced or not hasattr(call, "arguments"):
        # Imported late: definitions are made of this module.
        from perdure.workflow.definition import call_hint, misplaced_hint

        if misplaced:
            raise BadArguments(misplaced_hint(where, call))
        raise UsageError(f"{where} takes a call such as `ship(order)`, not {call_hint(call)}")
    return call


def _given(output: NewOutput, _: str) -> NewOutput:
    return output


def _child_options(
    now: int,
    id: str | None,
    queue: str | None,
    priority: int | None,
    deadline: Moment | None,
    on_close: str,
    attributes: Mapping[str, AttributeValue] | None,
    headers: Mapping[str, str] | None,
) -> ChildOptions:
    if on_close not in tuple(OnClose):
        raise UsageError(f"on_close is {', '.join(OnClose)}, not {brief(on_close)}")
    return ChildOptions(
        id=None if id is None else check_id(id, "child id"),
        queue=None if queue is None else check_name(queue, "queue"),
        priority=check_priority(priority),
        deadline=NEVER if deadline is None else instant(deadline, now),
        on_close=OnClose(on_close),
        attributes=() if attributes is None else make_attributes(attributes),
        headers=NO_HEADERS if headers is None else check_headers(headers),
    )
