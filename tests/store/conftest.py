"""The databases of the conformance suite: SQLite in a file and in memory, with its threads and inline; PostgreSQL;
MySQL or MariaDB."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.store import SqlStore, open_store
from perdure.store.url import MysqlUrl, PostgresUrl, parse
from perdure.testing.conformance.harness import ManualSystem, Unshared
from tests.invariants import scan_store
from tests.servers.databases import Databases
from tests.servers.places import Places
from tests.servers.schemas import PGBOUNCER, Schemas
from tests.stage import lay_tables


class SqliteHarness:
    """One SQLite database."""

    def __init__(self, url: str, path: Path | None, *, inline: bool) -> None:
        self.system = ManualSystem()
        self.url = url
        self.path = path
        self.inline = inline
        self.stores: list[SqlStore] = []

    async def open(self) -> SqlStore:
        if self.path is None and self.stores:
            raise Unshared
        store = open_store(self.url, self.system, inline=self.inline)
        await store.open()
        self.stores.append(store)
        return store

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        return await self.stores[0].query(sql)

    async def broken(self) -> list[str]:
        return await scan_store(self.query)

    async def execute(self, sql: str) -> None:
        if self.path is None:
            await self.stores[0].query(sql)
        else:
            await asyncio.to_thread(self._execute, self.path, sql)

    async def close(self) -> None:
        for store in self.stores:
            await store.close()

    def _execute(self, path: Path, sql: str) -> None:
        connection = sqlite3.connect(path)
        with connection:
            connection.execute(sql)
        connection.close()


class ServerHarness:
    """One place on a server, on the suite's clock."""

    def __init__(self, url: str, places: Places) -> None:
        self.system = ManualSystem()
        self.url = url
        self._places = places
        self.stores: list[SqlStore] = []

    async def open(self) -> SqlStore:
        store = self._store()
        self.stores.append(store)
        await store.open()
        return store

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        return await self.stores[0].query(sql)

    async def broken(self) -> list[str]:
        return self._places.broken(self.url)

    async def execute(self, sql: str) -> None:
        await self.stores[0].query(sql)

    async def close(self) -> None:
        for store in self.stores:
            await store.close()

    def _store(self) -> SqlStore:
        url = parse(self.url)
        if isinstance(url, PostgresUrl):
            from perdure.store.postgres.store import PostgresStore

            # A process that listens hears of every change when its connection is there, at any time.
            store = PostgresStore(replace(url, listen=None), self.system, time=self.system.now)
            # A verb that is run again, because a pooler turns out to stand in between, passes its crash points again.
            store._prepares = PGBOUNCER not in os.environ
            return store
        from perdure.store.mysql.store import MysqlStore

        assert isinstance(url, MysqlUrl)
        return MysqlStore(url, self.system, time=self.system.now)


#: As workers use it; `make prove` adds the rest, of which simulations use the first, and `make quick` does without.
VARIANTS = [
    "file",
    "postgres",
    "mysql",
    *(["memory-inline", "file-inline", "memory"] if os.environ.get("PERDURE_PROVE") else []),
][: 1 if os.environ.get("PERDURE_QUICK") else None]

AnyHarness = SqliteHarness | ServerHarness


@pytest.fixture(params=VARIANTS)
async def harness(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[AnyHarness]:
    if request.param in ("postgres", "mysql"):
        places = schemas if request.param == "postgres" else databases
        async with places.one(still=request.node.get_closest_marker("plans") is not None) as url:
            server = ServerHarness(url, places)
            yield server
            await server.close()
        return
    path = tmp_path / "suite.db" if request.param.startswith("file") else None
    if path is not None:
        await lay_tables(path)
    # The suite does not cut the power, and waiting for the disk is most of what it would do.
    url = f"sqlite:///{path}?synchronous=NORMAL" if path else "sqlite://"
    harness = SqliteHarness(url, path, inline=request.param.endswith("inline"))
    yield harness
    await harness.close()


@pytest.fixture
async def store(harness: AnyHarness) -> AsyncIterator[SqlStore]:
    store = await harness.open()
    yield store
    harness.system.on_crash_point = lambda _: None
    assert await harness.broken() == []
