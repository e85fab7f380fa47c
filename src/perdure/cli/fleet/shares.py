"""Number of worker processes, and the share of each in slots and processes for steps."""

from __future__ import annotations

import math
import os
from pathlib import Path

import click
from msgspec import Struct

from perdure.cli.fleet.messages import Share
from perdure.errors import UsageError

AUTO = "auto"
#: More processes than this on one host are a mistake.
MOST_PROCESSES = 1024
#: Quota of processor time of a container, of version 2 of control groups: microseconds of each period, or `max`.
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def parse_processes(context: click.Context, option: click.Parameter, text: str | None) -> int | str | None:
    """Parse `--processes`: a number, or `auto`."""
    if text is None or text == AUTO:
        return text
    if not text.isdecimal() or not 1 <= int(text) <= MOST_PROCESSES:
        raise click.BadParameter(f"{text!r}: give a number from 1 to {MOST_PROCESSES}, or auto")
    return int(text)


def usable_processors(quota: Path = _QUOTA) -> int:
    """Return the number of processors that this process may use, by its affinity and the quota of its container."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text(encoding="ascii").split()
        return max(1, min(count, math.ceil(int(allowed) / int(period))))
    except (OSError, ValueError):
        return count


class Shares(Struct, frozen=True, kw_only=True):
    """Options of the command that its processes share."""

    slots: int
    #: Processes for steps; None: as many as processors.
    step_processes: int | None
    #: First part of the ids of the workers.
    worker_id: str

    def check(self, processes: int) -> None:
        """Raise `UsageError` unless each process gets a slot."""
        if self.slots < processes:
            raise UsageError(f"slots={self.slots}: {processes} processes share the slots; give at least one for each")

    def of(self, number: int, processes: int) -> Share:
        """Return the share of a process, counted from 1. The first ones get what is left over."""
        return Share(
            slots=_part(number, processes, self.slots),
            step_processes=max(1, _part(number, processes, self.step_processes or usable_processors())),
            processes=processes,
            worker_id=f"{self.worker_id}-{number}",
        )


def _part(number: int, processes: int, whole: int) -> int:
    return whole // processes + (number <= whole % processes)
