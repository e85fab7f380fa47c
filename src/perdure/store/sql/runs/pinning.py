"""Pins: a run that begins goes into the queue of its build; an unpinned run goes back.

The queue is the pin (`core/pinning.py`). The worker that holds a run pins it before anything of the run is executed. A
run whose worker dies before that has no history, and the next worker pins it to its own build.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model.run import FINISHED
from perdure.core.model.run_orders import OrderOutcome
from perdure.core.model.turn import Lease
from perdure.core.pinning import base_queue, pinned_build, pinned_queue
from perdure.store.contract import Change
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.rows import to_json

_HELD = """
SELECT queue
FROM perdure_runs
WHERE id = :run_id AND token = :token AND nonce = :nonce AND status = 'running'
{for_update}
"""

_PIN = """
UPDATE perdure_runs
SET queue = :queue, build = :build
WHERE id = :run_id
"""

_PINNED = """
SELECT status, queue
FROM perdure_runs
WHERE id = :run_id
{for_update}
"""

_UNPIN = """
UPDATE perdure_runs
SET queue = :queue
WHERE id = :run_id
"""

_UNPIN_WAITING = """
UPDATE perdure_lines
SET queue = :queue
WHERE run_id = :run_id AND location = ''
"""


async def pin(tx: Transaction, leases: Sequence[Lease], build: str) -> list[bool]:
    """Pin held runs to a build; False for a lease that was lost."""
    held: set[str] = set()
    # In the order of their ids, as every verb that locks several runs.
    for lease in sorted(leases, key=lambda one: one.run_id):
        row = {"run_id": lease.run_id, "token": lease.token, "nonce": lease.nonce}
        rows = await tx.fetch(_HELD, row)
        if not rows:
            continue
        held.add(lease.run_id)
        if pinned_build(rows[0][0]) != build:
            queue = pinned_queue(rows[0][0], build)
            await tx.execute(_PIN, {"run_id": lease.run_id, "queue": queue, "build": build})
            tx.note(lease.run_id, "pinned", to_json({"build": build}))
    return [lease.run_id in held for lease in leases]


async def unpin(tx: Transaction, run_id: str, reason: str) -> OrderOutcome:
    """Let workers of every build continue a run; a run that is not pinned stays as it is."""
    rows = await tx.fetch(_PINNED, {"run_id": run_id})
    if not rows:
        return OrderOutcome.UNKNOWN
    status, queue = rows[0]
    if status in FINISHED:
        return OrderOutcome.FINISHED
    if build := pinned_build(queue):
        for sql in (_UNPIN, _UNPIN_WAITING):
            await tx.execute(sql, {"run_id": run_id, "queue": base_queue(queue)})
        tx.note(run_id, "unpinned", to_json({"build": build, "reason": reason}))
        tx.notify(Change.READY)
    return OrderOutcome.DONE
