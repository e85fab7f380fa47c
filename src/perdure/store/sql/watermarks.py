"""Watermarks, one row each, and the number of waiting runs.

Runs are counted along the claim index, and no further than asked.
"""

from __future__ import annotations

import logging

from perdure.core.model.run import QueueBacklog
from perdure.core.pinning import pinned_queue
from perdure.core.policy.watermark import TRAIL, Watermark
from perdure.errors import StoreUnavailable, UsageError
from perdure.store.sql.dialect import Params, Row, Transaction
from perdure.store.sql.rows import to_json, unreadable

_log = logging.getLogger("perdure.store")

_ALL = """
SELECT kind, name, high, low, when_full
FROM perdure_watermarks
ORDER BY kind, name
"""

_ONE = """
SELECT high, low, when_full
FROM perdure_watermarks
WHERE kind = :kind AND name = :name
{for_update}
"""

_INSERT = """
INSERT INTO perdure_watermarks (kind, name, high, low, when_full, actor, changed_at)
VALUES (:kind, :name, :high, :low, :when_full, :actor, :now)
{or_ignore}
"""

_CHANGE = """
UPDATE perdure_watermarks
SET high = :high, low = :low, when_full = :when_full, actor = :actor, changed_at = :now
WHERE kind = :kind AND name = :name
"""

_REMOVE = """
DELETE FROM perdure_watermarks
WHERE kind = :kind AND name = :name
"""

#: The order is that of the index, which leaves nothing else to follow.
_IN_QUEUE = """
SELECT COUNT(*), MIN(CASE WHEN wake_at > 0 THEN wake_at END)
FROM (
  SELECT wake_at FROM perdure_runs
  WHERE {pending queue} = :queue
  ORDER BY type, priority, wake_at, id
  LIMIT :limit
) AS ready
"""

_OF_TYPE = """
SELECT COUNT(*)
FROM (
  SELECT id FROM perdure_runs
  WHERE {pending queue} = :queue AND type = :type
  ORDER BY priority, wake_at, id
  LIMIT :limit
) AS ready
"""

_PINNED = """
SELECT COUNT(*)
FROM (
  SELECT id FROM perdure_runs
  WHERE {pending queue} > :first AND {pending queue} < :last
  LIMIT :limit
) AS ready
"""

_NEXT_QUEUE = """
SELECT MIN({queue of pending})
FROM perdure_runs
WHERE {pending queue} > :after
"""


_IN_LINE = """
SELECT COUNT(*)
FROM (
  SELECT run_id FROM perdure_lines
  WHERE type = :type AND location = '' AND queue = COALESCE(:queue, queue)
  LIMIT :limit
) AS waiting
"""

_IN_LINE_OF_QUEUE = _IN_LINE.replace(
    "queue = COALESCE(:queue, queue)", "(queue = :queue OR (queue > :first AND queue < :last))"
)

_NEXT_TYPE = """
SELECT MIN(type)
FROM perdure_lines
WHERE type > :after
"""


async def watermarks(tx: Transaction) -> list[Watermark]:
    """Every one that is set. One that cannot be read holds no start back, and is in the log."""
    found: list[Watermark] = []
    for row in await tx.fetch(_ALL, {}):
        try:
            found.append(_to_watermark(row))
        except UsageError as error:
            _log.error(
                "a watermark is set aside: %s",
                unreadable("perdure_watermarks", f"kind {row[0]!r}, name {row[1]!r}", error),
            )
    return found


def _to_watermark(row: Row) -> Watermark:
    kind, name, high, low, when_full = row
    return Watermark(
        high=high,
        low=low,
        when_full=when_full,
        queue=name if kind == "queue" else None,
        type=name if kind == "type" else None,
    )


async def set_watermark(tx: Transaction, watermark: Watermark, reason: str = "") -> None:
    """Set it, in place of the one that is there."""
    kind, name = watermark.kind, watermark.name
    wanted = (watermark.high, watermark.floor, watermark.when_full)
    row = {"kind": kind, "name": name, "high": wanted[0], "low": wanted[1], "when_full": wanted[2]}
    there = await tx.fetch(_ONE, {"kind": kind, "name": name})
    if there and there[0] == wanted:
        return
    if await tx.execute(_CHANGE if there else _INSERT, {**row, "actor": tx.actor, "now": tx.now}) != 1:
        # Perhaps by this very request at an earlier try; that is seen by looking again.
        raise StoreUnavailable(f"another client set the watermark of the {kind} {name!r} at the same moment; try again")
    tx.note(f"{TRAIL}{kind}:{name}", "watermark_set", to_json({**row, **({"reason": reason} if reason else {})}))


async def remove_watermark(tx: Transaction, kind: str, name: str, reason: str = "") -> None:
    """Remove a watermark."""
    if await tx.execute(_REMOVE, {"kind": kind, "name": name}):
        tx.note(f"{TRAIL}{kind}:{name}", "watermark_removed", to_json({"reason": reason} if reason else {}))


async def depth(tx: Transaction, kind: str, name: str, limit: int) -> int:
    """Number of runs that wait for a worker or at a gate, on a queue or of a type, counted up to `limit`."""
    ready = await _ready(tx, kind, name, limit)
    return ready if ready >= limit else ready + await _in_line(tx, kind, name, limit - ready)


async def backlog(tx: Transaction, queue: str, limit: int) -> QueueBacklog:
    """Number of runs that wait on a queue, counted up to `limit`, and the oldest of the ready ones among them.

    Pinned runs are in queues of their own, which are not part of it.
    """
    [(ready, oldest)] = await tx.fetch(_IN_QUEUE, {"queue": queue, "limit": limit})
    if ready < limit:
        ready += await _in_line_of_queue(tx, _IN_LINE, {"queue": queue}, limit - ready)
    return QueueBacklog(ready, oldest or 0)


async def _in_line(tx: Transaction, kind: str, name: str, limit: int) -> int:
    if kind == "queue":
        return await _in_line_of_queue(tx, _IN_LINE_OF_QUEUE, {"queue": name, **_pinned_range(name)}, limit)
    [(count,)] = await tx.fetch(_IN_LINE, {"type": name, "queue": None, "limit": limit})
    return int(count)


async def _in_line_of_queue(tx: Transaction, query: str, chosen: Params, limit: int) -> int:
    total, type = 0, ""
    while total < limit:
        [(type,)] = await tx.fetch(_NEXT_TYPE, {"after": type})
        if type is None:
            break
        [(count,)] = await tx.fetch(query, {**chosen, "type": type, "limit": limit - total})
        total += count
    return total


async def _ready(tx: Transaction, kind: str, name: str, limit: int) -> int:
    if kind == "queue":
        [(count, _)] = await tx.fetch(_IN_QUEUE, {"queue": name, "limit": limit})
        if count >= limit:
            return int(count)
        [(pinned,)] = await tx.fetch(_PINNED, {**_pinned_range(name), "limit": limit - count})
        return int(count + pinned)
    total, queue = 0, ""
    # From queue to queue along the index: of each, only what is of the type is looked at.
    while total < limit:
        [(queue,)] = await tx.fetch(_NEXT_QUEUE, {"after": queue})
        if queue is None:
            break
        [(count,)] = await tx.fetch(_OF_TYPE, {"queue": queue, "type": name, "limit": limit - total})
        total += count
    return total


def _pinned_range(queue: str) -> dict[str, str]:
    """Bounds of the names of queues with runs of a queue that are pinned to a build; they follow each other."""
    first = pinned_queue(queue, "")
    return {"first": first, "last": f"{first[:-1]}{chr(ord(first[-1]) + 1)}"}
