"""Workers, as stored, with the steps that they execute and orders to drain, and the result of a sweep.

Nothing but inspection reads the steps. They are bounded, and a cell that cannot be read counts as empty.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from enum import IntEnum, StrEnum

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.model.run import Run, RunGroup, Status
from perdure.core.pinning import pinned_build

#: Share of its lease after which a heartbeat is missing. One is sent about every third of it.
_LATE = 0.4
#: Steps of a worker that are named; the others are counted.
NAMED_STEPS = 100
#: Characters of the cell that names them. Long names leave room for fewer of them.
_STEPS_CHARACTERS = 32_000


class RunningStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt at a step or an activity that has been under way for a while."""

    run_id: str
    type: str
    #: Location of the step; the type of an activity.
    location: str
    attempt: int
    #: Time of its start, in microseconds since the epoch.
    since: int
    #: Token of the lease under which it runs.
    token: int
    #: Time of the last heartbeat that an activity sent; 0: none.
    heartbeat_at: int = 0


class RunningSteps(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Attempts that a worker has had under way for a while at its last heartbeat, oldest first."""

    steps: tuple[RunningStep, ...] = ()
    #: Number of attempts that are not named.
    more: int = 0
    #: 99th percentile of the worker's latest commits, in microseconds, of one commit for each heartbeat; 0: unknown.
    commit_p99: int = 0


NO_STEPS = RunningSteps()

_steps_decoder = decoder_for(RunningSteps)


class DrainOrder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Order to a worker: claim no more runs, let steps finish, stop."""

    #: Random; tells a repeated order from a second one.
    key: str
    #: Time and author of the order.
    at: int = 0
    actor: str = ""
    #: Reason, for people.
    reason: str = ""
    #: Seconds for which steps may go on; None: the worker's own grace period.
    grace: float | None = None


_drain_decoder = decoder_for(DrainOrder)

#: Prefix of the audit trail's run id for events of a worker.
TRAIL = "worker:"


class HeartbeatResult(IntEnum):
    """Answer to a heartbeat. Only LOST is false."""

    #: The worker was declared dead, or never registered.
    LOST = 0
    RENEWED = 1
    #: Renewed, and the worker is ordered to drain.
    DRAIN = 2


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
    #: Build of its code.
    build: str = ""
    #: Order to drain; None if there is none.
    drain: DrainOrder | None = None
    #: Time of the database when this was read.
    read_at: int = 0

    def is_late(self, now: int) -> bool:
        """True if a heartbeat is missing."""
        return now - self.heartbeat_at >= self.lease * _LATE

    @property
    def is_draining(self) -> bool:
        """True if it is alive and ordered to drain."""
        return self.status is WorkerStatus.ALIVE and self.drain is not None

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


def living_workers(workers: Sequence[WorkerInfo], now: int) -> list[WorkerInfo]:
    """Return the workers whose lease has not ended."""
    return [w for w in workers if w.status is WorkerStatus.ALIVE and w.heartbeat_at + w.lease >= now]


def workers_for(run: Run, alive: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Return the workers that serve the type and the queue of a run."""
    return [w for w in alive if run.type in w.types and run.queue in w.queues]


class BuildInfo(Struct, frozen=True, kw_only=True):
    """A build of the application: its live workers, and the unfinished runs that it began."""

    #: Empty: that of workers without a build.
    build: str
    #: Live workers, and those of them that drain.
    workers: int
    draining: int
    #: Unfinished runs that it began, and those of them that only its workers continue.
    runs: RunGroup
    pinned: RunGroup
    #: Start of its latest worker that is known, in microseconds since the epoch; 0: none is.
    started_at: int


def list_builds(
    workers: Sequence[WorkerInfo], begun: Sequence[RunGroup], queues: Sequence[RunGroup]
) -> list[BuildInfo]:
    """Combine workers with counts of unfinished runs by build and by queue; builds without either are left out.

    Workers without a build are those of the build "". Its runs include those that no worker has begun, so runs alone do
    not list it.
    """
    runs = {str(one.value): one for one in begun}
    exact = all(one.exact for one in (*begun, *queues))
    pinned: dict[str, int] = {}
    for one in queues:
        if build := pinned_build(str(one.value)):
            pinned[build] = pinned.get(build, 0) + one.count
    alive = [worker for worker in workers if worker.status is WorkerStatus.ALIVE]
    found = [
        BuildInfo(
            build=build,
            workers=sum(worker.build == build for worker in alive),
            draining=sum(worker.build == build and worker.is_draining for worker in alive),
            runs=runs.get(build, RunGroup(build, 0, exact)),
            pinned=RunGroup(build, pinned.get(build, 0), exact),
            started_at=max((worker.started_at for worker in workers if worker.build == build), default=0),
        )
        for build in ({*runs, *pinned} - {""}) | {worker.build for worker in alive}
    ]
    return sorted(found, key=lambda one: (-one.started_at, one.build))


def is_unserved(run: Run, workers: Sequence[WorkerInfo], elsewhere: Container[str], now: int) -> bool:
    """Return whether a run is ready and no live worker takes it. `elsewhere`: types of workers in other languages.

    Workers in other languages send no heartbeat and count as live.
    """
    ready = run.status is Status.PENDING and run.type not in elsewhere
    return ready and not workers_for(run, living_workers(workers, now))


class SweepResult(Struct, frozen=True, kw_only=True):
    """Result of a sweep: dead workers, and the runs that were released or expired."""

    dead_workers: tuple[str, ...]
    released: int
    expired: int
    #: More than one batch was due; sweep again soon.
    more: bool
    #: Names of singletons whose next run may start.
    successions: tuple[str, ...] = ()
    #: Microseconds until the next lease of a living worker ends, unless its heartbeat renews it; None: there is none.
    lease_ends_in: int | None = None


def steps_to_json(steps: Sequence[RunningStep], commit_p99: int = 0) -> str | None:
    """Encode the oldest steps, as many as there is room for, and the time of commits; None if there is nothing."""
    if not steps and not commit_p99:
        return None
    named = tuple(sorted(steps, key=lambda step: (step.since, step.run_id, step.location))[:NAMED_STEPS])
    while True:
        found = RunningSteps(steps=named, more=len(steps) - len(named), commit_p99=commit_p99)
        text = msgspec.json.encode(found).decode()
        if len(text) <= _STEPS_CHARACTERS or not named:
            return text
        named = named[: len(named) // 2]


def steps_from_json(text: str | None) -> RunningSteps:
    """Decode a cell; nothing if it is empty or cannot be read."""
    try:
        return _steps_decoder.decode(text) if text else NO_STEPS
    except msgspec.MsgspecError:
        return NO_STEPS


def drain_from_json(text: str | None) -> DrainOrder | None:
    """Decode the order of a row; an order that cannot be read counts as one, because a person gave it."""
    if not text:
        return None
    try:
        return _drain_decoder.decode(text)
    except msgspec.MsgspecError:
        return DrainOrder(key="", reason="its order cannot be read")
