"""The end of a run: its outcome, and the messages to its parent and to its waiters.

All are one write. The caller delivers the entries that `finish` or `messages_of_end` returns in the same transaction,
so that no parent ever waits for a child that has ended. The same holds for other runs that wait for its end.
"""

from __future__ import annotations

from perdure.core.audit import error_summary
from perdure.core.model.record import NewMessage, RecordKind
from perdure.core.model.run import Status
from perdure.errors import StoreError
from perdure.store.contract import Change
from perdure.store.sql.audit import note_timeout
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.rows import to_json
from perdure.store.sql.runs.observers import messages_to_observers
from perdure.store.sql.runs.waiters import messages_to_waiters

#: `close_by` stays: a run that ended before it began and is retried has to begin and to finish by its own deadlines.
_FINISH = """
UPDATE perdure_runs
SET status = :status, reason = NULL, output = NULL, error = :error, finished_at = :now,
    worker = NULL, marked = 0, claims = 0
WHERE id = :run_id AND status IN ('pending', 'waiting', 'blocked')
"""

_PARENT = """
SELECT parent_id, parent_location, generation
FROM perdure_runs
WHERE id = :run_id
"""


async def finish(
    tx: Transaction, run_id: str, status: Status, error: str, event: str, timeout: str = ""
) -> list[NewMessage]:
    """End a run without a holder and without a result; returns the entries for the inboxes of parent and waiters."""
    changed = await tx.execute(_FINISH, {"run_id": run_id, "status": status.value, "error": error, "now": tx.now})
    if changed != 1:
        raise StoreError(f"run {run_id!r} was to be {event} but a worker holds it; this is a defect in Perdure")
    note_timeout(tx, run_id, timeout)
    tx.note(run_id, event, to_json(error_summary(error)))
    if status is Status.FAILED:
        tx.bury(run_id, error)
    tx.notify(Change.FINISHED)
    [(parent_id, location, generation)] = await tx.fetch(_PARENT, {"run_id": run_id})
    word = message_to_parent(run_id, parent_id, location, generation, error, failed=True)
    return await messages_of_end(tx, run_id, word, error, failed=True)


async def messages_of_end(
    tx: Transaction, run_id: str, word: NewMessage | None, payload: str | None, *, failed: bool
) -> list[NewMessage]:
    """Inbox entries about the end of a run, whose row was written: to its parent, its waiters and its observers."""
    told = await messages_to_waiters(tx, run_id, payload, failed=failed)
    told += await messages_to_observers(tx, run_id)
    return told if word is None else [word, *told]


def message_to_parent(
    run_id: str, parent_id: str | None, location: str | None, generation: int, payload: str | None, *, failed: bool
) -> NewMessage | None:
    """Inbox entry about a child's outcome; None for a child that its parent let go."""
    if parent_id is None or location is None:
        return None
    return NewMessage(
        run_id=parent_id,
        kind=RecordKind.CHILD,
        name=location,
        payload=payload,
        failed=failed,
        key=f"child:{run_id}:{generation}",
    )
