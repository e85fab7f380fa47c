"""Children that a turn starts.

A child is created once per id. An existing child of the same parent is adopted as it is. Its outcome is delivered now
if the parent received it in an earlier attempt or generation, or had ended before it came. An id that belongs to
another run fails the call.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model.record import NewMessage, RecordKind
from perdure.core.model.run import FINISHED, NewRun, Status
from perdure.errors import ChildLimit, RunExists
from perdure.store.contract import Change
from perdure.store.sql.audit import created_event
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.rows import failure
from perdure.store.sql.runs.attributes import set_first_attributes
from perdure.store.sql.runs.create import INSERT, params_of
from perdure.store.sql.runs.inbox import deliver
from perdure.store.sql.singletons import line_up

_EXISTING = """
SELECT parent_id, parent_location, status, generation, output, error
FROM perdure_runs
WHERE id = :id
"""

#: Yields a row if the parent still needs the outcome: an earlier attempt received it, or the parent had ended.
_TO_BE_TOLD = """
SELECT p.generation, p.attempt, m.seq
FROM perdure_runs p
LEFT JOIN perdure_messages m ON m.run_id = p.id AND m.message_key = :key
WHERE p.id = :parent AND (m.seq IS NULL OR m.consumed = 1 AND NOT EXISTS (
  SELECT 1 FROM perdure_history h WHERE h.run_id = p.id AND h.inbox_seq = m.seq AND h.run_attempt = p.attempt
))
"""


_ANCESTORS = """
WITH RECURSIVE line (id, length) AS (
  SELECT parent_id, 1 FROM perdure_runs WHERE id = :run_id
  UNION ALL
  SELECT r.parent_id, line.length + 1
  FROM line
  JOIN perdure_runs r ON r.id = line.id
  WHERE line.length < :limit
)
SELECT COUNT(*)
FROM line
WHERE id IS NOT NULL
"""  # equivalent: sql <: one more than the limit is over the limit, too


async def start_children(tx: Transaction, parent: str, children: Sequence[NewRun]) -> None:
    """Create them, or find that they are there."""
    children, refusals = await within_limits(tx, parent, children)
    for word in refusals:
        await deliver(tx, word)
    for child in children:
        if await tx.execute(INSERT, params_of(child, tx.now)) == 1:
            if child.held_back:
                await line_up(tx, [child])
            if child.attributes:
                await set_first_attributes(tx, [child])
            tx.note(child.id, *created_event(child))
            tx.notify(Change.READY)
        else:
            await deliver(tx, await adopt(tx, parent, child))


async def within_limits(
    tx: Transaction, parent: str, children: Sequence[NewRun]
) -> tuple[Sequence[NewRun], list[NewMessage]]:
    """Children within the depth limit, and messages to the parent about the refused ones."""
    limits = {child.max_depth for child in children} - {0}
    if not limits:
        return children, []
    [(ancestors,)] = await tx.fetch(_ANCESTORS, {"run_id": parent, "limit": max(limits)})
    refusals = [
        _word(parent, child, failure(ChildLimit, _too_deep(parent, child)), True, f"limit:{child.write_id}")
        for child in children
        if child.max_depth and ancestors >= child.max_depth
    ]
    refused = {word.name for word in refusals}
    return [child for child in children if child.parent_location not in refused], refusals


def _too_deep(parent: str, child: NewRun) -> str:
    return (
        f"run {parent!r} starts {child.type!r} as yet another level of children; the limit is {child.max_depth}. A "
        "chain without end is for ctx.start or a loop; else raise the worker's child_depth"
    )


async def adopt(tx: Transaction, parent: str, child: NewRun) -> NewMessage | None:
    """Message to a parent whose child, or another run of that id, exists already."""
    if child.parent_id is None:
        return None
    rows = await tx.fetch(_EXISTING, {"id": child.id})
    if not rows or rows[0][:2] != (parent, child.parent_location):
        text = (
            f"The id {child.id!r} belongs to another run; give the call at {child.parent_location!r} an id of its own."
        )
        return _word(parent, child, failure(RunExists, text), True, f"taken:{child.write_id}")
    _, _, status, generation, output, error = rows[0]
    if status not in FINISHED:
        return None
    key = f"child:{child.id}:{generation}"
    rows = await tx.fetch(_TO_BE_TOLD, {"parent": parent, "key": key})
    if not rows:
        return None
    parents, attempt, before = rows[0]
    completed = status == Status.COMPLETED
    payload = output if completed else error
    return _word(parent, child, payload, not completed, key if before is None else f"{key}:{parents}.{attempt}")


def _word(parent: str, child: NewRun, payload: str | None, failed: bool, key: str) -> NewMessage:
    name = child.parent_location or ""
    return NewMessage(run_id=parent, kind=RecordKind.CHILD, name=name, payload=payload, failed=failed, key=key)
