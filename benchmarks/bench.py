"""What the workloads share: the database, the rounds with a raw sample before each, and the result."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import sqlite3
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from benchmarks.programs import ALL, Probe, Stage
from benchmarks.raw import RawDatabase, RawMysql, RawPostgres, RawSqlite
from perdure import Call, Engine, Status
from perdure.store.url import MysqlUrl, PostgresUrl, SqliteUrl, parse

#: What every result has, null where it does not apply.
KEYS = (
    "workload",
    "store",
    "runs",
    "steps",
    "runs_per_s",
    "steps_per_s",
    "cpu_us_per_step",
    "p50_ms",
    "p99_ms",
    "raw_commits_per_s",
    "raw_commit_p50_ms",
    "raw_batch_rows_per_s",
)

Result = dict[str, Any]


class Sizes(Struct, frozen=True, kw_only=True):
    """How much to do. The defaults take a minute or so each; tests use tiny ones."""

    rounds: int = 5
    #: Runs a round: w2, w3; five times as many: w1, w8.
    runs: int = 2000
    #: Steps of the one run: w3 (sequential), w4 (parallel), w6 (of the history).
    steps: int = 1000
    #: Seconds of sleep: w5.
    sleep: float = 5.0
    #: Rows beside the due ones: w7; parked rows: memory.
    finished: int = 1_000_000
    sleeping: int = 100_000
    foreign: int = 100_000
    slots: int = 500
    raw_commits: int = 200
    raw_batches: int = 5


class Spent(Struct, frozen=True):
    """What a stretch of work took."""

    wall: float
    cpu: float


class Bench:
    """One workload's database and its yardstick."""

    def __init__(self, name: str, url: str, sizes: Sizes) -> None:
        self.name = name
        self.where = parse(url)
        if isinstance(self.where, PostgresUrl) and self.where.schema is None:
            # Each workload begins with empty tables, and leaves the database as it was.
            url += f"{'&' if '?' in url else '?'}schema=bench_{time.time_ns()}"
            self.where = parse(url)
        elif isinstance(self.where, MysqlUrl):
            # The same, by a prefix: making databases takes rights that a user may not have.
            url += f"{'&' if '?' in url else '?'}prefix=bench_{time.time_ns()}_"
            self.where = parse(url)
        self.url = url
        self.sizes = sizes
        self.raw = _raw(self.where, commits=sizes.raw_commits, batches=sizes.raw_batches)

    def engine(self) -> Engine:
        """An engine on the database, with all programs."""
        return Engine(self.url, ALL)

    def result(self, **values: object) -> Result:
        """The answer to print."""
        raw = self.raw.median()
        common: Result = {
            "workload": self.name,
            "store": _name(self.where),
            "raw_commits_per_s": round(raw.commits_per_s, 1),
            "raw_commit_p50_ms": round(raw.commit_p50_ms, 4),
            "raw_batch_rows_per_s": round(raw.batch_rows_per_s, 1),
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
        }
        rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in values.items()}
        return dict.fromkeys(KEYS) | common | rounded


def _raw(where: SqliteUrl | PostgresUrl | MysqlUrl, *, commits: int, batches: int) -> RawDatabase:
    if isinstance(where, SqliteUrl):
        return RawSqlite(where, commits=commits, batches=batches)
    if isinstance(where, MysqlUrl):
        return RawMysql(where, commits=commits, batches=batches)
    return RawPostgres(where, commits=commits, batches=batches)


def _name(where: SqliteUrl | PostgresUrl | MysqlUrl) -> str:
    if isinstance(where, PostgresUrl):
        return "postgresql"
    if isinstance(where, MysqlUrl):
        return "mysql"
    return f"sqlite synchronous={where.synchronous}" if where.path else "sqlite in memory"


async def work_off(engine: Engine, calls: Sequence[Call[Any]], expected: int, slots: int) -> Spent:
    """Queue the calls, then time a worker from its start to the last outcome. Raises if a run did not succeed."""
    for start in range(0, len(calls), 1000):
        await engine.start_many(calls[start : start + 1000])
    async with probing(expected) as probe:
        wall, cpu = time.perf_counter(), time.process_time()
        async with engine.worker(slots=slots):
            await probe.reached.wait()
            # One question for all, so that what is measured is the worker and not the client that waits.
            await until(lambda: none_left(engine, Status.PENDING, Status.RUNNING, Status.WAITING), every=0.002)
            spent = Spent(time.perf_counter() - wall, time.process_time() - cpu)
    if not await none_left(engine, Status.FAILED, Status.CANCELLED, Status.BLOCKED):
        raise RuntimeError("a run did not succeed; the measurement is void")
    return spent


@contextlib.asynccontextmanager
async def probing(expected: int) -> AsyncIterator[Probe]:
    """Have the steps report for as long as this lasts."""
    Stage.probe = Probe(expected)
    try:
        yield Stage.probe
    finally:
        Stage.probe = None


async def until(question: Callable[[], Awaitable[bool]], every: float) -> None:
    """Ask until the answer is yes."""
    while True:
        if await question():
            return
        await asyncio.sleep(every)


async def none_left(engine: Engine, *statuses: Status) -> bool:
    """Whether no run is in any of these."""
    return not (await engine.runs.list(status=statuses, limit=1)).runs


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return statistics.median(values)
