"""What the database does by itself, with the same durability, payload and disk: the yardstick beside every result.

One open connection; a prepared one-row INSERT and commit, and batches of 1,000 rows. On a server, commits per second
are those of 100 connections together, each committing one row at a time, once all of them have done so a few times. A
sample is taken before each round of a workload, so both see the same machine; the medians of the samples are reported.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.programs import PAYLOAD
from perdure.store.url import MysqlUrl, PostgresUrl, SqliteUrl

BATCH = 1000
_RAW_TABLE = "CREATE TABLE {} (run_id TEXT, seq BIGINT, at BIGINT, payload TEXT, PRIMARY KEY (run_id, seq))"
#: Connections to a server that commit side by side, and how many commits each makes before they are counted.
CONNECTIONS = 100
WARM_UP = 5


class Raw(Struct, frozen=True):
    """One sample."""

    commits_per_s: float
    commit_p50_ms: float
    batch_rows_per_s: float


class RawDatabase(ABC):
    """A table of its own beside the engine's."""

    def __init__(self, *, commits: int, batches: int) -> None:
        self._commits = commits
        self._batches = batches
        self._seq = 0
        self.samples: list[Raw] = []

    @abstractmethod
    def sample(self) -> Raw:
        """Measure now."""

    @abstractmethod
    def close(self) -> None:
        """Leave nothing behind."""

    def median(self) -> Raw:
        """The samples so far, field by field."""
        return Raw(
            statistics.median(sample.commits_per_s for sample in self.samples),
            statistics.median(sample.commit_p50_ms for sample in self.samples),
            statistics.median(sample.batch_rows_per_s for sample in self.samples),
        )

    def _row(self) -> tuple[str, int, int, str]:
        self._seq += 1
        return "0190c1f2-0000-7000-8000-000000000001", self._seq, time.time_ns() // 1000, PAYLOAD


class RawSqlite(RawDatabase):
    """In a file beside the engine's."""

    def __init__(self, url: SqliteUrl, *, commits: int, batches: int) -> None:
        super().__init__(commits=commits, batches=batches)
        self._connection = sqlite3.connect(url.path + "-raw" if url.path else ":memory:", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {url.synchronous}")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS raw "
            "(run_id TEXT, seq INTEGER, at INTEGER, payload TEXT, PRIMARY KEY (run_id, seq))"
            " WITHOUT ROWID"
        )
        self._connection.execute("DELETE FROM raw")

    def sample(self) -> Raw:
        """Measure now."""
        times = [self._commit_one() for _ in range(self._commits)]
        batch_times = [self._commit_batch() for _ in range(self._batches)]
        sample = Raw(
            commits_per_s=len(times) / sum(times),
            commit_p50_ms=statistics.median(times) * 1e3,
            batch_rows_per_s=BATCH * len(batch_times) / sum(batch_times),
        )
        self.samples.append(sample)
        return sample

    def close(self) -> None:
        """Let go of the file and remove it."""
        [[_, _, path]] = self._connection.execute("PRAGMA database_list").fetchall()
        self._connection.close()
        if path:
            for suffix in ("", "-wal", "-shm"):
                Path(path + suffix).unlink(missing_ok=True)

    def _commit_one(self) -> float:
        row = self._row()
        begun = time.perf_counter()
        self._connection.execute("INSERT INTO raw VALUES (?, ?, ?, ?)", row)
        return time.perf_counter() - begun

    def _commit_batch(self) -> float:
        rows = [self._row() for _ in range(BATCH)]
        begun = time.perf_counter()
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO raw VALUES (?, ?, ?, ?)", rows)
        self._connection.execute("COMMIT")
        return time.perf_counter() - begun


