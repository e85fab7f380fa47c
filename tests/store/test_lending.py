"""Connections that the store of a file lends."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from perdure.host import Host
from perdure.store.sqlite.store import SqliteStore
from perdure.store.url import SqliteUrl, parse


async def test_a_connection_is_closed_when_it_is_given_back_also_after_an_error(tmp_path: Path) -> None:
    url = parse(f"sqlite:///{tmp_path}/app.db")
    assert isinstance(url, SqliteUrl)
    store = SqliteStore(url, Host())
    await store.open()
    with store.lend() as connection:
        connection.execute("CREATE TABLE mine (number INTEGER)")
        connection.execute("COMMIT")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
    with pytest.raises(ZeroDivisionError), store.lend() as other:
        raise ZeroDivisionError
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        other.execute("SELECT 1")
    await store.close()
