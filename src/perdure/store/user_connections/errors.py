"""What an error of somebody else's library means, by its code and never by its text."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from perdure.errors import StoreUnavailable

#: A lost race, a connection that is gone, a server that is full or restarts.
_STATES = frozenset({"40001", "40P01", "55P03", "57014", "25P03", "53300"})
_STATE_CLASSES = ("08", "57P")
_NUMBERS = frozenset({1020, 1040, 1205, 1213, 1927, 2003, 2006, 2013, 2055, 3572})
_DUPLICATE = 1062
_SQLITE = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
#: The names that PEP 249 has for what goes wrong between a library and its database.
_NAMES = frozenset({"InterfaceError", "OperationalError", "InternalClientError"})


class Interrupted(Exception):
    """The database failed while a transaction was under way, and nothing of it is there. The cause is its own error."""


class CommitUnknown(Exception):
    """The database failed at the commit, and whether it was one is unknown. The cause is its own error."""


def is_transient(error: BaseException) -> bool:
    """Whether the same again may succeed."""
    for each in _inside(error):
        if isinstance(each, OSError | TimeoutError | StoreUnavailable):
            return True
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if isinstance(state, str):
            return state in _STATES or state.startswith(_STATE_CLASSES)
        code = getattr(each, "sqlite_errorcode", None)
        if isinstance(code, int):
            return code & 0xFF in _SQLITE
        number = each.args[0] if each.args else None
        if isinstance(number, int):
            return number in _NUMBERS
    return any(type(each).__name__ in _NAMES for each in _inside(error))


def is_duplicate(error: BaseException) -> bool:
    """Whether a row of the same key is there already, on a database on which that cannot be passed over."""
    return any(each.args[:1] == (_DUPLICATE,) for each in _inside(error))


def _inside(error: BaseException) -> Iterator[BaseException]:
    """The error and those that it wraps; SQLAlchemy and Django wrap those of the driver."""
    seen: set[int] = set()
    inner: BaseException | None = error
    while inner is not None and id(inner) not in seen:
        seen.add(id(inner))
        yield inner
        original = getattr(inner, "orig", None)
        inner = original if isinstance(original, BaseException) else inner.__cause__
