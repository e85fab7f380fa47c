"""Factories behind the fixtures `perdure_env` and `perdure_engine` of the pytest plugin."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Unpack
from urllib.parse import urlsplit, urlunsplit

from perdure.client.engine import Engine
from perdure.client.outbox import Subscription
from perdure.core.time.duration import Duration
from perdure.store.url import MysqlUrl, PostgresUrl, SqliteUrl, parse
from perdure.testing.environment import START, Environment
from perdure.worker import WorkerOptions
from perdure.workflow.discover import Definable


class EnvironmentFactory:
    """Makes environments whose clocks skip to the next timer: `async with perdure_env(checkout) as env`."""

    def __call__(
        self,
        *workflows: Definable,
        errors: Iterable[type[Exception]] = (),
        start_time: datetime = START,
        seed: int = 0,
        patience: Duration = 1.0,
        strict: bool = False,
        auto_advance: bool = True,
        outbox: Iterable[Subscription] = (),
        **worker: Unpack[WorkerOptions],
    ) -> Environment:
        """Make an environment. The options are those of `Environment`; `auto_advance` is on."""
        return Environment(
            workflows, errors=errors, start_time=start_time, seed=seed, patience=patience, strict=strict,
            auto_advance=auto_advance, outbox=outbox, **worker,
        )  # fmt: skip


class EngineFactory:
    """Makes engines, each with a worker, on one database: `async with perdure_engine(checkout) as engine`."""

    def __init__(self, url: str) -> None:
        """`url`: a file of SQLite, `sqlite://`, or a database on a server, on which the tests get places of their own.

        A place is a schema on PostgreSQL, and a database on MySQL.
        """
        self._given = url
        self._name = f"perdure_test_{uuid.uuid4().hex[:12]}"
        self._is_made = False
        #: Address of the database of the engines.
        self.url = _place_on(url, self._name)

    @asynccontextmanager
    async def __call__(
        self, *workflows: Definable, errors: Iterable[type[Exception]] = (), **worker: Unpack[WorkerOptions]
    ) -> AsyncGenerator[Engine]:
        """Open an engine with a worker, for the time of an `async with`; without workflows, there is no worker.

        `worker`: options as for `Engine.worker`.
        """
        if not self._is_made:
            self._is_made = True
            await _make(self._given, self._name)
        async with Engine(self.url, workflows, errors=errors) as engine:
            if not workflows:
                yield engine
                return
            async with engine.worker(**worker):
                yield engine

    def drop(self) -> None:
        """Remove the place on a server."""
        if self._is_made and not isinstance(parse(self._given), SqliteUrl):
            # In a thread, because this one may have an event loop.
            thread = threading.Thread(target=asyncio.run, args=(_drop(self._given, self._name),))
            thread.start()
            thread.join()


def _place_on(url: str, name: str) -> str:
    parsed, parts = parse(url), urlsplit(url)
    if isinstance(parsed, PostgresUrl):
        return urlunsplit(parts._replace(query="&".join(filter(None, [parts.query, f"schema={name}"]))))
    if isinstance(parsed, MysqlUrl):
        return urlunsplit(parts._replace(path=f"/{name}"))
    return url


async def _make(url: str, name: str) -> None:
    if isinstance(parsed := parse(url), MysqlUrl):
        await _on_mysql(parsed, f"CREATE DATABASE {name}")


def _drop(url: str, name: str) -> Coroutine[Any, Any, None]:
    parsed = parse(url)
    if isinstance(parsed, MysqlUrl):
        return _on_mysql(parsed, f"DROP DATABASE IF EXISTS {name}")
    assert isinstance(parsed, PostgresUrl)
    return _on_postgres(parsed, f"DROP SCHEMA IF EXISTS {name} CASCADE")


async def _on_postgres(url: PostgresUrl, statement: str) -> None:
    import asyncpg  # pyright: ignore[reportMissingTypeStubs]

    connection: Any = await asyncpg.connect(url.dsn)  # pyright: ignore[reportUnknownMemberType] # not typed
    try:
        await connection.execute("SET client_min_messages = warning")
        await connection.execute(statement)
    finally:
        await connection.close()


async def _on_mysql(url: MysqlUrl, statement: str) -> None:
    from perdure.store.mysql.driver import MysqlConnector
    from perdure.store.server.pool import Timeouts

    connection = await MysqlConnector(url).connect(Timeouts(statement=120.0, connect=60.0))
    try:
        await connection.send([statement])
    finally:
        await connection.close_gracefully()
