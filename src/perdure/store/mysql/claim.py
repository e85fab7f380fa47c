"""Claim runs on MySQL and MariaDB: a preview, and a transaction only if there is something to do.

The preview is one cheap statement, which is all that an idle worker costs. The transaction wakes due runs, chooses,
locks and takes. Each (queue, type) pair is one range of the claim index, read in index order and without locks. Chosen
rows are then locked by their primary key, skipping rows that are locked, and checked again. Rows are never locked
through another index: two transactions that lock the same rows through different indexes would deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from perdure.core.model.claim import SUSPECT_AFTER, ClaimedRun, ClaimRequest, ClaimResult
from perdure.core.model.run import Run, Status
from perdure.core.time.duration import NEVER
from perdure.store.mysql.transaction import MysqlTransaction, Sql, literal, sql_list
from perdure.store.sql.audit import note_claims, note_inserted
from perdure.store.sql.dialect import Row
from perdure.store.sql.limits.gates import limited
from perdure.store.sql.rows import RUN, to_run
from perdure.store.sql.runs.claim import ClaimPreview, Suspect, block_as_poison, group, is_poison, is_suspect

#: Holds for runs that the worker may take.
MINE = "ready_queue IN (:queues) AND type IN (:types)"

PREVIEW = f"""
SELECT :now,
  (SELECT JSON_ARRAYAGG(id) FROM perdure_workers WHERE status = 'alive'),
  EXISTS (
    SELECT 1 FROM perdure_runs FORCE INDEX (perdure_runs_held)
    WHERE status = 'running' AND worker = :worker AND nonce = :nonce
  ),
  (SELECT MIN(waits_until) FROM perdure_runs FORCE INDEX (perdure_runs_to_wake)),
  (
    SELECT COUNT(*)
    FROM (SELECT 1 FROM perdure_runs FORCE INDEX (perdure_runs_to_claim) WHERE {MINE} LIMIT :limit) AS found
  ),
  (
    SELECT wake_at FROM perdure_runs FORCE INDEX (perdure_runs_to_claim_by_age)
    WHERE {MINE} AND wake_at > LEAST(:now, :known)
    LIMIT 1
  ),
  (SELECT JSON_ARRAYAGG(JSON_ARRAY(kind, name)) FROM perdure_pauses),
  (SELECT MIN(due_at) FROM perdure_schedules)
