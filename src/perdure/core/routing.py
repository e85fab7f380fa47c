"""Types of runs, and the patterns by which workers select them.

A type is named like `domain.sub.action.vN`. A pattern is a type, or the beginning of one followed by `%`. Only that
last `%` is special: every other character, including `_` and further `%`, stands for itself, and nothing is folded or
trimmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from perdure.core.ids import check_name
from perdure.core.option_checks import check_list
from perdure.core.printed_text import brief, closest
from perdure.errors import InvalidName, UsageError

T = TypeVar("T")

ANY = "%"
#: Runtime of the types that workers of this package serve.
PYTHON = "python"
#: Registered in place of a runtime: workers of every runtime may claim runs of the type.
SHARED = "shared"


class TypeInfo(Struct, frozen=True, kw_only=True):
    """A type of run, as registered in the database."""

    type: str
    #: `workflow`, whose history only its own runtime can read, or `activity`, which any language may serve.
    kind: str = "activity"
    #: Runtime that it belongs to: `python`, the name that a worker in another language gives itself, or `shared`.
    runtime: str = PYTHON
    #: First line of its docstring.
    description: str = ""
    #: Workers claim runs of it; False while the type is paused.
    enabled: bool = True
    #: Time when it was last registered with a change.
    registered_at: int = 0


def served_elsewhere(types: Iterable[TypeInfo]) -> dict[str, str]:
    """Map the types that workers in other languages have registered to their runtimes."""
    return {one.type: one.runtime for one in types if one.runtime != PYTHON}


def runtime_of_type(registered: str | None, given: str) -> str:
    """Return the runtime that a type belongs to, after a worker of a runtime has registered it.

    The first runtime that registers a type has it. A type that any worker names as shared belongs to all of them.
    """
    return SHARED if SHARED in (registered, given) else registered or given


def matches(pattern: str, type: str) -> bool:
    """Tell whether a type matches a pattern."""
    return type.startswith(pattern[: -len(ANY)]) if pattern.endswith(ANY) else type == pattern


def select_types(known: Mapping[str, T], patterns: Sequence[str] | None) -> dict[str, T]:
    """Select the types that match one of the patterns; None selects all.

    Raises `UsageError` for a pattern without a match.
    """
    if patterns is None:
        return dict(known)
    for pattern in patterns:
        if not any(matches(pattern, type) for type in known):
            raise UsageError(f"no type matches {brief(pattern)}; there are {closest(pattern, known)}")
    return {type: value for type, value in known.items() if any(matches(pattern, type) for pattern in patterns)}


def check_patterns(patterns: str | Iterable[str] | None, option: str = "types") -> tuple[str, ...] | None:
    """Check patterns and return them. Raises `InvalidName`."""
    if patterns is None:
        return None
    given = (patterns,) if isinstance(patterns, str) else check_list(option, patterns, "['billing.%']")
    if not given:
        raise UsageError(
            "types=[] would leave a worker nothing to do; leave it out for all, or name some: ['billing.%']"
        )
    return tuple(_checked(pattern) for pattern in given)


def _checked(pattern: object) -> str:
    if isinstance(pattern, str) and pattern.endswith(ANY):
        # The part before may be empty, and may end anywhere in a name, even in a space.
        if pattern != ANY:
            check_name(f"{pattern[:-1]}x", "pattern of types")
        return pattern
    try:
        return check_name(pattern, "type")
    except InvalidName as error:
        raise InvalidName(f"{error}; a pattern ends in %, such as 'billing.%'") from None
