"""Workers: one row each, renewed by heartbeats; the runs of dead workers are released; and the registry of types.

Releasing raises the token of each run, so that later writes of the former holder are refused. A sweep does a bounded
part of the work and says if there is more. It also fails runs that are past their deadline and have no holder. It waits
for no lock: every worker sweeps, so a skipped row is in another sweep's hands, or the next one finds it.

Workers in other languages have no row; each run that one holds has a lease of its own, and is released when that
expires. A run that they lose again and again is blocked here, because no worker of ours claims it. They get a suspect
alone, so each loss of one counts; losses of our workers count as `claims_after` says.

A worker registers the types that it serves when it starts. Unchanged rows are only read, so that a restarting fleet
writes nothing. Pauses alone decide if a type is enabled.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.model.outputs import LOST, Interruption, interruption_output
from perdure.core.model.run import Status
from perdure.core.model.run_orders import OrderOutcome, PauseKind
from perdure.core.model.turn import Lease
from perdure.core.model.worker_info import (
    TRAIL,
    DrainOrder,
    HeartbeatResult,
    SweepResult,
    WorkerInfo,
    WorkerStatus,
    drain_from_json,
    living_workers,
)
from perdure.core.routing import SHARED, TypeInfo, runtime_of_type, served_elsewhere
from perdure.core.time.duration import NEVER
from perdure.errors import Expired, NotStarted
from perdure.store.contract import Change
from perdure.store.sql.audit import note_inserted
from perdure.store.sql.dialect import Params, Row, Transaction, placeholders
from perdure.store.sql.limits.gates import in_chunks
from perdure.store.sql.rows import WORKER, failure, to_json, to_worker
from perdure.store.sql.runs.claim import LAST, block_as_poison, claims_after, home_after, is_poison
from perdure.store.sql.runs.finish import finish
from perdure.store.sql.runs.inbox import deliver_all
from perdure.store.sql.runs.observers import unseen
from perdure.store.sql.runs.outputs import write_outputs
from perdure.store.sql.runs.waiters import untold
from perdure.store.sql.singletons import overdue

#: Workers that ended longer ago than this are forgotten, in microseconds.
REMEMBERED = 24 * 3600 * 1_000_000
#: Claims by workers in other languages that ended with their leases and nothing else, after which a run is set aside.
POISON_AFTER = 5
#: Characters of a problem that are kept.
_PROBLEM = 2000

_REGISTER = """
INSERT INTO perdure_workers (id, host, pid, queues, types, slots, lease, started_at, heartbeat_at, status, build)
VALUES (:id, :host, :pid, :queues, :types, :slots, :lease, :now, :now, 'alive', :build)
{or_ignore}
"""

_HEARTBEAT = """
UPDATE perdure_workers
SET heartbeat_at = :now, running = :running
WHERE id = :id AND status = 'alive'
RETURNING drain
"""

_ORDERED = """
SELECT status, drain
FROM perdure_workers
WHERE id = :id
{for_update}
"""

_ORDER = """
UPDATE perdure_workers
SET drain = :drain
WHERE id = :id
"""

_WENT_BACK = """
SELECT 1
FROM perdure_workers
WHERE id = :id AND status = 'alive' AND heartbeat_at < :beat
"""

_END = """
UPDATE perdure_workers
SET status = :status
WHERE id = :id AND status = 'alive'
"""

#: Skips locked rows: another sweep buries that worker, or its heartbeat has come after all. Waiting would make
#: all sweeps of a fleet queue up behind one.
_OVERDUE = """
SELECT id
FROM perdure_workers
WHERE status = 'alive' AND heartbeat_at + lease < :now
ORDER BY id
{skip_locked}
"""

#: When the next lease of a living worker ends, unless its heartbeat renews it. Those that are over already belong to a
#: sweep that is under way.
LEASE_ENDS = """
SELECT MIN(heartbeat_at + lease)
FROM perdure_workers
WHERE status = 'alive' AND heartbeat_at + lease >= {now}
"""

#: None that holds something still.
_FORGOTTEN = """
SELECT id
FROM perdure_workers
WHERE status <> 'alive' AND heartbeat_at < :before
  AND NOT EXISTS (
    SELECT 1 FROM perdure_runs WHERE perdure_runs.status = 'running' AND perdure_runs.worker = perdure_workers.id
  )
