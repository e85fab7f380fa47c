"""Counts of runs put into waitlists, as a trigger of the database writes them down for every statement."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing

from tests.servers.databases import execute as execute_on_mysql
from tests.stage import Stage
from tests.store.user_connections.libraries import plain

_NOW = "NEW.status = 'waiting' AND NEW.reason IN ('limit', 'breaker')"
_BEFORE = _NOW.replace("NEW", "OLD")
#: A run that had no reason to wait has none to compare.
_CHANGED = f"{_NOW} AND (OLD.reason IS NULL OR NOT ({_BEFORE}))"
_TABLE = "CREATE TABLE {at}parkings (run_id VARCHAR(255) NOT NULL)"

_ON_SQLITE = f"""
CREATE TRIGGER parks AFTER UPDATE ON perdure_runs WHEN {_CHANGED}
BEGIN
  INSERT INTO parkings VALUES (NEW.id);
END
"""
_ON_MYSQL = f"""
CREATE TRIGGER parks AFTER UPDATE ON perdure_runs FOR EACH ROW
BEGIN
  IF {_CHANGED} THEN INSERT INTO parkings VALUES (NEW.id); END IF;
END
"""
_WRITES = """
CREATE FUNCTION {at}park() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO {at}parkings VALUES (NEW.id); RETURN NULL; END $$
"""
_ON_POSTGRES = f"""
CREATE TRIGGER parks AFTER UPDATE ON {{at}}perdure_runs FOR EACH ROW WHEN ({_CHANGED}) EXECUTE FUNCTION {{at}}park()
"""
_DO = {"sqlite": (_TABLE, _ON_SQLITE), "postgres": (_TABLE, _WRITES, _ON_POSTGRES), "mysql": (_TABLE, _ON_MYSQL)}
_UNDO = {
    "sqlite": (),
    "postgres": ("DROP TRIGGER parks ON {at}perdure_runs", "DROP FUNCTION {at}park", "DROP TABLE {at}parkings"),
    "mysql": ("DROP TRIGGER parks", "DROP TABLE parkings"),
}


class Parkings:
    """Waitlist entries of one database."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        schema = stage.url.partition("schema=")[2].partition("&")[0]
        self._at = f"{schema}." if schema else ""
        self._kind = "sqlite" if stage.path is not None else "mysql" if stage.url.startswith("mysql") else "postgres"

    async def by_run(self) -> dict[str, int]:
        """Return the number of waitlist entries of each run."""
        return dict(await self._stage.rows(f"SELECT run_id, COUNT(*) FROM {self._at}parkings GROUP BY run_id"))

    async def make(self) -> None:
        """From now on."""
        await self._execute(_DO[self._kind])

    async def remove(self) -> None:
        """The place goes to another test; a file goes with this one."""
        await self._execute(_UNDO[self._kind])

    async def _execute(self, statements: Sequence[str]) -> None:
        given = [statement.replace("{at}", self._at) for statement in statements]
        if self._stage.path is not None:
            with closing(sqlite3.connect(self._stage.path)) as connection:
                for statement in given:
                    connection.execute(statement)
        elif self._kind == "mysql":
            await execute_on_mysql(self._stage.url, given)
        else:
            import asyncpg

            server = await asyncpg.connect(plain(self._stage.url))
            await server.execute(";".join(given))
            await server.close()


@asynccontextmanager
async def watching(stage: Stage) -> AsyncIterator[Parkings]:
    """Write down who is put into lines; the tables have to be there."""
    parkings = Parkings(stage)
    await parkings.make()
    try:
        yield parkings
    finally:
        await parkings.remove()
