"""Claim runs on SQLite.

The transaction owns the database, so that no row needs to be locked or skipped: choose along the claim index, then
take. Each (queue, type) pair is one range of that index. The ranges are read a page at a time and merged, so that the
cost depends on what is taken and not on what else is in the table. Runs that are passed over (suspects, and runs that
are left to their last worker) are read from the index alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush, merge
from operator import itemgetter

from msgspec.structs import replace

from perdure.core.model.claim import SUSPECT_AFTER, ClaimedRun, ClaimRequest, ClaimResult
from perdure.core.time.duration import NEVER
from perdure.store.sql.audit import note_claims, note_inserted
from perdure.store.sql.dialect import Row
from perdure.store.sql.limits.gates import limited
from perdure.store.sql.pauses import unpaused
from perdure.store.sql.rows import RUN, to_json, to_run
from perdure.store.sql.runs.claim import Suspect, block_as_poison, group, is_poison
from perdure.store.sqlite.connection import NOT_TEXT, SqliteTransaction

#: Maximum number of due runs that one claim makes ready, and of runs that it leaves to their last worker.
_DUE = 512
_PASSED = 1024
#: With more (queue, type) pairs than this, the first run of each is read in one statement, before any range.
_MANY = 16

#: The live workers, and the paused types and queues.
_KNOWN = """
SELECT 'alive', id FROM perdure_workers WHERE status = 'alive'
UNION ALL
SELECT kind, name FROM perdure_pauses
"""

#: The first column is true of a run that a bare INSERT made.
_HELD = f"""
SELECT write_id = '', progress, {RUN}
FROM perdure_runs
WHERE status = 'running' AND worker = ? AND nonce = ?
ORDER BY priority, wake_at, id
"""

WAKE = """
UPDATE perdure_runs
SET status = 'pending', reason = NULL
WHERE id IN (SELECT id FROM perdure_runs WHERE status = 'waiting' AND wake_at <= ? ORDER BY wake_at LIMIT ?)
"""

BY_PRIORITY = """
SELECT priority, wake_at, id, claims, home
FROM perdure_runs
WHERE status = 'pending' AND queue = ? AND type = ? AND (priority, wake_at, id) > (?, ?, ?)
ORDER BY priority, wake_at, id
LIMIT ?
"""

BY_AGE = """
SELECT 0, wake_at, id, claims, home
FROM perdure_runs
WHERE status = 'pending' AND queue = ? AND type = ? AND (wake_at, id) > (?, ?)
ORDER BY wake_at, id
LIMIT ?
"""

#: The first run of each pair of the queues and the types in two JSON arrays. One array of pairs would have to be taken
#: apart by `json_extract`, which costs as much as a search.
_HEADS = """
SELECT {priority}, r.wake_at, r.id, r.queue, r.type
FROM json_each(?) queue
CROSS JOIN json_each(?) type
CROSS JOIN perdure_runs r ON r.id = (
  SELECT one.id
  FROM perdure_runs one
  WHERE one.status = 'pending' AND one.queue = queue.value AND one.type = type.value
  ORDER BY {order}
  LIMIT 1
)
"""
HEADS_BY_PRIORITY = _HEADS.format(priority="r.priority", order="one.priority, one.wake_at, one.id")
HEADS_BY_AGE = _HEADS.format(priority="0", order="one.wake_at, one.id")

#: Take all chosen runs, as `store/sql/runs/claim.py` does; each id comes with a seed for a run that has none.
TAKE = f"""
WITH chosen (run_id, fresh_seed) AS MATERIALIZED (
  SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:chosen)
)
UPDATE perdure_runs
SET status = 'running', reason = NULL, worker = :worker, home = :worker, nonce = :nonce, token = token + 1,
    claims = CASE
      WHEN claims > 0 AND (SELECT MAX(seq) FROM perdure_history WHERE run_id = perdure_runs.id) > progress THEN 1
      ELSE claims + 1
    END,
    progress = COALESCE((SELECT MAX(seq) FROM perdure_history WHERE run_id = perdure_runs.id), -1),
    started_at = CASE WHEN started_at = 0 THEN :now ELSE started_at END,
    deadline = CASE WHEN close_by > 0 THEN close_by ELSE deadline END, close_by = 0,
    seed = CASE WHEN seed = '' THEN fresh_seed ELSE seed END,
    marked = CASE WHEN inbox_seq > inbox_read THEN 1 ELSE 0 END,
    build = CASE WHEN build = '' THEN :build ELSE build END
