"""The documented statements, run as a program without Perdure would: with a driver, on a connection of its own."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pymysql
import pymysql.cursors

from perdure.client.runs.inspect import explain
from perdure.host import Host
from perdure.store import SqlStore, open_store
from perdure.store.plain_sql import PlainStatement, statement
from perdure.store.sql.dialect import MYSQL, POSTGRES, SQLITE, Dialect
from perdure.store.url import MysqlUrl, parse
from tests.servers.schemas import postgres_dsn

Rows = list[dict[str, Any]]

SECOND = 1_000_000
#: Errors of MySQL after which a transaction has to be run again.
IN_THE_WAY = (1205, 1213)
#: Default parameters for tests that do not care.
DEFAULTS: Mapping[str, Any] = {
    "worker": "sql-worker",
    "number": 10,
    "lease": 60 * SECOND,
    "types": "%",
    "error_type": "OSError",
    "error_message": "no way",
}


class Plain(ABC):
    """One database, used through plain SQL; `store` checks the effects and does what only Python does."""

    dialect: Dialect

    def __init__(self, url: str) -> None:
        self.url = url
        self.store: SqlStore = open_store(url, Host())
        #: Number of repeated transactions by error.
        self.races: Counter[str] = Counter()
        self._nonces = 0

    def new_nonce(self, owner: str = "nonce") -> str:
        """Return a nonce that this owner has not used before."""
        self._nonces += 1
        return f"{owner}-{self._nonces}"

    async def do(self, name: str, **params: Any) -> Rows:
        """Run a statement; return its rows."""
        if name == "claim" and "nonce" not in params:
            params["nonce"] = self.new_nonce()
        return await self.run(statement(self.dialect, name, self.tables), {**DEFAULTS, **params})

    async def one(self, name: str, **params: Any) -> dict[str, Any]:
        """Run a statement that returns one row; return that row."""
        [row] = await self.do(name, **params)
        return row

    async def insert(self, type: str = "mail.send.v1", **params: Any) -> str:
        """Insert a run; return its id."""
        answer: str = (await self.one("insert", type=type, **params))["id"]
        return answer

    async def row(self, run_id: str) -> dict[str, Any]:
        """Return a run from its row."""
        columns = (
            "status, reason, token, attempt, wake_at, deadline, lease_until, worker, claims, inbox_seq, marked, "
            "output, error"
        )
        [row] = await self.store.query(f"SELECT {columns} FROM perdure_runs WHERE id = ?", [run_id])
        return dict(zip(columns.split(", "), row, strict=True))

    async def events(self, run_id: str) -> list[str]:
        """Return the audit events of a run."""
        return [event.kind for event in await self.store.events(run_id)]

    async def why(self, run_id: str) -> str:
        """Return the explanation of a run's status."""
        run = await self.store.get(run_id)
        assert run is not None
        return await explain(self.store, run)

    @property
    def tables(self) -> str:
        """Prefix of the table names."""
        return self.store._tables

    async def close(self) -> None:  # noqa: B027 - not every kind keeps a connection
        """Close the connection."""

    @abstractmethod
    async def run(self, statement: PlainStatement, params: Mapping[str, Any]) -> Rows:
        """Run a statement with a driver."""

    @abstractmethod
    async def execute(self, sql: str) -> Rows:
        """Run a statement that has no parameters."""


class OnSqlite(Plain):
    """SQLite, with the module of the standard library."""

    dialect = SQLITE

    async def run(self, statement: PlainStatement, params: Mapping[str, Any]) -> Rows:
        return await asyncio.to_thread(self._run, statement.parts, params)

    async def execute(self, sql: str) -> Rows:
        return await asyncio.to_thread(self._run, [sql], {})

    def _run(self, parts: list[str], params: Mapping[str, Any]) -> Rows:
        answer: Rows = []
        path = self.url.removeprefix("sqlite:///").partition("?")[0]
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
            # SQLite's clock has a resolution of a millisecond, so a run that Python made ready now is ready in the
            # next one.
            begun = time.time_ns() // 1_000_000
            while time.time_ns() // 1_000_000 == begun:
                continue
            for part in parts:
                names = re.findall(r":(\w+)", part)
                cursor = connection.execute(part, {name: params.get(name) for name in names})
                if cursor.description:
                    columns = [column[0] for column in cursor.description]
                    answer = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
        return answer


class OnPostgres(Plain):
    """PostgreSQL, with asyncpg."""

    dialect = POSTGRES
    _connection: Any = None

    async def run(self, statement: PlainStatement, params: Mapping[str, Any]) -> Rows:
        [part] = statement.parts
        names = dict(re.findall(r"\$(\d+) (\w+)", statement.text))
        values = [params.get(names[str(place)]) for place in range(1, len(names) + 1)]
        return await self._fetch(part, *values)

    async def execute(self, sql: str) -> Rows:
        return await self._fetch(sql)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _fetch(self, sql: str, *values: Any) -> Rows:
        if self._connection is None:
            import asyncpg

            self._connection = await asyncpg.connect(postgres_dsn())
        return [dict(row) for row in await self._connection.fetch(sql, *values)]


class OnMysql(Plain):
    """MySQL or MariaDB, with PyMySQL."""

    dialect = MYSQL
    _connection: Any = None

    async def run(self, statement: PlainStatement, params: Mapping[str, Any]) -> Rows:
        lines = re.findall(r"^-- ([@\w, ]+)(?::|$)", statement.text, flags=re.MULTILINE)
        given = {name for line in lines for name in re.findall(r"@(\w+)", line)}
        return await asyncio.to_thread(self._run, statement.parts, {name: params.get(name) for name in given})

    async def execute(self, sql: str) -> Rows:
        return await asyncio.to_thread(self._run, [sql], {})

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _run(self, parts: list[str], params: Mapping[str, Any]) -> Rows:
        while True:
            try:
                return self._try(parts, params)
            except pymysql.OperationalError as error:
                if error.args[0] not in IN_THE_WAY:
                    raise
                self.races[str(error)] += 1
                self._connection.rollback()

    def _try(self, parts: list[str], params: Mapping[str, Any]) -> Rows:
        if self._connection is None:
            self._connection = self._connect()
        answer: Rows = []
        with self._connection.cursor() as cursor:
            for name, value in params.items():
                cursor.execute(f"SET @{name} = %s", (value,))
            for part in parts:
                cursor.execute(part)
                if cursor.description:
                    answer = list(cursor.fetchall())
        return answer

    def _connect(self) -> Any:
        url = parse(self.url)
        assert isinstance(url, MysqlUrl)
        return pymysql.connect(
            host=url.host,
            port=url.port,
            user=url.user,
            password=url.password,
            database=url.database,
            charset="utf8mb4",
            cursorclass=pymysql.cursors.DictCursor,
            autocommit=True,
            ssl_disabled=True,
        )


KINDS: dict[str, type[Plain]] = {"sqlite": OnSqlite, "postgres": OnPostgres, "mysql": OnMysql}