ORDER BY id
LIMIT :limit
"""

#: By their ids: a DELETE that looks for them waits on MySQL for every row that is locked, whatever it holds.
_FORGET = """
DELETE FROM perdure_workers
WHERE id = :id AND status <> 'alive'
"""

#: An UPDATE and then an INSERT, which every database has. Written by one worker only, the one that it is about.
_REPORT = """
UPDATE perdure_health
SET errors = :errors, problem = :problem, reported_at = :now
WHERE worker_id = :id
"""

_FIRST_REPORT = """
INSERT INTO perdure_health (worker_id, errors, problem, reported_at)
VALUES (:id, :errors, :problem, :now)
{or_ignore}
"""

_FORGOTTEN_HEALTH = """
SELECT worker_id
FROM perdure_health
WHERE reported_at < :before AND NOT EXISTS (SELECT 1 FROM perdure_workers w WHERE w.id = perdure_health.worker_id)
ORDER BY worker_id
LIMIT :limit
"""

_FORGET_HEALTH = """
DELETE FROM perdure_health
WHERE worker_id = :id
"""

_WORKERS = f"""
SELECT {", ".join("w." + column for column in WORKER.split(", "))}, h.errors, h.problem
FROM perdure_workers w
LEFT JOIN perdure_health h ON h.worker_id = w.id
ORDER BY w.started_at, w.id
"""

_NEXT_HOLDER = """
SELECT MIN(worker)
FROM perdure_runs
WHERE status = 'running' AND worker > :after
"""

_ALIVE = """
SELECT id
FROM perdure_workers
WHERE status = 'alive'
"""

_HELD = """
SELECT id, token, nonce
FROM perdure_runs
WHERE status = 'running' AND worker = :worker AND lease_until = 0
ORDER BY worker, nonce, id
LIMIT :limit
{for_update}
"""

#: Runs of a holder without a worker row that have no lease of their own, or an expired one. A locked run
#: is released by another sweep, or by the next one.
_LOST = """
SELECT id, token, nonce, claims, progress, lease_until, generation, attempt
FROM perdure_runs
WHERE status = 'running' AND worker = :worker AND lease_until <= :now
ORDER BY worker, nonce, id
LIMIT :limit
{skip_locked}
"""

_TWO = """
SELECT 1
FROM perdure_runs
WHERE status = 'running' AND worker = :worker AND lease_until <= :now
LIMIT 2
"""

#: The worker that died with a run is remembered as its home: those that died together are suspected together.
_GIVE_BACK = """
UPDATE perdure_runs
SET status = 'pending', reason = NULL, worker = NULL, home = :home, token = token + 1, wake_at = :now, marked = 0,
    lease_until = 0, claims = :claims
WHERE id = :run_id AND token = :token AND status = 'running'
"""

_PAST_DEADLINE = f"""
SELECT id, close_by
FROM perdure_runs
WHERE status IN ('pending', 'waiting') AND finished_at = 0 AND deadline < {NEVER} AND deadline <= :now
ORDER BY deadline
LIMIT :limit
{{skip_locked}}
"""


class _Orphan(Struct, frozen=True):
    """A run whose holder is gone, and what is to be written about it."""

    lease: Lease
    home: str | None = None
    #: Claims without progress.
    claims: int = 0
    poison: bool = False
    #: What the run's report says of it; None: its holder gave it back in order.
    interruption: Interruption | None = None


async def register(tx: Transaction, worker: WorkerInfo) -> None:
    """Begin a life."""
    row = {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "queues": to_json(worker.queues),
        "types": to_json(worker.types),
        "slots": worker.slots,
        "lease": worker.lease,
        "build": worker.build,
        "now": tx.now,
    }
    await tx.execute(_REGISTER, row)


async def heartbeat(tx: Transaction, worker_id: str, running: str | None = None) -> HeartbeatResult:
    """Renew a worker's row, if it is still alive. For SQLite; servers have statements of their own."""
    rows = await tx.fetch(_HEARTBEAT, {"id": worker_id, "now": tx.now, "running": running})
    if not rows:
        return HeartbeatResult.LOST
    return HeartbeatResult.DRAIN if rows[0][0] else HeartbeatResult.RENEWED


