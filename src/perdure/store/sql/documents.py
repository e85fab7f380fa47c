"""Documents, one row each: sources of workflows and reports of deploy checks.

An unchanged document is only read, so that a restarting fleet writes nothing. Each write deletes what is too many.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model.documents import REPORTS_KEPT, SOURCES_KEPT, Document, DocumentKind
from perdure.store.sql.dialect import Row, Transaction, placeholders
from perdure.store.sql.rows import to_json, values

#: Run id of the audit trail's events of deploy checks.
TRAIL = "deploy:"

_COLUMNS = "kind, name, build, body, at, actor"

_THERE = """
SELECT name, body
FROM perdure_documents
WHERE kind = :kind AND build = :build AND name IN ({names})
"""

_INSERT = """
INSERT INTO perdure_documents (kind, name, build, at, actor, body)
VALUES (:kind, :name, :build, :now, :actor, :body)
{or_ignore}
"""

_CHANGE = """
UPDATE perdure_documents
SET at = :now, actor = :actor, body = :body
WHERE kind = :kind AND name = :name AND build = :build
"""

_OLD_SOURCES = """
SELECT build
FROM perdure_documents
WHERE kind = 'source' AND name = :name
ORDER BY at DESC, build
"""

_OLD_REPORTS = """
SELECT name, build
FROM perdure_documents
WHERE kind = 'deploy'
ORDER BY at DESC, name DESC
"""

_DELETE = """
DELETE FROM perdure_documents
WHERE kind = :kind AND name = :name AND build = :build
"""

_ALL = f"""
SELECT {_COLUMNS}
FROM perdure_documents
WHERE kind = :kind
ORDER BY at DESC, name DESC
LIMIT :limit
"""

_NAMED = f"""
SELECT {_COLUMNS}
FROM perdure_documents
WHERE kind = :kind AND name = :name
ORDER BY at DESC, build
LIMIT :limit
"""


async def save_sources(tx: Transaction, sources: Sequence[Document]) -> None:
    """Store the sources of one build that are new or have changed."""
    if not sources:
        return
    kind, build = DocumentKind.SOURCE.value, sources[0].build
    names, params = placeholders("name", [one.name for one in sources])
    found = await tx.fetch(_THERE.replace("{names}", names), {"kind": kind, "build": build, **params})
    there: dict[str, str] = dict(found)
    for one in sorted(sources, key=lambda one: one.name):
        if there.get(one.name) == one.body:
            continue
        row = {"kind": kind, "name": one.name, "build": build, "body": one.body, "now": tx.now, "actor": tx.actor}
        await tx.execute(_CHANGE if one.name in there else _INSERT, row)
        for (old,) in (await tx.fetch(_OLD_SOURCES, {"name": one.name}))[SOURCES_KEPT:]:
            await tx.execute(_DELETE, {"kind": kind, "name": one.name, "build": old})


async def save_report(tx: Transaction, report: Document) -> None:
    """Store the report of a deploy check under its id. A repetition finds it and changes nothing."""
    kind = DocumentKind.DEPLOY.value
    if await tx.fetch(_NAMED, {"kind": kind, "name": report.name, "limit": 1}):
        return
    row = {"kind": kind, "name": report.name, "build": report.build, "body": report.body}
    if await tx.execute(_INSERT, {**row, "now": tx.now, "actor": tx.actor}) != 1:
        # An earlier attempt of this request, whose answer was lost, has written it meanwhile.
        return
    tx.note(TRAIL + report.name, "deploy_checked", to_json({"build": report.build}))
    for name, build in (await tx.fetch(_OLD_REPORTS, {}))[REPORTS_KEPT:]:
        await tx.execute(_DELETE, {"kind": kind, "name": name, "build": build})


async def documents(tx: Transaction, kind: DocumentKind, name: str | None, limit: int) -> list[Document]:
    """Documents of a kind, or of a kind and a name, latest first."""
    params = {"kind": kind.value, "name": name, "limit": limit}
    return values(_to_document, await tx.fetch(_ALL if name is None else _NAMED, params))


def _to_document(row: Row) -> Document:
    kind, name, build, body, at, actor = row
    return Document(kind=DocumentKind(kind), name=name, build=build, body=body, at=at, actor=actor)
