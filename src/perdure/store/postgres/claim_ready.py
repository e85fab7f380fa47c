"""One statement that previews a claim, and takes ready runs if that is all there is to do.

Due timers, suspects and claims whose answer was lost are only reported; the transaction in `claim` handles them. Rows
stay locked only while the statement runs. With several types it locks more rows than it takes, for that moment; a
claimer that finds nothing because of that looks again soon. Queues and types are separate parameters and limits are
subqueries, so that the planner expects the same for all parameters and plans once instead of every time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from perdure.core.audit import Audit
from perdure.core.model.claim import SUSPECT_AFTER, ClaimRequest, ClaimResult
from perdure.core.time.duration import FAR
from perdure.store.postgres.claim import MOMENT, OF_AGE, OF_RUN, TAKEN, PostgresPreview, pairs_of, to_runs
from perdure.store.postgres.transaction import PostgresTransaction
from perdure.store.server.clock import ServerClock
from perdure.store.sql.audit import claim_event
from perdure.store.sql.dialect import POSTGRES, Row

_IN_PAIR = "r.status = 'pending' AND r.queue = pair.queue AND r.type = pair.type"

#: The ORDER BY selects the index: without it the planner would scan the table for any row.
_ANY = f"""EXISTS (
      SELECT 1
      FROM pair
      CROSS JOIN LATERAL (SELECT 1 FROM perdure_runs r WHERE {_IN_PAIR} AND {{}} LIMIT 1) one
    )"""
_OLDEST = "ORDER BY r.queue, r.type, r.wake_at, r.id"

#: An expression, for which the planner assumes a constant selectivity; with the column it would replan every time.
_HOME = "COALESCE(r.home, $3)"

#: `server` is the server's time; `now` is the time that this process uses, which is never later.
_SEEN = f"""
clock AS MATERIALIZED (
  SELECT server, LEAST(server, COALESCE($2::bigint, server)) AS now
  FROM (SELECT COALESCE($1::bigint, {POSTGRES.time}) AS server) one
), living AS MATERIALIZED (
  SELECT ARRAY(SELECT id FROM perdure_workers WHERE status = 'alive') AS alive
), seen AS MATERIALIZED (
  SELECT server, now, alive,
    EXISTS (
      SELECT 1
      FROM (
        SELECT 1 FROM perdure_runs
        WHERE status = 'running' AND worker = $3 AND nonce = $4
        ORDER BY worker, nonce, id LIMIT 1
      ) one
    ) AS held,
    COALESCE((SELECT wake_at FROM perdure_runs WHERE status = 'waiting' ORDER BY wake_at LIMIT 1), {FAR}) AS next_wake,
    {_ANY.format(f"{OF_AGE} {_OLDEST}")} AS ready,
    {_ANY.format("r.claims > 0 ORDER BY r.queue, r.type, r.priority, r.wake_at, r.id")} AS doubtful,
    {_ANY.format(f"{OF_AGE} AND r.wake_at > server {_OLDEST}")} AS early,
    (
      SELECT MIN(one.wake_at)
      FROM pair
      CROSS JOIN LATERAL (
        SELECT r.wake_at FROM perdure_runs r
        WHERE {_IN_PAIR} AND {OF_AGE} AND r.wake_at > server - $5::bigint AND {_HOME} <> $3 AND {_HOME} = ANY (alive)
        {_OLDEST} LIMIT 1
      ) one
    ) AS left_to_others
  FROM clock
  CROSS JOIN living
)"""

#: Ready, no suspect, and not left to the worker that held it last.
_FREE = f"""{_IN_PAIR} AND r.wake_at <= usual.now AND r.claims < $9
      AND (r.home IS NULL OR r.home = $3 OR r.wake_at <= usual.now - $5 OR r.home <> ALL (usual.alive))"""

#: Facts are returned once: with the first taken run, or alone. They are no arrays, whose types the driver would query.
_FACTS = ", ".join(
    f"CASE WHEN COALESCE(taken.place, 1) = 1 THEN {fact} END"
    for fact in (
        "server",
        "next_wake",
        "held",
        "ready",
        "doubtful",
        "early",
        "left_to_others",
        "EXISTS (SELECT 1 FROM usual)",
        "array_to_string(alive, E'\\n')",
        "(SELECT string_agg(kind || ' ' || name, E'\\n') FROM perdure_pauses)",
        f"COALESCE((SELECT due_at FROM perdure_schedules ORDER BY due_at LIMIT 1), {FAR})",
    )
)
_FACT_COUNT = 11


#: The statement writes its audit events. An attempt that starts with this claim has its time.
_STARTED = "started_at = (SELECT now FROM clock)"
_NOTED = f"""), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT id, (SELECT now FROM clock), CASE WHEN {_STARTED} THEN 'started' ELSE 'claimed' END, $3,
    '{{"token":' || token || ',"attempt":' || attempt || '}}'
  FROM taken"""
_TRAIL = {Audit.FULL: _NOTED, Audit.LIFECYCLE: f"{_NOTED}\n  WHERE {_STARTED}", Audit.OFF: ""}


#: Chooses runs by priority, then by age among the others, and takes them.
_TAKEN_RUNS = f"""first AS MATERIALIZED (
  SELECT one.priority, one.wake_at, one.id, one.token
  FROM usual
  CROSS JOIN pair
  CROSS JOIN LATERAL (
    SELECT r.priority, r.wake_at, r.id, r.token
    FROM perdure_runs r
    WHERE {_FREE}
    ORDER BY r.priority, r.wake_at, r.id
    LIMIT (SELECT by_priority FROM wanted)
    FOR NO KEY UPDATE SKIP LOCKED
  ) one
  ORDER BY one.priority, one.wake_at, one.id
  LIMIT (SELECT by_priority FROM wanted)
), aged AS MATERIALIZED (
  SELECT one.wake_at, one.id, one.token
  FROM usual
  CROSS JOIN pair
  CROSS JOIN LATERAL (
    SELECT r.wake_at, r.id, r.token
    FROM perdure_runs r
    WHERE {_FREE} AND {OF_AGE} AND r.id <> ALL (ARRAY(SELECT id FROM first))
    ORDER BY r.wake_at, r.id
    LIMIT (SELECT CASE WHEN (SELECT COUNT(*) FROM first) >= by_priority THEN by_age ELSE 0 END FROM wanted)
    FOR NO KEY UPDATE SKIP LOCKED
  ) one
  ORDER BY one.wake_at, one.id
  LIMIT (SELECT by_age FROM wanted)
), chosen AS MATERIALIZED (
  SELECT one.id AS run_id, one.place, encode(substring($8::bytea, (one.place * 16 - 15)::int, 16), 'hex') AS fresh_seed,
    CASE WHEN one.token > 0 THEN (SELECT MAX(h.seq) FROM perdure_history h WHERE h.run_id = one.id) END AS last
  FROM (
    SELECT id, token, row_number() OVER () AS place FROM first
    UNION ALL
    SELECT id, token, $6::bigint + row_number() OVER () FROM aged
  ) one
), taken AS (
  UPDATE perdure_runs r
  SET {TAKEN.format(worker="$3", nonce="$4", now="(SELECT now FROM clock)")}
  FROM chosen
  WHERE r.id = chosen.run_id
  RETURNING chosen.place, r.progress, {OF_RUN}
"""


def take_ready(pairs: int, audit: Audit = Audit.LIFECYCLE) -> str:
    """Return the statement for a number of (queue, type) pairs."""
    values = ", ".join(f"(${10 + 2 * pair}::text, ${11 + 2 * pair}::text)" for pair in range(pairs))
    given = f"VALUES {values}" if pairs else "SELECT NULL, NULL WHERE FALSE"
    return f"""
WITH pair (queue, type) AS MATERIALIZED (
  SELECT named.queue, named.type
  FROM ({given}) AS named (queue, type)
  WHERE NOT EXISTS (
    SELECT 1 FROM perdure_pauses p
    WHERE (p.kind IN ('type', 'limited-type') AND p.name = named.type)
      OR (p.kind IN ('queue', 'limited-queue') AND p.name = named.queue)
  )
), wanted AS MATERIALIZED (
  SELECT $6::bigint AS by_priority, $7::bigint AS by_age
), {_SEEN}, usual AS MATERIALIZED (
  SELECT now, alive FROM seen
  WHERE $3 = ANY (alive) AND ready AND NOT (held OR doubtful OR early OR next_wake <= server)
), {_TAKEN_RUNS}{_TRAIL[audit]})
SELECT {_FACTS}, taken.*
FROM seen
LEFT JOIN taken ON TRUE
ORDER BY taken.place
"""


_TAKES = {level: partial(take_ready, audit=level) for level in Audit}


async def claim_ready(
    tx: PostgresTransaction, request: ClaimRequest, clock: ServerClock, entropy: Callable[[int], bytes]
) -> tuple[PostgresPreview, ClaimResult | None]:
    """Preview, and take ready runs; None for the claim if there is more to do.

    The statement decides that at the server's time. The runs that it took are taken, whatever has become due since.
    """
    pairs = [name for pair in zip(*pairs_of(request), strict=True) for name in pair]
    seeds = entropy(16 * request.limit)
    asked, known = clock.start_measurement(), clock.known
    rows = await tx.run_made(
        _TAKES[tx.audit], len(pairs) // 2, clock.told, known, request.worker, request.nonce, request.affinity,
        request.limit - request.by_age, request.by_age, seeds, SUSPECT_AFTER, *pairs,
    )  # fmt: skip
    preview = _to_preview(rows[0][:_FACT_COUNT], request.worker)
    at = preview.now if known is None else min(preview.now, known)
    preview = preview.at(clock.finish_measurement(asked, preview.now))
    if not preview.usual or request.limit == 0:
        return preview, preview.empty_handed() if preview.nothing else None
    taken = rows if rows[0][_FACT_COUNT] is not None else []
    next_wake = preview.next_wake
    if len(taken) < request.limit and preview.left is not None:
        next_wake = min(next_wake, preview.left + request.affinity)
    elif not taken:
        next_wake = min(next_wake, preview.now + MOMENT)
    runs = to_runs([row[_FACT_COUNT + 1 :] for row in taken])
    if tx.observed is not None:
        for claimed in runs if tx.repeats else [one for one in runs if one.run.started_at == at]:
            tx.observe(claimed.run.id, *claim_event(claimed.run, starts=claimed.run.started_at == at))
    answer = replace(preview.empty_handed(), runs=runs, next_wake=next_wake)
    return preview, answer


def _to_preview(facts: Row, worker: str) -> PostgresPreview:
    server, next_wake, held, ready, doubtful, early, left, usual, living, paused, next_fire = facts
    alive = living.split("\n")
    return PostgresPreview(
        now=server,
        alive=alive,
        welcome=worker in alive,
        held=held,
        next_wake=next_wake,
        ready=ready,
        doubtful=doubtful,
        early=early,
        left=left,
        usual=usual,
        next_fire=next_fire,
        paused=tuple(line.partition(" ")[::2] for line in paused.split("\n")) if paused else (),
    )
