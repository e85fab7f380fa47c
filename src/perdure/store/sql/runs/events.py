"""Emission of sticky events: an event is a run, and emitting it ends the run and notifies its waiters in one write."""

from __future__ import annotations

from perdure.core.model.events import EmitOutcome, NewStickyEvent, event_id, event_run
from perdure.core.model.run import STICKY_TYPE, Status
from perdure.store.contract import Change
from perdure.store.sql.audit import created_event
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.rows import to_json
from perdure.store.sql.runs.create import INSERT, params_of
from perdure.store.sql.runs.finish import messages_of_end
from perdure.store.sql.runs.inbox import deliver_all

_EVENT = """
SELECT type, status, output
FROM perdure_runs
WHERE id = :id
{for_update}
"""

#: Another value is another generation of the run, with an outcome of its own. MySQL assigns from left to right.
_EMIT = """
UPDATE perdure_runs
SET generation = CASE WHEN finished_at = 0 THEN generation ELSE generation + 1 END,
    status = 'completed', reason = NULL, output = :output, error = NULL, finished_at = :now, deleted_at = 0
WHERE id = :id
"""


async def emit_event(tx: Transaction, event: NewStickyEvent) -> EmitOutcome:
    """Give an event its value, unless it has another one that is not to be replaced."""
    id = event_id(event.name)
    rows = await tx.fetch(_EVENT, {"id": id})
    if not rows:
        new = event_run(id, event.write_id)
        if await tx.execute(INSERT, params_of(new, tx.now)) == 1:
            tx.note(id, *created_event(new))
        rows = await tx.fetch(_EVENT, {"id": id})
    type, status, output = rows[0]
    if type != STICKY_TYPE:
        return EmitOutcome.TAKEN
    if status == Status.COMPLETED and output == event.payload:
        return EmitOutcome.EMITTED
    if status == Status.COMPLETED and not event.replace:
        return EmitOutcome.KEPT
    await tx.execute(_EMIT, {"id": id, "output": event.payload, "now": tx.now})
    tx.note(id, "completed", to_json({"from": "outside"}))
    tx.notify(Change.FINISHED)
    await deliver_all(tx, await messages_of_end(tx, id, None, event.payload, failed=False))
    return EmitOutcome.EMITTED
