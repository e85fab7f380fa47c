"""One database for one test: the engines on it, and what its tables hold."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any
from zlib import crc32

from perdure import Engine, Handle, Status
from perdure.host import Host
from perdure.store import Retrying, SqlStore, open_store
from perdure.workflow.discover import Definable
from tests.helpers import eventually
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas

#: What a run's own rows are; workers come and go without changing them.
TABLES = ("runs", "history", "messages", "events", "outputs", "topics", "workers")

Dump = dict[str, list[tuple[Any, ...]]]


class Stage:
    """Builds engines on one database. One in memory lives and dies with its engine, so it has only one."""

    def __init__(self, path: Path | None, url: str = "") -> None:
        self.path = path
        self.url = url or ("sqlite://" if path is None else f"sqlite:///{path}")
        self.store: SqlStore | None = None
        self.engines: list[Engine] = []

    def engine(self, *workflows: Definable, **options: Any) -> Engine:
        """An engine that is closed when the test ends."""
        assert self.url != "sqlite://" or not self.engines, "a second engine needs a database in a file"
        system = Host()
        self.store = open_store(self.url, system)
        engine = Engine(self.url, workflows, system=system, store=Retrying(self.store, system), **options)
        self.engines.append(engine)
        return engine

    async def dump(self) -> Dump:
        """Every row of every table."""
        if self.path is None:
            assert self.store is not None
            return {name: await self.store.query(f"SELECT * FROM perdure_{name}") for name in TABLES}
        with closing(sqlite3.connect(self.path)) as connection:
            return {name: connection.execute(f"SELECT * FROM perdure_{name}").fetchall() for name in TABLES}

    async def rows(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """One query over the tables."""
        assert self.store is not None
        return await self.store.query(sql, params)

    async def close(self) -> None:
        """Close every engine."""
        for engine in self.engines:
            await engine.close()


SERVERS = ("postgres", "mysql")


def kinds_for(test: str, *, every: bool = False, shared: bool = False) -> list[str]:
    """Choose the databases of a test by its name.

    SQLite in memory and in a file differ in the store alone. `make quick` uses the one, `make test` the other, and
    `make prove` uses both. The conformance suite holds all stores to one contract, so `make test` uses only one of the
    servers for most tests above the store. Tests whose subject is how the engine gets along with a database use
    `every` server. A database that engines share cannot be in memory.
    """
    if os.environ.get("PERDURE_QUICK"):
        return ["file" if shared else "memory"]
    if os.environ.get("PERDURE_PROVE"):
        return ["file", *SERVERS, *([] if shared else ["memory"])]
    return ["file", *(SERVERS if every else [SERVERS[crc32(test.encode()) % len(SERVERS)]])]


_tables: list[bytes] = []


async def lay_tables(path: Path) -> None:
    """Make a file of SQLite with all tables and no rows. To copy one takes half as long as to migrate each."""
    if not _tables:
        with tempfile.TemporaryDirectory(prefix="perdure-tables-") as folder:
            first = Path(folder, "tables.db")
            store = open_store(f"sqlite:///{first}?synchronous=NORMAL", Host())
            await store.open()
            await store.close()
            _tables.append(first.read_bytes())  # noqa: ASYNC240 # a small file, between tests
    path.write_bytes(_tables[0])  # noqa: ASYNC240 # as above


@asynccontextmanager
async def set_up(
    kind: str, tmp_path: Path, schemas: Schemas, databases: Databases, *, fresh: bool = False
) -> AsyncGenerator[Stage]:
    """A stage on a database of that kind: "memory", "file", "postgres" or "mysql"; a fresh one is not used again."""
    async with AsyncExitStack() as stack:
        if kind in ("postgres", "mysql"):
            places = schemas if kind == "postgres" else databases
            stage = Stage(None, await stack.enter_async_context(places.one(fresh=fresh)))
        else:
            stage = Stage(None if kind == "memory" else tmp_path / "runs.db")
            if stage.path is not None and not fresh:
                await lay_tables(stage.path)
        stack.push_async_callback(stage.close)
        yield stage


async def until(run: Handle[Any], status: Status) -> None:
    """Wait until a run stands there."""

    async def there() -> bool:
        return await run.status() is status

    await eventually(there, saying=f"the status of {run!r} being {status}")


async def until_recorded(run: Handle[Any], count: int = 1) -> None:
    """Wait until a run's history has so many records."""

    async def there() -> bool:
        return len(await run.history()) >= count

    await eventually(there, saying=f"the history of {run!r} having {count} records")
