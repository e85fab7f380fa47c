"""What a worker may be told."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from perdure.core.ids import check_name
from perdure.core.model.run import DEFAULT_QUEUE
from perdure.core.option_checks import check_duration, check_retry, check_time, check_whole
from perdure.core.policy.retention import Retention
from perdure.core.policy.retry import Retry
from perdure.core.routing import check_patterns
from perdure.core.time.duration import Duration, seconds
from perdure.errors import UsageError


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """A worker's settings, durations in seconds."""

    #: Runs worked on at the same time. Runs that wait take none.
    slots: int = 500
    queues: tuple[str, ...] = (DEFAULT_QUEUE,)
    #: Patterns of the types that it takes; None: all that it has code for.
    types: tuple[str, ...] | None = None
    #: Without a heartbeat for this long, a worker is declared dead and its runs go to others.
    lease: float = 15.0
    #: How long steps may go on after a shutdown was asked for.
    grace: float = 10.0
    #: For steps that declare none.
    retry: Retry = Retry()
    #: Waiting runs kept in memory, so that they go on without replay.
    resident: int = 2000
    #: Claims without progress after which a run is set aside.
    poison_after: int = 5
    #: Waits shorter than this are sat out instead of given back to the database.
    linger: float = 0.1
    #: For how long others leave a run that has just become ready to the worker that last had it.
    affinity: float = 0.02
    #: Threads that steps have abandoned (a timeout, a cancellation) after which no more runs are claimed.
    abandoned_threads: int = 50
    #: Processes for steps that want one of their own; None: as many as there are processors.
    processes: int | None = None
    #: Ancestors that a run may have, and children that it may have under way.
    child_depth: int = 100
    open_children: int = 10_000
    #: A loop blocked for this long stops the heartbeat.
    stall_limit: float = 60.0
    #: How long runs are kept that are over.
    retention: Retention | None = None
    #: How long it waits for a database server that cannot be reached when it starts.
    wait_for_database: float = 300.0
    #: Whether it looks for runs by itself; otherwise it takes only those that it is told to.
    claims: bool = True

    @classmethod
    def of(
        cls,
        *,
        slots: int = 500,
        queues: tuple[str, ...] | list[str] = (DEFAULT_QUEUE,),
        types: str | Iterable[str] | None = None,
        lease: Duration = 15.0,
        grace: Duration = 10.0,
        retry: Retry | int | None = None,
        resident: int = 2000,
        poison_after: int = 5,
        stall_limit: Duration = 60.0,
        child_depth: int = 100,
        open_children: int = 10_000,
        processes: int | None = None,
        retention: Retention | None = None,
        wait_for_database: Duration = 300.0,
        claims: bool = True,
    ) -> WorkerOptions:
        """Validated settings, from what a user writes."""
        if not queues:
            raise UsageError("a worker needs at least one queue")
        if check_duration("lease", lease) < 0.1:
            raise UsageError(f"a lease of {lease!r} is too short to be renewed in time; give at least 0.1 s")
        policy, stall = check_retry(retry), check_time("stall_limit", stall_limit)
        return cls(
            slots=check_whole("slots", slots, 1),
            queues=tuple(check_name(queue, "queue") for queue in queues),
            types=check_patterns(types),
            lease=seconds(lease),
            grace=check_duration("grace", grace),
            retry=Retry() if policy is None else policy,
            resident=check_whole("resident", resident, 0),
            poison_after=check_whole("poison_after", poison_after, 1),
            stall_limit=60.0 if stall is None else stall,
            child_depth=check_whole("child_depth", child_depth, 1),
            open_children=check_whole("open_children", open_children, 1),
            processes=None if processes is None else check_whole("processes", processes, 1),
            retention=retention,
            wait_for_database=check_duration("wait_for_database", wait_for_database),
            claims=claims,
        )
