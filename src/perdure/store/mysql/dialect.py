"""MySQL and MariaDB as a `Dialect`.

This module must not import the driver: the schema is printed where no driver is installed.
"""

from __future__ import annotations

from perdure.store.sql.dialect import Dialect

#: The server's time in microseconds at the start of the statement.
NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

MYSQL = Dialect(
    name="mysql",
    # Every way to ignore a duplicate hides other errors or counts as a change, so it is an error here.
    or_ignore="",
    for_update="FOR UPDATE",
    skip_locked="FOR UPDATE SKIP LOCKED",
    keep_gate="ON DUPLICATE KEY UPDATE name = name",
    use_index="FORCE INDEX ({})",
    # Generated columns, so that changes of a run in other states do not touch their indexes.
    only_in={"pending queue": "ready_queue", "waiting wake_at": "waits_until"},
    table_exists="SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :name",
    time=NOW,
)
