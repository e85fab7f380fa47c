"""A function of the user's and the record of its result, in one transaction.

The order makes it happen exactly once: the function writes first; then the run's row is locked, the lease checked on it and
the record put in; then all of it is committed. An error of the function's rolls everything back and is raised as it is. One of
the database's is `Interrupted` before the commit, and `CommitUnknown` at it.
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
from perdure.store.user_connections.adapter import ConnectionAdapter, open_connection
from perdure.store.user_connections.errors import CommitUnknown, Interrupted, is_transient
from perdure.store.user_connections.transaction import StoreDatabase, UserTransaction, check_database

#: Calls the function with the connection.
Work = Callable[[Any], Any]
#: Makes a turn with one record of the function's result, when it is time to commit.
MakeTurn = Callable[[Any], Coroutine[Any, Any, Turn]]

_SAVEPOINT = "perdure_step"
#: Seconds that a server may take to begin and to commit, which holds up the run, before its connection is given up.
_PATIENCE = 60.0


class _Lost(Exception):
    """The lease is gone."""


class TransactionStep(Struct, frozen=True, kw_only=True):
    """What is to be done."""

    function: Work
    #: Whether `function` gives something to be awaited.
    is_async: bool
    make_turn: MakeTurn
    #: Gives the connection; None: the store's own driver.
    using: Callable[[], Any] | None = None
    #: The worker that holds the run.
    actor: str = ""


async def run_transaction_step(
    step: TransactionStep,
    home: StoreDatabase,
    lend: Callable[[], Any],
    mark: Callable[[str], None],
    limit: str = "",
    fence: Fence = NO_FENCE,
) -> TurnOutcome:
    """Do it: APPLIED, or LOST with everything rolled back.

    `limit` has a server end what is not continued. `fence` says what proves the lease.
    """
    mark("transact.enter")
    stack = open_connection(step.using or lend)
    async with _the_database():
        connection, adapter = await stack.__aenter__()
    try:
        await _inside(connection, adapter, home, step, mark, limit, fence)
    except _Lost:
        return TurnOutcome.LOST
    finally:
        # What became of the transaction is known by now, and closing changes nothing about it.
        with suppress(Exception):
            await stack.__aexit__(None, None, None)
    return TurnOutcome.APPLIED


async def _inside(
    connection: Any,
    adapter: ConnectionAdapter,
    home: StoreDatabase,
    step: TransactionStep,
    mark: Callable[[str], None],
    limit: str,
    fence: Fence,
) -> None:
    tx = UserTransaction(adapter, home, "")
    check_database(adapter, home)
    try:
        async with _the_database(adapter):
            await adapter.begin()
            if step.using is not None:
                await tx.arrive()
            if limit:
                await tx.execute(limit, {})
            await tx.execute(f"SAVEPOINT {_SAVEPOINT}", {})
        mark("transact.begun")
        result = await _call(step, connection, adapter)
        await adapter.flush()
        turn = await step.make_turn(result)
        async with _the_database(adapter):
            await _still_open(tx)
            tx.now = max(tx.now, turn.records[-1].at)  # on a connection of the store's own the time was not asked for
            if await append(tx, turn, fence) is TurnOutcome.LOST:
                raise _Lost
        mark("transact.written")
    except BaseException:
        with suppress(Exception):
            await adapter.rollback()
        raise
    try:
        async with _in_time(adapter):
            await adapter.commit()
    except Exception as error:
        with suppress(Exception):
            await adapter.rollback()
        raise CommitUnknown from error
    mark("transact.committed")


def _in_time(adapter: ConnectionAdapter | None) -> AbstractAsyncContextManager[object]:
    return asyncio.timeout(_PATIENCE) if adapter is not None and adapter.is_async else nullcontext()


@asynccontextmanager
async def _the_database(adapter: ConnectionAdapter | None = None) -> AsyncGenerator[None]:
    try:
        async with _in_time(adapter):
            yield
    except (PerdureError, _Lost):
        raise
    except Exception as error:
        raise Interrupted from error


async def _call(step: TransactionStep, connection: Any, adapter: ConnectionAdapter) -> Any:
    if adapter.is_async and not step.is_async:
        raise UsageError(
            f"The function of a transaction on a connection of {adapter.library} has to be async. Make it an `async def`, or give it a "
            "connection that is not: `ctx.options(using=...).transaction(...)`."
        )
    result = step.function(connection)
    if not step.is_async:
        return result
    return await result if adapter.is_async else _without_waiting(result)


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


async def _still_open(tx: UserTransaction) -> None:
    try:
        await tx.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}", {})
    except Exception as error:
        if is_transient(error):
            raise
        raise UsageError(
            "The function of a transaction has committed or rolled back the transaction that it was given. That is done for it, "
            "together with the record of its result; leave it out of the function."
        ) from error