async def drain(tx: Transaction, worker_id: str, order: DrainOrder) -> OrderOutcome:
    """Order a worker to drain. A dead one gets the order, too, because its process may come back."""
    rows = await tx.fetch(_ORDERED, {"id": worker_id})
    if not rows:
        return OrderOutcome.UNKNOWN
    status, text = rows[0]
    there = drain_from_json(text)
    if status == WorkerStatus.STOPPED:
        # It may have stopped because of this order, whose answer was lost.
        return OrderOutcome.DONE if there is not None and there.key == order.key else OrderOutcome.FINISHED
    if there is None:
        stored = replace(order, at=tx.now, actor=tx.actor)
        await tx.execute(_ORDER, {"id": worker_id, "drain": to_json(stored)})
        tx.note(TRAIL + worker_id, "worker_drained", to_json({"reason": order.reason, "grace": order.grace}))
    elif there.key != order.key:
        return OrderOutcome.ALREADY
    return OrderOutcome.DONE if status == WorkerStatus.ALIVE else OrderOutcome.FINISHED


async def report_health(tx: Transaction, worker_id: str, errors: int, problem: str) -> None:
    """Keep how many errors a worker's background loops have met, and the latest."""
    row = {"id": worker_id, "errors": errors, "problem": problem[:_PROBLEM], "now": tx.now}
    if await tx.execute(_REPORT, row) == 0:
        await tx.execute(_FIRST_REPORT, row)


async def went_back(tx: Transaction, worker_id: str, beat: int) -> bool:
    """True if the row of a living worker has an earlier heartbeat than one that was acknowledged."""
    return bool(await tx.fetch(_WENT_BACK, {"id": worker_id, "beat": beat}))


async def retire(tx: Transaction, worker_id: str) -> None:
    """End a life in order."""
    await tx.execute(_END, {"id": worker_id, "status": "stopped"})
    await _give_back(tx, [_Orphan(lease) for lease in await _held(tx, worker_id, NEVER)], "released")


async def sweep(tx: Transaction, limit: int) -> SweepResult:
    """Bury the dead, give back what they held, fail what is too late."""
    dead = tuple(row[0] for row in await tx.fetch(_OVERDUE, {"now": tx.now}))
    await tx.execute_many(_END, [{"id": worker, "status": "dead"} for worker in dead])
    await _forget(tx, limit)
    found, more = await _orphans(tx, dead, limit)
    kept = [(one.lease, one.interruption) for one in found if one.interruption is not None]
    if kept:
        await write_outputs(tx, [(lease.run_id, interruption_output(lost, lease.token)) for lease, lost in kept])
    orphans = [one for one in found if not one.poison]
    await _give_back(tx, orphans, "reclaimed")
    for one in found:
        if one.poison:
            await block_as_poison(tx, one.lease.run_id, one.claims)
    late = await tx.fetch(_PAST_DEADLINE, {"now": tx.now, "limit": limit})
    await note_inserted(tx, [run_id for run_id, _ in late])
    for run_id, close_by in late:
        if close_by:
            error = failure(
                NotStarted, f"Run {run_id!r} was not begun in time: no worker took it. Are there enough of them?"
            )
        else:
            error = failure(Expired, f"Run {run_id!r} was not finished by its deadline.")
        passed = "schedule_to_start" if close_by else "schedule_to_close"
        await deliver_all(tx, await finish(tx, run_id, Status.FAILED, error, "expired", passed))
    await deliver_all(tx, [*await untold(tx, limit), *await unseen(tx, limit)])
    [(lease_ends,)] = await tx.fetch(LEASE_ENDS.format(now=":now"), {"now": tx.now})
    return SweepResult(
        lease_ends_in=None if lease_ends is None else lease_ends - tx.now,
        dead_workers=dead,
        released=len(orphans),
        expired=len(late),
        more=more or len(late) >= limit,
        successions=await overdue(tx, limit),
    )


