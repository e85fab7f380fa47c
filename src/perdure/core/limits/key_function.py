"""Users' functions that compute a key from the arguments of a call: of limits, of `Fair`, of singletons.

A key function gets arguments by the names of its parameters, however the call passes them. It is inspected once, where
it is declared.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID

from perdure.core.printed_text import brief
from perdure.errors import UsageError

#: Result of a key function; all are stored as text.
Key = str | int | UUID


class KeyFunction:
    """A user's key function, prepared to be called with arguments by name."""

    __slots__ = ("_function", "_names", "_required", "_takes_all", "_what")

    def __init__(self, function: Callable[..., object], what: str) -> None:
        """Inspect a function; `what` names it in errors. Raises `UsageError` if no call can fit it."""
        if not callable(function):
            raise UsageError(
                f"{what}={brief(function)}: give a function of the arguments, such as lambda order: order.customer"
            )
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            raise UsageError(f"{what} is an `async def`; give a function that returns the key at once")
        try:
            parameters = inspect.signature(function).parameters.values()
        except (ValueError, TypeError):
            raise UsageError(
                f"{what}={brief(function)}: its parameters cannot be read; write a function with the names of the "
                "arguments that it needs, such as lambda tenant: tenant"
            ) from None
        for each in parameters:
            if each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL):
                stars = "*" if each.kind is each.VAR_POSITIONAL else ""
                raise UsageError(
                    f"{what} takes {stars + each.name!r} by position, but gets the arguments by name; name the "
                    "parameters that it needs, or take all of them as `**arguments`"
                )
        self._function = function
        self._what = what
        self._takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
        named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
        self._names = tuple(each.name for each in named)
        self._required = tuple(each.name for each in named if each.default is each.empty)

    def check(self, parameters: Collection[str], of: str) -> None:
        """Raise `UsageError` unless a function has each parameter that the key function needs."""
        missing = [name for name in self._required if name not in parameters]
        if missing:
            raise UsageError(
                f"{self._what} takes {_listed(missing)}, which {of} does not have; "
                + (f"its parameters are {_listed(parameters)}" if parameters else "it has no parameters")
            )

    def compute(self, arguments: Mapping[str, Any] | tuple[Any, ...]) -> str:
        """Compute the key of a call. Raises `UsageError` for a bad key, and what the user's function raises."""
        if not isinstance(arguments, Mapping):
            raise UsageError(
                f"{self._what} gets the arguments by name, and this call has them by position; give them by name"
            )
        given = arguments
        if not self._takes_all:
            given = {name: arguments[name] for name in self._names if name in arguments}
        if len(given) < len(self._names) or self._takes_all:
            self.check(arguments, "this call")
        key = self._function(**given)
        if isinstance(key, Key) and not isinstance(key, bool):
            return str(key)
        raise UsageError(
            f"{self._what} returned {brief(key)}; return text, a whole number or a UUID"
            + (", also for a call that has none, such as 'none'" if key is None else "")
        )


def check_key_functions(keys: Collection[KeyFunction | None], parameters: Collection[str], of: str) -> None:
    """Raise `UsageError` unless each key function fits the parameters of a function."""
    for key in keys:
        if key is not None:
            key.check(parameters, of)


def check_weight_function(function: Callable[..., object]) -> None:
    """Raise `UsageError` if a function cannot be called with a key alone."""
    try:
        inspect.signature(function).bind("")
    except ValueError:  # a builtin, whose parameters cannot be read
        return
    except TypeError as error:
        raise UsageError(
            f"weight of Fair gets the key alone, and {brief(function)} cannot be called so: {error}"
        ) from None


def _listed(names: Collection[str]) -> str:
    return ", ".join(repr(name) for name in names)
