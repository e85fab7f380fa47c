"""`@step`: options on an ordinary function, and the name under which its result is recorded.

With `step_info()` and `activity_info()`, a running step or activity asks about its own attempt.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from types import FunctionType, MethodType
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

from msgspec import UNSET, Struct, UnsetType

from perdure.core.ids import check_name
from perdure.core.limits.breaker import Breaker, check_breaker
from perdure.core.limits.key_function import check_key_functions
from perdure.core.limits.limit import Limit, check_limits
from perdure.core.model.headers import Headers
from perdure.core.option_checks import check_flag, check_known, check_retry, check_time
from perdure.core.policy.retry import Retry
from perdure.core.printed_text import brief
from perdure.core.time.duration import NEVER, Duration, moment_of
from perdure.errors import BadArguments, UsageError
from perdure.workflow.signature import describe, type_hints

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS = "__perdure_step__"
_SPEC = "__perdure_spec__"


class StepOptions(TypedDict, total=False):
    """Options of a step, as users write them: in `@step(...)` and in `ctx.options(...)`.

    None leaves an option alone.
    """

    #: Name under which the result is recorded; the function's own by default.
    name: str | None
    #: When to retry, or the number of attempts.
    retry: Retry | int | None
    #: Longest duration of one attempt.
    timeout: Duration | None
    #: Continue the workflow before the result is durable; the record is written with the next one.
    ephemeral: bool | None
    #: Record the beginning of each attempt before it is executed, so that a crash in between is not followed by another
    #: attempt.
    at_most_once: bool | None
    #: Run a sync function in a process of its own, which is killed after `timeout`.
    process: bool | None
    #: Bound on concurrency or rate, over all processes.
    limit: Limit | Sequence[Limit] | None
    #: Circuit breaker of the dependency that the step calls.
    breaker: Breaker | None


class StepSettings(Struct, frozen=True, kw_only=True):
    """Checked options of a step; `UNSET` leaves an option to the next outer level."""

    name: str | UnsetType = UNSET
    retry: Retry | UnsetType = UNSET
    timeout: float | UnsetType = UNSET
    ephemeral: bool | UnsetType = UNSET
    at_most_once: bool | UnsetType = UNSET
    using: Callable[[], Any] | UnsetType = UNSET
    undo: Callable[[Any], Any] | UnsetType = UNSET
    process: bool | UnsetType = UNSET
    limit: tuple[Limit, ...] | UnsetType = UNSET
    breaker: Breaker | UnsetType = UNSET

    def over(self, other: StepSettings) -> StepSettings:
        """These settings, with what they leave unset taken from `other`."""
        if self is NO_STEP_SETTINGS or other is NO_STEP_SETTINGS:
            return other if self is NO_STEP_SETTINGS else self
        return StepSettings(
            **{
                name: getattr(self, name) if getattr(self, name) is not UNSET else getattr(other, name)
                for name in self.__struct_fields__
            }
        )


NO_STEP_SETTINGS = StepSettings()


def make_step_settings(
    options: StepOptions, *, using: Callable[[], Any] | None = None, undo: Callable[[Any], Any] | None = None
) -> StepSettings:
    """Check the options that a user wrote. Raises `UsageError` and its subclasses."""
    check_known(options, StepOptions, "a step")
    if using is not None and not callable(using):
        raise UsageError(
            f"using={brief(using)} has to be a function that returns a connection, such as `engine.connect`"
        )
    if undo is not None and not callable(undo):
        raise UsageError(f"undo={brief(undo)} has to be a function that takes the step's result")
    name, ephemeral, process = options.get("name"), options.get("ephemeral"), options.get("process")
    policy, timeout = check_retry(options.get("retry")), check_time("timeout", options.get("timeout"))
    once, limit = options.get("at_most_once"), options.get("limit")
    return StepSettings(
        name=UNSET if name is None else check_name(name, "step name"),
        retry=UNSET if policy is None else policy,
        timeout=UNSET if timeout is None else timeout,
        ephemeral=UNSET if ephemeral is None else check_flag("ephemeral", ephemeral),
        at_most_once=UNSET if once is None else check_flag("at_most_once", once),
        using=UNSET if using is None else using,
        undo=UNSET if undo is None else undo,
        process=UNSET if process is None else check_flag("process", process),
        limit=UNSET if limit is None else check_limits(limit),
        breaker=check_breaker(options.get("breaker")) or UNSET,
    )


class UndoableDecorator(Protocol[R]):
    """Decorator of a function whose result is what its undo takes."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Callable[P, Coroutine[object, None, R]]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def step(function: F, /) -> F: ...


