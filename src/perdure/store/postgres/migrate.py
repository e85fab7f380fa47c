"""Applying migrations on PostgreSQL: in one transaction, behind whoever else does the same.

Whoever waits for another one waits for as long as it takes, and a statement may take long on a big table. But nobody waits long
for a table: everybody else would have to queue up behind. The whole is tried again instead.
"""

from __future__ import annotations

from perdure.store import migrations
from perdure.store.postgres.dialect import POSTGRES
from perdure.store.postgres.transaction import PostgresTransaction

#: Seconds that a statement, or somebody else's migration, may take.
_PATIENCE = 3600.0

#: A client that says nothing between two statements has come to a stand, and everybody else waits for it.
_WAIT = "SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = '1min'"
#: The numbers are ours by chance.
_LOCK = "SELECT pg_advisory_xact_lock(1885697124, hashtext($1))"
_HURRY = "SET LOCAL lock_timeout = '2s'"
#: From the table itself: a session that waited for the lock has not heard yet that what it lacked before is there now.
_SCHEMA_EXISTS = "SELECT 1 FROM pg_namespace WHERE nspname = $1"


async def migrate(tx: PostgresTransaction, tables: str, schema: str | None) -> None:
    """Apply what is missing."""
    tx.patience = _PATIENCE
    await tx.connection.execute(_WAIT)
    await tx.connection.execute(_LOCK, tables, timeout=_PATIENCE)
    await tx.connection.execute(_HURRY)
    if schema is not None and not await tx.run(_SCHEMA_EXISTS, schema):
        await tx.connection.execute(f'CREATE SCHEMA "{schema}"')
    await migrations.migrate(tx, POSTGRES)
