"""Meaning of errors that the user's database library raises, read from their codes and never from their texts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from perdure.errors import StoreUnavailable

#: SQLSTATEs and MySQL error numbers of a lost race, a lost connection, and a server that is full or restarts.
_STATES = frozenset({"40001", "40P01", "55P03", "57014", "25P03", "53300"})
_STATE_CLASSES = ("08", "57P")
_NUMBERS = frozenset({1020, 1040, 1205, 1213, 1927, 2003, 2006, 2013, 2055, 3572})
_DUPLICATE = 1062
_SQLITE = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
#: Class names, most of them from PEP 249, of errors between a library and its database.
_NAMES = frozenset({"InterfaceError", "OperationalError", "InternalClientError"})


class Interrupted(Exception):
    """The database failed before the commit, so nothing was written. The cause is the library's error."""


class CommitUnknown(Exception):
    """The database failed during the commit, and its outcome is unknown. The cause is the library's error."""


def is_transient(error: BaseException) -> bool:
    """Tell whether another attempt may succeed."""
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
    """Tell whether a row with the same key exists, on MySQL and MariaDB, where an INSERT cannot ignore that."""
    return any(each.args[:1] == (_DUPLICATE,) for each in _inside(error))


def _inside(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors that it wraps: SQLAlchemy and Django wrap those of the driver."""
    seen: set[int] = set()
    inner: BaseException | None = error
    while inner is not None and id(inner) not in seen:
        seen.add(id(inner))
        yield inner
        original = getattr(inner, "orig", None)
        inner = original if isinstance(original, BaseException) else inner.__cause__
