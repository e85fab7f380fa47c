"""A schema of its own on the test server for each test, so that tests may run side by side.

Making twenty tables and indexes takes longer than most tests. So a schema that a test has left as it was made is emptied and
handed to the next one.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

POSTGRES = "PERDURE_TEST_POSTGRES"
TABLES = ("runs", "history", "messages", "events", "workers")
MIGRATIONS = "SELECT version, checksum FROM {}.perdure_migrations ORDER BY version"


def postgres_dsn() -> str:
    """Where the test server is; skips the test where there is none."""
    dsn = os.environ.get(POSTGRES)
    if not dsn:
        pytest.skip(f"{POSTGRES} is not set; `make test` starts a server by itself")
    return dsn


class Schemas:
    """Those that this process has made."""

    def __init__(self) -> None:
        self._spare: list[str] = []
        self._made: set[str] = set()
        self._migrations: list[Any] = []

    @asynccontextmanager
    async def one(self, *, fresh: bool = False) -> AsyncIterator[str]:
        """The URL of a schema: without any tables if it is to be fresh, otherwise perhaps with empty ones."""
        dsn = postgres_dsn()
        name = self._spare.pop() if self._spare and not fresh else f"test_{uuid.uuid4().hex}"
        self._made.add(name)
        yield f"{dsn}{'&' if urlsplit(dsn).query else '?'}schema={name}"
        if not fresh:
            await self._empty(dsn, name)

    def drop(self) -> None:
        """All of them."""
        if self._made:
            asyncio.run(self._drop(postgres_dsn()))

    async def _empty(self, dsn: str, name: str) -> None:
        import asyncpg

        connection = await asyncpg.connect(dsn)
        try:
            if await connection.fetchval("SELECT to_regclass($1) IS NULL", f"{name}.perdure_workers"):
                return
            migrations = await connection.fetch(MIGRATIONS.format(name))
            self._migrations = self._migrations or migrations
            if migrations == self._migrations:
                await connection.execute(";".join(f"DELETE FROM {name}.perdure_{table}" for table in TABLES))
                self._spare.append(name)
        finally:
            await connection.close()

    async def _drop(self, dsn: str) -> None:
        import asyncpg

        connection = await asyncpg.connect(dsn)
        await connection.execute("SET client_min_messages = warning")
        for name in self._made:
            await connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        await connection.close()
