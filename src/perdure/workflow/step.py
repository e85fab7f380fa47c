"""`@step`: policy on an ordinary function, and how a step gets its name."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import FunctionType
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from msgspec import UNSET, Struct, UnsetType

from perdure.core.ids import check_name
from perdure.core.limits.breaker import Breaker, check_breaker
from perdure.core.limits.limit import Limit, check_limits
from perdure.core.option_checks import check_flag, check_retry, check_time
from perdure.core.policy.retry import Retry
from perdure.core.time.duration import Duration
from perdure.errors import UsageError
from perdure.workflow.signature import describe, type_hints

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS = "__perdure_step__"
_SPEC = "__perdure_spec__"


class StepOptions(Struct, frozen=True, kw_only=True):
    """What a step may be told; `UNSET` leaves it to the next outer level."""

    name: str | UnsetType = UNSET
    retry: Retry | UnsetType = UNSET
    timeout: float | UnsetType = UNSET
    ephemeral: bool | UnsetType = UNSET
    using: Callable[[], Any] | UnsetType = UNSET
    undo: Callable[[Any], Any] | UnsetType = UNSET
    process: bool | UnsetType = UNSET
    limit: tuple[Limit, ...] | UnsetType = UNSET
    breaker: Breaker | UnsetType = UNSET

    def over(self, other: StepOptions) -> StepOptions:
        """These options, filled up from `other`."""
        if self is NO_OPTIONS or other is NO_OPTIONS:
            return other if self is NO_OPTIONS else self
        return StepOptions(
            **{
                name: getattr(self, name) if getattr(self, name) is not UNSET else getattr(other, name)
                for name in self.__struct_fields__
            }
        )


NO_OPTIONS = StepOptions()


def make_options(
    *,
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: Duration | None = None,
    ephemeral: bool | None = None,
    using: Callable[[], Any] | None = None,
    undo: Callable[[Any], Any] | None = None,
    process: bool | None = None,
    limit: Limit | Sequence[Limit] | None = None,
    breaker: Breaker | None = None,
) -> StepOptions:
    """Validated options, from what a user writes. Raises `UsageError` and the like."""
    if using is not None and not callable(using):
        raise UsageError(f"using={using!r} has to be a function that gives a connection, such as `engine.connect`")
    if undo is not None and not callable(undo):
        raise UsageError(f"undo={undo!r} has to be a function that is given the step's result")
    policy, limited = check_retry(retry), check_time("timeout", timeout)
    return StepOptions(
        name=UNSET if name is None else check_name(name, "step name"),
        retry=UNSET if policy is None else policy,
        timeout=UNSET if limited is None else limited,
        ephemeral=UNSET if ephemeral is None else check_flag("ephemeral", ephemeral),
        using=UNSET if using is None else using,
        undo=UNSET if undo is None else undo,
        process=UNSET if process is None else check_flag("process", process),
        limit=check_limits(limit) or UNSET,
        breaker=check_breaker(breaker) or UNSET,
    )


class Undoable(Protocol[R]):
    """Decorates a function that returns what its undo takes."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Callable[P, Coroutine[object, None, R]]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def step(
    *,
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: Duration | None = None,
    ephemeral: bool | None = None,
    process: bool | None = None,
    limit: Limit | Sequence[Limit] | None = None,
    breaker: Breaker | None = None,
) -> Callable[[F], F]: ...


@overload
def step(
    *,
    undo: Callable[[R], Any],
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: Duration | None = None,
    ephemeral: bool | None = None,
    process: bool | None = None,
    limit: Limit | Sequence[Limit] | None = None,
    breaker: Breaker | None = None,
) -> Undoable[R]: ...


def step(
    *,
    undo: Callable[[Any], Any] | None = None,
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: Duration | None = None,
    ephemeral: bool | None = None,
    process: bool | None = None,
    limit: Limit | Sequence[Limit] | None = None,
    breaker: Breaker | None = None,
) -> Any:
    """Attach a policy to a function for when it is run as a step; the function itself stays as it is.

    `retry` says how often and when to try again, a number how often; `timeout` bounds one attempt. An `ephemeral` step does not wait for its
    result to be durable before the workflow goes on; its record leaves with the next one. `undo` is a function that is given the
    step's result to undo it, should the saga around it fail; see `Context.saga`. `process` is for a sync function that keeps a
    processor busy: it is called in a process of its own, which is killed if it takes longer than `timeout`. `limit` bounds how many are
    executed at once, or in so much time, in all processes together, and `breaker` leaves alone what keeps failing; while a step waits for
    either, the run waits without a worker.
    """
    options = make_options(
        name=name,
        retry=retry,
        timeout=timeout,
        ephemeral=ephemeral,
        undo=undo,
        process=process,
        limit=limit,
        breaker=breaker,
    )

    def attach(function: F) -> F:
        if process:
            check_for_process(function)
        setattr(function, _OPTIONS, options)
        return function

    return attach


def check_for_process(function: Callable[..., Any]) -> None:
    """Raise `UsageError` if a function cannot be called in a process of its own."""
    if is_async(function):
        raise UsageError(
            f"{describe(function)} is an `async def`, which runs on the worker's loop; process=True is for functions that block"
        )


class StepSpec(Struct, frozen=True):
    """What there is to know about a function as a step."""

    function: Callable[..., Any]
    #: None for a lambda, which has no name to record its result under.
    name: str | None
    options: StepOptions
    #: Whether calling it gives a coroutine: such steps run on the worker's loop, others in a thread.
    is_async: bool
    #: What its result is decoded to.
    returns: Any
    #: What tells it from another function of the same name; the same for each instance of a method.
    identity: object


def spec_of(function: Callable[..., Any]) -> StepSpec:
    """What there is to know about a function as a step. Raises `BadArguments` if its annotations make no sense."""
    if type(function) is not FunctionType:
        return _inspect(function)
    known: object = getattr(function, _SPEC, None)
    # `functools.wraps` copies attributes, so a wrapper may carry what was found out about the function inside it.
    if type(known) is StepSpec and known.function is function:
        return known
    spec = _inspect(function)
    setattr(function, _SPEC, spec)
    return spec


def _inspect(function: Callable[..., Any]) -> StepSpec:
    inner = innermost(function)
    options = getattr(inner, _OPTIONS, NO_OPTIONS)
    return StepSpec(
        function=function,
        name=_name_of(function),
        options=options if isinstance(options, StepOptions) else NO_OPTIONS,
        is_async=is_async(function),
        returns=_awaited(type_hints(inner).get("return", Any)),
        identity=getattr(inner, "__code__", inner),
    )


def _awaited(declared: Any) -> Any:
    """What comes of the result, which a function that is no `async def` may leave to be awaited."""
    origin = typing.get_origin(declared)
    arguments = typing.get_args(declared)
    return arguments[-1] if arguments and isinstance(origin, type) and issubclass(origin, Awaitable) else declared


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind partials, bound methods and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.ismethod(function):
        return innermost(function.__func__)
    if not hasattr(function, "__qualname__"):
        return innermost(type(function).__call__)
    return function


def _name_of(function: Callable[..., Any]) -> str | None:
    """Function, `Class.method`, a partial's function, an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    qualified: str = getattr(function, "__qualname__", None) or type(function).__qualname__
    name = qualified.rsplit("<locals>.", 1)[-1]
    return None if "<lambda>" in name else check_name(name, "step name")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
