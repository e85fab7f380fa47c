"""Dropping tables that somebody made for a while, and their views: everything whose name begins with a prefix."""

from __future__ import annotations

from perdure.errors import UsageError
from perdure.store.sql.dialect import DEFAULT_PREFIX, Dialect, Transaction

#: What there is, by name and whether it is a view; views before tables.
_THERE = {
    "sqlite": """
SELECT name, type = 'view' FROM sqlite_master WHERE type IN ('view', 'table') AND substr(name, 1, length(:prefix)) = :prefix
ORDER BY 2 DESC, 1
""",
    "postgres": """
SELECT table_name, table_type = 'VIEW' FROM information_schema.tables
WHERE table_schema = COALESCE(NULLIF(:schema, ''), current_schema()) AND starts_with(table_name, :prefix)
ORDER BY 2 DESC, 1
""",
    "mysql": """
SELECT table_name, table_type = 'VIEW' FROM information_schema.tables
WHERE table_schema = DATABASE() AND BINARY LEFT(table_name, CHAR_LENGTH(:prefix)) = BINARY :prefix
ORDER BY 2 DESC, 1
""",
}


async def remove(tx: Transaction, dialect: Dialect, tables: str) -> None:
    """Drop whatever begins with that prefix. Raises `UsageError` for the usual one, under which other people's runs are."""
    schema, _, prefix = tables.rpartition(".")
    if prefix == DEFAULT_PREFIX:
        raise UsageError(f"tables that begin with {DEFAULT_PREFIX} are not dropped; they may be somebody's")
    for name, view in await tx.fetch(_THERE[dialect.name], {"schema": schema.strip('"'), "prefix": prefix}):
        place = f"{schema}.{name}" if schema else name
        await tx.execute(f"DROP {'VIEW' if view else 'TABLE'} {place}", {})