"""


#: The preview counts ready runs up to this number. Counting a row costs nearly as much as reading it.
MANY = 16


class MysqlPreview(ClaimPreview, frozen=True, kw_only=True):
    """Result of the preview; it counts at most `MANY` ready runs."""

    paused: frozenset[tuple[str, str]]


async def preview_claim(tx: MysqlTransaction, request: ClaimRequest, now: Sql | int, known: int) -> MysqlPreview:
    """Read whether there is anything to claim. `known` is the time that this process knows."""
    [answer] = await tx.send(
        tx.fill(
            PREVIEW,
            now=now,
            known=known,
            worker=request.worker,
            nonce=request.nonce,
            queues=sql_list(request.queues),
            types=sql_list(request.types),
            limit=MANY,
        )
    )
    [(at, names, held, next_wake, ready, early_at, paused, next_fire)] = answer.rows
    alive = msgspec.json.decode(names or "[]", type=list[str])
    return MysqlPreview(
        now=at,
        alive=alive,
        welcome=request.worker in alive,
        held=bool(held),
        next_wake=NEVER if next_wake is None else next_wake,
        ready=ready,
        early_at=early_at,
        server=at,
        next_fire=NEVER if next_fire is None else next_fire,
        paused=frozenset(msgspec.json.decode(paused or "[]", type=list[tuple[str, str]])),
    )


#: Maximum number of due runs that one claim makes ready.
_DUE = 512
#: Microseconds until the next claim if other claimers had locked runs that this one could have taken.
_MOMENT = 5_000

_LEFT_TO_OTHERS = "home <> :worker AND home IN (:alive)"

_HELD = f"""
SELECT progress, {RUN}
FROM perdure_runs
WHERE status = 'running' AND worker = :worker AND nonce = :nonce
ORDER BY priority, wake_at, id
"""

DUE = """
SELECT id
FROM perdure_runs FORCE INDEX (perdure_runs_to_wake)
WHERE waits_until <= :now
ORDER BY waits_until
LIMIT :limit
"""

EARLY = f"""
SELECT id
FROM perdure_runs FORCE INDEX (perdure_runs_to_claim_by_age)
WHERE {MINE} AND wake_at > :now
LIMIT {_DUE}
"""

_LOCK_WAITING = """
SELECT id
FROM perdure_runs FORCE INDEX (PRIMARY)
WHERE id IN (:ids) AND status = 'waiting' AND wake_at <= :now
FOR UPDATE SKIP LOCKED
"""

_LOCK_EARLY = """
SELECT id
FROM perdure_runs FORCE INDEX (PRIMARY)
WHERE id IN (:ids) AND status = 'pending' AND wake_at > :now
FOR UPDATE SKIP LOCKED
"""

_WAKE = "UPDATE perdure_runs SET status = 'pending', reason = NULL WHERE id IN (:ids)"
_NOT_YET = "UPDATE perdure_runs SET status = 'waiting', reason = 'timer' WHERE id IN (:ids)"

#: Ready, and not left to the worker that held it last.
_FREE = """ready_queue = :queue AND type = :type AND wake_at <= :now AND claims < :claims_below
  AND (home IS NULL OR home = :worker OR wake_at <= :left_before OR home NOT IN (:alive))"""

BY_PRIORITY = f"""
(SELECT priority, wake_at, id, claims, token
FROM perdure_runs FORCE INDEX (perdure_runs_to_claim)
WHERE {_FREE}
ORDER BY priority, wake_at, id
LIMIT :limit)
"""

BY_AGE = f"""
(SELECT priority, wake_at, id, claims, token
FROM perdure_runs FORCE INDEX (perdure_runs_to_claim_by_age)
WHERE {_FREE}
ORDER BY wake_at, id
LIMIT :limit)
"""

#: Number of pairs from which the first two runs of each pair are read before more of any pair. MariaDB takes 89 ms for
#: a union of 1,000 queries, and 13 ms for such a page of 1,000 pairs.
_MANY_PAIRS = 16


def _page(select: str) -> str:
    """Return the statement that reads the first two runs of each of many pairs, as JSON."""
    columns = "priority, wake_at, id, claims, token"
    first = select.replace(columns, f"JSON_ARRAY({columns})").replace("LIMIT :limit", "LIMIT 1 OFFSET {}")
    return f"SELECT pair.queue, pair.type, {first.format(0)}, {first.format(1)} FROM (:pairs) AS pair"


PAGE_BY_PRIORITY = _page(BY_PRIORITY)
PAGE_BY_AGE = _page(BY_AGE)
#: In a page, the queue and the type of a query are those of the pair.
PAIR = {"queue": Sql("pair.queue"), "type": Sql("pair.type")}

#: Runs whose claims have led to no progress so far.
SUSPECTS = """
(SELECT priority, wake_at, id, claims, token
FROM perdure_runs FORCE INDEX (perdure_runs_to_claim)
WHERE ready_queue = :queue AND type = :type AND wake_at <= :now AND claims >= :suspect_after
ORDER BY priority, wake_at, id
LIMIT :limit)
"""

#: The last column is true of a run that a bare INSERT made.
_LOCK = f"""
SELECT progress, home, {RUN}, write_id = ''
FROM perdure_runs FORCE INDEX (PRIMARY)
WHERE id IN (:ids) AND status = 'pending' AND wake_at <= :now
FOR UPDATE SKIP LOCKED
"""

_LAST = "SELECT run_id, MAX(seq) FROM perdure_history WHERE run_id IN (:ids) GROUP BY run_id"

#: What a claim writes, as in `store/sql/runs/claim.py`. The rows exist and are locked, so that the INSERT always
#: becomes an UPDATE of each.
_TAKE = """
INSERT INTO perdure_runs (id, token, claims, progress, started_at, seed, marked, deadline)
VALUES :rows
ON DUPLICATE KEY UPDATE status = 'running', reason = NULL, worker = :worker, home = :worker, nonce = :nonce,
  token = VALUES(token), claims = VALUES(claims), progress = VALUES(progress), started_at = VALUES(started_at),
  seed = VALUES(seed), marked = VALUES(marked), deadline = VALUES(deadline), close_by = 0,
  build = IF(build = '', :build, build)