async def workers(tx: Transaction) -> list[WorkerInfo]:
    """Every worker that is remembered."""
    return [replace(to_worker(row), read_at=tx.now) for row in await tx.fetch(_WORKERS, {})]


class ServedRuns(Struct, frozen=True):
    """Types of runs that workers take, in some queues; without queues, in all of them."""

    types: tuple[str, ...]
    queues: tuple[str, ...] = ()

    def exclude(self, run: str, key: str) -> tuple[str, dict[str, object]]:
        """Condition that these do not take a run, called `run` in the query, and its parameters."""
        chosen, params = placeholders(f"{key}_type", self.types)
        if not self.queues:
            return f"{run}.type NOT IN ({chosen})", params
        places, more = placeholders(f"{key}_queue", self.queues)
        return f"({run}.type NOT IN ({chosen}) OR {run}.queue NOT IN ({places}))", {**params, **more}


async def served_by(tx: Transaction) -> list[ServedRuns]:
    """Runs that live workers take, and types of workers in other languages, which send no heartbeat."""
    alive = living_workers(await workers(tx), tx.now)
    by_queue: dict[str, set[str]] = {}
    for one in alive:
        for queue in one.queues:
            by_queue.setdefault(queue, set()).update(one.types)
    # Queues with the same types, as those of several builds have, are one condition.
    queues: dict[tuple[str, ...], list[str]] = {}
    for queue, served in sorted(by_queue.items()):
        queues.setdefault(tuple(sorted(served)), []).append(queue)
    found = [ServedRuns(served, tuple(names)) for served, names in queues.items()]
    elsewhere = ServedRuns(tuple(sorted(served_elsewhere(await types(tx)))))
    return [one for one in (*found, elsewhere) if one.types]


async def leases(tx: Transaction, worker_id: str) -> list[Lease]:
    """Leases that the database assigns to a worker."""
    return await _held(tx, worker_id, NEVER)


async def _held(tx: Transaction, worker_id: str, limit: int) -> list[Lease]:
    return [Lease(*row) for row in await tx.fetch(_HELD, {"worker": worker_id, "limit": limit})]


async def _forget(tx: Transaction, limit: int) -> None:
    """Forget workers that ended long ago."""
    old = {"before": tx.now - REMEMBERED, "limit": limit}
    for found, forget in ((_FORGOTTEN, _FORGET), (_FORGOTTEN_HEALTH, _FORGET_HEALTH)):
        await tx.execute_many(forget, [{"id": row[0]} for row in await tx.fetch(found, old)])


async def _orphans(tx: Transaction, buried: Sequence[str], limit: int) -> tuple[list[_Orphan], bool]:
    """Runs without a living holder, and if there are more.

    `buried` are the workers that were declared dead just now.
    """
    # Leaps from holder to holder along the index, so that the cost is one look a worker and not one a run.
    alive = {row[0] for row in await tx.fetch(_ALIVE, {})}
    orphans: list[_Orphan] = []
    holder = ""
    while (room := limit - len(orphans)) > 0:
        [(next_holder,)] = await tx.fetch(_NEXT_HOLDER, {"after": holder})
        if next_holder is None:
            return orphans, False
        holder = next_holder
        if holder in alive:
            continue
        lost = await tx.fetch(_LOST, {"worker": holder, "now": tx.now, "limit": room})
        alone = holder in buried and len(lost) == 1 and await _is_all(tx, holder)
        orphans += await _judged(tx, holder, lost, alone=alone)
    return orphans, True


