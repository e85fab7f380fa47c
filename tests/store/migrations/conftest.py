"""An empty schema on each database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure.host import Host
from perdure.store import SqlStore, open_store
from tests.servers.databases import Databases, execute
from tests.servers.places import Places
from tests.servers.schemas import Schemas, postgres_dsn
from tests.store.migrations import schema

Servers = dict[str, Places]


class Place:
    """A database, schema or prefix without tables."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url

    async def schema(self) -> schema.Schema:
        """Return the present schema."""
        if self.kind == "sqlite":
            return schema.of_sqlite(self.url.removeprefix("sqlite:///"))
        if self.kind == "mysql":
            questions = (schema.MYSQL_COLUMNS, schema.MYSQL_INDEXES)
            return schema.of_rows(*[await execute(self.url, [question]) for question in questions])
        import asyncpg

        connection = await asyncpg.connect(postgres_dsn())
        try:
            name = self.url.rpartition("schema=")[2]
            questions = (schema.PG_COLUMNS, schema.PG_INDEXES)
            return schema.of_rows(*[await connection.fetch(question, name) for question in questions])
        finally:
            await connection.close()

    async def run(self, script: str) -> None:
        """Run a script as an administrator would."""
        if self.kind == "sqlite":
            schema.run_on_sqlite(self.url.removeprefix("sqlite:///"), script)
            return
        if self.kind == "mysql":
            await execute(self.url, [statement for statement in script.split(";\n") if statement.strip()])
            return
        import asyncpg

        connection = await asyncpg.connect(postgres_dsn())
        await connection.execute(script)
        await connection.close()

    @asynccontextmanager
    async def store(self, *, migrate: bool = True) -> AsyncIterator[SqlStore]:
        """Open a store."""
        store = open_store(self.url, Host(), migrate=migrate)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def store_of_later(self) -> AsyncIterator[SqlStore]:
        """Open a store that does not check the schema, as one that was opened before a later version changed it."""
        store = open_store(self.url, Host())
        await store._connect()
        try:
            yield store
        finally:
            await store.close()


KINDS = ["sqlite", "postgres", "mysql"]


@asynccontextmanager
async def a_place(kind: str, folder: Path, servers: Servers) -> AsyncIterator[Place]:
    """Return an empty place on a database of a kind."""
    if kind == "sqlite":
        yield Place(kind, f"sqlite:///{folder}/runs.db")
    else:
        async with servers[kind].one(fresh=True) as url:
            yield Place(kind, url)


@pytest.fixture
def servers(schemas: Schemas, databases: Databases) -> Servers:
    return {"postgres": schemas, "mysql": databases}


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> AsyncIterator[Place]:
    async with a_place(request.param, tmp_path, servers) as place:
        yield place
