"""Taking one run by its id, for whoever is told which one to work on; and saying which are worth telling.

Under the lock of the run's row: whether it is ready, due, and nobody else's. It counts as any claim does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from perdure.core.limits.call_limits import says_of_gates
from perdure.core.model.claim_by_id import Refusal, Take, Taken
from perdure.core.model.run import FINISHED, ClaimedRun, Reason, Run, Status
from perdure.store.sql.dialect import Transaction, placeholders
from perdure.store.sql.limits.gates import limited
from perdure.store.sql.pauses import LIMITED_QUEUE, LIMITED_TYPE
from perdure.store.sql.rows import RUN, to_run
from perdure.store.sql.runs.claim import take
from perdure.store.sql.runs.poison import is_poison, is_suspect, set_aside

_RUN = f"""
SELECT progress, {RUN}
FROM perdure_runs
WHERE id = :run_id
{{for_update}}
"""

_ALIVE = """
SELECT 1
FROM perdure_workers
WHERE id = :worker AND status = 'alive'
"""

_READY_AGAIN = """
UPDATE perdure_runs
SET status = 'pending', reason = NULL, wake_at = :wake_at
WHERE id = :run_id
"""

_LAST = """
SELECT MAX(seq)
FROM perdure_history
WHERE run_id = :run_id
"""

#: Said twice so that each half follows its index; `wake_at >= 0` names the one by age.
_READY = """
SELECT wake_at, id
FROM perdure_runs
WHERE {pending queue} = :queue AND type = :type AND wake_at >= 0 AND wake_at <= :now
ORDER BY wake_at, id
LIMIT :limit
"""

_DUE = """
SELECT wake_at, id
FROM perdure_runs
WHERE {waiting wake_at} <= :now AND type IN ({types}) AND queue IN ({queues})
ORDER BY {wake_at of waiting}
LIMIT :limit
"""

_PAUSES = """
SELECT kind, name
FROM perdure_pauses
"""

#: In lines at gates that are worth looking at.
_IN_LINES = """
SELECT l.since, l.run_id
FROM perdure_gates g
JOIN perdure_lines l ON l.gate = g.name
WHERE g.due_at <= :now AND l.location = '' AND l.type IN ({}) AND l.queue IN ({})
ORDER BY l.turn
LIMIT :limit
"""

_PLACE = """
SELECT 1
FROM perdure_lines
WHERE run_id = :run_id AND location = ''
"""

#: What a run waits for that stands in a line.
_IN_LINE = (Reason.LIMIT, Reason.BREAKER)


async def pick(tx: Transaction, request: Take, entropy: Callable[[int], bytes]) -> Taken:
    """Take a run, if it is ready and nobody else's."""
    rows = await tx.fetch(_RUN, {"run_id": request.run_id})
    if not rows:
        return Taken(refused=Refusal.UNKNOWN, now=tx.now)
    progress, run = rows[0][0], to_run(rows[0][1:])
    if run.status is Status.RUNNING and (run.worker, run.nonce) == (request.worker, request.nonce):
        # Asked before; the answer was lost.
        return Taken(claimed=ClaimedRun(run, progress), now=tx.now, progress=progress)
    known = [(kind, name) for kind, name in await tx.fetch(_PAUSES, {})]
    refused = await _refusal(tx, run, request, known)
    if refused is Refusal.GATED:
        return await _at_the_gates(tx, run, limited(known))
    if refused is not None:
        return Taken(refused=refused, run=run, now=tx.now)
    [(last,)] = await tx.fetch(_LAST, {"run_id": run.id})
    last = -1 if last is None else last
    if is_suspect(run.claims, progressed=last > progress):
        if is_poison(run.claims, request.poison_after):
            return await _set_aside(tx, run)
        if not request.alone:
            return Taken(refused=Refusal.SUSPECT, run=run, now=tx.now)
    [claimed] = await take(tx, [(progress, run)], request.worker, request.nonce, entropy)
    return Taken(claimed=claimed, now=tx.now, progress=last)


async def _refusal(tx: Transaction, run: Run, request: Take, known: Sequence[tuple[str, str]]) -> Refusal | None:
    if run.status in FINISHED:
        return Refusal.FINISHED
    if run.status is Status.BLOCKED:
        return Refusal.BLOCKED
    if run.status is Status.RUNNING:
        return Refusal.HELD
    # Others wait for a limit that stand in no line: those whose turn comes after another run of the same singleton.
    kept = run.status is Status.WAITING and run.reason in _IN_LINE
    in_line = kept and bool(await tx.fetch(_PLACE, {"run_id": run.id}))
    if run.wake_at > tx.now and not in_line:
        return Refusal.WAITING
    if run.type not in request.types:
        return Refusal.FOREIGN
    if ("type", run.type) in known or ("queue", run.queue) in known:
        return Refusal.PAUSED
    if not await tx.fetch(_ALIVE, {"worker": request.worker}):
        return Refusal.DEAD
    guarded = (LIMITED_TYPE, run.type) in known or (LIMITED_QUEUE, run.queue) in known
    gated = in_line or guarded or run.type in request.gated or says_of_gates(run.options)
    return Refusal.GATED if gated else None


async def _at_the_gates(tx: Transaction, run: Run, gates: tuple[str, ...]) -> Taken:
    """Have it ready for whoever looks after gates: one that is due, or stands in a line whose place it keeps."""
    if run.status is Status.WAITING:
        since = min(run.wake_at, tx.now)
        await tx.execute(_READY_AGAIN, {"run_id": run.id, "wake_at": since})
        run = replace(run, status=Status.PENDING, reason=None, wake_at=since)
    return Taken(refused=Refusal.GATED, run=run, now=tx.now, limited=gates)


async def _set_aside(tx: Transaction, run: Run) -> Taken:
    error = await set_aside(tx, run.id, run.claims)
    run = replace(
        run, status=Status.BLOCKED, reason=Reason.POISON, error=error, wake_at=tx.now, token=run.token + 1, worker=None
    )
    return Taken(refused=Refusal.BLOCKED, run=run, now=tx.now)


async def due(tx: Transaction, types: Sequence[str], queues: Sequence[str], limit: int) -> list[str]:
    """Runs that could be worked on now, those that have waited longest first."""
    paused = {tuple(row) for row in await tx.fetch(_PAUSES, {})}
    types = [name for name in types if ("type", name) not in paused]
    queues = [name for name in queues if ("queue", name) not in paused]
    if not types or not queues:
        return []
    some_types, of_types = placeholders("type", types)
    some_queues, of_queues = placeholders("queue", queues)
    params = {**of_types, **of_queues, "now": tx.now, "limit": limit}
    found = [
        tuple(row)
        for row in await tx.fetch(_DUE.replace("{types}", some_types).replace("{queues}", some_queues), params)
    ]
    found += [tuple(row) for row in await tx.fetch(_IN_LINES.format(some_types, some_queues), params)]
    for queue in queues:
        for type in types:
            pair = {"queue": queue, "type": type, "now": tx.now, "limit": limit}
            found += [tuple(row) for row in await tx.fetch(_READY, pair)]
    return [run_id for _, run_id in sorted(found)[:limit]]
