"""Types of the blocking client. Generated from the async client by `python -m tests.typing.blocking_stub`; do not edit."""

import builtins
import datetime
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from perdure.client.audit import EventOptions
from perdure.client.dead_letters import BulkResult, DeadOptions
from perdure.client.engine import Engine as AsyncEngine
from perdure.client.outputs import StreamItem
from perdure.client.reopen import ForkOptions, RetryOptions
from perdure.client.runs import PruneReport
from perdure.client.schedules import ScheduleOptions
from perdure.client.session import (
    DATABASE_TIMEOUT,
)
from perdure.client.start import Moment, StartOptions
from perdure.core.audit import Audit, Event, EventPage
from perdure.core.codec.failure import Failure
from perdure.core.hooks import DeadLetterNotice, ErrorNotice
from perdure.core.limits.breaker import BreakerInfo
from perdure.core.limits.limit import LimitInfo
from perdure.core.model.claim import ExecutionResult
from perdure.core.model.dead_letter import DeadLetter, DeadLetterPage
from perdure.core.model.deploy_report import DeployReport
from perdure.core.model.lock import LockInfo
from perdure.core.model.orders import Pause
from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Message, Record
from perdure.core.model.run import DEFAULT_QUEUE, Run, RunPage, Status
from perdure.core.model.run_report import RunReport
from perdure.core.model.worker_info import WorkerInfo
from perdure.core.policy.retention import Retention
from perdure.core.policy.retry import Retry
from perdure.core.policy.singleton import Singleton
from perdure.core.policy.watermark import Watermark
from perdure.core.routing import TypeInfo
from perdure.core.system import System
from perdure.core.time.cron import Timing
from perdure.core.time.duration import Duration
from perdure.core.time.schedule import Schedule
from perdure.store.contract import Store
from perdure.worker import WorkerSettings
from perdure.workflow.channels import Channel, Question
from perdure.workflow.definition import Call, Definition
from perdure.workflow.discover import Definable

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")

