"""Dead letters: listing and deleting them.

They are listed along the index of statuses, latest run first, so that completed runs cost nothing. A run that continues
keeps its earlier errors among its outputs, one for each time, written under its row's lock and with a key that
identifies a repeated request.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence

import msgspec

from perdure.core.codec.failure import Failure
from perdure.core.model.dead_letter import (
    DeadLetter,
    DeadLetterAttempt,
    DeadLetterFilter,
    DeadLetterPage,
    DeleteOutcome,
    RequeueRecord,
    dead_letter_reason,
)
from perdure.core.model.run import Run, Status
from perdure.core.printed_text import brief
from perdure.core.routing import ANY
from perdure.errors import InvalidCursor
from perdure.store.sql.dialect import Params, Transaction, placeholders
from perdure.store.sql.rows import RUN, to_json, to_listed_runs, to_run, values
from perdure.store.sql.runs.inbox import cancel
from perdure.store.sql.runs.pause_and_evict import hide, restore
from perdure.store.sql.runs.reopen import locked

_NEWEST = "ORDER BY created_at DESC, id DESC LIMIT :limit"
#: One of each status, and the obvious besides: without it, an index of all but the completed would not be used.
_PAGE = f"""
SELECT * FROM (
  SELECT * FROM (
    SELECT {RUN} FROM perdure_runs WHERE status = 'failed' AND status <> 'completed' {{where}} {_NEWEST}
  ) AS failed
  UNION ALL
  SELECT * FROM (
    SELECT {RUN} FROM perdure_runs
    WHERE status = 'blocked' AND status <> 'completed' AND reason IN ('poison', 'undecodable') {{where}} {_NEWEST}
  ) AS blocked
) AS dead
{_NEWEST}
"""

_FAULTS = """
SELECT run_id, at, started_at, location, attempts, run_attempt, kind, payload
FROM perdure_history
WHERE run_id IN ({chosen}) AND failed = 1 AND kind <> 'cancel'
ORDER BY run_id, seq
"""

_CHANCES = """
SELECT run_id, payload
FROM perdure_outputs
WHERE run_id IN ({chosen}) AND kind = 'requeue'
ORDER BY run_id, position
"""

#: How many rows are looked at in one statement.
_LOOK = 200


async def list_dead_letters(
    tx: Transaction, filter: DeadLetterFilter, limit: int, cursor: str | None
) -> DeadLetterPage:
    """A page of dead letters, the latest run first."""
    found: list[Run] = []
    while len(found) <= limit:
        where, params = _where(filter, cursor)
        rows = await tx.fetch(_PAGE.replace("{where}", where), {**params, "limit": _LOOK})
        runs = to_listed_runs(rows)
        found += [run for run in runs if _is_meant(run, filter)]
        if len(runs) < _LOOK:
            break
        cursor = _encode(runs[-1])
    letters = await _letters(tx, found[:limit])
    return DeadLetterPage(tuple(letters), _encode(found[limit - 1]) if len(found) > limit else None)


async def get_dead_letter(tx: Transaction, run_id: str) -> DeadLetter | None:
    """One dead letter; None: the run is none."""
    rows = await tx.fetch(f"SELECT {RUN} FROM perdure_runs WHERE id = :run_id", {"run_id": run_id})
    runs = [run for run in values(to_run, rows) if dead_letter_reason(run.status, run.reason) is not None]
    return next(iter(await _letters(tx, runs)), None)


async def delete(tx: Transaction, run_id: str, reason: str, *, discard: bool) -> DeleteOutcome:
    """Hide a run; one that is not over is paused. With `discard`, only a dead letter; a blocked one is ended first."""
    run = await locked(tx, run_id)
    if run is None:
        return DeleteOutcome.UNKNOWN
    if run.deleted_at:
        return DeleteOutcome.ALREADY
    dead = dead_letter_reason(run.status, run.reason) is not None
    if not dead if discard else dead and not run.status.finished:
        return DeleteOutcome.REFUSED
    if discard and run.status is Status.BLOCKED:
        await cancel(tx, run_id, f"discarded: {reason}" if reason else "discarded", f"discard:{run.token}")
    await hide(tx, run_id, reason)
    tx.note(run_id, "discarded" if discard else "deleted", to_json({"reason": reason}))
    return DeleteOutcome.DONE


async def undelete(tx: Transaction, run_id: str) -> DeleteOutcome:
    """Bring a deleted run back; one that was not over goes on."""
    run = await locked(tx, run_id)
    if run is None:
        return DeleteOutcome.UNKNOWN
    if not run.deleted_at:
        return DeleteOutcome.ALREADY
    await restore(tx, run_id)
    return DeleteOutcome.DONE


async def _letters(tx: Transaction, runs: Sequence[Run]) -> list[DeadLetter]:
    if not runs:
        return []
    chosen, params = placeholders("id", [run.id for run in runs])
    failed_attempts: dict[str, list[DeadLetterAttempt]] = {}
    for run_id, at, started_at, location, attempts, run_attempt, kind, payload in await tx.fetch(
        _FAULTS.replace("{chosen}", chosen), params
    ):
        attempt = attempts if kind in ("step", "attempt") else run_attempt
        failed = DeadLetterAttempt(
            at=at, started_at=started_at, location=location, attempt=attempt, error=Failure.read(payload)
        )
        failed_attempts.setdefault(run_id, []).append(failed)
    chances: dict[str, list[RequeueRecord]] = {}
    for run_id, payload in await tx.fetch(_CHANCES.replace("{chosen}", chosen), params):
        chances.setdefault(run_id, []).append(RequeueRecord.from_json(payload))
    return [_letter(run, failed_attempts.get(run.id, ()), chances.get(run.id, ())) for run in runs]


def _letter(run: Run, failed_attempts: Iterable[DeadLetterAttempt], chances: Sequence[RequeueRecord]) -> DeadLetter:
    reason = dead_letter_reason(run.status, run.reason)
    assert reason is not None
    dead_since, error = run.finished_at or run.wake_at, Failure.read(run.error)
    ends = [
        DeadLetterAttempt(at=one.dead_since, location="", attempt=one.attempt, error=Failure.read(one.error))
        for one in chances
        if one.error != "{}"
    ]
    last = DeadLetterAttempt(at=dead_since, started_at=run.started_at, location="", attempt=run.attempt, error=error)
    # A record is made before the run's end that it leads to, so that equal times are in order.
    errors = sorted([*failed_attempts, *ends], key=lambda failed: failed.at)
    return DeadLetter(
        run_id=run.id,
        type=run.type,
        queue=run.queue,
        input=run.input,
        reason=reason,
        attempts=run.attempt,
        generation=run.generation,
        error=error,
        errors=(*errors, last),
        created_at=run.created_at,
        dead_since=dead_since,
        requeued=len(chances),
        requeued_at=chances[-1].at if chances else 0,
        parent_id=run.parent_id,
        deleted_at=run.deleted_at,
    )


def _where(filter: DeadLetterFilter, cursor: str | None) -> tuple[str, Params]:
    terms: list[str] = []
    params: dict[str, object] = {}
    if filter.deleted is not None:
        terms.append("deleted_at > 0" if filter.deleted else "deleted_at = 0")
    if filter.type is not None:
        # By its first characters: LIKE would have an opinion on `_` and on case.
        beginning = filter.type.removesuffix(ANY)
        params["type"] = beginning
        if beginning == filter.type:
            terms.append("type = :type")
        else:
            terms.append(f"SUBSTR(type, 1, {len(beginning)}) = :type")
    if filter.queue is not None:
        terms.append("queue = :queue")
        params["queue"] = filter.queue
    if cursor is not None:
        params["last_at"], params["last_id"] = _decode(cursor)
        terms.append("created_at <= :last_at AND (created_at, id) < (:last_at, :last_id)")
    return "".join(f"AND {term} " for term in terms), params


def _is_meant(run: Run, filter: DeadLetterFilter) -> bool:
    since = run.finished_at or run.wake_at
    if filter.reasons is not None and dead_letter_reason(run.status, run.reason) not in filter.reasons:
        return False
    if filter.dead_after is not None and since <= filter.dead_after:
        return False
    if filter.dead_before is not None and since >= filter.dead_before:
        return False
    name = Failure.read(run.error).type
    return filter.error is None or filter.error in (name, name.rpartition(".")[2])


def _encode(run: Run) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((run.created_at, run.id))).decode().rstrip("=")


def _decode(cursor: str) -> tuple[int, str]:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        created_at, run_id = msgspec.json.decode(text, type=tuple[int, str])
        if not 0 <= created_at < 2**63 or "\0" in run_id:
            raise ValueError(cursor)
    except (TypeError, ValueError, binascii.Error, msgspec.MsgspecError) as error:
        raise InvalidCursor(
            f"{brief(cursor)} is not a cursor of a listing; pass the cursor of the page before"
        ) from error
    return created_at, run_id
