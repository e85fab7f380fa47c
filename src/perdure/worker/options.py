"""Options of a worker: what users may give, and the checked values that a worker works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from msgspec import Struct

from perdure.core.ids import check_name
from perdure.core.model.run import DEFAULT_QUEUE
from perdure.core.option_checks import (
    check_duration,
    check_flag,
    check_list,
    check_retry,
    check_time,
    check_whole,
    no_option,
)
from perdure.core.policy.broken_code import BROKEN_CODE, check_block_on
from perdure.core.policy.poll_backoff import PollBackoff, PollBackoffOptions, check_poll_backoff
from perdure.core.policy.retention import Retention
from perdure.core.policy.retry import Retry
from perdure.core.printed_text import brief
from perdure.core.routing import check_patterns
from perdure.core.run_log import MOST_LINES
from perdure.core.time.duration import Duration
from perdure.errors import BadArguments, UsageError
from perdure.store.sql.packing import SEGMENT
from perdure.worker.workflow_guard import IoGuard

#: A shorter lease could not be renewed in time, in seconds.
SHORTEST_LEASE = 0.1
#: More frequent polls would only cost the database, in seconds.
SHORTEST_POLL = 0.001


class WorkerOptions(TypedDict, total=False):
    """Options of `Engine.worker`, as users give them. `WorkerSettings` has the defaults."""

    #: Runs that the worker executes at the same time. Waiting runs take no slot.
    slots: int
    #: One queue, or several.
    queues: str | Sequence[str]
    #: Patterns of the types that the worker takes, such as `["billing.%"]`; None: all that it has code for.
    types: str | Sequence[str] | None
    #: Patterns of the types that workers of other runtimes may claim, too; other types belong to one runtime.
    shared: str | Sequence[str] | None
    #: Without a heartbeat for this long, the worker is declared dead and its runs go to others.
    lease: Duration
    #: How long steps may go on after a shutdown was asked for.
    grace: Duration
    #: Retry policy of steps that declare none.
    retry: Retry | int | None
    #: Waiting runs that stay in memory, so that they go on without replay.
    resident: int
    #: Claims without progress after which a run is blocked as poison.
    poison_after: int
    #: An event loop that is blocked for this long stops the heartbeat.
    stall_limit: Duration
    #: A workflow or an async step that blocks the event loop for longer is logged with its stack; 0: never.
    warn_blocked: Duration
    #: Ancestors that a run may have.
    child_depth: int
    #: Children that a run may have under way.
    open_children: int
    #: Processes for steps with `process=True`; None: one for each processor.
    step_processes: int | None
    #: Classes of errors of a workflow's own code that block its run, for workflows that do not say; `()`: none.
    block_on: Sequence[type[Exception]]
    #: How long the worker waits at its start for a database server that cannot be reached.
    wait_for_database: Duration
    #: Whether I/O in workflow code is warned of.
    watch_io: bool
    #: First part of the worker's id, which goes on with a random part; None: the id is random.
    worker_id: str | None
    #: Longest pause between two polls of a worker that cannot rely on notifications; None: as suits the database.
    poll_interval: Duration | None
    #: How the pause between two polls changes: `first`, `shortest`, `longest`, `idle`, `busy`.
    poll_backoff: PollBackoffOptions
    #: Number of records of a long history that share a row, except the newest ones; 0: each record is a row.
    pack_history: int
    #: Number of log lines that each run keeps, the latest ones; 0: none.
    keep_log: int


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """Settings of a worker: checked options, durations in seconds. `WorkerOptions` says what most of them mean."""

    slots: int = 500
    queues: tuple[str, ...] = (DEFAULT_QUEUE,)
    types: tuple[str, ...] | None = None
    shared: tuple[str, ...] = ()
    lease: float = 15.0
    grace: float = 10.0
    retry: Retry = Retry()
    resident: int = 2000
    poison_after: int = 5
    stall_limit: float = 60.0
    warn_blocked: float = 0.1
    child_depth: int = 100
    open_children: int = 10_000
    step_processes: int | None = None
    wait_for_database: float = 300.0
    watch_io: bool = True
    worker_id: str | None = None
    poll_interval: float | None = None
    poll_backoff: PollBackoff = PollBackoff()
    pack_history: int = SEGMENT
    keep_log: int = 0
    #: Watches workflow code in place of the guard that warns.
    guard: IoGuard | None = None
    block_on: tuple[type[Exception], ...] = BROKEN_CODE
    #: Waits shorter than this keep their slot instead of being written to the database.
    linger: float = 0.1
    #: How long other workers leave a run that has just become ready to the worker that had it last.
    affinity: float = 0.02
    #: Threads abandoned by steps (a timeout, a cancellation) after which the worker claims no more runs.
    abandoned_threads: int = 50
    #: How long finished runs are kept.
    retention: Retention | None = None
    #: Whether the worker looks for runs by itself; otherwise it takes only those that it is told to.
    claims: bool = True

    @classmethod
    def of(
        cls, *, retention: Retention | None = None, claims: bool = True, **options: Unpack[WorkerOptions]
    ) -> WorkerSettings:
        """Check the options of a user. Raises `UsageError`, which names the option."""
        if unknown := options.keys() - _CHECKS.keys():
            raise BadArguments(no_option("a worker", unknown, _CHECKS))
        given: Mapping[str, Any] = options
        checked = {name: check(given[name]) for name, check in _CHECKS.items() if name in given}
        # None is the default.
        return cls(
            retention=retention, claims=claims, **{k: value for k, value in checked.items() if value is not None}
        )


def _queues(queues: str | Sequence[str]) -> tuple[str, ...]:
    given = (queues,) if isinstance(queues, str) else check_list("queues", queues, "['default']")
    if not given:
        raise UsageError("a worker needs at least one queue")
    return tuple(check_name(queue, "queue") for queue in given)


def _lease(lease: Duration) -> float:
    checked = check_duration("lease", lease)
    if checked < SHORTEST_LEASE:
        raise UsageError(
            f"a lease of {brief(lease)} is too short to be renewed in time; give at least {SHORTEST_LEASE} s"
        )
    return checked


#: Longest id that a user may give: a random part follows.
LONGEST_ID = 100


def _worker_id(given: str | None) -> str | None:
    if given is None:
        return None
    checked = check_name(given, "worker_id")
    if len(checked) > LONGEST_ID:
        raise UsageError(f"worker_id={brief(given)}: give at most {LONGEST_ID} characters")
    return checked


def _poll_interval(given: Duration | None) -> float | None:
    if given is None:
        return None
    checked = check_duration("poll_interval", given)
    if checked < SHORTEST_POLL:
        raise UsageError(f"poll_interval={brief(given)}: give at least {SHORTEST_POLL} s, or leave it out")
    return checked


def _pack_history(given: object) -> int:
    checked = check_whole("pack_history", given, 0)
    if checked == 1 or checked > SEGMENT:
        raise UsageError(f"pack_history={brief(given)}: give 2 to {SEGMENT}, or 0 to leave histories as they are")
    return checked


def _keep_log(given: object) -> int:
    checked = check_whole("keep_log", given, 0)
    if checked > MOST_LINES:
        raise UsageError(f"keep_log={brief(given)}: a run keeps at most {MOST_LINES} lines")
    return checked


def _whole(name: str, least: int) -> Callable[[object], int]:
    return lambda value: check_whole(name, value, least)


#: One check for each option of `WorkerOptions`.
_CHECKS: dict[str, Callable[[Any], Any]] = {
    "slots": _whole("slots", 1),
    "queues": _queues,
    "types": check_patterns,
    "shared": lambda value: () if value in ((), []) else check_patterns(value, "shared"),
    "lease": _lease,
    "grace": lambda value: check_duration("grace", value),
    "retry": check_retry,
    "resident": _whole("resident", 0),
    "poison_after": _whole("poison_after", 1),
    "stall_limit": lambda value: check_time("stall_limit", value),
    "warn_blocked": lambda value: check_duration("warn_blocked", value),
    "child_depth": _whole("child_depth", 1),
    "open_children": _whole("open_children", 1),
    "step_processes": lambda value: None if value is None else check_whole("step_processes", value, 1),
    "watch_io": lambda value: check_flag("watch_io", value),
    "block_on": check_block_on,
    "wait_for_database": lambda value: check_duration("wait_for_database", value),
    "worker_id": _worker_id,
    "poll_interval": _poll_interval,
    "poll_backoff": check_poll_backoff,
    "pack_history": _pack_history,
    "keep_log": _keep_log,
}