@overload
def step(**options: Unpack[StepOptions]) -> Callable[[F], F]: ...


@overload
def step(*, undo: Callable[[R], Any], **options: Unpack[StepOptions]) -> UndoableDecorator[R]: ...


def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    undo: Callable[[Any], Any] | None = None,
    **options: Unpack[StepOptions],
) -> Any:
    """Attach options to a function for when it runs as a step; the function itself is unchanged.

    A bare `@step` changes nothing: any function can be a step.

    `name`: name under which the result is recorded; the function's own by default.
    `retry`: a `Retry`, or the number of attempts.
    `timeout`: longest duration of one attempt.
    `ephemeral`: continue the workflow before the result is durable; the record is written with the next one.
    `at_most_once`: record the beginning of each attempt before it is executed. If the worker is lost in between, the
    workflow gets `StepInterrupted`, and the step is not executed again. A step without a `retry` of its own is not
    retried after an error either.
    `undo`: a function that takes the step's result and undoes it if the saga fails; see `Context.saga`.
    `process`: run a sync function that keeps a processor busy in a process of its own, which is killed after `timeout`.
    `limit`: bound on concurrency or rate, over all processes. A run whose step waits for a limit or breaker holds no
    worker.
    `breaker`: circuit breaker of the dependency that the step calls.
    """
    settings = make_step_settings(options, undo=undo)

    def attach(function: F) -> F:
        if not callable(function):
            raise BadArguments(f"@step takes its options by name, such as @step(name='charge'), not {brief(function)}")
        check_function(function)
        if settings.process is True:
            check_for_process(function)
        if settings.limit:
            _check_keys(function, settings.limit)
        try:
            setattr(function, _OPTIONS, settings)
        except (AttributeError, TypeError):  # a builtin, a bound method or a class that cannot be changed
            raise BadArguments(
                f"@step cannot attach options to {describe(function)}; give them where it is called: "
                "`ctx.options(...).step(...)`"
            ) from None
        return function

    return attach if function is None else attach(function)


#: Attribute of classes of ours that look like functions or values: says what to use in their place.
ADVICE = "__perdure_advice__"

_PLAIN = (FunctionType, MethodType)

#: Flags of the code of functions with a `yield`.
_YIELDS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def refuse_advised(value: object) -> None:
    """Raise `BadArguments` for an activity, a workflow or a call in the place of a function or awaitable."""
    advice = getattr(value, ADVICE, None)
    if isinstance(advice, str):
        raise BadArguments(f"a step or branch is a function, not {brief(value)}, {advice}")


