"""Figures of pages: rates, percentiles and groups of errors, computed from rows that are read anyway.

Nothing counts on the hot path. A page reads a bounded number of the latest runs and says how many it has seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from msgspec import Struct

from perdure.core.codec.failure import Failure
from perdure.core.model.dead_letter import DeadLetter
from perdure.core.model.run import RunTimes, Status
from perdure.core.model.worker_info import WorkerInfo, WorkerStatus
from perdure.core.time.duration import length
from perdure.dashboard.texts import fingerprint
from perdure.http.redaction import FailureView, Redactor

HOUR = 3_600_000_000
_SLICES = 30
_HEIGHT = 26


class SparkBar(Struct, frozen=True):
    """A bar of a sparkline: position and width in percent, height in pixels."""

    x: float
    y: float
    width: float
    height: float
    text: str


class Figure(Struct, frozen=True, kw_only=True):
    """A number with its name, and its course over the last hour."""

    name: str
    value: str
    bars: tuple[SparkBar, ...] = ()
    bad: bool = False
    note: str = ""


def sparkline(times: Iterable[int], now: int, noun: str) -> tuple[SparkBar, ...]:
    """Bars of the numbers of times in each part of the last hour."""
    counts = [0] * _SLICES
    for time in times:
        if 0 <= now - time < HOUR:
            counts[_SLICES - 1 - (now - time) * _SLICES // HOUR] += 1
    most = max(counts, default=0)
    width = 100 / _SLICES
    return tuple(
        SparkBar(
            round(index * width + width * 0.1, 3),
            round(27 - max(2, _HEIGHT * number / most), 2) if number else 27,
            round(width * 0.8, 3),
            round(max(2, _HEIGHT * number / most), 2) if number else 0,
            f"{number} {noun}, {60 - index * 60 // _SLICES} to {60 - (index + 1) * 60 // _SLICES} min ago",
        )
        for index, number in enumerate(counts)
    )


def percentile(values: Sequence[int], share: float) -> int:
    """The value below which that share of the values lies; 0 if there are none."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0


def rate(number: int, seconds: float) -> str:
    """A number of events as a rate, in the unit that suits it."""
    each = number / seconds
    if each >= 1:
        return f"{each:.3g} /s"
    return f"{each * 60:.3g} /min" if each * 60 >= 1 or number == 0 else f"{each * 3600:.3g} /h"


def durations(runs: Iterable[RunTimes]) -> list[int]:
    """Durations of the runs that have finished, in microseconds."""
    return [run.finished_at - run.started_at for run in runs if run.finished_at and run.started_at]


def overview_figures(recent: Sequence[RunTimes], workers: Sequence[WorkerInfo], oldest: int, now: int) -> list[Figure]:
    """The six figures of the overview; `oldest` is the time since which the oldest ready run waits, or 0."""
    started = [run.created_at for run in recent]
    completed = [run.finished_at for run in recent if run.status is Status.COMPLETED]
    failed = [run.finished_at for run in recent if run.status is Status.FAILED and now - run.finished_at < HOUR]
    alive = [one for one in workers if one.status is WorkerStatus.ALIVE and not one.is_late(one.read_at or now)]
    busy = sum(len(one.running.steps) + one.running.more for one in alive)
    spent = durations(recent)
    # Percentiles of several workers have no common one; the slowest worker is the one to know of.
    slowest = max((one.running.commit_p99 for one in alive), default=0)
    return [
        Figure(
            name="started, last 5 min",
            value=rate(_latest(started, now), 300),
            bars=sparkline(started, now, "started"),
        ),
        Figure(
            name="completed, last 5 min",
            value=rate(_latest(completed, now), 300),
            bars=sparkline(completed, now, "completed"),
        ),
        Figure(
            name="failed, last hour",
            value=f"{len(failed):,}",
            bad=True,
            bars=sparkline(failed, now, "failed"),
        ),
        Figure(
            name="oldest ready run",
            value=length(now - oldest) if 0 < oldest <= now else "none",
            note="waits for a slot" if 0 < oldest <= now else "nothing waits",
        ),
        Figure(
            name="long steps, slots",
            value=f"{busy:,} of {sum(one.slots for one in alive):,}",
            note=f"{len(alive)} worker{'s' * (len(alive) != 1)} alive"
            + (f", commit p99 {length(slowest)}" if slowest else ""),
        ),
        Figure(
            name="duration p50, p99",
            value=f"{length(percentile(spent, 0.5))}" if spent else "none yet",
            note=f"p99 {length(percentile(spent, 0.99))}" if spent else "no run has finished lately",
        ),
    ]


def _latest(times: Iterable[int], now: int) -> int:
    return sum(1 for time in times if now - time < HOUR // 12)


class ErrorGroup(Struct, frozen=True, kw_only=True):
    """Dead letters whose errors are alike."""

    key: str
    type: str
    message: str
    location: str
    reason: str
    types: tuple[str, ...]
    first: int
    last: int
    letters: tuple[DeadLetter, ...]
    #: The errors of the first ten, as the caller may see them.
    errors: tuple[FailureView, ...]


def group_letters(letters: Iterable[DeadLetter], shown: Redactor) -> list[ErrorGroup]:
    """Group dead letters by class of the error, masked message and step; the largest group first."""
    groups: dict[tuple[str, str, str, str], list[DeadLetter]] = {}
    for letter in letters:
        error = root_cause(letter.error)
        location = letter.errors[-1].location if letter.errors else ""
        mark = fingerprint(error.type, error.message, location)
        groups.setdefault((letter.reason.value, *mark), []).append(letter)
    found = [_group(mark, members, shown) for mark, members in groups.items()]
    return sorted(found, key=lambda one: (-len(one.letters), -one.last))


def root_cause(error: Failure) -> Failure:
    """The error at the end of the causes of a failed step, which says what happened."""
    while error.cause is not None and error.type.rpartition(".")[2] in ("StepFailed", "RunFailed"):
        error = error.cause
    return error


def _group(mark: tuple[str, str, str, str], letters: Sequence[DeadLetter], shown: Redactor) -> ErrorGroup:
    reason, type, message, location = mark
    return ErrorGroup(
        key=hashlib.sha256("\0".join(mark).encode("utf-8", "replace")).hexdigest()[:16],
        type=type or "error",
        message=shown.text(message),
        location=location,
        reason=reason,
        types=tuple(sorted({letter.type for letter in letters}))[:10],
        first=min(letter.dead_since for letter in letters),
        last=max(letter.dead_since for letter in letters),
        letters=tuple(letters),
        errors=tuple(shown.error(root_cause(letter.error)) for letter in letters[:10]),
    )
