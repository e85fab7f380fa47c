"""Creating runs and sending messages: in transactions of the store's, or in one of the caller's own.

In the latter the shared verbs do the work, on the caller's connection. What they find wrong leaves nothing behind there, so
that the caller may go on with the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.client.same import Sameness
from perdure.core.model.run import Created, NewMessage, NewRun, SendOutcome
from perdure.errors import StoreUnavailable
from perdure.store.contract import Store
from perdure.store.sql.runs.create import create, is_single
from perdure.store.sql.runs.inbox import send
from perdure.store.user_connections.errors import is_duplicate
from perdure.workflow.definition import Call

#: How often somebody else may create a run of the same id at the same moment.
_TRIES = 3


async def create_all(
    store: Store, actor: str, runs: Sequence[NewRun], calls: Sequence[Call[Any]], same: Sameness
) -> list[str]:
    """Create runs, all of them or none; those that are there and the same are left as they are. The id of each."""
    wanted = {run.id: (run, call) for run, call in zip(runs, calls, strict=True)}
    ids = {run.id: run.id for run in runs}
    while wanted:
        answers = await store.create([run for run, _ in wanted.values()], actor, all_or_none=True)
        taken = [answer.run for answer in answers if not answer.created and not answer.attached]
        if not taken:
            ids.update(zip(wanted, (answer.run.id for answer in answers), strict=True))
            break
        for run in taken:
            same.check(run, *wanted.pop(run.id))
    return [ids[run.id] for run in runs]


async def create_on(
    connection: object,
    store: Store,
    actor: str,
    runs: Sequence[NewRun],
    calls: Sequence[Call[Any]],
    same: Sameness,
) -> list[Created]:
    """Create runs; none of them if one is there and not the same."""
    for tries in range(1, _TRIES + 1):
        try:
            # At first without a lock: on MySQL, one on what is not there yet would let two who start crosswise wait for each other.
            # Whoever has to look at others first has to lock them.
            locking = tries > 1 or any(is_single(run) for run in runs)
            async with store.borrowed(connection, actor, locking=locking) as tx:
                created = await create(tx, runs)
                same.check_created(created, runs, calls)
                return created
        except Exception as error:
            # Somebody was faster, and has committed by now; the next look finds the run.
            if tries == _TRIES or not (isinstance(error, StoreUnavailable) or is_duplicate(error)):
                raise
    raise AssertionError("unreachable")


async def send_on(connection: object, store: Store, actor: str, message: NewMessage) -> SendOutcome:
    """Put a message into an inbox."""
    async with store.borrowed(connection, actor) as tx:
        [outcome] = await send(tx, [message])
        return outcome
