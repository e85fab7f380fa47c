"""Claiming runs whose rows are locked, one statement for all of them, on every database.

`assign` is what a claim writes. A claim of many ready runs is the hottest statement of all, so each database spells it
out: `store/sqlite/claim.py`, `store/postgres/claim.py` (`TAKEN`) and `store/mysql/claim.py` (`_TAKE`). They write the
same, which the conformance suite checks column by column, with one difference: admission sets `wake_at`.

The claim of plain SQL (`store/plain_sql`) writes the same, too, except for three columns: `lease_until`, because its
worker has no heartbeat row; `home`, because it keeps nothing in memory; and `claims`, which it only counts up.

Servers read first what there is to claim (`ClaimPreview`), which is all that an idle worker costs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.limits.call_limits import has_call_limits
from perdure.core.model.claim import (
    SUSPECT_AFTER,
    ClaimByIdRequest,
    ClaimByIdResult,
    ClaimedRun,
    ClaimRefusal,
    ClaimResult,
)
from perdure.core.model.run import FINISHED, Reason, Run, Status
from perdure.core.pinning import base_queue, pinned_build
from perdure.core.time.duration import NEVER
from perdure.errors import WorkflowError
from perdure.store.sql.audit import claim_event, note_inserted
from perdure.store.sql.dialect import Transaction, placeholders
from perdure.store.sql.limits.gates import in_chunks, limited
from perdure.store.sql.pauses import LIMITED_QUEUE, LIMITED_TYPE
from perdure.store.sql.rows import RUN, failure, to_json, to_run

S = TypeVar("S", bound="ClaimPreview")


class ClaimPreview(Struct, frozen=True, kw_only=True):
    """State of the database as far as a claim needs it."""

    now: int
    #: The workers that live, and whether the one that asks is among them.
    alive: list[str]
    welcome: bool
    #: This claim was made before; its answer was lost.
    held: bool
    next_wake: int
    #: How many are ready, as far as that matters; or whether any is.
    ready: int
    #: When one of the ready runs becomes due that were not due yet for this process; None: all were.
    early_at: int | None
    #: The server's time, which is not earlier than that of this process.
    server: int
    #: When a schedule is due next.
    next_fire: int
    #: Kind and name of what is paused.
    paused: Collection[tuple[str, str]]

    @property
    def due(self) -> bool:
        """True if a waiting run is due."""
        return self.next_wake <= self.now

    @property
    def early(self) -> bool:
        """True if a run was made ready before its time."""
        return self.early_at is not None and self.early_at > self.server

    @property
    def look_again(self) -> int:
        """When a run is due for this process that is due for the server already; `NEVER` if there is none."""
        return self.server if self.early_at is not None and self.early_at <= self.server else NEVER

    @property
    def nothing(self) -> bool:
        """True if there is nothing to do for this worker."""
        return not (self.held or (self.welcome and (self.due or self.ready)))

    def at(self: S, now: int) -> S:
        """The same at this process's time."""
        return replace(self, now=now)

    def empty_handed(self) -> ClaimResult:
        """Result of a claim that took nothing."""
        return ClaimResult(
            runs=(),
            next_wake=min(self.next_wake, self.look_again),
            suspects=False,
            now=self.now,
            next_fire=self.next_fire,
            limited=limited(self.paused),
        )


LAST = "SELECT run_id, MAX(seq) FROM perdure_history WHERE run_id IN ({names}) GROUP BY run_id"

_TAKE = """
UPDATE perdure_runs
SET status = 'running', reason = NULL, worker = :worker, home = :worker, nonce = :nonce, token = :token,
    claims = :claims,
    progress = :progress, started_at = :started_at, seed = :seed, marked = :marked, deadline = :deadline, close_by = 0,
    wake_at = :wake_at, build = CASE WHEN build = '' THEN :build ELSE build END
WHERE id = :run_id
"""


