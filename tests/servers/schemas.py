"""Places on PostgreSQL are schemas."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from perdure.store.sql import dialect
from tests.helpers import eventually
from tests.servers.places import Places, dsn_of

POSTGRES = "PERDURE_TEST_POSTGRES"
#: The way that the stores of tests take to that server, if not the straight one.
PGBOUNCER = "PERDURE_TEST_PGBOUNCER"


def postgres_dsn() -> str:
    """Where the test server is; skips the test where there is none."""
    return dsn_of(POSTGRES)


class Schemas(Places):
    """Those that this process has made."""

    variable = POSTGRES
    dialect = dialect.POSTGRES
    still = "SET (autovacuum_enabled = off)"

    def _url(self, dsn: str, name: str) -> str:
        way = os.environ.get(PGBOUNCER, dsn)
        return f"{way}{'&' if urlsplit(way).query else '?'}schema={name}"

    async def _make(self, dsn: str, name: str) -> None:
        """Made by the migration."""

    def _connected(self, dsn: str) -> Any:
        import psycopg

        return psycopg.connect(dsn, autocommit=True)

    async def _drop(self, dsn: str, names: set[str]) -> None:
        import asyncpg

        connection = await asyncpg.connect(dsn)
        for name in names:
            await drop_schema(connection, name)
        await connection.close()


async def drop_schema(connection: Any, name: str) -> None:
    """Drop a schema with all that is in it, if it is there."""
    import asyncpg

    async def is_dropped() -> bool:
        # The server may still execute the last statement of a process that was killed.
        with suppress(asyncpg.DeadlockDetectedError):
            await connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
            return True
        return False

    await connection.execute("SET client_min_messages = warning")
    await eventually(is_dropped)
