"""Starting and sending in a transaction of the caller's own.

The shared verbs do the work, on the caller's connection. What they find wrong leaves nothing behind there, so that the caller
may go on with the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.core.errors import StoreUnavailable
from perdure.core.model import Created, NewMessage, NewRun, SendOutcome
from perdure.store.messages import send
from perdure.store.protocol import Store
from perdure.store.runs import create

#: How often somebody else may create a run of the same id at the same moment.
_TRIES = 3


async def create_on(
    connection: object, store: Store, actor: str, runs: Sequence[NewRun], check: Callable[[Sequence[Created]], None]
) -> list[Created]:
    """Create runs; none of them if `check` raises."""
    for left in range(_TRIES - 1, -1, -1):
        try:
            async with store.borrowed(connection, actor) as tx:
                created = await create(tx, runs)
                check(created)
                return created
        except StoreUnavailable:
            # Somebody was faster, and has committed by now; the next look finds the run.
            if not left:
                raise
    raise AssertionError("unreachable")


async def send_on(connection: object, store: Store, actor: str, message: NewMessage) -> SendOutcome:
    """Put a message into an inbox."""
    async with store.borrowed(connection, actor) as tx:
        [outcome] = await send(tx, [message])
        return outcome
