"""Errors that say that a workflow's code is broken, rather than that its business has failed.

Such an error blocks the run until corrected code is deployed: nothing is undone, and nothing has failed. An error that
a step or a child has raised is not one of them, whatever its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core.printed_text import brief
from perdure.errors import PerdureError, UsageError

#: Classes of errors that block a run, unless its workflow or worker says otherwise.
BROKEN_CODE: tuple[type[Exception], ...] = (
    NameError,
    AttributeError,
    ImportError,
    TypeError,
    SyntaxError,
    RecursionError,
)

_RECORDED = "__perdure_recorded__"


def mark_recorded(error: BaseException) -> None:
    """Mark an error, and the members of a group, as raised by a step or a child."""
    vars(error)[_RECORDED] = True
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            mark_recorded(member)


def is_broken_code(error: BaseException, classes: tuple[type[Exception], ...]) -> bool:
    """True if an error of a workflow's own code is of one of the classes, or is a group with such an error.

    A subclass counts only if it is Python's own, or is itself one of the classes: a user's subclass says what failed.
    """
    if vars(error).get(_RECORDED):
        return False
    if isinstance(error, BaseExceptionGroup):
        return any(is_broken_code(member, classes) for member in error.exceptions)
    kind = type(error)
    return (
        isinstance(error, classes)
        and not isinstance(error, PerdureError)
        and (kind.__module__ == "builtins" or kind in classes)
    )


def check_block_on(classes: Sequence[type[Exception]] | None) -> tuple[type[Exception], ...] | None:
    """Check the option `block_on`; None leaves it to the worker. Raises `UsageError`."""
    if classes is None:
        return None
    given: Any = tuple(classes) if isinstance(classes, list | tuple | set | frozenset) else (classes,)
    for each in given:
        if not isinstance(each, type) or not issubclass(each, Exception):
            raise UsageError(f"block_on has classes of errors, such as [NameError], not {brief(each)}")
    return tuple(given)
