"""Sweep on PostgreSQL: a cheap preview, and one statement that declares workers dead and reclaims their runs.

If many workers die at once, all that are left sweep at the same time. A transaction of many round trips would keep the
rows of the dead workers locked all that time, the longer the busier the machine is, and longer still if its own worker
is killed in the middle of it. One statement holds its locks only while the server executes it, and waits for none.
Rare work (deadlines, singletons, runs that workers in other languages lost too often, old worker rows) is left to the
transaction that all databases share.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from perdure.core.audit import Audit
from perdure.core.model.outputs import LOST, OutputKind
from perdure.core.model.worker_info import SweepResult
from perdure.core.time.duration import NEVER
from perdure.store.contract import Change
from perdure.store.postgres.session import LATELY
from perdure.store.postgres.transaction import PostgresTransaction
from perdure.store.server.clock import ServerClock
from perdure.store.sql.dialect import POSTGRES
from perdure.store.sql.runs.claim import CLAIMS_AFTER, HOME_AFTER, IS_POISON
from perdure.store.sql.runs.observers import UNSEEN
from perdure.store.sql.runs.waiters import UNTOLD
from perdure.store.sql.workers import LEASE_ENDS, POISON_AFTER, REMEMBERED

#: Skips from worker to worker along the index, so that the cost is one read per worker and not one per run.
_HOLDERS = """
holder (worker) AS (
  SELECT MIN(worker) FROM perdure_runs WHERE status = 'running'
  UNION ALL
  SELECT (SELECT MIN(r.worker) FROM perdure_runs r WHERE r.status = 'running' AND r.worker > holder.worker)
  FROM holder
  WHERE holder.worker IS NOT NULL
)"""

SWEEP_PREVIEW = f"""
WITH RECURSIVE clock AS MATERIALIZED (
  SELECT COALESCE($1::bigint, {POSTGRES.time}) AS now
), {_HOLDERS}
SELECT clock.now,
  EXISTS (SELECT 1 FROM perdure_workers WHERE status = 'alive' AND heartbeat_at + lease < clock.now)
  OR EXISTS (
    SELECT 1 FROM holder
    WHERE holder.worker IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM perdure_workers w WHERE w.id = holder.worker AND w.status = 'alive')
      AND EXISTS (
        SELECT 1 FROM perdure_runs r
        WHERE r.status = 'running' AND r.worker = holder.worker AND r.lease_until <= clock.now
        ORDER BY r.worker, r.nonce, r.id
        LIMIT 1
      )
  ),
  EXISTS (SELECT 1 FROM perdure_workers WHERE status <> 'alive' AND heartbeat_at < clock.now - $2::bigint)
  OR EXISTS (
    SELECT 1 FROM perdure_runs
    WHERE status IN ('pending', 'waiting') AND deadline < {NEVER} AND deadline <= clock.now
  )
  OR EXISTS (SELECT 1 FROM perdure_singletons) OR EXISTS (SELECT 1 FROM perdure_successors)
  OR {UNTOLD} OR {UNSEEN},
  EXISTS (SELECT 1 FROM perdure_workers WHERE status = 'dead' AND heartbeat_at > clock.now - {LATELY}),
  ({LEASE_ENDS.format(now="clock.now")}) - clock.now
