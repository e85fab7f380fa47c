"""Checkpoints of graphs and the writes that belong to them, one row each.

A write may come before its checkpoint, so no row depends on another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model.graph_checkpoints import GraphDeletion, GraphEntry, GraphQuery
from perdure.errors import StoreUnavailable
from perdure.store.sql.dialect import Params, Row, Transaction, placeholders
from perdure.store.sql.rows import values

_KEY = "thread = :thread AND space = :space AND checkpoint = :checkpoint AND entry = :entry"
_COLUMNS = "thread, space, checkpoint, entry, parent, run, metadata"

_THERE = f"""
SELECT 1
FROM perdure_graph_checkpoints
WHERE {_KEY}
"""

_INSERT = f"""
INSERT INTO perdure_graph_checkpoints ({_COLUMNS}, body, at)
VALUES (:thread, :space, :checkpoint, :entry, :parent, :run, :metadata, :body, :now)
{{or_ignore}}
"""

_REPLACE = f"""
UPDATE perdure_graph_checkpoints
SET parent = :parent, run = :run, metadata = :metadata, body = :body, at = :now
WHERE {_KEY}
"""

_COPY = f"""
INSERT INTO perdure_graph_checkpoints ({_COLUMNS}, body, at)
SELECT :target, space, checkpoint, entry, parent, run, metadata, body, :now
FROM perdure_graph_checkpoints AS source
WHERE thread = :source AND NOT EXISTS (
  SELECT 1
  FROM perdure_graph_checkpoints AS there
  WHERE there.thread = :target AND there.space = source.space AND there.checkpoint = source.checkpoint
    AND there.entry = source.entry
)
{{or_ignore}}
"""

_PAGE = """
SELECT {columns}, {body}
FROM perdure_graph_checkpoints
WHERE entry = ''{conditions}
ORDER BY checkpoint DESC, thread, space
LIMIT :limit
"""

_WRITES = f"""
SELECT {_COLUMNS}, body
FROM perdure_graph_checkpoints
WHERE entry <> '' AND thread IN ({{threads}}) AND checkpoint IN ({{checkpoints}})
ORDER BY thread, space, checkpoint, entry
"""

_AFTER = """
 AND (checkpoint < :after_id OR (checkpoint = :after_id AND (thread > :after_thread
   OR (thread = :after_thread AND space > :after_space))))
"""

_OF_RUN = """
SELECT thread, space, checkpoint
FROM perdure_graph_checkpoints
WHERE run = :run AND entry = ''
ORDER BY thread, space, checkpoint
"""

_DELETE_ONE = """
DELETE FROM perdure_graph_checkpoints
WHERE thread = :thread AND space = :space AND checkpoint = :checkpoint
"""

_DELETE = """
DELETE FROM perdure_graph_checkpoints
WHERE thread = :thread{conditions}
"""


async def save_graph_entries(tx: Transaction, entries: Sequence[GraphEntry]) -> None:
    """Store entries. One that does not replace leaves an entry with its key as it is."""
    # In the order of the keys, so that two transactions with the same entries do not wait for each other.
    for one in sorted(entries, key=_key):
        row = _row(one, tx.now)
        if not await tx.fetch(_THERE, row):
            if await tx.execute(_INSERT, row) == 1:
                continue
            raise StoreUnavailable(
                f"another process stored {one.entry or 'the checkpoint'!r} of the checkpoint {one.checkpoint!r} of the "
                f"thread {one.thread!r} at the same moment; try again"
            )
        if one.replaces:
            await tx.execute(_REPLACE, row)


async def copy_graph_thread(tx: Transaction, source: str, target: str) -> None:
    """Copy all entries of a thread to another one, except for those that it has."""
    if source != target:
        await tx.execute(_COPY, {"source": source, "target": target, "now": tx.now})


async def delete_graph_entries(tx: Transaction, choice: GraphDeletion) -> None:
    """Delete checkpoints with their writes."""
    for run in sorted(choice.runs):
        for thread, space, checkpoint in await tx.fetch(_OF_RUN, {"run": run}):
            await tx.execute(_DELETE_ONE, {"thread": thread, "space": space, "checkpoint": checkpoint})
    if choice.thread is None:
        return
    conditions = ""
    params: dict[str, object] = {"thread": choice.thread}
    for name, comparison in (("space", "space = :space"), ("before", "checkpoint < :before")):
        if (value := getattr(choice, name)) is not None:
            conditions, params = f"{conditions} AND {comparison}", {**params, name: value}
    if choice.keep:
        kept, more = placeholders("kept", list(choice.keep))
        conditions, params = f"{conditions} AND checkpoint NOT IN ({kept})", {**params, **more}
    await tx.execute(_DELETE.replace("{conditions}", conditions), params)


async def graph_checkpoints(tx: Transaction, query: GraphQuery) -> list[GraphEntry]:
    """Checkpoints, and unless the query is brief the writes of each after it."""
    conditions, params = _conditions(query)
    body = "'' AS body" if query.brief else "body"
    page = _PAGE.replace("{columns}", _COLUMNS).replace("{body}", body).replace("{conditions}", conditions)
    found = values(_to_entry, await tx.fetch(page, params))
    if query.brief or not found:
        return found
    threads, some = placeholders("thread", sorted({one.thread for one in found}))
    checkpoints, more = placeholders("checkpoint", sorted({one.checkpoint for one in found}))
    text = _WRITES.replace("{threads}", threads).replace("{checkpoints}", checkpoints)
    writes: dict[tuple[str, str, str], list[GraphEntry]] = {}
    for write in values(_to_entry, await tx.fetch(text, {**some, **more})):
        writes.setdefault(_key(write)[:3], []).append(write)
    return [each for one in found for each in (one, *writes.get(_key(one)[:3], ()))]


def _conditions(query: GraphQuery) -> tuple[str, Params]:
    params: dict[str, object] = {"limit": query.limit}
    text = ""
    for name in ("thread", "space", "checkpoint"):
        if (value := getattr(query, name)) is not None:
            text, params[name] = f"{text} AND {name} = :{name}", value
    if query.before is not None:
        text, params["before"] = f"{text} AND checkpoint < :before", query.before
    if query.after is not None:
        text += _AFTER
        params |= dict(zip(("after_id", "after_thread", "after_space"), query.after, strict=True))
    return text, params


def _key(one: GraphEntry) -> tuple[str, str, str, str]:
    return one.thread, one.space, one.checkpoint, one.entry


def _row(one: GraphEntry, now: int) -> Params:
    return {
        "thread": one.thread,
        "space": one.space,
        "checkpoint": one.checkpoint,
        "entry": one.entry,
        "parent": one.parent,
        "run": one.run,
        "metadata": one.metadata,
        "body": one.body,
        "now": now,
    }


def _to_entry(row: Row) -> GraphEntry:
    thread, space, checkpoint, entry, parent, run, metadata, body = row
    return GraphEntry(
        thread=thread,
        space=space,
        checkpoint=checkpoint,
        entry=entry,
        parent=parent,
        run=run,
        metadata=metadata,
        body=body,
    )
