"""Middleware that closes the database connections of Django in the threads of a worker."""

from __future__ import annotations

from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections

from perdure.middleware import Invocation, Middleware, Next


class CloseConnections(Middleware):
    """Closes the connections that a step or an activity has opened, at its end.

    Django closes connections at the end of a request, and a worker has no requests. A connection that is left in a
    thread would stay open while the thread is idle, and break when the server ends it. With Django's own pool (`pool`
    in the OPTIONS of a database), to close a connection is to give it back.
    """

    def step(self, call: Invocation, next: Next, /) -> Any:
        """Close the connections after an attempt."""
        try:
            result = next(call)
        except BaseException:
            close_here()
            raise
        if isawaitable(result):
            return _closed_after(result)
        close_here()
        return result

    activity = step


def close_here() -> None:
    """Close the connections of this thread that no transaction is using."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


async def _closed_after(result: Awaitable[Any]) -> Any:
    try:
        return await result
    finally:
        # The async methods of Django's ORM use a thread of their own, which other steps may share.
        await sync_to_async(close_old_connections)()
