"""Workers, as stored, and the result of a sweep."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.model.visibility import NO_STEPS, RunningSteps

#: Share of its lease after which a heartbeat is missing. One is sent about every third of it.
_LATE = 0.4


class WorkerStatus(StrEnum):
    """Status of a worker."""

    ALIVE = "alive"
    STOPPED = "stopped"
    DEAD = "dead"


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A worker, as stored. Each start of a worker has a new `id`."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    types: tuple[str, ...]
    slots: int
    #: Duration of its leases, in microseconds.
    lease: int
    started_at: int = 0  # equivalent: constant: the store writes the database's time and reads it back
    heartbeat_at: int = 0
    status: WorkerStatus = WorkerStatus.ALIVE
    #: Number of errors of its background loops; `problem` is the latest error, or a lasting problem.
    errors: int = 0
    problem: str = ""
    #: Steps and activities that had been under way for a while at its last heartbeat.
    running: RunningSteps = NO_STEPS
    #: Time of the database when this was read.
    read_at: int = 0

    def is_late(self, now: int) -> bool:
        """True if a heartbeat is missing."""
        return now - self.heartbeat_at >= self.lease * _LATE

    @property
    def silence(self) -> float:
        """Seconds since its last heartbeat."""
        return max(0, self.read_at - self.heartbeat_at) / 1e6

    @property
    def taken_over_in(self) -> float | None:
        """Seconds until others take its runs unless it is heard of; None if no heartbeat is missing, or it stopped."""
        if self.status is not WorkerStatus.ALIVE or not self.is_late(self.read_at):
            return None
        return max(0, self.heartbeat_at + self.lease - self.read_at) / 1e6


class SweepResult(Struct, frozen=True, kw_only=True):
    """Result of a sweep: dead workers, and the runs that were released or expired."""

    dead_workers: tuple[str, ...]
    released: int
    expired: int
    #: More than one batch was due; sweep again soon.
    more: bool
    #: Names of singletons whose next run may start.
    successions: tuple[str, ...] = ()