def check_function(function: object) -> None:
    """Raise `BadArguments` for a value that cannot be a step: a coroutine or a result, an activity or a call."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, _PLAIN):
        return
    refuse_advised(function)
    if inspect.iscoroutine(function):
        name = function.__qualname__.rpartition(".")[2]
        function.close()
        raise BadArguments(
            f"a step is a function and its arguments, not the coroutine that {name}(...) returns; "
            f"write `ctx.step({name}, ...)` instead of `ctx.step({name}(...))`"
        )
    if not callable(function):
        kind = "" if function is None else f" of type {type(function).__name__}"
        raise BadArguments(
            f"a step is a function and its arguments, not {brief(function)}{kind}; "
            "write `ctx.step(function, ...)` instead of `ctx.step(function(...))`, which calls it before the step"
        )


def check_at_most_once(options: StepSettings, function: Callable[..., Any], *, transaction: bool = False) -> None:
    """Raise `UsageError` if a step with `at_most_once` is a transaction, or ephemeral."""
    if transaction:
        raise UsageError(
            f"{describe(function)} has at_most_once=True and is called through ctx.transaction, whose writes happen "
            "exactly once; leave the option out, or call it through ctx.step"
        )
    if options.ephemeral is True:
        raise UsageError(
            f"{describe(function)} has at_most_once=True and ephemeral=True, which may forget that it was executed; "
            "choose one of them"
        )


def check_for_process(function: Callable[..., Any]) -> None:
    """Raise `UsageError` if a function cannot run in a process of its own."""
    if is_async(function):
        raise UsageError(
            f"{describe(function)} is an `async def`, which runs on the worker's loop; "
            "process=True is for functions that block"
        )


class StepSpec(Struct, frozen=True):
    """A function as a step: its name, options and result type."""

    function: Callable[..., Any]
    #: None for a lambda, which has no name to record its result under.
    name: str | None
    options: StepSettings
    #: Calling the function gives a coroutine. Such steps run on the worker's loop, others in a thread.
    is_async: bool
    #: Type that the result is decoded to.
    returns: Any
    #: Distinguishes functions with the same name; the same for each instance of a method.
    identity: object


def spec_of(function: Callable[..., Any]) -> StepSpec:
    """Inspect a function as a step; the result is cached on plain functions.

    Raises `BadArguments` for bad annotations.
    """
    known: object = getattr(function, _SPEC, None)
    # `functools.wraps` copies attributes, and a method has those of its function, so that either may carry the spec of
    # another function.
    if type(known) is StepSpec and known.function is function:
        return known
    spec = _inspect(function)
    if type(function) is FunctionType:
        setattr(function, _SPEC, spec)
    return spec


def _inspect(function: Callable[..., Any]) -> StepSpec:
    check_function(function)
    inner = innermost(function)
    if getattr(getattr(inner, "__code__", None), "co_flags", 0) & _YIELDS:
        raise BadArguments(
            f"the step {describe(inner)} has a `yield`; a step returns one result: build a list in it and return the "
            "list"
        )
    hints = type_hints(inner)
    _check_parameters(inner, hints)
    options = getattr(inner, _OPTIONS, NO_STEP_SETTINGS)
    return StepSpec(
        function=function,
        name=_name_of(function),
        options=options if isinstance(options, StepSettings) else NO_STEP_SETTINGS,
        is_async=is_async(function),
        returns=_awaited(hints.get("return", Any)),
        identity=getattr(inner, "__code__", inner),
    )


def _check_parameters(function: Callable[..., Any], hints: dict[str, Any]) -> None:
    """Raise `BadArguments` if a step declares a parameter of a class that stays in the workflow, such as `Context`."""
    for name, declared in hints.items():
        if name != "return" and isinstance(declared, type) and isinstance(advice := vars(declared).get(ADVICE), str):
            raise BadArguments(
                f"the step {describe(function)} takes {name}: {declared.__name__}, {advice}; call it directly, "
                f"`await {getattr(function, '__name__', 'function')}({name}, ...)`, or leave the parameter out"
            )


def _awaited(declared: Any) -> Any:
    """The result type behind an `Awaitable[...]`, which a function that is no `async def` may declare."""
    origin = typing.get_origin(declared)
    arguments = typing.get_args(declared)
    return arguments[-1] if arguments and isinstance(origin, type) and issubclass(origin, Awaitable) else declared


def is_declared_step(function: object) -> bool:
    """Tell whether a function is decorated with `@step`."""
    return isinstance(getattr(function, _OPTIONS, None), StepSettings)


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind partials, bound methods and callable objects."""
    while (inner := _called(function)) is not function:
        function = inner
    return function


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a partial, a bound method or a callable object calls; a plain function itself."""
    if isinstance(function, functools.partial):
        return function.func
    if inspect.ismethod(function):
        return function.__func__
    if not hasattr(function, "__qualname__"):
        return type(function).__call__
    return function


def _check_keys(function: Callable[..., Any], limits: tuple[Limit, ...]) -> None:
    """Raise `UsageError` if the key function of a limit names a parameter that a step does not have."""
    keys = [limit.key_function for limit in limits if limit.key_function is not None]
    if not keys:
        return
    parameters = _parameters(innermost(function))
    if all(each.kind is not each.VAR_KEYWORD for each in parameters.values()):
        check_key_functions(keys, parameters, f"the step {describe(function)}")


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return _signature(function).parameters
    except (ValueError, TypeError):
        raise UsageError(
            f"the parameters of {describe(function)} cannot be read, and a key of its limit needs their names; put it "
            "into a function of your own"
        ) from None


#: Signatures of steps whose limits have keys.
_signatures: WeakKeyDictionary[Callable[..., Any], inspect.Signature] = WeakKeyDictionary()


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    if type(function) is not FunctionType:
        return inspect.signature(function)
    known = _signatures.get(function)
    if known is None:
        known = _signatures[function] = inspect.signature(function)
    return known


def bind_step(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, transaction: bool
) -> dict[str, Any]:
    """Arguments of a step by name, with defaults and with those of a partial.

    Leaves out the object of a method, and the connection of a transaction step. Raises `UsageError`, and `TypeError`
    for arguments that do not fit.
    """
    if transaction:
        args = (_NO_ARGUMENT, *args)
    while (inner := _called(function)) is not function:
        if isinstance(function, functools.partial):
            # The partial itself combines its arguments with those of the call.
            args, kwargs = functools.partial(_given, *function.args, **function.keywords)(*args, **kwargs)
        else:
            args = (_NO_ARGUMENT, *args)
        function = inner
    parameters = _parameters(function)
    bound = _signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for name, each in parameters.items():
        if each.kind is each.VAR_KEYWORD:
            arguments |= arguments.pop(name)
    return {name: value for name, value in arguments.items() if value is not _NO_ARGUMENT}


#: In place of what a key does not get.
_NO_ARGUMENT = object()


def _given(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def _name_of(function: Callable[..., Any]) -> str | None:
    """Name of a function, `Class.method`, of a partial's function, or of an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    qualified: str = getattr(function, "__qualname__", None) or type(function).__qualname__
    name = qualified.rsplit("<locals>.", 1)[-1]
    return None if "<lambda>" in name else check_name(name, "step name")


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether calling a function gives a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