async def assign(
    tx: Transaction,
    locked: Sequence[tuple[int, Run]],
    worker: str,
    nonce: str,
    entropy: Callable[[int], bytes],
    *,
    build: str,
    admitted: bool = False,
) -> list[ClaimedRun]:
    """Assign locked runs to a worker; each comes with its progress so far.

    `wake_at` stays the time since when a run was ready. Of a run that was `admitted` it becomes the time of admission,
    which is the time that a rate and a breaker count. A run that no build has begun keeps `build`.
    """
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
            wake_at=tx.now if admitted else before.wake_at,
        )
        claimed.append(ClaimedRun(run, recorded))
        if tx.repeats or not before.started_at:
            tx.note(run.id, *claim_event(run, starts=not before.started_at))
    await tx.execute_many(_TAKE, [_row(one.run, last.get(one.run.id, -1), build) for one in claimed])
    return claimed


def _row(run: Run, progress: int, build: str) -> dict[str, object]:
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
        "wake_at": run.wake_at,
        "build": build,
    }


#: How the home of runs begins that were suspects when their worker died with several of them.
_TRIED = "tried:"

_SET_ASIDE = """
UPDATE perdure_runs
SET status = 'blocked', reason = 'poison', error = :error, worker = NULL, home = NULL, token = token + 1, marked = 0,
    wake_at = :now, lease_until = 0
WHERE id = :run_id AND status IN ('pending', 'waiting', 'running')
"""


class Suspect(Struct, frozen=True, gc=False):
    """A ready run that may have killed its workers."""

    run_id: str
    claims: int
    #: The worker that died with it last, as `home_after` has it.
    home: str | None


def is_suspect(claims: int, *, progressed: bool) -> bool:
    """True if a run may only be claimed by a worker that holds nothing else."""
    return claims >= SUSPECT_AFTER and not progressed


def is_poison(claims: int, poison_after: int) -> bool:
    """True if a suspect is to be blocked. It has lost its worker while alone at least once by then."""
    return claims >= max(poison_after, SUSPECT_AFTER + 1)


def group(suspects: Sequence[Suspect], limit: int) -> list[str]:
    """The suspects to be tried together, by their ids: the first one and those that died with it."""
    if not suspects:
        return []
    home = suspects[0].home
    members = [one.run_id for one in suspects if one.home == home]
    number = (len(members) + 1) // 2 if home is not None and home.startswith(_TRIED) else len(members)
    return members[: max(1, min(number, limit))]


def claims_after(claims: int, *, alone: bool, progressed: bool) -> int:
    """Count of claims without progress after the death of a worker of ours.

    `alone`: the worker held no other run.
    """
    if progressed:
        return 0
    return claims if alone or claims <= SUSPECT_AFTER else claims - 1


def home_after(worker: str, claims: int, *, alone: bool) -> str:
    """The home of a run after the death of a worker of ours. No worker that lives is called so: it is left to none."""
    return worker if alone or claims <= SUSPECT_AFTER else _TRIED + worker


#: `is_poison` (of a worker in another language, which gets a suspect alone), `claims_after` and `home_after` as SQL,
#: over the columns of a lost run, `foreign_lease`, `alone` and `progressed`.
IS_POISON = f"(foreign_lease AND claims >= {{poison_after}} AND claims > {SUSPECT_AFTER})"
CLAIMS_AFTER = f"""CASE
    WHEN foreign_lease THEN claims
    WHEN progressed THEN 0
    WHEN alone OR claims <= {SUSPECT_AFTER} THEN claims
    ELSE claims - 1
  END"""
HOME_AFTER = f"CASE WHEN foreign_lease OR alone OR claims <= {SUSPECT_AFTER} THEN worker ELSE '{_TRIED}' || worker END"


async def block_as_poison(tx: Transaction, run_id: str, claims: int) -> str:
    """Block a locked run as poison until a person unblocks it; returns the error that is written, as JSON."""
    error = failure(
        WorkflowError,
        f"Run {run_id!r} was claimed {claims} times in a row and each time its worker went away before anything was "
        "recorded, the last times with nothing else to do. Look at what the run does first, then unblock it.",
    )
    await tx.execute(_SET_ASIDE, {"run_id": run_id, "error": error, "now": tx.now})
    tx.note(run_id, "blocked", to_json({"reason": Reason.POISON.value}))
    tx.bury(run_id, error)
    return error


