"""Calls of users' key functions, which tell limits, turns and singletons apart by the arguments of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any


def key_from(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The key of a call. Arguments by name that the function does not take are left out."""
    names = _names(function) if kwargs else None
    if names is None:
        return function(*args, **kwargs)
    return function(*args, **{name: value for name, value in kwargs.items() if name in names})


@lru_cache(maxsize=1024)
def _names(function: Callable[..., Any]) -> frozenset[str] | None:
    """Names that a function takes; None if it takes any, or does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    return frozenset(each.name for each in parameters if each.kind is not inspect.Parameter.POSITIONAL_ONLY)
