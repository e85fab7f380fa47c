"""Claiming on MySQL and MariaDB.

First a look, one cheap statement, which is all that an idle worker costs. Only if there is something to do follows the
transaction: wake what is due, choose, lock, take. Each (queue, type) pair is one range of the claim index, read in its order and
without locks; what is chosen is then locked by its primary key, skipping what others hold, and looked at again. Rows are never
locked by way of another index: two who meet on the same rows from different indexes would wait in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.core.model import FAR, Claimed, ClaimedRun, ClaimRequest, Reason, Run, Status
from perdure.store.dialect import Row
from perdure.store.gates import limited
from perdure.store.mysql.literals import Sql, listed
from perdure.store.mysql.transaction import MysqlTransaction
from perdure.store.poison import poisoned
from perdure.store.rows import RUN, to_json, to_run

#: How many due runs one claim makes ready, at most.
_DUE = 512
#: When to look again if others had locked what we could have taken, in microseconds.
_MOMENT = 5_000

_MINE = "status = 'pending' AND queue IN (:queues) AND type IN (:types)"
_LEFT_TO_OTHERS = "home <> :worker AND home IN (:alive)"

LOOK = f"""
SELECT :now,
  (SELECT JSON_ARRAYAGG(id) FROM perdure_workers WHERE status = 'alive'),
  EXISTS (SELECT 1 FROM perdure_runs FORCE INDEX (perdure_runs_held) WHERE status = 'running' AND worker = :worker AND nonce = :nonce),
  (SELECT MIN(wake_at) FROM perdure_runs FORCE INDEX (perdure_runs_to_wake) WHERE status = 'waiting'),
  EXISTS (SELECT 1 FROM perdure_runs FORCE INDEX (perdure_runs_to_claim) WHERE {_MINE}),
  EXISTS (SELECT 1 FROM perdure_runs FORCE INDEX (perdure_runs_to_claim_by_age) WHERE {_MINE} AND wake_at > :now),
  (SELECT JSON_ARRAYAGG(JSON_ARRAY(kind, name)) FROM perdure_pauses),
  (SELECT MIN(due_at) FROM perdure_schedules)
"""

_HELD = f"""
SELECT progress, {RUN}
FROM perdure_runs
WHERE status = 'running' AND worker = :worker AND nonce = :nonce
ORDER BY priority, wake_at, id
"""

DUE = """
SELECT id
FROM perdure_runs FORCE INDEX (perdure_runs_to_wake)
WHERE status = 'waiting' AND wake_at <= :now
ORDER BY wake_at
LIMIT :limit
"""

EARLY = f"""
SELECT id
FROM perdure_runs FORCE INDEX (perdure_runs_to_claim_by_age)
WHERE {_MINE} AND wake_at > :now
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

#: Ready, and not left to the worker that had it last.
_FREE = """status = 'pending' AND queue = :queue AND type = :type AND wake_at <= :now AND claims < :claims_below
  AND (home IS NULL OR home = :worker OR wake_at <= :left_before OR home NOT IN (:alive))"""

BY_PRIORITY = f"""
(SELECT priority, wake_at, id, claims
FROM perdure_runs FORCE INDEX (perdure_runs_to_claim)
WHERE {_FREE}
ORDER BY priority, wake_at, id
LIMIT :limit)
"""

BY_AGE = f"""
(SELECT priority, wake_at, id, claims
FROM perdure_runs FORCE INDEX (perdure_runs_to_claim_by_age)
WHERE {_FREE}
ORDER BY wake_at, id
LIMIT :limit)
"""

_LOCK = f"""
SELECT progress, {RUN}
FROM perdure_runs FORCE INDEX (PRIMARY)
WHERE id IN (:ids) AND status = 'pending' AND wake_at <= :now
FOR UPDATE SKIP LOCKED
"""

_LAST = "SELECT run_id, MAX(seq) FROM perdure_history WHERE run_id IN (:ids) GROUP BY run_id"

#: Rows that are there, under our lock: the INSERT always finds them and becomes an UPDATE of each.
_TAKE = """
INSERT INTO perdure_runs (id, status, worker, home, nonce, token, claims, progress, started_at, seed, marked, deadline, close_by)
VALUES :rows
ON DUPLICATE KEY UPDATE status = VALUES(status), reason = NULL, worker = VALUES(worker), home = VALUES(home),
  nonce = VALUES(nonce), token = VALUES(token), claims = VALUES(claims), progress = VALUES(progress),
  started_at = VALUES(started_at), seed = VALUES(seed), marked = VALUES(marked), deadline = VALUES(deadline),
  close_by = VALUES(close_by)
"""

_SET_ASIDE = """
UPDATE perdure_runs
SET status = 'blocked', reason = :reason, error = :error, wake_at = :now
WHERE id = :id
"""