FROM clock
"""

#: Skips locked rows: another sweep has them, or the next one finds them. A worker that this statement declares dead is
#: still alive in what its other parts see.
_RECLAIM = f"""
WITH RECURSIVE clock AS MATERIALIZED (
  SELECT COALESCE($1::bigint, {POSTGRES.time}) AS now
), late AS MATERIALIZED (
  SELECT id
  FROM perdure_workers
  WHERE status = 'alive' AND heartbeat_at + lease < (SELECT now FROM clock)
  ORDER BY id
  FOR NO KEY UPDATE SKIP LOCKED
), dead AS (
  UPDATE perdure_workers w
  SET status = 'dead'
  FROM late
  WHERE w.id = late.id
  RETURNING w.id
), {_HOLDERS}, gone AS MATERIALIZED (
  SELECT worker, buried
  FROM (SELECT worker, worker IN (SELECT id FROM late) AS buried FROM holder WHERE worker IS NOT NULL) one
  WHERE buried OR NOT EXISTS (SELECT 1 FROM perdure_workers w WHERE w.id = one.worker AND w.status = 'alive')
), lost AS MATERIALIZED (
  SELECT one.*, gone.worker, one.lease_until > 0 AS foreign_lease, one.last > one.progress AS progressed,
    gone.buried AND 1 = (
      SELECT COUNT(*) FROM (
        SELECT 1 FROM perdure_runs r
        WHERE r.status = 'running' AND r.worker = gone.worker AND r.lease_until <= (SELECT now FROM clock)
        LIMIT 2
      ) two
    ) AS alone
  FROM gone
  CROSS JOIN LATERAL (
    SELECT r.id, r.token, r.generation, r.attempt, r.claims, r.progress, r.lease_until,
      COALESCE((SELECT MAX(h.seq) FROM perdure_history h WHERE h.run_id = r.id), -1) AS last
    FROM perdure_runs r
    WHERE r.status = 'running' AND r.worker = gone.worker AND r.lease_until <= (SELECT now FROM clock)
    ORDER BY r.worker, r.nonce, r.id
    LIMIT $2
    FOR NO KEY UPDATE SKIP LOCKED
  ) one
  LIMIT $2
), judged AS MATERIALIZED (
  SELECT id, {IS_POISON.format(poison_after=POISON_AFTER)} AS poison, {CLAIMS_AFTER} AS claims, {HOME_AFTER} AS home
  FROM lost
), interrupted AS (
  INSERT INTO perdure_outputs (run_id, kind, name, position, payload, at, output_key)
  SELECT lost.id, '{OutputKind.INTERRUPTION}', '',
    COALESCE(
      (
        SELECT MAX(o.position) + 1 FROM perdure_outputs o
        WHERE o.run_id = lost.id AND o.kind = '{OutputKind.INTERRUPTION}' AND o.name = ''
      ),
      0
    ),
    json_build_object(
      'worker', lost.worker, 'reason', '{LOST}', 'generation', lost.generation, 'attempt', lost.attempt,
      'last', lost.last
    )::text,
    (SELECT now FROM clock), '{LOST}:' || lost.token
  FROM lost
  JOIN judged ON judged.id = lost.id AND NOT judged.poison
), given AS (
  UPDATE perdure_runs r
  SET status = 'pending', reason = NULL, worker = NULL, home = judged.home, token = r.token + 1,
    wake_at = (SELECT now FROM clock), marked = 0, lease_until = 0, claims = judged.claims
  FROM judged
  WHERE r.id = judged.id AND NOT judged.poison
  RETURNING r.id, r.token
{{noted}})
SELECT
  (SELECT now FROM clock),
  (SELECT json_agg(id ORDER BY id) FROM dead)::text,
  (SELECT json_agg(json_build_array(id, '{{{{"token":' || token || '}}}}')) FROM given)::text,
  EXISTS (SELECT 1 FROM judged WHERE poison)
"""

_NOTED = """), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT id, (SELECT now FROM clock), 'reclaimed', 'sweep', '{"token":' || token || '}'
  FROM given
"""
RECLAIM = {level: _RECLAIM.format(noted=_NOTED if level.writes("reclaimed") else "") for level in Audit}


class SweepPreview(Struct, frozen=True):
    """Result of the cheap query that precedes a sweep."""

    #: There are workers to declare dead, or runs to reclaim.
    orphans: bool
    #: There is work that takes a transaction.
    rest: bool
    #: A worker was declared dead lately.
    deaths: bool
    #: Microseconds until the next lease of a living worker ends.
    lease_ends_in: int | None


async def preview_sweep(tx: PostgresTransaction, clock: ServerClock) -> SweepPreview:
    """Read whether there is anything to sweep, and whether a worker died lately."""
    asked = clock.start_measurement()
    [(now, orphans, rest, deaths, lease_ends_in)] = await tx.run(SWEEP_PREVIEW, clock.told, REMEMBERED)
    clock.finish_measurement(asked, now)
    return SweepPreview(orphans, rest, deaths, lease_ends_in)


async def reclaim_runs(tx: PostgresTransaction, limit: int, clock: ServerClock) -> tuple[SweepResult, bool]:
    """Declare workers dead and reclaim their runs; return what was done, and whether a run is to be set aside."""
    asked = clock.start_measurement()
    [(now, names, lines, poison)] = await tx.run(RECLAIM[tx.audit], clock.told, limit)
    clock.finish_measurement(asked, now)
    dead = msgspec.json.decode(names or "[]", type=tuple[str, ...])
    given: Sequence[tuple[str, str]] = msgspec.json.decode(lines or "[]", type=list[tuple[str, str]])
    for run_id, data in given:
        tx.observe(run_id, "reclaimed", data)
    if given:
        tx.notify(Change.READY)
    return SweepResult(dead_workers=dead, released=len(given), expired=0, more=len(given) >= limit), poison


def merge_swept(first: SweepResult, second: SweepResult) -> SweepResult:
    """Add up the results of two parts of one sweep."""
    return SweepResult(
        dead_workers=(*first.dead_workers, *second.dead_workers),
        released=first.released + second.released,
        expired=first.expired + second.expired,
        more=first.more or second.more,
        successions=(*first.successions, *second.successions),
    )