class AttemptControl(Protocol):
    """The worker's side of an attempt at a step."""

    def is_over(self) -> bool:
        """Tell whether the result is no longer wanted."""

    def emit(self, stream: str, value: object) -> None:
        """Append to a stream of the run."""

    def credentials(self) -> Mapping[str, Any]:
        """Credentials that were handed over with the run."""

    def headers(self) -> Headers:
        """Headers of the run."""

    def run_fields(self) -> dict[str, object]:
        """Fields of log records about the run, besides its id."""


class StepInfo(Struct, frozen=True):
    """The current attempt at a step."""

    run_id: str
    #: Location of the step in its workflow, such as `charge#2`. With the run id it makes a good idempotency key.
    location: str
    #: Number of the attempt, from 1. Interrupted attempts count.
    attempt: int
    #: Time when this attempt times out or the run expires, in microseconds; see `deadline`.
    due: int
    _made_by: AttemptControl

    def is_cancelled(self) -> bool:
        """Tell whether the result is no longer wanted: after a timeout, a cancellation or a lost lease."""
        return self._made_by.is_over()

    def emit(self, stream: str, value: object) -> None:
        """Append to a stream of the run while the step is running; others follow it with `handle.stream(name)`.

        May be called from any thread; items keep their order. They are written with the run's next turn and stay, even
        if the step fails: another attempt emits again, and readers tell the two apart by the `source` of an item. If
        too much is unwritten, a step in a thread waits, and an async step gets `StreamFull`.
        """
        self._made_by.emit(stream, value)

    def credentials(self) -> Mapping[str, Any]:
        """Credentials that a queue handler gave for the run, like `perdure.credentials`."""
        return self._made_by.credentials()

    @property
    def headers(self) -> Headers:
        """Headers of the run: texts by name, given at its start or inherited from the run that started it."""
        return self._made_by.headers()

    @property
    def log_fields(self) -> dict[str, object]:
        """Fields of log records inside of this attempt: `run_id`, `run_type`, `location`, `attempt`, `trace_id`."""
        run = self._made_by.run_fields()
        return {"run_id": self.run_id, **run, "location": self.location, "attempt": self.attempt}

    @property
    def deadline(self) -> datetime.datetime | None:
        """Time when this attempt times out or the run expires; None for never."""
        return None if self.due >= NEVER else moment_of(self.due)