class Engine:
    """`Engine` whose methods block."""
    @property
    def url(self) -> str: ...
    @property
    def workflows(self) -> dict[str, Definition[Any, Any]]: ...
    def __init__(
        self,
        url: str,
        workflows: Iterable[Definable] = (),
        *,
        errors: Iterable[type[Exception]] = (),
        migrate: bool = True,
        payload_warn: int = 256 * 1024,
        payload_limit: int = 1024 * 1024,
        retention: Retention | Duration | None = None,
        audit: str | None = None,
        on_error: Callable[[ErrorNotice], Awaitable[object] | object] | None = None,
        on_dead_letter: Callable[[DeadLetterNotice], Awaitable[object] | object] | None = None,
        on_event: Callable[[Event], Awaitable[object] | object] | None = None,
        watermarks: Iterable[Watermark] = (),
        database_timeout: Duration = DATABASE_TIMEOUT,
        system: System | None = None,
        store: Store | None = None,
    ) -> None:
        """Name a database by its `url`, such as `sqlite:///app.db`; `sqlite://` lives in memory. It connects on first use.

        `errors` are exception classes that come back as themselves although no registered module defines them. `retention` is
        how long finished runs are kept, such as `"30d"`, before workers delete them; by default they stay. `audit` is how much of
        the audit trail this engine and its workers write: `full`, `lifecycle` (the default) or `off`. Workers call `on_error`,
        `on_dead_letter` and `on_event` after the commit, best effort, with errors and events. `watermarks`: once this many runs
        are queued, `start` is refused or waits. `database_timeout` is how long a call waits for a server that cannot be reached
        before it raises `StoreUnavailable`; workers wait for as long as it takes. `system` and `store` replace the real world and
        the database named by the URL; they are for tests.
        """
    def open(self) -> None:
        """Connect now instead of at the first use."""
    def close(self) -> None:
        """Stop the workers in order and disconnect."""
    @property
    def runs(self) -> Runs:
        """List, explain, pause, retry, delete and prune runs."""
    @property
    def schedules(self) -> Schedules:
        """Start runs by the clock."""
    @property
    def limits(self) -> Limits:
        """List limits of concurrency and rate, and change them at run time."""
    @property
    def breakers(self) -> Breakers:
        """List, open, close and reset circuit breakers."""
    @property
    def locks(self) -> Locks:
        """Acquire and list named locks."""
    @property
    def dead_letters(self) -> DeadLetters:
        """List, retry, discard and prune runs that failed for good."""
    @property
    def audit(self) -> AuditTrail:
        """List, follow and prune the audit trail, and set how much of it is written."""
    @property
    def workers(self) -> Workers:
        """List the workers of all processes."""
    @property
    def queues(self) -> Queues:
        """Pause and resume whole queues and types, and list registered types."""
    @property
    def watermarks(self) -> Watermarks:
        """Bound the number of queued runs, beyond which starts are refused or wait."""
    def lock(
        self, name: str, ttl: Duration = "5m", *, wait: Duration | None = None, owner: str | None = None
    ) -> HeldLock:
        """Hold a named lock for as long as a block lasts: `async with engine.lock("nightly-import") as lock: ...`.

        It is extended automatically, so that `ttl` is how long it outlives a process that dies. Waits for it, at most for `wait`,
        then raises `Locked`. If it is lost while the block goes on, the block is cancelled and `LockLost` raised.
        """
    def worker(self, **options: Unpack[WorkerSettings]) -> EngineWorker:
        """Make a worker for the engine's workflows: `async with engine.worker(): ...`, or `await engine.worker().run()`.

        `types` restricts it to some types, by patterns such as `["billing.%", "shop.checkout.v1"]`: a type, or the beginning of
        one followed by `%`. When it starts, it waits for a server that cannot be reached, at most for `wait_for_database`.
        """
    def check(self, *, types: Sequence[str] | None = None, limit: int | None = None) -> DeployReport:
        """Replay the history of every unfinished run, or of those of some types, against this code. Nothing is written.

        The gate before a deploy: it names the runs that would diverge, where, and how to fix that. `limit` bounds the number of
        runs, newest first.
        """
    def start(self, call: Call[R], *, connection: object = None, **options: Unpack[StartOptions]) -> Handle[R]:
        """Start a run. The same id, or idempotency key, with the same input gives the existing run.

        On a `connection` of yours (asyncpg, psycopg, SQLAlchemy, Django…) the run is written in the transaction that is open
        there: it exists once you commit, and never if you roll back.

        With a `singleton`, at most one run of its key is unfinished: another start raises `SingletonBusy`, gives the existing run,
        replaces it or waits for it, by its policy. With a `debounce`, several starts are one run, some time after the last.

        Raises `RunExists` if the id exists with another input or type, `Overloaded` if a watermark is reached, and `EncodeError`,
        `InvalidId`… before anything is written.
        """
    def start_many(
        self,
        calls: Sequence[Call[R]],
        *,
        ids: Sequence[str] | None = None,
        at: Moment | None = None,
        priority: int | None = None,
        queue: str | None = None,
        deadline: Moment | None = None,
        singleton: Singleton | None = None,
        connection: object = None,
    ) -> list[Handle[R]]:
        """Start many runs in one transaction, all or none. On a `connection` of yours, in the transaction that is open there."""
    @overload
    def get(self, run_id: str, workflow: None = None) -> Handle[Any]: ...
    @overload
    def get(self, run_id: str, workflow: Definition[..., R]) -> Handle[R]: ...
    @overload
    def send(
        self, run_id: str, name: Channel[T], value: T, *, key: str | None = None, connection: object = None
    ) -> None: ...
    @overload
    def send(
        self, run_id: str, name: str, value: object = None, *, key: str | None = None, connection: object = None
    ) -> None: ...
    @overload
    def broadcast(self, name: Channel[T], value: T, *, correlation: str, key: str | None = None) -> int: ...
    @overload
    def broadcast(self, name: str, value: object = None, *, correlation: str, key: str | None = None) -> int: ...
    def cancel(self, run_id: str, reason: str = "") -> bool:
        """Ask a run to stop: its workflow gets a `CancelledError` and may clean up. False if it had finished already."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Handle(Generic[R_co]):
    """`Handle` whose methods block."""
    @property
    def id(self) -> str: ...
    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the end and return the result. Raises `RunFailed`, `RunCancelled`, or `TimeoutError` after `timeout`."""
    def run(self) -> Run:
        """Read its row. Raises `RunNotFound`."""
    def status(self) -> Status:
        """Read its status."""
    def history(self) -> builtins.list[Record]:
        """Read its recorded operations, in order."""
    def inbox(self) -> builtins.list[Message]:
        """Read the messages that were sent to it and that it has not received yet, in order."""
    def events(self) -> builtins.list[Event]:
        """Read its audit trail."""
    def report(self) -> RunReport:
        """Summarize its attempts, steps, durations and errors."""
    def interruptions(self) -> tuple[Interruption, ...]:
        """Read the attempts that ended without an outcome because their worker was lost or stopped, in order."""
    def why(self) -> str:
        """Say in a sentence why it is where it is."""
    @overload
    def send(self, name: Channel[T], value: T, *, key: str | None = None, connection: object = None) -> None: ...
    @overload
    def send(self, name: str, value: object = None, *, key: str | None = None, connection: object = None) -> None: ...
    @overload
    def ask(
        self, question: Question[Q, A], value: Q, *, key: str | None = None, timeout: Duration | None = None
    ) -> A: ...
    @overload
    def ask(
        self,
        question: str,
        value: object = None,
        *,
        returns: type[T],
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> T: ...
    @overload
    def ask(
        self,
        question: str,
        value: object = None,
        *,
        returns: Any = ...,
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> Any: ...
    @overload
    def state(self, key: str, type: type[T], *, default: T) -> T: ...
    @overload
    def state(self, key: str, type: type[T]) -> T | None: ...
    @overload
    def state(self, key: str, type: Any = ..., *, default: Any = ...) -> Any: ...
    def states(self) -> dict[str, Any]:
        """Read everything that it has published, by key."""
    @overload
    def stream(
        self, name: str, type: type[T], *, after: int | None = None, follow: bool = True
    ) -> Generator[StreamItem[T]]: ...
    @overload
    def stream(
        self, name: str, type: Any = ..., *, after: int | None = None, follow: bool = True
    ) -> Generator[StreamItem[Any]]: ...
    def cancel(self, reason: str = "") -> bool:
        """Ask it to stop: its workflow gets a `CancelledError` and may clean up. False if it had finished already."""
    def pause(self, reason: str = "") -> bool:
        """Pause it once the steps that are under way have ended; False if it is paused already or has finished."""
    def resume(self) -> bool:
        """End its pause; False if it is not paused."""
    def evict(self) -> bool:
        """Make the worker that holds it give it back, for another to take; False if no worker held it."""
    def wake(self, at: Moment | None = None) -> None:
        """End its sleep at another time, by default now. Raises `UsageError` if it is not asleep."""
    def retry(self, **changes: Unpack[RetryOptions]) -> int:
        """Let it go again, as its status allows, and return its generation. `Runs.retry` says what happens in each status.

        Each generation has its own outcome: a parent that was told of a failure is not told again. A run past its deadline needs
        another one. Raises `RunFinished` if it completed, and `UsageError` if there is nothing to retry.
        """
    def delete(self, reason: str = "", *, purge: bool = False) -> bool:
        """Hide it from listings once it has finished, or with `purge` delete it for good; False if it was hidden already."""
    def undelete(self) -> bool:
        """Bring it back; False if it was not deleted."""
    def fork(self, **options: Unpack[ForkOptions]) -> Handle[R_co]:
        """Start a new run that goes on from a step of this one: `fork(from_step="charge#2", results={"quote": 7})`.

        It has the input and, up to that step, the history of this run, with other arguments or results where they are given. No
        earlier step is executed again. Raises `UsageError` before anything is written.
        """

class Workers:
    """`Workers` whose methods block."""
    def list(self) -> builtins.list[WorkerInfo]:
        """List the workers of the fleet, dead ones included until they are forgotten."""

class EngineWorker:
    """`EngineWorker` whose methods block."""
    @property
    def id(self) -> str:
        """Id of the worker's current life; empty before it has started."""
    @property
    def errors(self) -> Mapping[str, int]:
        """Number of errors that each background loop has met and survived. The log has them all."""
    @property
    def problem(self) -> str:
        """Reason why the worker does not work, such as that it drains; empty if it works."""
    def start(self) -> None:
        """Begin to work."""
    def stop(self, grace: Duration | None = None) -> None:
        """Stop claiming, let steps finish for the grace period, give back the rest."""
    def run(self) -> None:
        """Work until SIGTERM, SIGINT or cancellation, then stop in order. A second signal stops at once."""
    def connect(self) -> None:
        """Connect to the database, waiting for a server that cannot be reached. Raises `StoreUnavailable`.

        A server that refuses the user or the database is not waited for: `StoreRefused` is raised at once. `start` and `run`
        connect by themselves.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Pusher:
    """`Pusher` whose methods block."""
    def __init__(
        self,
        engine: Engine,
        *,
        lease: Duration = 15.0,
        grace: Duration = 10.0,
        retry: Retry | int | None = None,
        resident: int = 100,
    ) -> None:
        """The options are those of `Engine.worker`."""
    @property
    def id(self) -> str:
        """Id of the current life of the worker that signed on last; empty before the first."""
    def start(self) -> None:
        """Sign on. A second call does nothing."""
    def stop(self, grace: Duration | None = None) -> None:
        """Let executions under way finish for the grace period, give back the rest and sign off."""
    def execute(
        self, run_id: str, *, timeout: Duration | None = None, credentials: Mapping[str, Any] | None = None
    ) -> ExecutionResult:
        """Work on one run, here and now, until it waits or ends, or the time is up; then give it back.

        A run that is finished, waits or is held by another worker is left alone, and the answer says when to try again. Steps and
        activities read the `credentials` with `perdure.credentials()`; they are never stored.

        Raises `RunNotFound`, and `UnknownWorkflow` for a run whose code is not this engine's.
        """
    def fail(self, run_id: str, failure: Failure, limit: str = "") -> Run | None:
        """Fail a run that is ready; return the run as it is if that is not possible. `limit` names the time limit it passed.

        Raises `RunNotFound` and `UnknownWorkflow`, as `execute` does.
        """
    def due(self, *, limit: int = 100, queues: str | Sequence[str] = (DEFAULT_QUEUE,)) -> builtins.list[str]:
        """Return the ids of runs that could be worked on now, longest waiting first.

        Call it now and then from a timer. It also gives back the runs of dead workers, fails runs past their deadline and fires
        schedules, as workers do, so that a fleet without workers goes on.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Lock:
    """`Lock` whose methods block."""
    @property
    def name(self) -> str:
        """Name of the lock."""
    @property
    def owner(self) -> str:
        """Name of the holder, as other processes see it."""
    @property
    def token(self) -> int:
        """Fencing token, larger than that of every earlier holder: a guarded resource can refuse smaller ones."""
    @property
    def expires_at(self) -> datetime.datetime:
        """Time until which the lock is held, unless it is extended."""
    @property
    def lost(self) -> bool:
        """True once the lock must not be relied on: it expired, was taken or released, or this process is a fork."""
    def extend(self, ttl: Duration | None = None) -> None:
        """Hold the lock for that long from now on; by default as long as it was acquired for. Raises `LockLost`."""
    def release(self) -> bool:
        """Release the lock; False if it was lost before."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Locks:
    """`Locks` whose methods block."""
    def acquire(self, name: str, ttl: Duration = "5m", *, wait: Duration | None = 0, owner: str | None = None) -> Lock:
        """Acquire a lock for `ttl`. Wait for it for `wait`, or with None as long as it takes, then raise `Locked`.

        It is not extended automatically: use `engine.lock` for that. `owner` is the holder's name that others see; host and
        process by default.
        """
    def list(self, *, limit: int = 100, after: str = "") -> builtins.list[LockInfo]:
        """List locks that are held, by name, beginning after a name."""
    def get(self, name: str) -> LockInfo | None:
        """Read one lock; None if it is free."""
    def force_release(self, name: str) -> bool:
        """Take a lock from its holder, which learns of it when it extends or releases the lock; False if it is free."""

class HeldLock:
    """`HeldLock` whose methods block."""
    def __enter__(self) -> Lock: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Runs:
    """`Runs` whose methods block."""
    def list(
        self,
        *,
        status: Status | Sequence[Status] | None = None,
        type: str | None = None,
        queue: str | None = None,
        parent: str | None = None,
        created_after: datetime.datetime | None = None,
        created_before: datetime.datetime | None = None,
        deleted: bool | None = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RunPage:
        """List runs, newest first, a page at a time. `deleted=True` lists deleted runs only, None those too."""
    def why(self, run_id: str) -> str:
        """Say in a sentence why a run is where it is."""
    def unserved(self, runs: Sequence[Run]) -> set[str]:
        """Return the ids of runs that are ready and that no live worker takes: none serves their type or their queue."""
    def pause(self, run_id: str, reason: str = "") -> bool:
        """Pause a run once the steps that are under way have ended; False if it is paused already or has finished.

        Messages and timers are kept for later. A cancellation, and its deadline, still end the run.
        """
    def resume(self, run_id: str) -> bool:
        """End the pause of a run; False if it is not paused."""
    def evict(self, run_id: str) -> bool:
        """Make the worker that holds a run give it back, for another to take; False if no worker held it.

        Steps that are under way may end first, for as long as that worker's grace lasts.
        """
    def wake(self, run_id: str, at: Moment | None = None) -> None:
        """End the sleep of a run at another time, by default now; or begin a run that was to begin later.

        Raises `RunNotFound`, `RunFinished`, and `UsageError` if it is not asleep.
        """
    def retry(self, run_id: str, **changes: Unpack[RetryOptions]) -> int:
        """Let a run go again, as its status allows, and return its generation.

        A failed or cancelled workflow goes on where it failed: successful steps stay, failed ones are done anew, as the next
        generation. A failed activity begins anew, with all its attempts. A blocked run is unblocked. A run that waits for its
        next attempt gets all its attempts anew, at once. `deadline`, `queue`, `priority` and the like change a run that ended or
        is a dead letter; `input` is for an activity, or for a run without a history.

        Raises `RunFinished` if it completed, and `UsageError` if there is nothing to retry.
        """
    def delete(self, run_id: str, reason: str = "", *, purge: bool = False) -> bool:
        """Hide a finished run from listings; `undelete` brings it back. False if it was hidden already.

        A dead letter that is blocked is cancelled by that. With `purge`, the run is deleted for good, with its history and its
        descendants, and its id is free again. Raises `RunNotFound`, and `UsageError` if it has not finished: cancel it first.
        """
    def undelete(self, run_id: str) -> bool:
        """Bring a deleted run back; False if it was not deleted. Raises `RunNotFound`."""
    def prune(
        self,
        older_than: Duration,
        *,
        status: str | Sequence[str] | None = None,
        types: str | Sequence[str] | None = None,
        deleted: bool = False,
    ) -> PruneReport:
        """Delete finished runs for good, with all that belongs to them, that ended longer ago than that.

        Their ids and keys are free again. With `deleted`, only runs that were deleted, and longer ago than that. Families go
        together: a run stays while a descendant is unfinished, or while its parent exists and has not completed. The deletion
        takes many small transactions, not one.
        """

class Schedules:
    """`Schedules` whose methods block."""
    def create(
        self, id: str, call: Call[Any], timing: Timing, *, replace: bool = False, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Run a call by the clock: `Cron(...)`, `Every(...)` or `At(...)`. An existing schedule that is the same stays as it is.

        Raises `ScheduleExists` if the id belongs to another schedule; with `replace`, that one is changed. Raises
        `InvalidSchedule` and the like before anything is written.
        """
    def change(
        self,
        id: str,
        *,
        call: Call[Any] | None = None,
        timing: Timing | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Change some properties of a schedule; runs that it has started are not affected. Raises `ScheduleNotFound`.

        With another timing, it goes on with the first fire time from now.
        """
    def pause(self, id: str, reason: str = "") -> bool:
        """Start no more runs; False if it is paused already. Fire times during the pause are skipped when it is resumed."""
    def resume(self, id: str, *, catch_up: bool = False) -> bool:
        """Start runs again; False if it is not paused. With `catch_up`, fire times during the pause count as missed."""
    def delete(self, id: str) -> None:
        """Delete a schedule; runs that it has started go on. Raises `ScheduleNotFound`."""
    def trigger(self, id: str) -> Handle[Any]:
        """Start a run now, regardless of timing, pause and overlap. Raises `ScheduleNotFound`, and `SingletonBusy`."""
    def backfill(self, id: str, start: datetime.datetime, end: datetime.datetime) -> builtins.list[str]:
        """Start the runs of all fire times from `start` on and before `end`, which is not in the future; their ids.

        Fire times that have run are not run again. All are started at once, regardless of the policies. An interrupted backfill
        may be repeated.
        """
    def get(self, id: str) -> Schedule:
        """Read one schedule. Raises `ScheduleNotFound`."""
    def list(self, *, limit: int = 100, after: str = "") -> builtins.list[Schedule]:
        """List schedules by id, beginning after an id."""
    def next(self, id: str, count: int = 5) -> builtins.list[datetime.datetime]:
        """Return the next fire times, as if it were not paused, in its time zone."""
    def events(self, id: str) -> builtins.list[Event]:
        """Read the audit trail of a schedule: created, fired, skipped and why, changed, deleted."""

class Limits:
    """`Limits` whose methods block."""
    def set(
        self, name: str, *, concurrency: int | None = None, rate: str | None = None, burst: int | None = None
    ) -> None:
        """Override a limit from now on, in place of the bounds that code declares.

        `name` is that of a limit, of one of its keys (`tenant/acme`), or of a whole type or queue (`type:billing.charge.v1`,
        `queue:emails`). Runs that are being worked on go on. Raises `UsageError`.
        """
    def clear(self, name: str) -> None:
        """Remove an override: the bounds declared in code apply again, and none where code declares none."""
    def list(self, *, limit: int = 100, after: str = "") -> builtins.list[LimitInfo]:
        """List limits that runs have met or that were set, by name, beginning after a name."""

class Breakers:
    """`Breakers` whose methods block."""
    def open(self, name: str) -> None:
        """Let nothing pass until the breaker is closed or reset by hand. Calls under way go on."""
    def close(self, name: str) -> None:
        """Let everything pass, failures included, until the breaker is opened or reset by hand."""
    def reset(self, name: str) -> None:
        """Close the breaker and forget its counts; from then on it opens and closes by itself."""
    def list(self, *, limit: int = 100, after: str = "") -> builtins.list[BreakerInfo]:
        """List breakers that calls have met or that were set by hand, by name, beginning after a name."""

class DeadLetters:
    """`DeadLetters` whose methods block."""
    def list(self, *, limit: int = 50, cursor: str | None = None, **which: Unpack[DeadOptions]) -> DeadLetterPage:
        """List runs that failed for good, or were set aside as poison or undecodable, with all their errors; latest run first."""
    def get(self, run_id: str) -> DeadLetter:
        """Read one dead letter. Raises `RunNotFound`, and `UsageError` if the run is none."""
    def retry(
        self,
        run_ids: str | Sequence[str] | None = None,
        *,
        where: DeadOptions | None = None,
        **changes: Unpack[RetryOptions],
    ) -> BulkResult:
        """Retry dead letters: those named, or all that `where` selects, such as `where={"type": "billing.%"}`.

        An activity begins anew, with all its attempts, its limits and the details of its last heartbeat. A workflow goes on where
        it failed, as with `Handle.retry`. A run that was set aside is claimed again. `refused` has those that cannot go on.
        """
    def discard(
        self, run_ids: str | Sequence[str] | None = None, *, where: DeadOptions | None = None, reason: str = ""
    ) -> BulkResult:
        """Take dead letters off the list: delete them, which `runs.undelete` undoes. One that was set aside is cancelled by that."""
    def prune(self, older_than: Duration, **which: Unpack[DeadOptions]) -> PruneReport:
        """Delete dead letters for good that died longer ago than that. Those that were set aside are discarded first."""

class AuditTrail:
    """`AuditTrail` whose methods block."""
    @property
    def level(self) -> Audit:
        """How much this engine and its workers write: `full`, `lifecycle` or `off`; may be set."""
    @level.setter
    def level(self, level: str) -> None: ...
    def list(self, *, limit: int = 100, cursor: int | None = None, **options: Unpack[EventOptions]) -> EventPage:
        """List events, newest first, a page at a time: of a run, a kind, a type, an actor, a range of time."""
    def follow(self, *, after: int | None = None, **options: Unpack[EventOptions]) -> Generator[Event]:
        """Yield events as they come, from now on or after the event with that number; without end.

        Events of concurrent transactions may come in another order than that of their numbers.
        """
    def prune(self, older_than: Duration) -> int:
        """Delete events older than that, oldest first, in small transactions; their number. Runs are left as they are."""

class Queues:
    """`Queues` whose methods block."""
    def pause(self, *, queue: str | None = None, type: str | None = None, reason: str = "") -> bool:
        """Pause all runs in a queue, or of a type; False if it is paused already.

        Workers claim none of its runs any more. Runs that a worker has go on until they wait for something.
        """
    def resume(self, *, queue: str | None = None, type: str | None = None) -> bool:
        """End the pause of a queue or a type; False if it was not paused."""
    def paused(self) -> builtins.list[Pause]:
        """List the queues and types that are paused."""
    def types(self) -> builtins.list[TypeInfo]:
        """List the types that workers have registered: kind, runtime, and whether each is enabled.

        A type that is paused is not enabled, in whatever language its workers are written.
        """

class Watermarks:
    """`Watermarks` whose methods block."""
    def set(self, watermark: Watermark) -> None:
        """Set a watermark, in place of the present one. Other engines follow within a few seconds."""
    def remove(self, *, queue: str | None = None, type: str | None = None) -> None:
        """Remove the watermark of a queue or a type; the one given to an `Engine` applies again."""
    def list(self) -> builtins.list[Watermark]:
        """List the watermarks that are set in the database."""
    def depth(self, *, queue: str | None = None, type: str | None = None, limit: int = 100000) -> int:
        """Count the runs that are ready and wait for a worker, on a queue or of a type, up to `limit`."""

def engine_over(target: AsyncEngine) -> Engine:
    """Make a blocking view of an engine that exists, with a background loop of its own."""
