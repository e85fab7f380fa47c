"""Claim runs on PostgreSQL: in one statement if it can be, otherwise in a transaction.

`claim_ready` comes first: one statement that is all an idle worker costs, and that takes ready runs if nothing else is
to be done. It only reports due timers, suspects and claims whose answer was lost. Rows stay locked only while the
statement runs. With several types it locks more rows than it takes, for that moment; a claimer that finds nothing
because of that looks again soon. Queues and types are separate parameters and limits are subqueries, so that the
planner expects the same for all parameters and plans once instead of every time.

`claim` is the transaction: wake due runs, choose, take. Each (queue, type) pair is one range of the claim index, read
in index order. Rows that are locked are skipped and chosen rows are locked at once, so that claimers never wait for
each other and each gets as many runs as it asked for. Runs whose claims led to no progress have an index of their own
and are judged separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from perdure.core.audit import Audit
from perdure.core.model.claim import SUSPECT_AFTER, ClaimedRun, ClaimRequest, ClaimResult
from perdure.core.time.duration import NEVER
from perdure.store.postgres.transaction import PostgresTransaction
from perdure.store.server.clock import ServerClock
from perdure.store.sql.audit import claim_event, note_claims, note_inserted
from perdure.store.sql.dialect import POSTGRES, Row
from perdure.store.sql.limits.gates import limited
from perdure.store.sql.pauses import unpaused
from perdure.store.sql.rows import RUN, to_run
from perdure.store.sql.runs.claim import ClaimPreview, Suspect, block_as_poison, group, is_poison

#: Maximum number of due runs that one claim makes ready, and of suspects of one type that it reads without taking.
_DUE = 512
_SUSPECTS = 64
#: Maximum number of interrupted runs of one type among which a claim looks for suspects before it takes anything. A
#: suspect behind more of them is found when those are taken, which come first.
_INTERRUPTED = 512
#: With more (queue, type) pairs than this, only a part of each range is read at first.
_FEW = 4
#: With more pairs than this, a claim reads this many runs of each without locking them, and takes the best of all.
_MANY = 16
_PAGE = 2
#: Microseconds until the next claim if other claimers had locked runs that this one could have taken.
MOMENT = 5_000

PAIRS = "unnest($1::text[], $2::text[]) AS pair (queue, type)"
#: Always true; it is the predicate of the index by age. Statements without it cannot use that index, which a planner
#: with stale statistics would otherwise prefer to the claim index, only to sort all rows.
OF_AGE = "r.wake_at >= 0"
_IN_PAIR = "r.status = 'pending' AND r.queue = pair.queue AND r.type = pair.type"

_HELD = f"""
SELECT progress, {RUN}
FROM perdure_runs
WHERE status = 'running' AND worker = $1 AND nonce = $2
ORDER BY priority, wake_at, id
"""

#: Run before `WAKE`: a planner without statistics expects few waiting runs, and would fetch and sort all that are due.
IN_ORDER = "SET LOCAL enable_bitmapscan = off"
WAKE = """
WITH due AS MATERIALIZED (
  SELECT id FROM perdure_runs WHERE status = 'waiting' AND wake_at <= $1 ORDER BY wake_at LIMIT $2
  FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE perdure_runs r SET status = 'pending', reason = NULL FROM due WHERE r.id = due.id
"""

_NOT_YET = f"""
WITH early AS MATERIALIZED (
  SELECT one.id
  FROM {PAIRS}
  CROSS JOIN LATERAL (
    SELECT r.id FROM perdure_runs r WHERE {_IN_PAIR} AND {OF_AGE} AND r.wake_at > $3 ORDER BY r.wake_at LIMIT {_DUE}
    FOR NO KEY UPDATE SKIP LOCKED
  ) one
)
UPDATE perdure_runs r SET status = 'waiting', reason = 'timer' FROM early WHERE r.id = early.id
"""

#: Ready, no suspect, and not left to the worker that held it last.
FREE = f"""{_IN_PAIR} AND r.wake_at <= $3 AND r.claims < $4
      AND (r.home IS NULL OR r.home = $5 OR r.wake_at <= $6 OR r.home <> ALL ($7::text[]))"""

BY_PRIORITY = f"""
SELECT pair.queue, pair.type, one.priority, one.wake_at, one.id
FROM {PAIRS}
CROSS JOIN LATERAL (
  SELECT r.priority, r.wake_at, r.id
  FROM perdure_runs r
  WHERE {FREE}
  ORDER BY r.priority, r.wake_at, r.id
  LIMIT $8
  FOR NO KEY UPDATE SKIP LOCKED
) one
"""

BY_AGE = f"""
SELECT pair.queue, pair.type, 0, one.wake_at, one.id
FROM {PAIRS}
CROSS JOIN LATERAL (
  SELECT r.wake_at, r.id
  FROM perdure_runs r
  WHERE {FREE} AND {OF_AGE} AND r.id <> ALL ($9::text[])
  ORDER BY r.wake_at, r.id
  LIMIT $8
  FOR NO KEY UPDATE SKIP LOCKED
) one
"""

SUSPECTS = f"""
SELECT one.priority, one.wake_at, one.id, one.claims, one.home,
  EXISTS (SELECT 1 FROM perdure_history h WHERE h.run_id = one.id AND h.seq > one.progress)
FROM {PAIRS}
CROSS JOIN LATERAL (
  SELECT r.priority, r.wake_at, r.id, r.claims, r.home, r.progress
  FROM perdure_runs r
  WHERE {_IN_PAIR} AND r.claims > 0 AND r.claims >= $4 AND r.wake_at <= $3
  ORDER BY r.priority, r.wake_at, r.id
  LIMIT $5
  FOR NO KEY UPDATE SKIP LOCKED
) one
ORDER BY 1, 2, 3
"""

OF_RUN = ", ".join("r." + column for column in RUN.split(", "))

#: What a claim writes, as in `store/sql/runs/claim.py`.
TAKEN = """status = 'running', reason = NULL, worker = {worker}, home = {worker}, nonce = {nonce}, token = r.token + 1,
      claims = CASE WHEN r.claims > 0 AND chosen.last > r.progress THEN 1 ELSE r.claims + 1 END,
      progress = COALESCE(chosen.last, -1),
      started_at = CASE WHEN r.started_at = 0 THEN {now} ELSE r.started_at END,
      deadline = CASE WHEN r.close_by > 0 THEN r.close_by ELSE r.deadline END, close_by = 0,
      seed = CASE WHEN r.seed = '' THEN chosen.fresh_seed ELSE r.seed END,
      marked = CASE WHEN r.inbox_seq > r.inbox_read THEN 1 ELSE 0 END,
      build = CASE WHEN r.build = '' THEN {build} ELSE r.build END"""

#: Every chosen row is locked by this transaction.
TAKE = f"""
UPDATE perdure_runs r
SET {TAKEN.format(worker="$3", nonce="$4", now="$5", build="$6")}
FROM (
  SELECT given.run_id, given.fresh_seed,
    (SELECT MAX(h.seq) FROM perdure_history h WHERE h.run_id = given.run_id) AS last
  FROM unnest($1::text[], $2::text[]) AS given (run_id, fresh_seed)
) chosen
WHERE r.id = chosen.run_id
RETURNING r.write_id = '', r.progress, {OF_RUN}
"""

LATER = f"""
SELECT
  (SELECT wake_at FROM perdure_runs WHERE status = 'waiting' ORDER BY wake_at LIMIT 1),
  (
    SELECT MIN(one.wake_at)
    FROM {PAIRS}
    CROSS JOIN LATERAL (
      SELECT r.wake_at FROM perdure_runs r
      WHERE {_IN_PAIR} AND {OF_AGE} AND r.wake_at > $6 AND r.home <> $5 AND r.home = ANY ($7::text[])
      ORDER BY r.wake_at LIMIT 1
    ) one
  ),
  EXISTS (SELECT 1 FROM {PAIRS} CROSS JOIN LATERAL (
    SELECT 1 FROM perdure_runs r WHERE {FREE} AND {OF_AGE} ORDER BY r.wake_at, r.id LIMIT 1
  ) one)
"""


class PostgresPreview(ClaimPreview, frozen=True, kw_only=True):
    """The state that the statement of `claim_ready` found."""

    doubtful: bool
    #: The time when the first run that is left to its last worker became ready.
    left: int | None
    #: True: there were ready runs and nothing else to do, so that the statement took them. Only the server knows this.
    usual: bool


class _Candidates:
    """The runs to take, and the suspects that were found."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.suspects: list[Suspect] = []


async def claim(
    tx: PostgresTransaction, request: ClaimRequest, preview: PostgresPreview, entropy: Callable[[int], bytes]
) -> ClaimResult:
    """Make due runs ready, then take ready runs."""
    if preview.held:
        held = await tx.run(_HELD, request.worker, request.nonce)
        return replace(preview.empty_handed(), runs=to_runs(held))
    request = unpaused(request, preview.paused)
    if preview.due:
        await tx.run(IN_ORDER)
        await tx.run(WAKE, preview.now, max(_DUE, request.limit))
    if preview.early:
        await tx.run(_NOT_YET, *pairs_of(request), preview.now)
    candidates = await _choose(tx, request, preview)
    chosen = group(candidates.suspects, request.limit) if request.alone and candidates.suspects else candidates.taken
    rows = await _take(tx, request, preview, chosen, entropy) if chosen else []
    suspects = bool(candidates.suspects) and not request.alone
    next_wake = await _next_wake(tx, request, preview) if len(rows) < request.limit else preview.next_wake
    next_wake = min(next_wake, preview.look_again)
    runs = to_runs(row[1:] for row in rows)
    await note_inserted(tx, [row[2] for row in rows if row[0]])
    note_claims(tx, (claimed.run for claimed in runs), preview.now)
    return ClaimResult(
        runs=runs,
        next_wake=next_wake,
        suspects=suspects,
        now=preview.now,
        next_fire=preview.next_fire,
        limited=limited(preview.paused),
    )


async def _choose(tx: PostgresTransaction, request: ClaimRequest, preview: PostgresPreview) -> _Candidates:
    candidates = _Candidates()
    first = request.limit - request.by_age
    ready = await _ready(tx, request, preview, first)
    if preview.doubtful:
        ready = sorted([*ready, *await _sort_out_suspects(tx, request, preview, candidates)])[:first]
    candidates.taken = [row[2] for row in ready]
    # A pass that did not find enough runs has seen all of them.
    if request.by_age and len(ready) >= first:
        args = (*free(request, preview), request.by_age, candidates.taken)
        rows = sorted((row[2:] for row in await tx.run(BY_AGE, *args)), key=itemgetter(1, 2))
        candidates.taken += [row[2] for row in rows[: request.by_age]]
    return candidates


async def _ready(tx: PostgresTransaction, request: ClaimRequest, preview: PostgresPreview, enough: int) -> list[Row]:
    """Return the first runs of all pairs in claim order, as (priority, wake_at, id)."""
    pairs = len(request.queues) * len(request.types)
    page = enough if pairs <= _FEW else min(enough, max(16, 2 * enough // pairs))
    while True:
        found = await tx.run(BY_PRIORITY, *free(request, preview), page)
        ready = sorted(row[2:] for row in found)
        if page >= enough:
            return ready[:enough]
        counts: dict[tuple[str, str], list[Row]] = {}
        for queue, type, *row in found:
            counts.setdefault((queue, type), []).append(tuple(row))
        # A pair whose page is full may have more runs that come before those of other pairs.
        certain = min((max(rows) for rows in counts.values() if len(rows) == page), default=None)
        if certain is None or ready.index(certain) + 1 >= enough:
            return ready[:enough]
        page = enough


async def _sort_out_suspects(
    tx: PostgresTransaction, request: ClaimRequest, preview: PostgresPreview, candidates: _Candidates
) -> list[Row]:
    """Return the runs that have made progress since; the others become suspects or are set aside."""
    fine: list[Row] = []
    enough = max(_SUSPECTS, 2 * request.limit) if request.alone else _SUSPECTS
    rows = await tx.run(SUSPECTS, *pairs_of(request), preview.now, SUSPECT_AFTER, enough)
    for *place, claims, home, progressed in rows:
        run_id = place[2]
        if progressed:
            fine.append(tuple(place))
        elif is_poison(claims, request.poison_after):
            await block_as_poison(tx, run_id, claims)
        else:
            candidates.suspects.append(Suspect(run_id, claims, home))
    return fine


async def _take(
    tx: PostgresTransaction,
    request: ClaimRequest,
    preview: PostgresPreview,
    chosen: list[str],
    entropy: Callable[[int], bytes],
) -> list[Row]:
    text = entropy(16 * len(chosen)).hex()
    seeds = [text[32 * place : 32 * place + 32] for place in range(len(chosen))]
    order = {run_id: place for place, run_id in enumerate(chosen)}
    rows = await tx.run(TAKE, chosen, seeds, request.worker, request.nonce, preview.now, request.build)
    return sorted(rows, key=lambda row: order[row[2]])


async def _next_wake(tx: PostgresTransaction, request: ClaimRequest, preview: PostgresPreview) -> int:
    [(waiting, left, more)] = await tx.run(LATER, *free(request, preview))
    times = [NEVER if waiting is None else waiting]
    if left is not None:
        times.append(left + request.affinity)
    if more:
        times.append(preview.now + MOMENT)
    return min(times)


def free(request: ClaimRequest, preview: PostgresPreview) -> tuple[object, ...]:
    """Return the parameters of `FREE`."""
    pairs = pairs_of(request)
    return (*pairs, preview.now, SUSPECT_AFTER, request.worker, preview.now - request.affinity, preview.alive)


def pairs_of(request: ClaimRequest) -> tuple[list[str], list[str]]:
    """Return the queues and the types of all pairs, as two lists of the same length."""
    pairs = [(queue, type) for queue in request.queues for type in request.types]
    return [queue for queue, _ in pairs], [type for _, type in pairs]


def to_runs(rows: Iterable[Row]) -> tuple[ClaimedRun, ...]:
    """Convert rows of `TAKE`, without their first column, into claimed runs."""
    # `progress` is the number of the last record at the claim; -1: there was none.
    return tuple(ClaimedRun(to_run(row[1:]), row[0]) for row in rows)


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
    COALESCE(
      (SELECT wake_at FROM perdure_runs WHERE status = 'waiting' ORDER BY wake_at LIMIT 1), {NEVER}
    ) AS next_wake,
    {_ANY.format(f"{OF_AGE} {_OLDEST}")} AS ready,
    EXISTS (
      SELECT 1
      FROM pair
      CROSS JOIN LATERAL (
        SELECT r.claims FROM perdure_runs r
        WHERE {_IN_PAIR} AND r.claims > 0
        ORDER BY r.queue, r.type, r.priority, r.wake_at, r.id LIMIT {_INTERRUPTED}
      ) one
      WHERE one.claims >= $9
    ) AS doubtful,
    (
      SELECT one.wake_at
      FROM pair
      CROSS JOIN LATERAL (
        SELECT r.wake_at FROM perdure_runs r WHERE {_IN_PAIR} AND {OF_AGE} AND r.wake_at > now {_OLDEST} LIMIT 1
      ) one
      LIMIT 1
    ) AS early_at,
    CASE WHEN cardinality(alive) > 1 THEN (
      SELECT MIN(one.wake_at)
      FROM pair
      CROSS JOIN LATERAL (
        SELECT r.wake_at FROM perdure_runs r
        WHERE {_IN_PAIR} AND {OF_AGE} AND r.wake_at > server - $5::bigint AND {_HOME} <> $3 AND {_HOME} = ANY (alive)
        {_OLDEST} LIMIT 1
      ) one
    ) END AS left_to_others
  FROM clock
  CROSS JOIN living
)"""

#: Ready, no suspect, and not left to the worker that held it last.
_FREE_OF_ALL = """r.wake_at <= usual.now AND r.claims < $9
      AND (r.home IS NULL OR r.home = $3 OR r.wake_at <= usual.now - $5 OR r.home <> ALL (usual.alive))"""
_FREE = f"{_IN_PAIR} AND {_FREE_OF_ALL}"
#: The same of a run that was chosen by its pair before.
_FREE_STILL = f"r.status = 'pending' AND {_FREE_OF_ALL}"

#: Facts are returned once: with the first taken run, or alone. They are no arrays, whose types the driver would query.
_FACTS = ", ".join(
    f"CASE WHEN COALESCE(taken.place, 1) = 1 THEN {fact} END"
    for fact in (
        "server",
        "next_wake",
        "held",
        "ready",
        "doubtful",
        "early_at",
        "left_to_others",
        "EXISTS (SELECT 1 FROM usual)",
        "array_to_string(alive, E'\\n')",
        "(SELECT string_agg(kind || ' ' || name, E'\\n') FROM perdure_pauses)",
        f"COALESCE((SELECT due_at FROM perdure_schedules ORDER BY due_at LIMIT 1), {NEVER})",
    )
)
_FACT_COUNT = 11


#: The statement writes its audit events, as `note_inserted` and `note_claims` do elsewhere. An attempt that starts with
#: this claim has its time.
_STARTED = "started_at = (SELECT now FROM clock)"
_NOTED = f"""), noted AS (
  INSERT INTO perdure_events (run_id, at, kind, actor, data)
  SELECT id, created_at, 'created', 'sql', json_build_object('type', type)::text
  FROM taken
  WHERE inserted AND NOT EXISTS (SELECT 1 FROM perdure_events e WHERE e.run_id = taken.id AND e.kind = 'created')
  UNION ALL
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
)"""

#: The same for many pairs. Locking the first runs of every pair, of which a claim takes one in many, would cost more
#: than all the rest. So the first runs of each pair are read, and more of a pair only if all that were read of it are
#: among the best. Those are locked: twice as many as are wanted, because other claimers find the same ones.
_PLACE = "r.priority, r.wake_at, r.id"
_TAKEN_OF_MANY = f"""page AS MATERIALIZED (
  SELECT pair.queue, pair.type, one.*
  FROM usual
  CROSS JOIN pair
  CROSS JOIN LATERAL (
    SELECT {_PLACE}, row_number() OVER () AS number
    FROM (
      SELECT {_PLACE} FROM perdure_runs r WHERE {_FREE} ORDER BY {_PLACE} LIMIT {_PAGE}
    ) r
  ) one
), cut AS MATERIALIZED (
  SELECT priority, wake_at, id
  FROM page
  ORDER BY priority, wake_at, id
  OFFSET (SELECT GREATEST(2 * by_priority - 1, 0) FROM wanted)
  LIMIT 1
), best AS MATERIALIZED (
  SELECT id
  FROM (
    SELECT priority, wake_at, id FROM page
    UNION ALL
    SELECT one.priority, one.wake_at, one.id
    FROM usual
    CROSS JOIN page pair
    LEFT JOIN cut ON TRUE
    CROSS JOIN LATERAL (
      SELECT {_PLACE}
      FROM perdure_runs r
      WHERE {_FREE} AND ({_PLACE}) > (pair.priority, pair.wake_at, pair.id)
      ORDER BY {_PLACE}
      LIMIT (SELECT 2 * by_priority FROM wanted)
    ) one
    WHERE pair.number = {_PAGE}
      AND (cut.id IS NULL OR (pair.priority, pair.wake_at, pair.id) < (cut.priority, cut.wake_at, cut.id))
  ) candidate
  ORDER BY priority, wake_at, id
  LIMIT (SELECT 2 * by_priority FROM wanted)
), first AS MATERIALIZED (
  SELECT one.*
  FROM usual
  CROSS JOIN best
  CROSS JOIN LATERAL (
    SELECT {_PLACE}, r.token FROM perdure_runs r WHERE r.id = best.id AND {_FREE_STILL} LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
  ) one
  LIMIT (SELECT by_priority FROM wanted)
), oldest AS MATERIALIZED (
  SELECT one.id
  FROM usual
  CROSS JOIN pair
  CROSS JOIN LATERAL (
    SELECT r.wake_at, r.id
    FROM perdure_runs r
    WHERE {_FREE} AND {OF_AGE} AND r.id NOT IN (SELECT id FROM first)
    ORDER BY r.wake_at, r.id
    LIMIT {_PAGE}
  ) one
  WHERE (SELECT by_age > 0 AND (SELECT COUNT(*) FROM first) >= by_priority FROM wanted)
  ORDER BY one.wake_at, one.id
  LIMIT (SELECT 2 * by_age FROM wanted)
), aged AS MATERIALIZED (
  SELECT one.*
  FROM usual
  CROSS JOIN oldest
  CROSS JOIN LATERAL (
    SELECT r.wake_at, r.id, r.token FROM perdure_runs r WHERE r.id = oldest.id AND {_FREE_STILL} LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
  ) one
  LIMIT (SELECT by_age FROM wanted)
)"""

#: Takes the chosen runs.
_TAKEN = f""", chosen AS MATERIALIZED (
  SELECT one.id AS run_id, one.place, encode(substring($8::bytea, (one.place * 16 - 15)::int, 16), 'hex') AS fresh_seed,
    CASE WHEN one.token > 0 THEN (SELECT MAX(h.seq) FROM perdure_history h WHERE h.run_id = one.id) END AS last
  FROM (
    SELECT id, token, row_number() OVER () AS place FROM first
    UNION ALL
    SELECT id, token, $6::bigint + row_number() OVER () FROM aged
  ) one
), taken AS (
  UPDATE perdure_runs r
  SET {TAKEN.format(worker="$3", nonce="$4", now="(SELECT now FROM clock)", build="$10")}
  FROM chosen
  WHERE r.id = chosen.run_id
  RETURNING chosen.place, r.write_id = '' AS inserted, r.progress, {OF_RUN}
"""


def take_ready(pairs: int, audit: Audit = Audit.LIFECYCLE) -> str:
    """Return the statement for a number of (queue, type) pairs."""
    values = ", ".join(f"(${11 + 2 * pair}::text, ${12 + 2 * pair}::text)" for pair in range(pairs))
    given = f"VALUES {values}" if pairs else "SELECT NULL, NULL WHERE FALSE"
    if pairs > _MANY:
        given = "SELECT * FROM unnest($11::text[], $12::text[])"
    return f"""
WITH pair (queue, type) AS MATERIALIZED (
  SELECT named.queue, named.type
  FROM ({given}) AS named (queue, type)
  WHERE NOT EXISTS (
    SELECT 1 FROM perdure_pauses p
    WHERE (p.kind IN ('type', 'limited-type') AND p.name = named.type)
      OR (p.kind IN ('queue', 'limited-queue') AND p.name = split_part(named.queue, '~', 1))
  )
), wanted AS MATERIALIZED (
  SELECT $6::bigint AS by_priority, $7::bigint AS by_age
), {_SEEN}, usual AS MATERIALIZED (
  SELECT now, alive FROM seen
  WHERE $3 = ANY (alive) AND ready AND NOT (held OR doubtful OR next_wake <= server)
    AND COALESCE(early_at <= server, TRUE)
), {_TAKEN_OF_MANY if pairs > _MANY else _TAKEN_RUNS}{_TAKEN}{_TRAIL[audit]})
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
    queues, types = pairs_of(request)
    pairs: list[Any] = [name for pair in zip(queues, types, strict=True) for name in pair]
    if len(types) > _MANY:
        pairs = [queues, types]
    seeds = entropy(16 * request.limit)
    asked, known = clock.start_measurement(), clock.known
    rows = await tx.run_made(
        _TAKES[tx.audit], min(len(types), _MANY + 1), clock.told, known, request.worker, request.nonce,
        request.affinity, request.limit - request.by_age, request.by_age, seeds, SUSPECT_AFTER, request.build, *pairs,
    )  # fmt: skip
    preview = _to_preview(rows[0][:_FACT_COUNT], request.worker)
    at = preview.now if known is None else min(preview.now, known)
    preview = preview.at(clock.finish_measurement(asked, preview.now))
    if not preview.usual or request.limit == 0:
        return preview, preview.empty_handed() if preview.nothing else None
    taken = rows if rows[0][_FACT_COUNT] is not None else []
    next_wake = min(preview.next_wake, preview.look_again)
    if len(taken) < request.limit:
        if preview.left is not None:
            next_wake = min(next_wake, preview.left + request.affinity)
        if preview.early_at is None and (taken or preview.left is None):
            # A ready run may have been locked, by the sender of a message for example, and passed over.
            next_wake = min(next_wake, preview.now + MOMENT)
    runs = to_runs(row[_FACT_COUNT + 2 :] for row in taken)
    if tx.observed is not None:
        for claimed in runs if tx.repeats else [one for one in runs if one.run.started_at == at]:
            tx.observe(claimed.run.id, *claim_event(claimed.run, starts=claimed.run.started_at == at))
    answer = replace(preview.empty_handed(), runs=runs, next_wake=next_wake)
    return preview, answer


def _to_preview(facts: Row, worker: str) -> PostgresPreview:
    server, next_wake, held, ready, doubtful, early_at, left, usual, living, paused, next_fire = facts
    alive = living.split("\n")
    return PostgresPreview(
        now=server,
        alive=alive,
        welcome=worker in alive,
        held=held,
        next_wake=next_wake,
        ready=ready,
        doubtful=doubtful,
        early_at=early_at,
        server=server,
        left=left,
        usual=usual,
        next_fire=next_fire,
        paused=tuple(line.partition(" ")[::2] for line in paused.split("\n")) if paused else (),
    )