"""

_LATER = f"""
SELECT
  (SELECT MIN(waits_until) FROM perdure_runs FORCE INDEX (perdure_runs_to_wake)),
  (
    SELECT MIN(wake_at) FROM perdure_runs FORCE INDEX (perdure_runs_to_claim_by_age)
    WHERE {MINE} AND wake_at > :left_before AND {_LEFT_TO_OTHERS}
  ),
  EXISTS (
    SELECT 1 FROM perdure_runs FORCE INDEX (perdure_runs_to_claim)
    WHERE {MINE} AND wake_at <= :now AND claims < :suspect_after
      AND (home IS NULL OR home = :worker OR wake_at <= :left_before OR home NOT IN (:alive))
  )
"""


async def claim(
    tx: MysqlTransaction, request: ClaimRequest, preview: MysqlPreview, entropy: Callable[[int], bytes]
) -> ClaimResult:
    """Make due runs ready, then take ready runs."""
    if preview.held:
        [answer] = await tx.send(tx.fill(_HELD, worker=request.worker, nonce=request.nonce))
        runs = tuple(ClaimedRun(to_run(row[1:]), row[0]) for row in answer.rows)
        return replace(preview.empty_handed(), runs=runs)
    return await _Claim(tx, request, preview, entropy).claim()


#: The orders of rows of `BY_PRIORITY` and `BY_AGE`.
_PLACE = itemgetter(0, 1, 2)
_AGE = itemgetter(1, 2)


def _row(cell: str) -> Row:
    return tuple(msgspec.json.decode(cell, type=list[int | str]))


class _Claim:
    """One claim under way."""

    def __init__(
        self, tx: MysqlTransaction, request: ClaimRequest, preview: MysqlPreview, entropy: Callable[[int], bytes]
    ) -> None:
        self._tx = tx
        self._request = request
        self._preview = preview
        self._entropy = entropy
        self._values: dict[str, object] = {
            "now": preview.now,
            "worker": request.worker,
            "alive": sql_list(preview.alive),
            "queues": sql_list(request.queues),
            "types": sql_list(request.types),
            "suspect_after": SUSPECT_AFTER,
            "left_before": preview.now - request.affinity,
        }
        #: Ids that a lock was tried for; the locked runs by id; the number of the last record of each that has one; and
        #: those that a bare INSERT made.
        self._asked: set[str] = set()
        self._locked: dict[str, tuple[int, Run]] = {}
        self._homes: dict[str, str | None] = {}
        self._last: dict[str, int] = {}
        self._inserted: set[str] = set()

    async def claim(self) -> ClaimResult:
        """Wake due runs, choose, lock and take."""
        await self._apply_timers()
        request = self._request
        first = request.limit - request.by_age
        ready, old = await self._candidates(NEVER)
        doubtful = [row for row in sorted({*ready, *old}) if row[3] >= SUSPECT_AFTER]
        if doubtful:
            # Suspects filled part of the page, so candidates are read again without them.
            ready, old = await self._candidates(SUSPECT_AFTER)
            if request.alone:
                [found] = await self._tx.send(self._for_pairs(self._pairs, SUSPECTS, 2 * request.limit, NEVER))
                doubtful = sorted({*doubtful, *found.rows})
        suspects = await self._sort_out_suspects(ready, doubtful)
        if old and len(ready) >= first:
            # Usually no row is locked, and then this one query locks all.
            chosen = {row[2] for row in ready[:first]}
            await self._lock_rows([*ready[:first], *[row for row in old if row[2] not in chosen][: request.by_age]])
        taken = await self._lock_first(ready, first)
        # A pass that did not find enough runs has seen all of them.
        if request.by_age and len(taken) >= first:
            chosen = set(taken)
            taken += await self._lock_first([row for row in old if row[2] not in chosen], request.by_age)
        alone = request.alone and bool(suspects)
        taken = group(suspects, request.limit) if alone else taken
        await note_inserted(self._tx, self._inserted.intersection(taken))
        runs = self._take(taken)
        if len(runs) >= request.limit or (len(runs) == len(ready) and not doubtful and self._takes_all):
            next_wake = self._preview.next_wake
        else:
            next_wake = await self._next_wake()
        return ClaimResult(
            runs=tuple(runs),
            next_wake=min(next_wake, self._preview.look_again),
            suspects=bool(suspects) and not alone,
            now=self._preview.now,
            next_fire=self._preview.next_fire,
            limited=limited(self._preview.paused),
        )

    @property
    def _takes_all(self) -> bool:
        """Tell whether no ready run stays behind: none is left to another worker, and no timer changed anything."""
        leaves_none = not self._request.affinity or self._preview.alive == [self._request.worker]
        return leaves_none and not self._preview.due and not self._preview.early

    async def _apply_timers(self) -> None:
        """Make due runs ready, and let runs wait that were made ready before their time."""
        if self._preview.due:
            due = await self._ids(DUE, limit=max(_DUE, self._request.limit))
            self._update_status(_WAKE, await self._ids(_LOCK_WAITING, ids=sql_list(due)) if due else [])
        if self._preview.early:
            early = await self._ids(EARLY)
            self._update_status(_NOT_YET, await self._ids(_LOCK_EARLY, ids=sql_list(early)) if early else [])

    async def _candidates(self, claims_below: int) -> tuple[list[Row], list[Row]]:
        """Return runs by priority, and runs by age, as (priority, wake_at, id, claims, token)."""
        if not self._request.queues or not self._request.types:
            return [], []
        first = self._request.limit - self._request.by_age
        # If fewer are ready than wanted, the first pass sees all of them. Due runs are about to be ready.
        by_age = self._request.by_age if self._preview.due or self._preview.ready >= min(first, MANY) else 0
        # Read some more than wanted, because other workers, if there are any, may take some meanwhile.
        spare = 16 if self._preview.alive == [self._request.worker] else max(16, first)
        age = first + 2 * by_age + 16
        if len(self._pairs) > _MANY_PAIRS:
            ready = await self._best_of_many(BY_PRIORITY, PAGE_BY_PRIORITY, _PLACE, first + spare, claims_below)
            old = await self._best_of_many(BY_AGE, PAGE_BY_AGE, _AGE, age, claims_below) if by_age else []
            return ready, old
        queries = [self._for_pairs(self._pairs, BY_PRIORITY, first + spare, claims_below)]
        if by_age:
            queries.append(self._for_pairs(self._pairs, BY_AGE, age, claims_below))
        answers = [answer.rows for answer in await self._tx.send(*queries)]
        return sorted(answers[0]), sorted(answers[-1], key=_AGE) if by_age else []

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        return [(queue, type) for queue in self._request.queues for type in self._request.types]

    async def _best_of_many(
        self, template: str, page: str, order: Callable[[Row], tuple[object, ...]], limit: int, claims_below: int
    ) -> list[Row]:
        """Return the best runs of many pairs: more of a pair only if both runs of its page are among the best."""
        values = {**self._values, "claims_below": claims_below}
        named = Sql(" UNION ALL ".join(f"SELECT {literal(queue)}, {literal(type)}" for queue, type in self._pairs[1:]))
        queue, type = map(literal, self._pairs[0])
        pairs = Sql(f"SELECT {queue} AS queue, {type} AS type UNION ALL {named}")
        [answer] = await self._tx.send(self._tx.fill(page, **{**values, **PAIR, "pairs": pairs}))
        pages = [(row[:2], [_row(cell) for cell in row[2:] if cell is not None]) for row in answer.rows]
        found = sorted((row for _, rows in pages for row in rows), key=order)
        full = [(pair, rows[1]) for pair, rows in pages if len(rows) > 1]
        if len(found) >= limit:
            last = order(found[limit - 1])
            full = [(pair, row) for pair, row in full if order(row) < last]
        if not full:
            return found
        [more] = await self._tx.send(self._for_pairs([pair for pair, _ in full], template, limit, claims_below))
        return sorted({*found, *more.rows}, key=order)

    def _for_pairs(self, pairs: Sequence[tuple[str, str]], template: str, limit: int, claims_below: int) -> str:
        values = {**self._values, "limit": limit, "claims_below": claims_below}
        return " UNION ALL ".join(
            self._tx.fill(template, **{**values, "queue": queue, "type": type}) for queue, type in pairs
        )

    async def _sort_out_suspects(self, ready: list[Row], doubtful: Sequence[Row]) -> list[Suspect]:
        """Sort doubtful runs: those that have made progress are ready, the others are suspects or are set aside."""
        suspects: list[Suspect] = []
        if not doubtful:
            return suspects
        await self._lock_rows(doubtful)
        for place in doubtful:
            run_id = place[2]
            if run_id not in self._locked:
                continue
            progress, run = self._locked[run_id]
            if not is_suspect(run.claims, progressed=self._last.get(run_id, -1) > progress):
                ready.append(place)
            elif is_poison(run.claims, self._request.poison_after):
                await block_as_poison(self._tx, run_id, run.claims)
            else:
                suspects.append(Suspect(run_id, run.claims, self._homes[run_id]))
        ready.sort()
        return suspects

    async def _lock_first(self, candidates: Sequence[Row], enough: int) -> list[str]:
        """Lock the first free candidates; return their ids in order."""
        got: list[str] = []
        at = 0
        while len(got) < enough and at < len(candidates):
            page = candidates[at : at + enough - len(got)]
            at += len(page)
            await self._lock_rows(page)
            got += [row[2] for row in page if row[2] in self._locked]
        return got

    async def _lock_rows(self, places: Sequence[Row]) -> None:
        """Lock the free rows among those that were not tried before."""
        new = [row for row in places if row[2] not in self._asked]
        if not new:
            return
        self._asked.update(row[2] for row in new)
        # A run that was never claimed has no history.
        begun = {row[2] for row in new if row[4] > 0}
        queries = [self._tx.fill(_LOCK, ids=sql_list(row[2] for row in new), now=self._preview.now)]
        if begun:
            queries.append(self._tx.fill(_LAST, ids=sql_list(begun)))
        answer, *last = await self._tx.send(*queries)
        locked = {row[2]: (row[0], to_run(row[2:-1])) for row in answer.rows}
        self._locked.update(locked)
        self._inserted.update(row[2] for row in answer.rows if row[-1])
        self._homes.update((row[2], row[1]) for row in answer.rows)
        # Another worker has claimed and given back these since they were chosen.
        missed = [id for id, (_, run) in locked.items() if run.token > 0 and id not in begun]
        if missed:
            last += await self._tx.send(self._tx.fill(_LAST, ids=sql_list(missed)))
        for one in last:
            self._last.update(one.rows)

    def _take(self, chosen: Sequence[str]) -> list[ClaimedRun]:
        request, now = self._request, self._preview.now
        seeds = self._entropy(16 * len(chosen)).hex() if chosen else ""
        rows: list[tuple[object, ...]] = []
        taken: list[ClaimedRun] = []
        for place, run_id in enumerate(chosen):
            progress, run = self._locked[run_id]
            last = self._last.get(run_id, -1)
            run = replace(
                run,
                status=Status.RUNNING,
                reason=None,
                worker=request.worker,
                nonce=request.nonce,
                token=run.token + 1,
                claims=1 if run.claims > 0 and last > progress else run.claims + 1,
                started_at=run.started_at or now,
                seed=run.seed or seeds[32 * place : 32 * place + 32],
                deadline=run.close_by or run.deadline,
                close_by=0,
            )
            marked = run.inbox_seq > run.inbox_read
            rows.append((run.id, run.token, run.claims, last, run.started_at, run.seed, marked, run.deadline))
            taken.append(ClaimedRun(run, last))
        note_claims(self._tx, (claimed.run for claimed in taken), now)
        self._tx.insert(_TAKE, rows, worker=request.worker, nonce=request.nonce, build=request.build)
        return taken

    async def _next_wake(self) -> int:
        [answer] = await self._tx.send(self._tx.fill(_LATER, **self._values))
        [(waiting, left, more)] = answer.rows
        times = [NEVER if waiting is None else waiting]
        if left is not None:
            times.append(left + self._request.affinity)
        if more:
            times.append(self._preview.now + _MOMENT)
        return min(times)

    async def _ids(self, template: str, **values: object) -> list[str]:
        [answer] = await self._tx.send(self._tx.fill(template, **{**self._values, **values}))
        return [row[0] for row in answer.rows]

    def _update_status(self, template: str, ids: Iterable[str]) -> None:
        if ids := list(ids):
            self._tx.enqueue(self._tx.fill(template, ids=sql_list(ids)))
