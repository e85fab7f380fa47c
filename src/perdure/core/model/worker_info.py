"""The workers, as the database has them, and what looking after them came to."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class WorkerStatus(StrEnum):
    """Where a worker stands."""

    ALIVE = "alive"
    STOPPED = "stopped"
    DEAD = "dead"


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A worker's one row. `id` is new for every life of a worker."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    types: tuple[str, ...]
    slots: int
    #: In microseconds.
    lease: int
    started_at: int = 0  # equivalent: constant: the store writes the database's time and reads it back
    heartbeat_at: int = 0
    status: WorkerStatus = WorkerStatus.ALIVE
    #: Errors that its background loops have met and survived, and the latest, or what is wrong with it for good.
    errors: int = 0
    problem: str = ""


class SweepResult(Struct, frozen=True, kw_only=True):
    """What a sweep did."""

    dead_workers: tuple[str, ...]
    released: int
    expired: int
    #: There was more than one batch's worth; sweep again soon.
    more: bool
    #: Singletons whose next run may begin, and which nobody has looked after yet.
    successions: tuple[str, ...] = ()
