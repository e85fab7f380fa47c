"""The end of a run by order, without its code.

The run fails at once, in whatever status it is, and its token is raised: a worker that holds it has lost its lease.
With its undos, the order goes into the inbox instead, as a cancellation that is marked as failed: the worker that takes
it in ends the code of the run, undoes its steps, and fails it then. A worker of an earlier version cancels the run.
"""

from __future__ import annotations

from perdure.core.audit import error_summary
from perdure.core.model.record import NewMessage, RecordKind
from perdure.core.model.run import FINISHED, Status
from perdure.core.model.run_orders import OrderOutcome, termination_message
from perdure.errors import RunTerminated
from perdure.store.contract import Change
from perdure.store.sql.audit import note_inserted
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.rows import failure, to_json
from perdure.store.sql.runs.finish import message_to_parent, messages_of_end
from perdure.store.sql.runs.inbox import INSERT, KNOWN, deliver, deliver_all, stop_children

_TARGET = """
SELECT status, inbox_seq, started_at, attempt, parent_id, parent_location, generation
FROM perdure_runs
WHERE id = :run_id
{for_update}
"""

#: `close_by` stays, as in `finish`.
_END = """
UPDATE perdure_runs
SET status = 'failed', reason = NULL, output = NULL, error = :error, finished_at = :now, inbox_seq = :seq,
    token = token + 1, worker = NULL, home = NULL, lease_until = 0, marked = 0, claims = 0
WHERE id = :run_id
"""


async def terminate(tx: Transaction, run_id: str, reason: str, key: str, *, undo: bool) -> OrderOutcome:
    """End a run, or order it to undo its steps and end; REFUSED if it is blocked and is to undo its steps."""
    rows = await tx.fetch(_TARGET, {"run_id": run_id})
    if not rows:
        return OrderOutcome.UNKNOWN
    if await tx.fetch(KNOWN, {"run_id": run_id, "key": key}):
        return OrderOutcome.DONE
    status, inbox_seq, started_at, attempt, parent_id, location, generation = rows[0]
    if status in FINISHED:
        return OrderOutcome.FINISHED
    order = NewMessage(run_id=run_id, kind=RecordKind.CANCEL, payload=to_json(reason), failed=undo, key=key)
    if undo and status == Status.BLOCKED:
        return OrderOutcome.REFUSED
    if undo and (started_at != 0 or attempt > 1):
        await deliver(tx, order)
        tx.note(run_id, "terminate_requested", to_json({"reason": reason}))
        return OrderOutcome.DONE
    error = failure(RunTerminated, termination_message(run_id, reason))
    await tx.execute(INSERT, {**_entry(order, inbox_seq + 1), "now": tx.now})
    await tx.execute(_END, {"run_id": run_id, "error": error, "now": tx.now, "seq": inbox_seq + 1})
    if started_at == 0:
        await note_inserted(tx, [run_id])
    tx.note(run_id, "terminated", to_json({"reason": reason, **error_summary(error)}))
    tx.notify(Change.FINISHED | Change.ENDED)
    word = message_to_parent(run_id, parent_id, location, generation, error, failed=True)
    await deliver_all(tx, await messages_of_end(tx, run_id, word, error, failed=True))
    await stop_children(tx, run_id, "terminated")
    return OrderOutcome.DONE


def _entry(order: NewMessage, seq: int) -> dict[str, object]:
    """Inbox entry that tells a repeated order from a second one."""
    return {"seq": seq, **{name: getattr(order, name) for name in ("run_id", "name", "payload", "key")},
            "kind": order.kind.value, "failed": 0}  # fmt: skip