class RawServer(RawDatabase):
    """Measured on a thread and loop of its own, while the engine's loop stands still."""

    def __init__(self, *, commits: int, batches: int) -> None:
        super().__init__(commits=commits, batches=batches)
        self._thread = ThreadPoolExecutor(1)

    def sample(self) -> Raw:
        """Measure now."""
        sample: Raw = self._run(self._sample())
        self.samples.append(sample)
        return sample

    def close(self) -> None:
        """Drop everything."""
        self._run(self._drop())
        self._thread.shutdown()

    @abstractmethod
    async def _drop(self) -> None:
        """Leave nothing behind."""

    @abstractmethod
    async def _connect(self) -> Any:
        """A connection that is ready to insert a row."""

    @abstractmethod
    async def _disconnect(self, connection: Any) -> None:
        """End it."""

    @abstractmethod
    async def _insert(self, connection: Any, row: tuple[str, int, int, str]) -> None:
        """One row and its commit."""

    @abstractmethod
    async def _insert_many(self, connection: Any, rows: list[tuple[str, int, int, str]]) -> None:
        """Many rows in one statement, and their commit."""

    def _run(self, coroutine: Any) -> Any:
        return self._thread.submit(asyncio.run, coroutine).result()

    async def _sample(self) -> Raw:
        connections = [await self._connect() for _ in range(CONNECTIONS)]
        each = max(1, self._commits // 4)
        await asyncio.gather(*(self._commit_several(connection, WARM_UP) for connection in connections))
        begun = time.perf_counter()
        await asyncio.gather(*(self._commit_several(connection, each) for connection in connections))
        together = time.perf_counter() - begun
        times = [await self._commit_one(connections[0]) for _ in range(self._commits)]
        batch_times = [await self._commit_batch(connections[0]) for _ in range(self._batches)]
        for connection in connections:
            await self._disconnect(connection)
        return Raw(
            commits_per_s=CONNECTIONS * each / together,
            commit_p50_ms=statistics.median(times) * 1e3,
            batch_rows_per_s=BATCH * len(batch_times) / sum(batch_times),
        )

    async def _commit_one(self, connection: Any) -> float:
        row = self._row()
        begun = time.perf_counter()
        await self._insert(connection, row)
        return time.perf_counter() - begun

    async def _commit_several(self, connection: Any, count: int) -> None:
        for _ in range(count):
            await self._commit_one(connection)

    async def _commit_batch(self, connection: Any) -> float:
        rows = [self._row() for _ in range(BATCH)]
        begun = time.perf_counter()
        await self._insert_many(connection, rows)
        return time.perf_counter() - begun


class RawPostgres(RawServer):
    """In the engine's schema."""

    def __init__(self, url: PostgresUrl, *, commits: int, batches: int) -> None:
        super().__init__(commits=commits, batches=batches)
        self._dsn = url.dsn
        self._schema = url.schema
        self._table = f'"{url.schema}".raw'
        self._run(self._execute(f'CREATE SCHEMA IF NOT EXISTS "{url.schema}"; {_RAW_TABLE.format(self._table)}'))

    async def _drop(self) -> None:
        await self._execute(f'SET client_min_messages = warning; DROP SCHEMA "{self._schema}" CASCADE')

    async def _execute(self, sql: str) -> None:
        import asyncpg

        connection = await asyncpg.connect(self._dsn)
        await connection.execute(sql)
        await connection.close()

    async def _connect(self) -> Any:
        import asyncpg

        connection = await asyncpg.connect(self._dsn)
        statement = await connection.prepare(f"INSERT INTO {self._table} VALUES ($1, $2, $3, $4)")
        return connection, statement

    async def _disconnect(self, connection: Any) -> None:
        await connection[0].close()

    async def _insert(self, connection: Any, row: tuple[str, int, int, str]) -> None:
        await connection[1].fetch(*row)

    async def _insert_many(self, connection: Any, rows: list[tuple[str, int, int, str]]) -> None:
        await connection[0].execute(
            f"INSERT INTO {self._table} SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[])",
            *zip(*rows, strict=True),
        )


class RawMysql(RawServer):
    """In a table beside the engine's, by the quickest way that the driver has."""

    def __init__(self, url: MysqlUrl, *, commits: int, batches: int) -> None:
        super().__init__(commits=commits, batches=batches)
        self._url = url
        self._table = f"{url.prefix}raw"
        columns = "run_id VARCHAR(255), seq BIGINT, at BIGINT, payload LONGTEXT, PRIMARY KEY (run_id, seq)"
        self._run(self._execute(f"CREATE TABLE {self._table} ({columns}) ENGINE = InnoDB"))

    async def _drop(self) -> None:
        names = ("raw", "runs", "history", "messages", "events", "outputs", "topics", "workers", "migrations")
        prefixes = (self._url.prefix, f"{self._url.prefix}alone_")
        await self._execute(*(f"DROP TABLE IF EXISTS {prefix}{name}" for prefix in prefixes for name in names))

    async def _execute(self, *statements: str) -> None:
        connection = await self._connect()
        await connection.send(statements)
        await self._disconnect(connection)

    async def _connect(self) -> Any:
        from perdure.store.mysql.driver import MysqlConnector

        return await MysqlConnector(self._url).connect()

    async def _disconnect(self, connection: Any) -> None:
        await connection.close_gracefully()

    async def _insert(self, connection: Any, row: tuple[str, int, int, str]) -> None:
        await self._insert_many(connection, [row])

    async def _insert_many(self, connection: Any, rows: list[tuple[str, int, int, str]]) -> None:
        from perdure.store.mysql.transaction import sql_rows

        await connection.send([f"INSERT INTO {self._table} VALUES {sql_rows(rows)}"])
