"""What the database does by itself, with the same durability, payload and disk: the yardstick beside every result.

One open connection; a prepared one-row INSERT and commit, and batches of 1,000 rows. A sample is taken before each round of a
workload, so both see the same machine; the medians of the samples are reported.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from pathlib import Path

from msgspec import Struct

from benchmarks.programs import PAYLOAD
from perdure.store.url import SqliteUrl

BATCH = 1000


class Raw(Struct, frozen=True):
    """One sample."""

    commits_per_s: float
    commit_p50_ms: float
    batch_rows_per_s: float


class RawDatabase:
    """A table of its own in a file beside the engine's."""

    def __init__(self, url: SqliteUrl, *, commits: int, batches: int) -> None:
        self._commits = commits
        self._batches = batches
        self._seq = 0
        self.samples: list[Raw] = []
        self._connection = sqlite3.connect(url.path + "-raw" if url.path else ":memory:", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {url.synchronous}")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS raw (run_id TEXT, seq INTEGER, at INTEGER, payload TEXT, PRIMARY KEY (run_id, seq))"
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

    def median(self) -> Raw:
        """The samples so far, field by field."""
        return Raw(
            statistics.median(sample.commits_per_s for sample in self.samples),
            statistics.median(sample.commit_p50_ms for sample in self.samples),
            statistics.median(sample.batch_rows_per_s for sample in self.samples),
        )

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

    def _row(self) -> tuple[str, int, int, str]:
        self._seq += 1
        return "0190c1f2-0000-7000-8000-000000000001", self._seq, time.time_ns() // 1000, PAYLOAD
