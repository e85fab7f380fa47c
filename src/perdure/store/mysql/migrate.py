"""Apply migrations on MySQL and MariaDB, where every DDL statement commits by itself.

So each statement of the files can be run again after a crash. One process at a time migrates: a lock of the server
keeps the others out, and so does a row that expires, because in a cluster the lock is local to one node.
"""

from __future__ import annotations

from contextlib import suppress

from perdure.core.system import System
from perdure.errors import StoreUnavailable
from perdure.store import migrations
from perdure.store.mysql.dialect import MYSQL
from perdure.store.mysql.driver import AlreadyThere
from perdure.store.mysql.errors import ERRORS, is_made
from perdure.store.mysql.transaction import MysqlTransaction

#: Seconds to wait for another process; microseconds until the row expires; and how often to check the row.
_PATIENCE = 10
_EXPIRES = 10_000_000
_TRIES = 60
_PAUSE = 0.2

_LOCK = "SELECT GET_LOCK(CONCAT('perdure ', LEFT(SHA2(CONCAT(DATABASE(), :tables), 256), 40)), :patience)"
_UNLOCK = "DO RELEASE_LOCK(CONCAT('perdure ', LEFT(SHA2(CONCAT(DATABASE(), :tables), 256), 40)))"

_TAKE = """
INSERT INTO perdure_migrations (version, name, checksum, applied_at)
VALUES (:version, 'in progress', :nonce, :expires)
"""

_TAKE_OVER = """
UPDATE perdure_migrations
SET checksum = :nonce, applied_at = :expires
WHERE version = :version AND applied_at < :now
"""

_GIVE_BACK = "DELETE FROM perdure_migrations WHERE version = :version AND checksum = :nonce"


async def migrate(tx: MysqlTransaction, tables: str, system: System) -> None:
    """Apply the missing migrations. Raises `StoreUnavailable` if another process takes too long."""
    nonce = system.entropy(16).hex()
    [answer] = await tx.send(tx.fill(_LOCK, tables=tables, patience=_PATIENCE))
    try:
        if answer.rows[0][0] != 1:
            raise StoreUnavailable("another process migrates this database; try again when it is done")
        await tx.execute(migrations.TABLE, {})
        await _take(tx, nonce, system)
        await migrations.migrate(tx, MYSQL, is_made)
        await tx.execute(_GIVE_BACK, {"version": migrations.IN_PROGRESS, "nonce": nonce})
    except Exception:
        # Keep the error that stopped the migration. A lost or dropped connection releases its lock.
        with suppress(*ERRORS):
            await tx.send(tx.fill(_UNLOCK, tables=tables))
        raise
    await tx.send(tx.fill(_UNLOCK, tables=tables))


async def _take(tx: MysqlTransaction, nonce: str, system: System) -> None:
    # The row of a process that was killed in the middle stays in the way until it expires.
    for _ in range(_TRIES):
        row = {"version": migrations.IN_PROGRESS, "nonce": nonce, "now": tx.now, "expires": tx.now + _EXPIRES}
        try:
            await tx.execute(_TAKE, row)
            return
        except AlreadyThere:
            if await tx.execute(_TAKE_OVER, row) == 1:
                return
        await system.sleep(_PAUSE)
        tx.locked()
    raise StoreUnavailable("another process migrates this database and does not finish; check whether it still runs")
