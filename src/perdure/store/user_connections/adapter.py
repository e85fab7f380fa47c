"""A connection of somebody else's library, as the little that is asked of it."""

from __future__ import annotations

from typing import Any, Protocol

from perdure.store.sql.dialect import Row


class Wire(Protocol):
    """One connection. The coroutines of a library that is not asynchronous never suspend."""

    #: What the library is called in messages.
    library: str
    #: The name of the dialect that is spoken at the other end.
    database: str
    #: How it wants parameters; see `styles`.
    style: str
    #: Whether it belongs to an event loop.
    waits: bool

    async def join(self) -> None:
        """Make sure that what is written now waits for the caller's commit. Raises `UsageError`."""

    async def execute(self, text: str, values: Any) -> int:
        """Run one statement; how many rows it changed."""

    async def fetch(self, text: str, values: Any) -> list[Row]:
        """Run a query; its rows, whatever the caller wants rows to be."""

    async def begin(self) -> None:
        """Open a transaction on a connection that has none. Raises `UsageError`."""

    async def flush(self) -> None:
        """Have everything written that the library has put off."""

    async def commit(self) -> None:
        """Commit what `begin` opened."""

    async def rollback(self) -> None:
        """Roll back what `begin` opened."""

    async def close(self) -> None:
        """Let go of a connection that no context manager closes."""