_LATER = f"""
SELECT
  (SELECT MIN(wake_at) FROM perdure_runs FORCE INDEX (perdure_runs_to_wake) WHERE status = 'waiting'),
  (
    SELECT MIN(wake_at) FROM perdure_runs FORCE INDEX (perdure_runs_to_claim_by_age)
    WHERE {_MINE} AND wake_at > :left_before AND {_LEFT_TO_OTHERS}
  ),
  EXISTS (
    SELECT 1 FROM perdure_runs FORCE INDEX (perdure_runs_to_claim)
    WHERE {_MINE} AND wake_at <= :now AND claims < :suspect_after
      AND (home IS NULL OR home = :worker OR wake_at <= :left_before OR home NOT IN (:alive))
  )
"""


class Seen(Struct, frozen=True):
    """What a look found."""

    now: int
    #: The workers that live, and whether the one that asks is among them.
    alive: list[str]
    welcome: bool
    #: This claim was made before; its answer was lost.
    held: bool
    next_wake: int
    ready: bool
    early: bool
    #: When a schedule is due next.
    next_fire: int
    #: Kind and name of what is paused.
    paused: frozenset[tuple[str, str]]

    @property
    def due(self) -> bool:
        """Whether a run waits to be woken."""
        return self.next_wake <= self.now

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to do for this worker."""
        return not (self.held or (self.welcome and (self.due or self.ready)))

    def at(self, now: int) -> Seen:
        """The same at the time that this process goes by."""
        return replace(self, now=now)

    def empty_handed(self) -> Claimed:
        """The answer of a claim that took nothing."""
        return Claimed(
            runs=(),
            next_wake=self.next_wake,
            suspects=False,
            now=self.now,
            next_fire=self.next_fire,
            limited=limited(self.paused),
        )


async def look(tx: MysqlTransaction, request: ClaimRequest, now: Sql | int) -> Seen:
    """Find out whether there is anything to do."""
    [answer] = await tx.send(
        tx.text(
            LOOK,
            now=now,
            worker=request.worker,
            nonce=request.nonce,
            queues=listed(request.queues),
            types=listed(request.types),
        )
    )
    [(at, names, held, next_wake, ready, early, paused, next_fire)] = answer.rows
    alive = msgspec.json.decode(names or "[]", type=list[str])
    return Seen(
        now=at,
        alive=alive,
        welcome=request.worker in alive,
        held=bool(held),
        next_wake=FAR if next_wake is None else next_wake,
        ready=bool(ready),
        early=bool(early),
        next_fire=FAR if next_fire is None else next_fire,
        paused=frozenset(msgspec.json.decode(paused or "[]", type=list[tuple[str, str]])),
    )


async def claim(tx: MysqlTransaction, request: ClaimRequest, seen: Seen, entropy: Callable[[int], bytes]) -> Claimed:
    """Wake what is due, then take ready runs."""
    if seen.held:
        [answer] = await tx.send(tx.text(_HELD, worker=request.worker, nonce=request.nonce))
        runs = tuple(ClaimedRun(to_run(row[1:]), fresh=row[0] < 0) for row in answer.rows)
        return replace(seen.empty_handed(), runs=runs)
    return await _Claim(tx, request, seen, entropy).claim()


class _Claim:
    """One claim."""

    def __init__(
        self, tx: MysqlTransaction, request: ClaimRequest, seen: Seen, entropy: Callable[[int], bytes]
    ) -> None:
        self._tx = tx
        self._request = request
        self._seen = seen
        self._entropy = entropy
        self._values: dict[str, object] = {
            "now": seen.now,
            "worker": request.worker,
            "alive": listed(seen.alive),
            "queues": listed(request.queues),
            "types": listed(request.types),
            "suspect_after": request.suspect_after,
            "left_before": seen.now - request.affinity,
        }
        #: Locked rows by id, and the number of the last record of each.
        self._locked: dict[str, tuple[int, Run]] = {}
        self._last: dict[str, int] = {}

    async def claim(self) -> Claimed:
        """Wake, choose, lock, take."""
        await self._move_on_time()
        request = self._request
        first = request.limit - request.by_age
        ready, old = await self._candidates(FAR)
        doubtful = [row for row in sorted({*ready, *old}) if row[3] >= request.suspect_after]
        if doubtful:
            # What lies behind them has to be looked for anew.
            ready, old = await self._candidates(request.suspect_after)
        suspects = await self._judge(ready, doubtful)
        taken = await self._lock(ready, first)
        # A pass that did not find enough has seen all there is.
        if request.by_age and len(taken) >= first:
            chosen = set(taken)
            taken += await self._lock([row for row in old if row[2] not in chosen], request.by_age)
        alone = request.alone and bool(suspects)
        runs = self._take(suspects[:1] if alone else taken)
        next_wake = await self._next_wake() if len(runs) < request.limit else self._seen.next_wake
        return Claimed(
            runs=tuple(runs),
            next_wake=next_wake,
            suspects=bool(suspects) and not alone,
            now=self._seen.now,
            next_fire=self._seen.next_fire,
            limited=limited(self._seen.paused),
        )

    async def _move_on_time(self) -> None:
        """Make ready what is due, and wait what was made ready before its time."""
        if self._seen.due:
            due = await self._ids(DUE, limit=max(_DUE, self._request.limit))
            self._move(_WAKE, await self._ids(_LOCK_WAITING, ids=listed(due)) if due else [])
        if self._seen.early:
            early = await self._ids(EARLY)
            self._move(_NOT_YET, await self._ids(_LOCK_EARLY, ids=listed(early)) if early else [])

    async def _candidates(self, claims_below: int) -> tuple[list[Row], list[Row]]:
        """Runs in the order of priority, and by age, as (priority, wake_at, id, claims)."""
        if not self._request.queues or not self._request.types:
            return [], []
        first, by_age = self._request.limit - self._request.by_age, self._request.by_age
        # More than are wanted: some may be somebody else's by now.
        questions = [self._everywhere(BY_PRIORITY, first + max(16, first), claims_below)]
        if by_age:
            questions.append(self._everywhere(BY_AGE, first + 2 * by_age + 16, claims_below))
        answers = [answer.rows for answer in await self._tx.send(*questions)]
        return sorted(answers[0]), sorted(answers[-1], key=itemgetter(1, 2)) if by_age else []

    def _everywhere(self, template: str, limit: int, claims_below: int) -> str:
        pairs = [(queue, type) for queue in self._request.queues for type in self._request.types]
        values = {**self._values, "limit": limit, "claims_below": claims_below}
        return " UNION ALL ".join(
            self._tx.text(template, **{**values, "queue": queue, "type": type}) for queue, type in pairs
        )

    async def _judge(self, ready: list[Row], doubtful: Sequence[Row]) -> list[str]:
        """Sort out the doubtful: those that have got on are ready, others are suspects, or set aside."""
        suspects: list[str] = []
        if not doubtful:
            return suspects
        await self._hold(doubtful)
        for place in doubtful:
            run_id = place[2]
            if run_id not in self._locked:
                continue
            progress, run = self._locked[run_id]
            if run.claims < self._request.suspect_after or self._last.get(run_id, -1) > progress:
                ready.append(place)
            elif run.claims >= self._request.poison_after:
                error = poisoned(run_id, run.claims)
                reason = Reason.POISON.value
                self._tx.later(self._tx.text(_SET_ASIDE, id=run_id, reason=reason, error=error, now=self._tx.now))
                self._tx.note(run_id, "blocked", to_json({"reason": reason}))
            else:
                suspects.append(run_id)
        ready.sort()
        return suspects

    async def _lock(self, candidates: Sequence[Row], enough: int) -> list[str]:
        """The first of the candidates that are free, locked, in their order."""
        got: list[str] = []
        at = 0
        while len(got) < enough and at < len(candidates):
            page = candidates[at : at + enough - len(got)]
            at += len(page)
            await self._hold(page)
            got += [row[2] for row in page if row[2] in self._locked]
        return got

    async def _hold(self, places: Sequence[Row]) -> None:
        ids = listed(row[2] for row in places if row[2] not in self._locked)
        rows, last = await self._tx.send(
            self._tx.text(_LOCK, ids=ids, now=self._seen.now), self._tx.text(_LAST, ids=ids)
        )
        for progress, *row in rows.rows:
            run = to_run(tuple(row))
            self._locked[run.id] = progress, run
        self._last.update(last.rows)

    def _take(self, chosen: Sequence[str]) -> list[ClaimedRun]:
        request, now = self._request, self._seen.now
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
            rows.append((
                run.id, run.status.value, run.worker, run.worker, run.nonce, run.token, run.claims, last, run.started_at,
                run.seed, run.inbox_seq > run.inbox_read, run.deadline, 0,
            ))  # fmt: skip
            taken.append(ClaimedRun(run, fresh=last < 0))
        self._tx.note_claims((claimed.run for claimed in taken), now)
        self._tx.insert(_TAKE, rows)
        return taken

    async def _next_wake(self) -> int:
        [answer] = await self._tx.send(self._tx.text(_LATER, **self._values))
        [(waiting, left, more)] = answer.rows
        times = [FAR if waiting is None else waiting]
        if left is not None:
            times.append(left + self._request.affinity)
        if more:
            times.append(self._seen.now + _MOMENT)
        return min(times)

    async def _ids(self, template: str, **values: object) -> list[str]:
        [answer] = await self._tx.send(self._tx.text(template, **{**self._values, **values}))
        return [row[0] for row in answer.rows]

    def _move(self, template: str, ids: Iterable[str]) -> None:
        if ids := list(ids):
            self._tx.later(self._tx.text(template, ids=listed(ids)))
