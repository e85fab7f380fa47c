"""Connections to a server for functions of the user's.

They come from pools of their own: a function may take its time, and what the worker itself writes must not wait for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from perdure.store.server.pool import Pooled, Pools

C = TypeVar("C", bound=Pooled)


@asynccontextmanager
async def lend(
    pools: Pools[C], is_busy: Callable[[C], bool], check: Callable[[int], object] | None = None
) -> AsyncGenerator[C]:
    """A connection; one that comes back in the middle of something is not used again. `check` is told its epoch first."""
    pool = pools.here()
    connection = await pool.take()
    try:
        if check is not None:
            check(connection.epoch)
        yield connection
    finally:
        if connection.is_closed() or is_busy(connection):
            pool.drop(connection)
        else:
            pool.give(connection)
