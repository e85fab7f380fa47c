"""The types that there are: who serves each, and what it is. Whether one is enabled is said by the pauses alone.

A worker says at its start what it serves. What is there already in the same words is only looked at, so that a fleet that
restarts writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model.orders import PauseKind
from perdure.core.routing import TypeInfo
from perdure.store.sql.dialect import Transaction

_ALL = """
SELECT type, kind, runtime, description, registered_at
FROM perdure_registry
ORDER BY type
"""

_PAUSED = """
SELECT name
FROM perdure_pauses
WHERE kind = :kind
"""

_ADD = """
INSERT INTO perdure_registry (type, kind, runtime, description, registered_at)
VALUES (:type, :kind, :runtime, :description, :now)
{or_ignore}
"""

_CHANGE = """
UPDATE perdure_registry
SET kind = :kind, runtime = :runtime, description = :description, registered_at = :now
WHERE type = :type
"""


async def enlist(tx: Transaction, served: Sequence[TypeInfo]) -> None:
    """Have the registry say what is served."""
    if not served:
        return
    there = {row[0]: row[1:4] for row in await tx.fetch(_ALL, {})}
    for sql, known in ((_ADD, False), (_CHANGE, True)):
        rows = [
            {
                "type": one.type,
                "kind": one.kind,
                "runtime": one.runtime,
                "description": one.description,
                "now": tx.now,
            }
            for one in sorted(served, key=lambda one: one.type)
            if (one.type in there) is known and there.get(one.type) != (one.kind, one.runtime, one.description)
        ]
        if rows:
            await tx.execute_many(sql, rows)


async def types(tx: Transaction) -> list[TypeInfo]:
    """Every type that somebody has registered, and whether it is enabled."""
    paused = {row[0] for row in await tx.fetch(_PAUSED, {"kind": PauseKind.TYPE.value})}
    return [
        TypeInfo(
            type=type,
            kind=kind,
            runtime=runtime,
            description=description,
            enabled=type not in paused,
            registered_at=registered_at,
        )
        for type, kind, runtime, description, registered_at in await tx.fetch(_ALL, {})
    ]