FROM chosen
WHERE id = chosen.run_id AND status = 'pending'
RETURNING write_id = '', progress, {RUN}
"""

#: Those of the given runs whose attempt has started.
_STARTED = """
SELECT id
FROM perdure_runs
WHERE id IN (SELECT value FROM json_each(?)) AND started_at > 0
"""

_NOT_YET = """
UPDATE perdure_runs
SET status = 'waiting', reason = 'timer'
WHERE id = ? AND status = 'pending'
"""

_PROGRESSED = """
SELECT 1
FROM perdure_runs
WHERE id = ? AND progress < (SELECT MAX(seq) FROM perdure_history WHERE run_id = perdure_runs.id)
"""

#: The plus keeps the planner on the claim index, the only one in this order.
SUSPECTS = """
SELECT priority, wake_at, id, claims, home
FROM perdure_runs
WHERE status = 'pending' AND queue = ? AND type = ? AND claims >= ? AND +wake_at <= ?
  AND NOT EXISTS (SELECT 1 FROM perdure_history h WHERE h.run_id = perdure_runs.id AND h.seq > perdure_runs.progress)
ORDER BY priority, wake_at, id
LIMIT ?
"""

#: The time when the next waiting run becomes ready, and when the next schedule is due.
NEXT = """
SELECT
  (SELECT wake_at FROM perdure_runs WHERE status = 'waiting' ORDER BY wake_at LIMIT 1),
  (SELECT due_at FROM perdure_schedules ORDER BY due_at LIMIT 1)
