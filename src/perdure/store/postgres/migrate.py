"""Apply migrations on PostgreSQL, in one transaction and by one process at a time.

A process waits for the migration of another one as long as that takes, and a statement may take long on a large table.
The wait for a table lock is short, because all other users of the table would queue up behind it; the transaction is
retried instead.
"""

from __future__ import annotations

from perdure.store import migrations
from perdure.store.postgres.dialect import POSTGRES
from perdure.store.postgres.transaction import PostgresTransaction

#: Seconds that a statement, or the migration of another process, may take.
_PATIENCE = 3600.0

#: A client that is idle between two statements has stopped, and every other client waits for it.
_WAIT = (
    "SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0; "
    "SET LOCAL idle_in_transaction_session_timeout = '1min'"
)
#: The number is arbitrary; it must never change.
_LOCK = "SELECT pg_advisory_xact_lock(1885697124, hashtext($1))"
_HURRY = "SET LOCAL lock_timeout = '2s'"
#: Read from the catalog: the caches of a session that waited for the lock may not know the new schema yet.
_SCHEMA_EXISTS = "SELECT 1 FROM pg_namespace WHERE nspname = $1"


async def migrate(tx: PostgresTransaction, tables: str, schema: str | None) -> None:
    """Apply the missing migrations."""
    tx.patience = _PATIENCE
    await tx.connection.execute(_WAIT)
    await tx.connection.execute(_LOCK, tables, timeout=_PATIENCE)
    await tx.connection.execute(_HURRY)
    if schema is not None and not await tx.run(_SCHEMA_EXISTS, schema):
        await tx.connection.execute(f'CREATE SCHEMA "{schema}"')
    await migrations.migrate(tx, POSTGRES)
