"""Progress of a stress test while it runs, and its figures: throughput, percentiles, failures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from rich.progress import Progress

#: Lines that report the progress where standard error is not a terminal.
_LINES = 10


class StressResult(Struct, frozen=True, kw_only=True):
    """Figures of a stress test; times in seconds."""

    runs: int
    completed: int
    failed: int
    seconds: float
    runs_per_second: float
    #: Steps and activities that succeeded.
    steps_per_second: float
    failed_percent: float
    p50: float
    p99: float
    longest: float
    #: Worker processes that were killed.
    kills: int


def summarize(latencies: Sequence[float], failed: int, operations: int, seconds: float, kills: int) -> StressResult:
    """Compute the figures from the latency of each run, from start to result."""
    ordered = sorted(latencies)
    completed = len(ordered) - failed
    return StressResult(
        runs=len(ordered),
        completed=completed,
        failed=failed,
        seconds=seconds,
        runs_per_second=len(ordered) / seconds,
        steps_per_second=completed * operations / seconds,
        failed_percent=100 * failed / len(ordered),
        p50=percentile(ordered, 0.50),
        p99=percentile(ordered, 0.99),
        longest=ordered[-1],
        kills=kills,
    )


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the smallest value that at least this part of the sorted values do not exceed."""
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)]


class ProgressBar:
    """Counter of finished runs on standard error: a bar on a terminal, else a line per tenth."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._total = total
        self._quiet = quiet
        self._done = 0
        self._bar: Progress | None = None

    def __enter__(self) -> ProgressBar:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task("runs", total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self) -> None:
        """Count one finished run."""
        before = self._done * _LINES // self._total
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])
        elif not self._quiet and self._done * _LINES // self._total > before:
            print(f"{self._done:,} of {self._total:,} runs", file=sys.stderr, flush=True)
