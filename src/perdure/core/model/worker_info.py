"""Workers, as stored, and the result of a sweep."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


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


class SweepResult(Struct, frozen=True, kw_only=True):
    """Result of a sweep: dead workers, and the runs that were released or expired."""

    dead_workers: tuple[str, ...]
    released: int
    expired: int
    #: More than one batch was due; sweep again soon.
    more: bool
    #: Names of singletons whose next run may start.
    successions: tuple[str, ...] = ()
