"""Claiming runs whose rows are locked, one statement for all of them, on every database."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from perdure.core.model.run import ClaimedRun, Run, Status
from perdure.store.sql.audit import of_claim
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.limits.gates import in_chunks

LAST = "SELECT run_id, MAX(seq) FROM perdure_history WHERE run_id IN ({names}) GROUP BY run_id"

_TAKE = """
UPDATE perdure_runs
SET status = 'running', reason = NULL, worker = :worker, home = :worker, nonce = :nonce, token = :token, claims = :claims,
    progress = :progress, started_at = :started_at, seed = :seed, marked = :marked, deadline = :deadline, close_by = 0,
    wake_at = :now
WHERE id = :run_id
"""


async def take(
    tx: Transaction, locked: Sequence[tuple[int, Run]], worker: str, nonce: str, entropy: Callable[[int], bytes]
) -> list[ClaimedRun]:
    """Have a worker hold runs, given with their progress as it was."""
    seeds = entropy(16 * len(locked)).hex() if locked else ""
    last: dict[str, int] = dict(await in_chunks(tx, LAST, [run.id for _, run in locked]))
    claimed: list[ClaimedRun] = []
    for place, (progress, before) in enumerate(locked):
        recorded = last.get(before.id, -1)
        run = replace(
            before,
            status=Status.RUNNING,
            reason=None,
            worker=worker,
            nonce=nonce,
            token=before.token + 1,
            claims=1 if before.claims > 0 and recorded > progress else before.claims + 1,
            started_at=before.started_at or tx.now,
            seed=before.seed or seeds[32 * place : 32 * place + 32],
            deadline=before.close_by or before.deadline,
            close_by=0,
            wake_at=tx.now,
        )
        claimed.append(ClaimedRun(run, recorded))
        if tx.repeats or not before.started_at:
            tx.note(run.id, *of_claim(run, starts=not before.started_at))
    await tx.execute_many(_TAKE, [_row(one.run, last.get(one.run.id, -1), tx.now) for one in claimed])
    return claimed


def _row(run: Run, progress: int, now: int) -> dict[str, object]:
    return {
        "run_id": run.id,
        "worker": run.worker,
        "nonce": run.nonce,
        "token": run.token,
        "claims": run.claims,
        "progress": progress,
        "started_at": run.started_at,
        "seed": run.seed,
        "marked": int(run.inbox_seq > run.inbox_read),
        "deadline": run.deadline,
        "now": now,
    }
