"""A connection for a while, from whatever gives one."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from perdure.store.user_connections.adapter import Wire
from perdure.store.user_connections.recognize import wire_of


@asynccontextmanager
async def opened(using: Callable[[], Any]) -> AsyncGenerator[tuple[Any, Wire]]:
    """What `using` gives: a connection, something to be awaited for one, or a context manager around one."""
    given = using()
    # A connection of sqlite3 is a context manager as well, but one that leaves it open.
    plain = isinstance(given, sqlite3.Connection)
    if hasattr(given, "__aenter__"):
        async with given as connection:
            yield connection, wire_of(connection)
    elif hasattr(given, "__enter__") and not plain:
        with given as connection:
            yield connection, wire_of(connection)
    else:
        connection = await given if inspect.isawaitable(given) else given
        wire = wire_of(connection)
        try:
            yield connection, wire
        finally:
            await wire.close()
