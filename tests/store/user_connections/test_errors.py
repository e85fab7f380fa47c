"""Errors of a user's database library that another attempt may not meet."""

from __future__ import annotations

import sqlite3

import pytest

from perdure.store.user_connections.errors import is_transient


@pytest.mark.parametrize(
    ("code", "transient"),
    [
        (sqlite3.SQLITE_BUSY, True),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, True),
        (sqlite3.SQLITE_LOCKED_SHAREDCACHE, True),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, False),
        (sqlite3.SQLITE_FULL, False),
    ],
)
def test_only_locks_of_sqlite_pass_by_themselves(code: int, *, transient: bool) -> None:
    # SQLite has many kinds of operational errors.
    error = sqlite3.OperationalError("an error")
    error.sqlite_errorcode = code
    assert is_transient(error) is transient
