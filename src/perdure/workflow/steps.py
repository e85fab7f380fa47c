"""`@step`: policy on an ordinary function, and how a step gets its name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType

from perdure.core.duration import Duration, seconds
from perdure.core.errors import InvalidName
from perdure.core.ids import check_name
from perdure.core.retry import Retry

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__perdure_step__"


class StepOptions(Struct, frozen=True, kw_only=True):
    """What a step may be told; `UNSET` leaves it to the next outer level."""

    name: str | UnsetType = UNSET
    retry: Retry | UnsetType = UNSET
    timeout: float | None | UnsetType = UNSET
    ephemeral: bool | UnsetType = UNSET

    def over(self, other: StepOptions) -> StepOptions:
        """These options, filled up from `other`."""
        return StepOptions(
            **{
                name: getattr(self, name) if getattr(self, name) is not UNSET else getattr(other, name)
                for name in self.__struct_fields__
            }
        )


NO_OPTIONS = StepOptions()


def make_options(
    *, name: str | None = None, retry: Retry | None = None, timeout: Duration | None = None, ephemeral: bool | None = None
) -> StepOptions:
    """Validated options, from what a user writes."""
    return StepOptions(
        name=UNSET if name is None else check_name(name, "step name"),
        retry=UNSET if retry is None else retry,
        timeout=UNSET if timeout is None else seconds(timeout),
        ephemeral=UNSET if ephemeral is None else ephemeral,
    )


def step(
    *, name: str | None = None, retry: Retry | None = None, timeout: Duration | None = None, ephemeral: bool | None = None
) -> Callable[[F], F]:
    """Attach a policy to a function for when it is run as a step; the function itself stays as it is.

    `retry` says how often and when to try again; `timeout` bounds one attempt. An `ephemeral` step does not wait for its
    result to be durable before the workflow goes on; its record leaves with the next one.
    """
    options = make_options(name=name, retry=retry, timeout=timeout, ephemeral=ephemeral)

    def attach(function: F) -> F:
        setattr(function, _ATTRIBUTE, options)
        return function

    return attach


def options_of(function: Callable[..., Any]) -> StepOptions:
    """The policy that `@step` attached, found through partials and bound methods."""
    options = getattr(innermost(function), _ATTRIBUTE, None)
    return options if isinstance(options, StepOptions) else NO_OPTIONS


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind partials, bound methods and callable objects: what tells two steps apart."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.ismethod(function):
        return innermost(function.__func__)
    if not hasattr(function, "__qualname__"):
        return innermost(type(function).__call__)
    return function


def name_of(function: Callable[..., Any]) -> str:
    """What a step is called when it is not told: function, `Class.method`, a partial's function, an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    qualified: str = getattr(function, "__qualname__", None) or type(function).__qualname__
    name = qualified.rsplit("<locals>.", 1)[-1]
    if "<lambda>" in name:
        raise InvalidName('a lambda has no name to record its result under: `ctx.options(name="...").step(...)`')
    return check_name(name, "step name")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: such steps run on the worker's loop, others in a thread."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))
