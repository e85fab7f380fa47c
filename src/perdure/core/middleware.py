"""Middleware: users' code around every workflow, step and activity that a worker executes.

Middleware is no part of a history: adding or removing it changes no record. Around a workflow it runs on the run's own
loop, again in each replay, so it has to be deterministic there, like the workflow.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.model.headers import Headers
from perdure.core.option_checks import check_list
from perdure.core.printed_text import brief
from perdure.errors import UsageError


class Invocation(Struct, frozen=True, kw_only=True):
    """A call of the function of a workflow, a step or an activity."""

    kind: Literal["workflow", "step", "activity"]
    run_id: str
    #: Type of the run.
    type: str
    #: Location of a step; the type of an activity; empty for a workflow.
    location: str
    #: Number of the attempt, from 1.
    attempt: int
    #: Arguments of the function. Those of a workflow are all in `kwargs`; its context, and the connection of a
    #: transaction step, are left out.
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: Headers of the run.
    headers: Headers
    function: Callable[..., Any]

    def with_arguments(self, /, *args: Any, **kwargs: Any) -> Invocation:
        """A copy with other arguments, to be passed to `next`."""
        return replace(self, args=args, kwargs=kwargs)


class Next(Protocol):
    """A function that calls what is further in: the next middleware, or the function itself."""

    def __call__(self, call: Invocation, /) -> Any:
        """Make the call; returns its result, or an awaitable."""


#: Method of a middleware.
Layer = Callable[[Invocation, Next], Any]


class Middleware:
    """Base class of middleware. Override the methods for what it is to surround; each may be a `def` or `async def`.

    `await next(call)` calls what is further in and gives its result. In a `def`, `next(call)` gives the result itself
    if all that is further in is a `def`, and an awaitable otherwise, which the method may return. An error of the
    method counts as an error of the function.
    """

    def workflow(self, call: Invocation, next: Next, /) -> Any:
        """Surround the function of a workflow, on the run's own loop. Has to be deterministic."""
        return next(call)

    def step(self, call: Invocation, next: Next, /) -> Any:
        """Surround an attempt at a step."""
        return next(call)

    def activity(self, call: Invocation, next: Next, /) -> Any:
        """Surround an attempt at an activity."""
        return next(call)


class Layers(Struct, frozen=True):
    """Methods of the middleware of an engine, by what they surround; the first is outermost."""

    workflow: tuple[Layer, ...] = ()
    step: tuple[Layer, ...] = ()
    activity: tuple[Layer, ...] = ()
    #: Whether a layer answers a call of a step itself, so that its function and its connection are not needed.
    replaces: Callable[[Invocation], bool] | None = None


NO_LAYERS = Layers()


def check_middleware(given: object) -> Layers:
    """Check the middleware of an engine. Raises `UsageError`."""
    found = check_list("middleware", given, "[Tracing()]")
    for one in found:
        if not isinstance(one, Middleware):
            is_class = isinstance(one, type) and issubclass(one, Middleware)
            hint = f"{one.__name__}(), an instance" if is_class else "an instance of a subclass of Middleware"
            raise UsageError(f"middleware has {brief(one)}: give {hint}")
    return Layers(_overridden(found, "workflow"), _overridden(found, "step"), _overridden(found, "activity"))


def _overridden(found: tuple[Any, ...], name: str) -> tuple[Layer, ...]:
    own = getattr(Middleware, name)
    return tuple(getattr(one, name) for one in found if getattr(type(one), name) is not own)


def split(layers: tuple[Layer, ...]) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """Split layers after the last `async def`: those before it, and the others, which may run in a thread."""
    count = len(layers)
    while count and not inspect.iscoroutinefunction(layers[count - 1]):
        count -= 1
    return layers[:count], layers[count:]


def surround(layers: tuple[Layer, ...], innermost: Next) -> Next:
    """Make a function that calls layers, the first one outermost, around a function; it returns a coroutine."""
    for layer in reversed(layers):
        innermost = partial(_call_layer, layer, innermost)
    return innermost


async def _call_layer(layer: Layer, inner: Next, call: Invocation) -> Any:
    result = layer(call, inner)
    return await result if inspect.isawaitable(result) else result


def surround_blocking(layers: tuple[Layer, ...], innermost: Next) -> Next:
    """Make a function that calls layers that are a `def`, the first one outermost, around a function that is one."""
    for layer in reversed(layers):
        innermost = _bind(layer, innermost)
    return innermost


def _bind(layer: Layer, inner: Next) -> Next:
    return lambda call: layer(call, inner)


def awaitable(function: Next) -> Next:
    """Make a coroutine function of a function."""

    async def call_function(call: Invocation) -> Any:
        return function(call)

    return call_function


class LateCall:
    """An awaitable that makes a call when it is awaited, so that nothing is left over if it never is."""

    __slots__ = ("_call", "_function")

    def __init__(self, function: Next, call: Invocation) -> None:
        self._function = function
        self._call = call

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._function(self._call).__await__()  # type: ignore[no-any-return] # of the user's function
