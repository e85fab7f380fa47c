"""`@workflow` and the calls it builds.

A decorated function becomes a `Workflow[P, R]`. Calling that builds a `Call[R]`: a value that says what to run, checked against
the parameters, and does nothing until it is started (`engine.start`) or awaited by another workflow (`ctx.call`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from perdure.core.codec import Codec
from perdure.core.errors import BadArguments, EncodeError
from perdure.core.ids import check_name
from perdure.core.retry import Retry
from perdure.workflow.context import Context
from perdure.workflow.signature import Signature, describe

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Workflow(Generic[P, R]):
    """A durable function: its type name, its code, and the policy for trying the whole of it again."""

    def __init__(
        self,
        type: str,
        function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]],
        *,
        retry: Retry | None,
        local_names: Mapping[str, Any] | None = None,
    ) -> None:
        if not inspect.iscoroutinefunction(function):
            raise BadArguments(f"workflow {type!r}: {describe(function)} must be an `async def`")
        self.type = check_name(type, "workflow type")
        self.function = function
        self.retry = retry
        self.signature = Signature(function, local_names)
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Build a call. Raises `BadArguments` when the arguments do not fit."""
        return Call(self.type, self.signature.bind(args, kwargs, f"{self.type}()"), self)

    def __repr__(self) -> str:
        return f"<workflow {self.type}>"


def workflow(
    type: str, *, retry: Retry | None = None
) -> Callable[[Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]], Workflow[P, R]]:
    """Make an async function a workflow of the given type, such as `"shop.checkout.v1"`.

    The type names the workflow in the database: it must stay what it is for as long as runs of it exist. `retry` is for the
    workflow as a whole: a further attempt keeps the results of the steps that succeeded. There is none by default.
    """
    local_names = sys._getframe(1).f_locals

    def decorate(function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]) -> Workflow[P, R]:
        return Workflow(type, function, retry=retry, local_names=local_names)

    return decorate


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """What to run: a workflow type and its arguments."""

    type: str
    #: By name, or by position where only the workflow's name is known.
    arguments: Mapping[str, Any] | tuple[Any, ...]
    workflow: Workflow[Any, R_co] | None = field(default=None, repr=False)

    @classmethod
    def named(cls, type: str, *args: Any, **kwargs: Any) -> Call[Any]:
        """Call a workflow by name alone, where its code is not installed. All positional, or all by name."""
        check_name(type, "workflow type")
        if args and kwargs:
            raise BadArguments(
                f"{type}: give all arguments by name, or all by position; without its code they cannot be matched"
            )
        # Not `Call[Any](...)`: before 3.12 a subscripted class cannot set `__orig_class__` on a frozen instance with slots.
        named: Call[Any] = Call(type, args or kwargs)
        return named

    def encode(self, codec: Codec) -> str:
        """The arguments as JSON. Raises `EncodeError` or `BadArguments`."""
        what = f"input of {self.type}"
        if self.workflow is not None and isinstance(self.arguments, Mapping):
            return self.workflow.signature.encode(self.arguments, codec, what)
        return codec.encode(self.arguments, what)

    def digest(self, codec: Codec) -> str:
        """Short digest of the arguments; empty if they cannot be encoded, which the start of the run will say."""
        try:
            return codec.digest(self.arguments)
        except EncodeError:
            return ""

    @property
    def returns(self) -> Any:
        """The type of the result; `Any` where only the name is known."""
        return Any if self.workflow is None else self.workflow.signature.returns
