"""The states that a running run goes into, each written under its lease.

Every function answers whether the lease held; where it did not, nothing was written.
"""

from __future__ import annotations

from collections.abc import Mapping

from perdure.core.model.run import Status
from perdure.core.model.turn import Block, ContinueAsNew, Finish, Lease, Park, Release, RetryLater
from perdure.store.contract import Change
from perdure.store.sql.audit import note_again, note_finish, of_block, of_park
from perdure.store.sql.rows import to_json
from perdure.store.sql.runs.finish import word_to_parent
from perdure.store.sql.runs.inbox import deliver
from perdure.store.sql.turn import renew as begin_anew
from perdure.store.sqlite.connection import SqliteTransaction

_LEASE = "id = :run_id AND token = :token AND nonce = :nonce AND status = 'running'"

PARK = f"""
UPDATE perdure_runs
SET status = CASE WHEN MIN(:wake_at, deadline) <= :now THEN 'pending' ELSE 'waiting' END,
    reason = CASE WHEN MIN(:wake_at, deadline) <= :now THEN NULL ELSE :reason END,
    wake_at = MIN(:wake_at, deadline), worker = NULL, marked = 0, claims = 0
WHERE {_LEASE} AND inbox_seq = :seen
"""

#: Without RETURNING, which costs SQLite as much again as the update: who has a parent is asked once for all that finished.
FINISH = """
UPDATE perdure_runs
SET status = ?, reason = NULL, output = ?, error = ?, finished_at = ?, worker = NULL, marked = 0, claims = 0
WHERE id = ? AND token = ? AND nonce = ? AND status = 'running'
"""

PARENTS = """
SELECT id, parent_id, parent_location, generation
FROM perdure_runs
WHERE id IN (SELECT value FROM json_each(?)) AND parent_id IS NOT NULL
ORDER BY id
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
SET status = 'pending', reason = NULL, token = token + 1, wake_at = :now, worker = NULL, home = :home, marked = 0, claims = 0
WHERE {_LEASE}
"""

_RENEW = f"""
UPDATE perdure_runs
SET status = 'pending', reason = NULL, token = token + 1, attempt = 1, started_at = 0, wake_at = :now, error = NULL,
    inbox_read = MAX(inbox_read, :read), worker = NULL, marked = 0, claims = 0
WHERE {_LEASE} AND inbox_seq = :seen
RETURNING generation
"""

_BLOCK = f"""
UPDATE perdure_runs
SET status = 'blocked', reason = :reason, error = :error, wake_at = :now, worker = NULL, marked = 0, claims = 0
WHERE {_LEASE}
"""


async def park(tx: SqliteTransaction, lease: Lease, park: Park) -> bool:
    """Wait; also refused when the inbox grew past what was seen."""
    change = {"wake_at": park.wake_at, "reason": park.reason.value, "seen": park.seen, "now": tx.now, **_proof(lease)}
    if await tx.execute(PARK, change) != 1:
        return False
    if tx.repeats:
        tx.note(lease.run_id, *of_park(park))
    if park.wake_at <= tx.now:
        tx.stir(Change.READY)
    return True


async def finish(tx: SqliteTransaction, lease: Lease, outcome: Finish) -> bool:
    """End with an outcome. The parent is to be told in the same transaction: `tell_parents`."""
    status = outcome.status.value
    output, error = (outcome.payload, None) if outcome.status is Status.COMPLETED else (None, outcome.payload)
    change = (status, output, error, tx.now, lease.run_id, lease.token, lease.nonce)
    if await tx.execute(FINISH, change) != 1:
        return False
    if tx.notes:
        note_finish(tx, lease.run_id, outcome)
    tx.stir(Change.FINISHED)
    return True


async def tell_parents(tx: SqliteTransaction, finished: Mapping[str, Finish]) -> None:
    """Put the outcomes of runs that have just finished into the inboxes of those that wait for them."""
    for run_id, parent_id, location, generation in await tx.fetch(PARENTS, (to_json(list(finished)),)):
        outcome = finished[run_id]
        failed = outcome.status is not Status.COMPLETED
        await deliver(tx, word_to_parent(run_id, parent_id, location, generation, outcome.payload, failed=failed))


async def again(tx: SqliteTransaction, lease: Lease, retry: RetryLater) -> bool:
    """Wait for the next attempt at the whole run, unless it is to be stopped."""
    rows = await tx.fetch(_AGAIN, {"wake_at": retry.wake_at, "error": retry.error, **_proof(lease)})
    if not rows:
        return False
    attempt, wake_at, inbox_seq, inbox_read = rows[0]
    note_again(tx, lease.run_id, retry, attempt, wake_at)
    unread = {"run_id": lease.run_id, "read": inbox_read}
    if wake_at <= tx.now or (inbox_seq > inbox_read and await tx.fetch(_TO_BE_STOPPED, unread)):
        await tx.execute(_AT_ONCE, {"run_id": lease.run_id, "now": tx.now})
        tx.stir(Change.READY)
    return True


async def release(tx: SqliteTransaction, lease: Lease, release: Release) -> bool:
    """Hand back for any worker to take."""
    if await tx.execute(_RELEASE, {"now": tx.now, "home": release.home, **_proof(lease)}) != 1:
        return False
    tx.note(lease.run_id, "released", to_json({"token": lease.token + 1}))
    tx.stir(Change.READY)
    return True


async def renew(tx: SqliteTransaction, lease: Lease, renew: ContinueAsNew, read: int) -> bool:
    """Begin anew, having read the inbox up to an entry; also refused when the inbox grew past what was seen."""
    rows = await tx.fetch(_RENEW, {"seen": renew.seen, "read": read, "now": tx.now, **_proof(lease)})
    if not rows:
        return False
    await begin_anew(tx, {lease.run_id: renew})
    tx.note(lease.run_id, "continued", to_json({"generation": rows[0][0] + 1}))
    tx.stir(Change.READY)
    return True


async def block(tx: SqliteTransaction, lease: Lease, block: Block) -> bool:
    """Set aside."""
    change = {"reason": block.reason.value, "error": block.error, "now": tx.now, **_proof(lease)}
    if await tx.execute(_BLOCK, change) != 1:
        return False
    tx.note(lease.run_id, *of_block(block))
    return True


def _proof(lease: Lease) -> dict[str, object]:
    return {"run_id": lease.run_id, "token": lease.token, "nonce": lease.nonce}