class ActivityControl(AttemptControl, Protocol):
    """The worker's side of an attempt at an activity."""

    def token(self) -> str:
        """Make the token of the attempt."""

    def beat(self, details: object) -> None:
        """Record a heartbeat."""

    def is_cancelled(self) -> bool:
        """Tell whether the result is no longer wanted."""

    async def cancelled(self) -> None:
        """Wait until the result is no longer wanted."""

    def uncancel(self) -> bool:
        """Take the cancellation back; True if there was one."""


class ActivityInfo(StepInfo, frozen=True):
    """The current attempt at an activity. Its `location` is the activity's type."""

    type: str
    #: Number of attempts allowed in all; None: no limit. It grows with each interrupted attempt, so that the last
    #: attempt is the one with this number.
    max_attempts: int | None
    #: Id of the run that awaits it, if there is one.
    parent_id: str | None
    #: Different for each execution, also of the same attempt after a crash.
    attempt_id: str
    #: Time since when it was ready, in microseconds since the epoch, by the database's clock. After a wait for a limit,
    #: the time of admission, which is the time that a rate counts.
    ready_at: int
    #: Details of the last heartbeat before this attempt; None if there was none.
    last_heartbeat: Any
    _by: ActivityControl

    @property
    def token(self) -> str:
        """Token of this attempt, for a program that ends it after the activity has returned `Pending`.

        `engine.runs.complete`, `fail` and `heartbeat` take it. It is safe in a URL, and cannot be guessed. The next
        attempt has another token; an attempt that begins again after a crash has the same one.
        """
        return self._by.token()

    def heartbeat(self, details: object = None) -> None:
        """Record a heartbeat, with details of the progress for the next attempt (`last_heartbeat`) and for inspection.

        May be called from any thread. An activity with a `heartbeat` timeout has to send heartbeats more often than
        that. Details are written with the next commit, at most a few times a second. Raises `EncodeError`.
        """
        self._by.beat(details)

    def is_cancelled(self) -> bool:
        """Tell whether to stop: the run was cancelled, timed out, or was lost to another worker.

        An activity that calls this gets the worker's `grace` to stop by itself; one that never does is interrupted at
        once.
        """
        return self._by.is_cancelled()

    async def cancelled(self) -> None:
        """Wait until there is a reason to stop. Like `is_cancelled`, this gives the activity the worker's `grace`."""
        await self._by.cancelled()

    def uncancel(self) -> bool:
        """Take the cancellation of the activity back; True if there was one.

        A cancelled activity ends as cancelled, however its code ends. After this call it goes on as if it had not been
        cancelled, and can be cancelled again. May be called from any thread.
        """
        return self._by.uncancel()


current_step: ContextVar[StepInfo] = ContextVar("perdure_step")


def step_info() -> StepInfo:
    """The attempt of the calling step. Raises `UsageError` outside of a step."""
    try:
        return current_step.get()
    except LookupError:
        raise UsageError("step_info() was called outside of a step") from None


def activity_info() -> ActivityInfo:
    """The attempt of the calling activity. Raises `UsageError` outside of an activity."""
    info = current_step.get(None)
    if not isinstance(info, ActivityInfo):
        raise UsageError("activity_info() was called outside of an activity")
    return info


def credentials() -> Mapping[str, Any]:
    """Credentials that the `credentials` hook of a queue handler gave for the calling step's run; empty without one.

    They stay in memory, and only while a worker holds the run. Raises `UsageError` outside of a step.
    """
    try:
        return current_step.get().credentials()
    except LookupError:
        raise UsageError("credentials() was called outside of a step") from None
