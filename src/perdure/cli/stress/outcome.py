"""What came of it: throughput, percentiles, failures."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class Outcome(Struct, frozen=True, kw_only=True):
    """The figures of a test under stress; times in seconds."""

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
    #: Workers that were killed.
    kills: int


def outcome_of(latencies: Sequence[float], failed: int, operations: int, seconds: float, kills: int) -> Outcome:
    """The figures, from how long each run took from its start to its result."""
    ordered = sorted(latencies)
    completed = len(ordered) - failed
    return Outcome(
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
    """The value that this part of all are not above."""
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)]
