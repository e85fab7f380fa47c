"""Meaning of SQLite errors, read from their result codes and never from their texts."""

from __future__ import annotations

import sqlite3

from perdure.errors import StoreCorrupt, StoreError, StoreFull, StoreReadOnly, StoreUnavailable

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def is_busy(error: sqlite3.Error) -> bool:
    """Tell whether another connection holds the database, so that trying again helps."""
    return _primary(error) in _BUSY


def is_not_text(error: sqlite3.Error) -> bool:
    """Tell whether a text cell is not UTF-8: the only error of Python's sqlite3 module that has no result code."""
    return isinstance(error, sqlite3.OperationalError) and not hasattr(error, "sqlite_errorcode")


def translate(error: sqlite3.Error, where: str) -> StoreError:
    """Return the error of the store contract for an SQLite error; `where` names the database."""
    code = _primary(error)
    detail = f"{error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})"
    if code in _FULL:
        return StoreFull(f"{where} has no room left or its disk fails: {detail}; free some space or check the disk")
    if code == sqlite3.SQLITE_READONLY:
        return StoreReadOnly(
            f"{where} cannot be written: {detail}; check the permissions of the file and its directory"
        )
    if code in _CORRUPT:
        return StoreCorrupt(f"{where} is damaged or not a database: {detail}; restore it from a backup")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreUnavailable(
            f"{where} cannot be opened: {detail}; check that its directory exists and that this user may write there"
        )
    if code in _BUSY:
        return StoreUnavailable(
            f"{where} stayed locked by another process: {detail}; find the process that holds it, then try again"
        )
    return StoreError(f"{where} refused a statement: {detail}")


def _primary(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