async def _is_all(tx: Transaction, holder: str) -> bool:
    """True if a holder that was buried just now held one run, counting locked ones and those beyond the limit.

    The rest of its runs, left for the next sweep, is not alone either, since the holder is buried by then.
    """
    return len(await tx.fetch(_TWO, {"worker": holder, "now": tx.now})) == 1


async def _judged(tx: Transaction, holder: str, lost: Sequence[Row], *, alone: bool) -> list[_Orphan]:
    """Next state of the runs that one holder has lost."""
    last: dict[str, int] = dict(await in_chunks(tx, LAST, [row[0] for row in lost]))
    orphans: list[_Orphan] = []
    for run_id, token, nonce, claims, progress, lease_until, generation, attempt in lost:
        foreign = lease_until > 0
        recorded = last.get(run_id, -1)
        progressed = recorded > progress
        orphans.append(
            _Orphan(
                Lease(run_id, token, nonce),
                home=holder if foreign else home_after(holder, claims, alone=alone),
                claims=claims if foreign else claims_after(claims, alone=alone, progressed=progressed),
                poison=foreign and is_poison(claims, POISON_AFTER),
                interruption=Interruption(
                    worker=holder, reason=LOST, generation=generation, attempt=attempt, last=recorded
                ),
            )
        )
    return orphans


async def _give_back(tx: Transaction, orphans: Sequence[_Orphan], event: str) -> None:
    rows = [
        {
            "run_id": one.lease.run_id,
            "token": one.lease.token,
            "now": tx.now,
            "home": one.home,
            "claims": one.claims,
        }
        for one in orphans
    ]
    await tx.execute_many(_GIVE_BACK, rows)
    for one in orphans:
        tx.note(one.lease.run_id, event, to_json({"token": one.lease.token + 1}))
    if orphans:
        tx.notify(Change.READY)


_ALL = """
SELECT type, kind, runtime, description, registered_at
FROM perdure_registry
ORDER BY type
"""

_PAUSED = """
SELECT name
FROM perdure_pauses
WHERE kind = :kind
"""

_ADD = """
INSERT INTO perdure_registry (type, kind, runtime, description, registered_at)
VALUES (:type, :kind, :runtime, :description, :now)
{or_ignore}
"""

_CHANGE = """
UPDATE perdure_registry
SET kind = :kind, runtime = :runtime, description = :description, registered_at = :now
WHERE type = :type
"""


async def enlist(tx: Transaction, served: Sequence[TypeInfo]) -> tuple[str, ...]:
    """Update the registry with the types that a worker serves; return those that belong to another runtime."""
    if not served:
        return ()
    there = {row[0]: tuple(row[1:4]) for row in await tx.fetch(_ALL, {})}
    elsewhere: list[str] = []
    added, changed = list[Params](), list[Params]()
    for one in sorted(served, key=lambda one: one.type):
        known = there.get(one.type)
        runtime = runtime_of_type(None if known is None else known[1], one.runtime)
        if runtime not in (one.runtime, SHARED):
            elsewhere.append(one.type)
        elif known != (one.kind, runtime, one.description):
            row = {"type": one.type, "kind": one.kind, "runtime": runtime, "description": one.description}
            (added if known is None else changed).append({**row, "now": tx.now})
    for sql, rows in ((_ADD, added), (_CHANGE, changed)):
        if rows:
            await tx.execute_many(sql, rows)
    return tuple(elsewhere)


async def types(tx: Transaction) -> list[TypeInfo]:
    """Every registered type, and if it is enabled."""
    paused = {row[0] for row in await tx.fetch(_PAUSED, {"kind": PauseKind.TYPE.value})}
    return [
        TypeInfo(
            type=type,
            kind=kind,
            runtime=runtime,
            description=description,
            enabled=type not in paused,
            registered_at=registered_at,
        )
        for type, kind, runtime, description, registered_at in await tx.fetch(_ALL, {})
    ]