"""

_SMALLEST = -(2**63)


class _Selection:
    """The runs that a claim has chosen so far, and those that it found unfit."""

    def __init__(self) -> None:
        self.taken: dict[str, None] = {}
        self.suspects = False
        self.poison: dict[str, int] = {}
        self.early: dict[str, None] = {}
        self.exhausted = False
        #: When the first run that was left to its last worker may be taken by any worker.
        self.left_until = NEVER


async def claim(tx: SqliteTransaction, request: ClaimRequest, entropy: Callable[[int], bytes]) -> ClaimResult:
    """Make due runs ready, then take ready runs."""
    known = await tx.fetch(_KNOWN, ())
    alive = {name for kind, name in known if kind == "alive"}
    held = await tx.fetch(_HELD, (request.worker, request.nonce))
    if held or request.worker not in alive:
        return await _answer(tx, held, suspects=False)
    if len(known) > len(alive):
        request = unpaused(request, known)
    await tx.execute(WAKE, (tx.now, max(_DUE, request.limit)))
    selection = _Selection()
    await _choose(tx, request, alive, selection)
    for run_id in selection.early:
        await tx.execute(_NOT_YET, (run_id,))
    for run_id, claims in selection.poison.items():
        await block_as_poison(tx, run_id, claims)
    chosen = await _group(tx, request) if request.alone and selection.suspects else list(selection.taken)
    going_on = (
        {row[0] for row in await tx.fetch(_STARTED, (to_json(chosen),))} if tx.clock_stood_still and chosen else ()
    )
    rows = await _take(tx, request, chosen, entropy) if chosen else []
    await note_inserted(tx, [row[2] for row in rows if row[0]])
    answer = await _answer(tx, rows, suspects=selection.suspects and not request.alone, left_until=selection.left_until)
    if len(known) > len(alive):
        answer = replace(answer, limited=limited(known))
    note_claims(tx, [claimed.run for claimed in answer.runs], tx.now, going_on)
    return answer


async def _take(
    tx: SqliteTransaction, request: ClaimRequest, chosen: list[str], entropy: Callable[[int], bytes]
) -> list[Row]:
    seeds = entropy(16 * len(chosen)).hex()
    params = {
        "worker": request.worker,
        "nonce": request.nonce,
        "build": request.build,
        "now": tx.now,
        "chosen": to_json([(run_id, seeds[32 * place : 32 * place + 32]) for place, run_id in enumerate(chosen)]),
    }
    order = {run_id: place for place, run_id in enumerate(chosen)}
    # RETURNING has no order; the run's id is its third column.
    return sorted(await tx.fetch(TAKE, params), key=lambda row: order[row[2]])


async def _choose(tx: SqliteTransaction, request: ClaimRequest, alive: set[str], selection: _Selection) -> None:
    first = request.limit - request.by_age
    await _pick(tx, request, alive, selection, by_age=False, enough=first)
    # A pass that reached the end of every range has seen all ready runs.
    if request.by_age and not selection.exhausted:
        await _pick(tx, request, alive, selection, by_age=True, enough=len(selection.taken) + request.by_age)


async def _pick(
    tx: SqliteTransaction, request: ClaimRequest, alive: set[str], selection: _Selection, *, by_age: bool, enough: int
) -> None:
    left_to_others = 0
    for _, wake_at, run_id, claims, home in _ready(tx, request, by_age=by_age, enough=enough):
        if len(selection.taken) >= enough or left_to_others >= _PASSED:
            return
        if wake_at > tx.now:
            selection.early[run_id] = None
        elif home != request.worker and home in alive and wake_at + request.affinity > tx.now:
            left_to_others += 1
            selection.left_until = min(selection.left_until, wake_at + request.affinity)
        elif claims < SUSPECT_AFTER or await tx.fetch(_PROGRESSED, (run_id,)):
            selection.taken[run_id] = None
        elif is_poison(claims, request.poison_after):
            selection.poison[run_id] = claims
        else:
            selection.suspects = True
    selection.exhausted = True


def _ready(tx: SqliteTransaction, request: ClaimRequest, *, by_age: bool, enough: int) -> Iterator[Row]:
    pairs = [(queue, type) for queue in request.queues for type in request.types]
    page = min(enough, max(16, 2 * enough // max(1, len(pairs)))) + 1
    if len(pairs) > _MANY:
        names = to_json(request.queues), to_json(request.types)
        heads = tx.fetch_now(HEADS_BY_AGE if by_age else HEADS_BY_PRIORITY, names)
        return _merge_as_needed(heads, lambda queue, type: _range(tx, queue, type, page, by_age=by_age))
    ranges = [_range(tx, queue, type, page, by_age=by_age) for queue, type in pairs]
    return ranges[0] if len(ranges) == 1 else merge(*ranges, key=itemgetter(0, 1, 2))


def _merge_as_needed(heads: list[Row], open_range: Callable[[str, str], Iterator[Row]]) -> Iterator[Row]:
    """Merge ranges of which the first runs are known; a range is read when its first run is next."""
    closed = sorted(heads, reverse=True)
    opened: list[tuple[Row, Row, Iterator[Row]]] = []
    while closed or opened:
        if closed and (not opened or closed[-1][:3] < opened[0][0]):
            rows = open_range(*closed.pop()[3:])
        else:
            _, row, rows = heappop(opened)
            yield row
        following = next(rows, None)
        if following is not None:
            # The id in the key is unique, so that nothing else is compared.
            heappush(opened, (following[:3], following, rows))


def _range(tx: SqliteTransaction, queue: str, type: str, page: int, *, by_age: bool) -> Iterator[Row]:
    sql = BY_AGE if by_age else BY_PRIORITY
    last: tuple[object, ...] = (_SMALLEST, _SMALLEST, "")
    while True:
        rows = tx.fetch_now(sql, (queue, type, *(last[1:] if by_age else last), page))
        # A run whose id is not text cannot be claimed.
        yield from [row for row in rows if not row[2].startswith(NOT_TEXT)] if tx.lenient else rows
        if len(rows) < page:
            return
        last = rows[-1][:3]


async def _group(tx: SqliteTransaction, request: ClaimRequest) -> list[str]:
    """Return the suspects to try together.

    Poison that this claim has seen is set aside already; other poison can wait.
    """
    found: list[Row] = []
    for queue in request.queues:
        for type in request.types:
            found += await tx.fetch(SUSPECTS, (queue, type, SUSPECT_AFTER, tx.now, 2 * request.limit))
    suspects = [Suspect(*row[2:]) for row in sorted(found, key=itemgetter(0, 1, 2))]
    return group([one for one in suspects if not is_poison(one.claims, request.poison_after)], request.limit)


async def _answer(tx: SqliteTransaction, rows: list[Row], *, suspects: bool, left_until: int = NEVER) -> ClaimResult:
    # `progress` is the number of the last record at the claim; -1: there was none.
    runs = tuple(ClaimedRun(to_run(row[2:]), row[1]) for row in rows)
    [(waiting, firing)] = await tx.fetch(NEXT, ())
    next_wake = left_until if waiting is None else min(left_until, waiting)
    next_fire = NEVER if firing is None else firing
    return ClaimResult(runs=runs, next_wake=next_wake, suspects=suspects, now=tx.now, next_fire=next_fire)
