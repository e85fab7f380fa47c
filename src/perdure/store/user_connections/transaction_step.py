"""A function of the user's and the record of its result, in one transaction.

The order makes it happen exactly once: the function writes first; then the run's row is locked, the lease checked on it and
the record put in; then all of it is committed. An error of the function's rolls everything back and is raised as it is. One of
the database's is `Interrupted` before the commit, and `Doubtful` at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any, cast

from msgspec import Struct

from perdure.core.model.turn import Turn, TurnOutcome
from perdure.errors import PerdureError, UsageError
from perdure.store.sql.turn import NO_FENCE, Fence, append
from perdure.store.user_connections.adapter import Wire
from perdure.store.user_connections.errors import Doubtful, Interrupted, may_pass
from perdure.store.user_connections.open_connection import opened
from perdure.store.user_connections.transaction import BorrowedTransaction, Home, check_database

#: Calls the function with the connection.
Work = Callable[[Any], Any]
#: Makes a turn with one record of the function's result, when it is time to commit.
Seal = Callable[[Any], Coroutine[Any, Any, Turn]]

_SAVEPOINT = "perdure_deed"
#: Seconds that a server may take to begin and to commit, which holds up the run, before its connection is given up.
_PATIENCE = 60.0


class _Lost(Exception):
    """The lease is gone."""


class Deed(Struct, frozen=True, kw_only=True):
    """What is to be done."""

    work: Work
    #: Whether `work` gives something to be awaited.
    waits: bool
    seal: Seal
    #: Gives the connection; None: the store's own driver.
    using: Callable[[], Any] | None = None
    #: The worker that holds the run.
    actor: str = ""


async def perform(
    deed: Deed,
    home: Home,
    lend: Callable[[], Any],
    mark: Callable[[str], None],
    limit: str = "",
    fence: Fence = NO_FENCE,
) -> TurnOutcome:
    """Do it: APPLIED, or LOST with everything rolled back.

    `limit` has a server end what is not continued. `fence` says what proves the lease.
    """
    mark("transact.enter")
    stack = opened(deed.using or lend)
    async with _the_database():
        connection, wire = await stack.__aenter__()
    try:
        await _inside(connection, wire, home, deed, mark, limit, fence)
    except _Lost:
        return TurnOutcome.LOST
    finally:
        # What became of the transaction is known by now, and closing changes nothing about it.
        with suppress(Exception):
            await stack.__aexit__(None, None, None)
    return TurnOutcome.APPLIED


async def _inside(
    connection: Any, wire: Wire, home: Home, deed: Deed, mark: Callable[[str], None], limit: str, fence: Fence
) -> None:
    tx = BorrowedTransaction(wire, home, "")
    check_database(wire, home)
    try:
        async with _the_database(wire):
            await wire.begin()
            if deed.using is not None:
                await tx.arrive()
            if limit:
                await tx.execute(limit, {})
            await tx.execute(f"SAVEPOINT {_SAVEPOINT}", {})
        mark("transact.begun")
        result = await _call(deed, connection, wire)
        await wire.flush()
        turn = await deed.seal(result)
        async with _the_database(wire):
            await _still_open(tx)
            tx.now = max(tx.now, turn.records[-1].at)  # on a connection of the store's own the time was not asked for
            if await append(tx, turn, fence) is TurnOutcome.LOST:
                raise _Lost
        mark("transact.written")
    except BaseException:
        with suppress(Exception):
            await wire.rollback()
        raise
    try:
        async with _in_time(wire):
            await wire.commit()
    except Exception as error:
        with suppress(Exception):
            await wire.rollback()
        raise Doubtful from error
    mark("transact.committed")


def _in_time(wire: Wire | None) -> AbstractAsyncContextManager[object]:
    return asyncio.timeout(_PATIENCE) if wire is not None and wire.waits else nullcontext()


@asynccontextmanager
async def _the_database(wire: Wire | None = None) -> AsyncGenerator[None]:
    try:
        async with _in_time(wire):
            yield
    except (PerdureError, _Lost):
        raise
    except Exception as error:
        raise Interrupted from error


async def _call(deed: Deed, connection: Any, wire: Wire) -> Any:
    if wire.waits and not deed.waits:
        raise UsageError(
            f"The function of a transaction on a connection of {wire.library} has to be async. Make it an `async def`, or give it a "
            "connection that is not: `ctx.options(using=...).transaction(...)`."
        )
    result = deed.work(connection)
    if not deed.waits:
        return result
    return await result if wire.waits else _without_waiting(result)


_WAITED = (
    "The function of a transaction waited for something else while it kept the database to itself. Do that in a step before, and "
    "hand its result over."
)


class _NoLoop:
    """Takes the place of an event loop where there must be none."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError(_WAITED)


def _without_waiting(awaitable: Any) -> Any:
    steps = awaitable.__await__()
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(cast("asyncio.AbstractEventLoop", _NoLoop()))
    try:
        next(steps)
    except StopIteration as stop:
        return stop.value
    finally:
        steps.close()
        asyncio._set_running_loop(before)
    raise UsageError(_WAITED)


async def _still_open(tx: BorrowedTransaction) -> None:
    try:
        await tx.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}", {})
    except Exception as error:
        if may_pass(error):
            raise
        raise UsageError(
            "The function of a transaction has committed or rolled back the transaction that it was given. That is done for it, "
            "together with the record of its result; leave it out of the function."
        ) from error