#: The first column is true of a run that a bare INSERT made.
_RUN = f"""
SELECT write_id = '', progress, {RUN}
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


async def claim_by_id(tx: Transaction, request: ClaimByIdRequest, entropy: Callable[[int], bytes]) -> ClaimByIdResult:
    """Claim one run, if it is ready and free."""
    rows = await tx.fetch(_RUN, {"run_id": request.run_id})
    if not rows:
        return ClaimByIdResult(refused=ClaimRefusal.UNKNOWN, now=tx.now)
    inserted, progress, run = rows[0][0], rows[0][1], to_run(rows[0][2:])
    if run.status is Status.RUNNING and (run.worker, run.nonce) == (request.worker, request.nonce):
        # Asked before; the answer was lost.
        return ClaimByIdResult(claimed=ClaimedRun(run, progress), now=tx.now, progress=progress)
    known = [(kind, name) for kind, name in await tx.fetch(_PAUSES, {})]
    refused = await _refusal(tx, run, request, known)
    if refused is ClaimRefusal.GATED:
        return await _at_the_gates(tx, run, limited(known))
    if refused is not None:
        return ClaimByIdResult(refused=refused, run=run, now=tx.now)
    [(last,)] = await tx.fetch(_LAST, {"run_id": run.id})
    last = -1 if last is None else last
    if is_suspect(run.claims, progressed=last > progress):
        if is_poison(run.claims, request.poison_after):
            return await _set_aside(tx, run)
        if not request.alone:
            return ClaimByIdResult(refused=ClaimRefusal.SUSPECT, run=run, now=tx.now)
    if inserted:
        await note_inserted(tx, [run.id])
    [claimed] = await assign(tx, [(progress, run)], request.worker, request.nonce, entropy, build=request.build)
    return ClaimByIdResult(claimed=claimed, now=tx.now, progress=last)


async def _refusal(
    tx: Transaction, run: Run, request: ClaimByIdRequest, known: Sequence[tuple[str, str]]
) -> ClaimRefusal | None:
    if run.status in FINISHED:
        return ClaimRefusal.FINISHED
    if run.status is Status.BLOCKED:
        return ClaimRefusal.BLOCKED
    if run.status is Status.RUNNING:
        return ClaimRefusal.HELD
    # A run may wait for a limit without a waitlist: the next of a singleton.
    kept = run.status is Status.WAITING and run.reason in _IN_LINE
    in_line = kept and bool(await tx.fetch(_PLACE, {"run_id": run.id}))
    if run.wake_at > tx.now and not in_line:
        return ClaimRefusal.WAITING
    if run.type not in request.types or pinned_build(run.queue) not in ("", request.build):
        return ClaimRefusal.FOREIGN
    queue = base_queue(run.queue)
    if ("type", run.type) in known or ("queue", queue) in known:
        return ClaimRefusal.PAUSED
    if not await tx.fetch(_ALIVE, {"worker": request.worker}):
        return ClaimRefusal.DEAD
    guarded = (LIMITED_TYPE, run.type) in known or (LIMITED_QUEUE, queue) in known
    gated = in_line or guarded or run.type in request.gated or has_call_limits(run.options)
    return ClaimRefusal.GATED if gated else None


async def _at_the_gates(tx: Transaction, run: Run, gates: tuple[str, ...]) -> ClaimByIdResult:
    """Make a run ready for the gatekeepers: one that is due, or on a waitlist, where it keeps its place."""
    if run.status is Status.WAITING:
        since = min(run.wake_at, tx.now)
        await tx.execute(_READY_AGAIN, {"run_id": run.id, "wake_at": since})
        run = replace(run, status=Status.PENDING, reason=None, wake_at=since)
    return ClaimByIdResult(refused=ClaimRefusal.GATED, run=run, now=tx.now, limited=gates)


async def _set_aside(tx: Transaction, run: Run) -> ClaimByIdResult:
    error = await block_as_poison(tx, run.id, run.claims)
    run = replace(
        run, status=Status.BLOCKED, reason=Reason.POISON, error=error, wake_at=tx.now, token=run.token + 1, worker=None
    )
    return ClaimByIdResult(refused=ClaimRefusal.BLOCKED, run=run, now=tx.now)


async def ready_run_ids(tx: Transaction, types: Sequence[str], queues: Sequence[str], limit: int) -> list[str]:
    """Runs that could be worked on now, longest waiting first."""
    paused = {tuple(row) for row in await tx.fetch(_PAUSES, {})}
    types = [name for name in types if ("type", name) not in paused]
    queues = [name for name in queues if ("queue", base_queue(name)) not in paused]
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
