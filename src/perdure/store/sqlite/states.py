"""The states that a running run goes into, each written under its lease.

Every function answers whether the lease held; where it did not, nothing was written.
"""

from __future__ import annotations

from perdure.core.model import Again, Block, Finish, Lease, Park, Status
from perdure.store.messages import deliver
from perdure.store.outcome import word_to_parent
from perdure.store.protocol import Change
from perdure.store.rows import to_json
from perdure.store.sqlite.connection import SqliteTransaction

_LEASE = "id = :run_id AND token = :token AND nonce = :nonce AND status = 'running'"

PARK = f"""
UPDATE perdure_runs
SET status = CASE WHEN MIN(:wake_at, deadline) <= :now THEN 'pending' ELSE 'waiting' END,
    reason = CASE WHEN MIN(:wake_at, deadline) <= :now THEN NULL ELSE :reason END,
    wake_at = MIN(:wake_at, deadline), worker = NULL, marked = 0, claims = 0
WHERE {_LEASE} AND inbox_seq = :seen
"""

FINISH = f"""
UPDATE perdure_runs
SET status = :status, reason = NULL, output = :output, error = :error, finished_at = :now, worker = NULL, marked = 0,
    claims = 0
WHERE {_LEASE}
RETURNING parent_id, parent_location, generation
"""

_AGAIN = f"""
UPDATE perdure_runs
SET status = 'waiting', reason = 'retry', attempt = attempt + 1, started_at = 0, wake_at = MIN(:wake_at, deadline),
    error = :error, worker = NULL, marked = 0, claims = 0
WHERE {_LEASE}
RETURNING attempt, wake_at, inbox_seq, inbox_read
"""

_TO_BE_STOPPED = """
SELECT 1
FROM perdure_messages
WHERE run_id = :run_id AND seq > :read AND kind = 'cancel'
"""

_AT_ONCE = """
UPDATE perdure_runs
SET status = 'pending', reason = NULL, wake_at = :now
WHERE id = :run_id
"""

_RELEASE = f"""
UPDATE perdure_runs
SET status = 'pending', reason = NULL, token = token + 1, wake_at = :now, worker = NULL, home = NULL, marked = 0, claims = 0
WHERE {_LEASE}
"""

_BLOCK = f"""
UPDATE perdure_runs
SET status = 'blocked', reason = :reason, error = :error, worker = NULL, marked = 0, claims = 0
WHERE {_LEASE}
"""


async def park(tx: SqliteTransaction, lease: Lease, park: Park) -> bool:
    """Wait; also refused when the inbox grew past what was seen."""
    change = {"wake_at": park.wake_at, "reason": park.reason.value, "seen": park.seen, "now": tx.now, **_proof(lease)}
    if await tx.execute(PARK, change) != 1:
        return False
    if park.wake_at <= tx.now:
        tx.stir(Change.READY)
    return True


async def finish(tx: SqliteTransaction, lease: Lease, outcome: Finish) -> bool:
    """End with an outcome, and tell the parent."""
    completed = outcome.status is Status.COMPLETED
    change = {
        "status": outcome.status.value,
        "output": outcome.payload if completed else None,
        "error": None if completed else outcome.payload,
        "now": tx.now,
        **_proof(lease),
    }
    rows = await tx.fetch(FINISH, change)
    if not rows:
        return False
    tx.note(lease.run_id, outcome.status.value)
    tx.stir(Change.FINISHED)
    parent_id, location, generation = rows[0]
    word = word_to_parent(lease.run_id, parent_id, location, generation, outcome.payload, failed=not completed)
    await deliver(tx, word)
    return True


async def again(tx: SqliteTransaction, lease: Lease, retry: Again) -> bool:
    """Wait for the next attempt at the whole run, unless it is to be stopped."""
    rows = await tx.fetch(_AGAIN, {"wake_at": retry.wake_at, "error": retry.error, **_proof(lease)})
    if not rows:
        return False
    attempt, wake_at, inbox_seq, inbox_read = rows[0]
    tx.note(lease.run_id, "retried", to_json({"attempt": attempt}))
    unread = {"run_id": lease.run_id, "read": inbox_read}
    if wake_at <= tx.now or (inbox_seq > inbox_read and await tx.fetch(_TO_BE_STOPPED, unread)):
        await tx.execute(_AT_ONCE, {"run_id": lease.run_id, "now": tx.now})
        tx.stir(Change.READY)
    return True


async def release(tx: SqliteTransaction, lease: Lease) -> bool:
    """Hand back for any worker to take."""
    if await tx.execute(_RELEASE, {"now": tx.now, **_proof(lease)}) != 1:
        return False
    tx.note(lease.run_id, "released", to_json({"token": lease.token + 1}))
    tx.stir(Change.READY)
    return True


async def block(tx: SqliteTransaction, lease: Lease, block: Block) -> bool:
    """Set aside."""
    if await tx.execute(_BLOCK, {"reason": block.reason.value, "error": block.error, **_proof(lease)}) != 1:
        return False
    tx.note(lease.run_id, "blocked", to_json({"reason": block.reason.value}))
    return True


def _proof(lease: Lease) -> dict[str, object]:
    return {"run_id": lease.run_id, "token": lease.token, "nonce": lease.nonce}
