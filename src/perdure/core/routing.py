"""Which runs a worker takes: patterns of types, and what is known of the types that there are.

A type is called `domain.sub.action.vN`. A pattern is a type, or the beginning of one followed by `%`. Only that last `%` means
anything: every other character, `_` and further `%` included, stands for itself, and nothing is folded or trimmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from perdure.core.ids import check_name
from perdure.errors import InvalidName, UsageError

T = TypeVar("T")

ANY = "%"
#: The runtime of types that workers of this package serve.
PYTHON = "python"


class TypeInfo(Struct, frozen=True, kw_only=True):
    """A type of run, as the registry has it."""

    type: str
    #: `workflow`, which has a history of its own that only its runtime can read, or `activity`, which any language may serve.
    kind: str = "activity"
    #: Who serves it: `python`, or whatever a worker in another language calls itself.
    runtime: str = PYTHON
    #: The first line of what its code says about itself.
    description: str = ""
    #: Whether workers take runs of it; False while the type is paused.
    enabled: bool = True
    #: When it was last registered with something new.
    registered_at: int = 0


def matches(pattern: str, type: str) -> bool:
    """Whether a type is meant by a pattern."""
    return type.startswith(pattern[: -len(ANY)]) if pattern.endswith(ANY) else type == pattern


def select_types(known: Mapping[str, T], patterns: Sequence[str] | None) -> dict[str, T]:
    """What is known of the types that one of the patterns means; None means all. Raises `UsageError` if one means nothing."""
    if patterns is None:
        return dict(known)
    for pattern in patterns:
        if not any(matches(pattern, type) for type in known):
            raise UsageError(f"no type is meant by {pattern!r}; there are {', '.join(sorted(known)) or 'none'}")
    return {type: value for type, value in known.items() if any(matches(pattern, type) for pattern in patterns)}


def check_patterns(patterns: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Give back patterns, or raise `InvalidName` naming what is wrong with one."""
    if patterns is None:
        return None
    given = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    if not given:
        raise UsageError(
            "types=[] would leave a worker nothing to do; leave it out for all, or name some: ['billing.%']"
        )
    return tuple(_checked(pattern) for pattern in given)


def _checked(pattern: object) -> str:
    if isinstance(pattern, str) and pattern.endswith(ANY):
        # What precedes may be empty, and may end anywhere in a name, in a blank too.
        if pattern != ANY:
            check_name(f"{pattern[:-1]}x", "pattern of types")
        return pattern
    try:
        return check_name(pattern, "type")
    except InvalidName as error:
        raise InvalidName(f"{error} A pattern ends in %, such as 'billing.%'.") from None
