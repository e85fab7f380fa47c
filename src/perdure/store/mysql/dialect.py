"""MySQL and MariaDB as a value. Free of the driver, so that their schema can be printed without it."""

from __future__ import annotations

from perdure.store.sql.dialect import Dialect

#: The server's time in microseconds, when the statement began.
NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

MYSQL = Dialect(
    name="mysql",
    # There is no way to ignore a duplicate that neither hides other errors nor counts as a change. So it is an error here.
    or_ignore="",
    for_update="FOR UPDATE",
    skip_locked="FOR UPDATE SKIP LOCKED",
    keep_gate="ON DUPLICATE KEY UPDATE name = name",
    use_index="FORCE INDEX ({})",
    # What a run does in other states does not move it in their indexes.
    only_in={"pending queue": "ready_queue", "waiting wake_at": "waits_until"},
    table_exists="SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :name",
    time=NOW,
)
