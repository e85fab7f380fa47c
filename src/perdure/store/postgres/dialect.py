"""PostgreSQL as a value. Free of the driver, so that its schema can be printed without it."""

from __future__ import annotations

from perdure.store.sql.dialect import Dialect

#: The server's time in microseconds, when the expression is reached and not when the transaction began.
NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

POSTGRES = Dialect(
    name="postgres",
    or_ignore="ON CONFLICT DO NOTHING",
    # Weaker than FOR UPDATE, so that foreign keys of users that point at our rows do not wait for us.
    for_update="FOR NO KEY UPDATE",
    skip_locked="FOR NO KEY UPDATE SKIP LOCKED",
    keep_gate="ON CONFLICT DO NOTHING",
    use_index="",
    table_exists="SELECT 1 WHERE to_regclass(:name) IS NOT NULL",
    time=NOW,
)
