"""Pauses of whole types and queues: one row each, which every claim looks at."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from perdure.core.model.claim import ClaimRequest
from perdure.core.model.run_orders import Pause, PauseKind, trail_of
from perdure.core.pinning import base_queue
from perdure.store.contract import Change
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.rows import event_json

#: Kinds of rows that are no pauses: claims leave these types and queues to the gatekeepers of their limits.
LIMITED_TYPE, LIMITED_QUEUE = "limited-type", "limited-queue"

_PAUSE = """
INSERT INTO perdure_pauses (kind, name, reason, actor, paused_at)
VALUES (:kind, :name, :reason, :actor, :now)
{or_ignore}
"""

_THERE = """
SELECT 1
FROM perdure_pauses
WHERE kind = :kind AND name = :name
"""

_RESUME = """
DELETE FROM perdure_pauses
WHERE kind = :kind AND name = :name
"""

_ALL = """
SELECT kind, name, reason, actor, paused_at
FROM perdure_pauses
WHERE kind IN ('type', 'queue')
ORDER BY kind, name
"""


async def pause(tx: Transaction, pause: Pause) -> None:
    """Stop workers from claiming runs of a type or queue; an existing pause is left as it is."""
    row = {
        "kind": pause.kind.value,
        "name": pause.name,
        "reason": pause.reason,
        "actor": tx.actor,
        "now": tx.now,
    }
    there = await tx.fetch(_THERE, {"kind": pause.kind.value, "name": pause.name})
    if not there and await tx.execute(_PAUSE, row):
        tx.note(trail_of(pause.kind, pause.name), f"{pause.kind.value}_paused", event_json(pause.reason))
    tx.notify(Change.READY)  # equivalent: statement: a hint; polls find it, too


async def resume(tx: Transaction, kind: PauseKind, name: str, reason: str = "") -> None:
    """Let its runs be taken again."""
    if await tx.execute(_RESUME, {"kind": kind.value, "name": name}):
        tx.note(trail_of(kind, name), f"{kind.value}_resumed", event_json(reason))
    tx.notify(Change.READY)


async def pauses(tx: Transaction) -> list[Pause]:
    """Everything that is paused."""
    return [
        Pause(kind=PauseKind(kind), name=name, reason=reason, actor=actor, paused_at=paused_at)
        for kind, name, reason, actor, paused_at in await tx.fetch(_ALL, {})
    ]


def unpaused(request: ClaimRequest, paused: Iterable[tuple[str, str]]) -> ClaimRequest:
    """A claim request without paused or limited types and queues, given as pairs of kind and name."""
    names = set(paused)
    if not names:
        return request
    types = {name for kind, name in names if kind in (PauseKind.TYPE.value, LIMITED_TYPE)}
    queues = {name for kind, name in names if kind in (PauseKind.QUEUE.value, LIMITED_QUEUE)}
    return replace(
        request,
        types=tuple(name for name in request.types if name not in types),
        queues=tuple(name for name in request.queues if base_queue(name) not in queues),
    )
