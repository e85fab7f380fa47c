"""PostgreSQL as a `Dialect`.

This module must not import the driver: the schema is printed where no driver is installed.
"""

from __future__ import annotations

from perdure.store.sql.dialect import Dialect

#: The server's time in microseconds at the moment of evaluation, not at the start of the transaction.
NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

POSTGRES = Dialect(
    name="postgres",
    or_ignore="ON CONFLICT DO NOTHING",
    # Weaker than FOR UPDATE, so that inserts of users with foreign keys to our rows do not wait for us.
    for_update="FOR NO KEY UPDATE",
    skip_locked="FOR NO KEY UPDATE SKIP LOCKED",
    keep_gate="ON CONFLICT DO NOTHING",
    use_index="",
    table_exists="SELECT 1 WHERE to_regclass(:name) IS NOT NULL",
    time=NOW,
)
