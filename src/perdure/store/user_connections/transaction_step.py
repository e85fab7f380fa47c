"""A transaction step: a function of the user's and the record of its result, in one transaction.

The order makes it happen exactly once. The function writes first. Then the run's row is locked, the lease is checked on
that row and the record is inserted. Then everything is committed together. An error of the function rolls everything
back and is raised unchanged. An error of the database raises `Interrupted` before the commit and `CommitUnknown` during
it.
"""

from __future__ import annotations

import asyncio
import inspect
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

#: Calls the user's function with the connection.
Work = Callable[[Any], Any]
#: Makes the turn with the record of the function's result, once the run may commit it.
MakeTurn = Callable[[Any], Coroutine[Any, Any, Turn]]

_SAVEPOINT = "perdure_step"
#: Seconds after which a server that does not begin or commit loses the connection, because the run waits for it.
_TIMEOUT = 60.0


class _Lost(Exception):
    """The run's lease is lost, so that the transaction has to be rolled back."""


class TransactionStep(Struct, frozen=True, kw_only=True):
    """The user's function, and how the record of its result is made."""

    function: Work
    #: True: `function` returns an awaitable.
    is_async: bool
    make_turn: MakeTurn
    #: Returns the connection to use; None: one of the store's own.
    using: Callable[[], Any] | None = None
    #: The worker that holds the run.
    actor: str = ""


async def run_transaction_step(
    step: TransactionStep,
    database: StoreDatabase,
    lend: Callable[[], Any],
    crash_point: Callable[[str], None],
    limit: str = "",
    fence: Fence = NO_FENCE,
) -> TurnOutcome:
    """Run the step in a transaction: APPLIED, or LOST with everything rolled back.

    `limit` is a statement that makes the server end the transaction if its client stops. `fence` is what proves the
    lease besides the locked row.
    """
    crash_point("transact.enter")
    stack = open_connection(step.using or lend)
    async with _database_errors():
        connection, adapter = await stack.__aenter__()
    try:
        await _run_inside(connection, adapter, database, step, crash_point, limit, fence)
    except _Lost:
        return TurnOutcome.LOST
    finally:
        # The transaction has ended, so an error while closing changes nothing.
        with suppress(Exception):
            await stack.__aexit__(None, None, None)
    return TurnOutcome.APPLIED


async def _run_inside(
    connection: Any,
    adapter: ConnectionAdapter,
    database: StoreDatabase,
    step: TransactionStep,
    crash_point: Callable[[str], None],
    limit: str,
    fence: Fence,
) -> None:
    tx = UserTransaction(adapter, database, "")
    check_database(adapter, database)
    try:
        async with _database_errors(adapter):
            await adapter.begin()
            if step.using is not None:
                await tx.arrive()
            if limit and step.using is None:
                # The driver of the store takes both in one message.
                await tx.execute(f"{limit}; SAVEPOINT {_SAVEPOINT}", {})
            else:
                if limit:
                    await tx.execute(limit, {})
                await tx.execute(f"SAVEPOINT {_SAVEPOINT}", {})
        crash_point("transact.begun")
        result = await _call(step, connection, adapter)
        await adapter.flush()
        turn = await step.make_turn(result)
        async with _database_errors(adapter):
            await _check_still_open(tx)
            tx.now = max(tx.now, turn.records[-1].at)  # a connection of the store's own did not read the time
            if await append(tx, turn, fence) is TurnOutcome.LOST:
                raise _Lost
        crash_point("transact.written")
    except BaseException:
        with suppress(Exception):
            await adapter.rollback()
        raise
    try:
        async with _timeout(adapter):
            await adapter.commit()
    except Exception as error:
        with suppress(Exception):
            await adapter.rollback()
        raise CommitUnknown from error
    crash_point("transact.committed")


def _timeout(adapter: ConnectionAdapter | None) -> AbstractAsyncContextManager[object]:
    return asyncio.timeout(_TIMEOUT) if adapter is not None and adapter.is_async else nullcontext()


@asynccontextmanager
async def _database_errors(adapter: ConnectionAdapter | None = None) -> AsyncGenerator[None]:
    try:
        async with _timeout(adapter):
            yield
    except (PerdureError, _Lost):
        raise
    except Exception as error:
        raise Interrupted from error


async def _call(step: TransactionStep, connection: Any, adapter: ConnectionAdapter) -> Any:
    if adapter.is_async and not step.is_async:
        raise UsageError(
            f"the function of a transaction on a connection of {adapter.library} has to be async; make it an "
            "`async def`, or use a synchronous connection: `ctx.options(using=...).transaction(...)`"
        )
    result = step.function(connection)
    if not step.is_async and not inspect.isawaitable(result):
        return result
    return await result if adapter.is_async else _without_waiting(result)


_WAITED = (
    "the function of a transaction waited for something else while it kept the database to itself; do that in a step "
    "before the transaction and pass its result"
)


class _NoLoop:
    """Stand-in for the event loop that refuses every use."""

    #: No guard watches the I/O of a transaction's function, which is a step.
    guard: Any = None

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


async def _check_still_open(tx: UserTransaction) -> None:
    try:
        await tx.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}", {})
    except Exception as error:
        if is_transient(error):
            raise
        raise UsageError(
            "the function of a transaction has committed or rolled back its transaction; leave that to Perdure, which "
            "commits it together with the record of the result"
        ) from error
