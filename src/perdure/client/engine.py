"""The front door: start runs, look at them, send to them, cancel them, and work on them.

An engine is a value: a database, the workflows it knows, and nothing global. It connects when it is first used.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, Unpack, overload

from perdure.client.audit import Auditing
from perdure.client.blocking import Blocking
from perdure.client.breakers import Breakers
from perdure.client.dead_letters import Afterlife
from perdure.client.deploy import Checking
from perdure.client.engine_worker import EngineWorker
from perdure.client.handle import Handle
from perdure.client.inspect import Looking
from perdure.client.limits import Limits
from perdure.client.locks import Holding, Locks
from perdure.client.messages import Telling
from perdure.client.push import Pusher, Pushing
from perdure.client.refusing import refuse_in_workflow
from perdure.client.results import Overdue, Watch
from perdure.client.schedules import Schedules
from perdure.client.start import Moment, Sameness, StartOptions, create_all, create_on, new_run
from perdure.client.watermarks import Backpressure, OnConnection, Watermarks
from perdure.core.audit import Event
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import ErrorTypes, Failure
from perdure.core.hooks import DeadLetterNotice, ErrorNotice, Hooks
from perdure.core.model.run import NewRun, Run, Status
from perdure.core.option_checks import check_flag, check_time, check_whole
from perdure.core.policy.retention import Retention
from perdure.core.policy.singleton import Singleton
from perdure.core.policy.watermark import Watermark
from perdure.core.process_fork import ForkAware, never_finalize, watch_forks
from perdure.core.routing import select_types
from perdure.core.system import System
from perdure.core.time.duration import Duration, seconds
from perdure.errors import (
    EngineClosed,
    RunCancelled,
    RunFailed,
    UnknownWorkflow,
    UsageError,
)
from perdure.host import Host
from perdure.store import Retrying, open_store
from perdure.store.contract import Store
from perdure.store.url import is_in_memory, shown
from perdure.worker import HookCaller, Worker, WorkerOptions, WorkerSettings
from perdure.workflow.definition import Call, Definition
from perdure.workflow.discover import Definable, definition_of

R = TypeVar("R")

#: For how long a call of a client is repeated while the server cannot be reached, and one of a worker before it is made anew, in seconds.
#: The first is longer than any statement may take.
DATABASE_TIMEOUT = 15.0
WORKER_TIMEOUT = 30.0


class Engine(Looking, Checking, Afterlife, Auditing, Telling, Pushing, ForkAware):
    """A database and the workflows that run on it. In a forked child it connects anew."""

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
        """`url` such as `sqlite:///app.db`; `sqlite://` lives in memory.

        `errors` are exception classes that come back as themselves although no registered module defines them. `retention` says
        how long runs are kept that are over, such as `"30d"`; workers delete them now and then. By default they stay. `audit` is how
        much of the audit trail this engine and its workers write: `full`, `lifecycle` (the default) or `off`. `on_error`,
        `on_dead_letter` and `on_event` are functions that its workers call, after the commit and best effort, with what went wrong
        and what happened. `watermarks` say from how many runs that wait on this engine's starts are refused, or wait.
        `database_timeout` is how long a call waits for a server that cannot be reached before it raises `StoreUnavailable`; workers wait
        for as long as it takes. `system` and `store` replace the real world and the database named by the URL; they are for tests.
        """
        _check_options(payload_warn, payload_limit, migrate, errors := tuple(errors))
        self.url = url
        self.workflows = _by_type(workflows)
        self._system = Host() if system is None else system
        self._codec = Codec(warn_bytes=payload_warn, max_bytes=payload_limit)
        self._errors = ErrorTypes(errors, {w.function.__module__ for w in self.workflows.values()})
        self._migrate = migrate
        self._database_timeout = check_time("database_timeout", database_timeout) or DATABASE_TIMEOUT
        self._store: Store = self._new_store() if store is None else store
        if audit is not None:
            self.audit = audit
        self._hooks = Hooks(on_error=on_error, on_dead_letter=on_dead_letter, on_event=on_event)
        self._lent = store is not None
        self._retention = Retention.of(retention)
        self._backpressure = Backpressure(self._system, watermarks)
        self._overdue = Overdue(self._system, self._stands)
        self._same = Sameness(self._codec, self.workflows)
        self._state = "new"
        self._begin()
        watch_forks(self)

    def _begin(self) -> None:
        """Set up what belongs to one process."""
        self._actor = f"client:{self._system.entropy(4).hex()}"
        self._hook_caller = HookCaller(self._hooks, self._store, self._system) if self._hooks else None
        self._opening: asyncio.Lock | None = None
        self._workers: set[Worker] = set()
        self._pushers: dict[asyncio.AbstractEventLoop, Pusher] = {}
        self._watches: dict[asyncio.AbstractEventLoop, Watch] = {}

    def _new_store(self) -> Store:
        store = open_store(self.url, self._system, migrate=self._migrate)
        return Retrying(store, self._system, self._database_timeout, strict=True)

    def _after_fork_in_child(self) -> None:
        """Begin anew: connections, workers and waiters are the parent's."""
        never_finalize(self._store, self._workers, self._pushers, self._watches, self._hook_caller)
        begun = self._state == "open" or self._opening is not None
        if self._lent or (begun and is_in_memory(self.url)):
            self._state = "forked" if self._state != "closed" else "closed"
        elif self._state != "closed":
            audit = self._store.audit
            self._store, self._state = self._new_store(), "new"
            self._store.audit = audit
        self._begin()

    def __repr__(self) -> str:
        return f"<engine {shown(self.url)}>"

    async def __aenter__(self) -> Engine:
        await self._opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect now instead of at the first use."""
        await self._opened()

    async def close(self) -> None:
        """Stop the workers in order and let go of the database."""
        refuse_in_workflow()
        for worker in list(self._workers):
            await worker.stop()
        if self._state == "closed":
            return
        was_open, self._state = self._state == "open", "closed"
        watch = self._watches.pop(asyncio.get_running_loop(), None)
        if watch is not None:
            await watch.close()
        if was_open:
            await self._store.close()

    @property
    def database_timeout(self) -> float:
        """For how many seconds a call waits for a server that cannot be reached; may be set."""
        return self._database_timeout

    @database_timeout.setter
    def database_timeout(self, timeout: Duration) -> None:
        self._database_timeout = check_time("database_timeout", timeout) or DATABASE_TIMEOUT
        if isinstance(self._store, Retrying):
            self._store.bound = self._database_timeout

    @property
    def breakers(self) -> Breakers:
        """The circuit breakers of its database."""
        return Breakers(self)

    @property
    def limits(self) -> Limits:
        """Limits of concurrency and rate, as they are and to be changed at run time."""
        return Limits(self)

    @property
    def schedules(self) -> Schedules:
        """What runs by the clock."""
        return Schedules(self)

    @property
    def locks(self) -> Locks:
        """Named locks."""
        return Locks(self)

    @property
    def watermarks(self) -> Watermarks:
        """How much may wait before starts are refused, or wait."""
        return Watermarks(self)

    def lock(
        self, name: str, ttl: Duration = "5m", *, wait: Duration | None = None, owner: str | None = None
    ) -> Holding:
        """A named lock for as long as a block lasts: `async with engine.lock("nightly-import") as lock: ...`.

        It is extended by itself, so that `ttl` is how long it outlives a process that dies. Waits for it, at most for `wait`; then
        raises `Locked`. If it is lost while the block goes on, that is cancelled, and `LockLost` raised.
        """
        return Holding(self, name, ttl, wait, owner)

    # working

    def worker(self, **options: Unpack[WorkerSettings]) -> EngineWorker:
        """A worker for the engine's workflows: `async with engine.worker(): ...`, or `await engine.worker().run()`.

        With `types`, only for those that one of the patterns means, such as `["billing.%", "shop.checkout.v1"]`: a type, or the
        beginning of one followed by `%`. A server that cannot be reached is waited for when the worker
        starts, for `wait_for_database` at most.
        """
        if not self.workflows:
            raise UsageError("this engine has no workflows to work on; pass them: Engine(url, [checkout, ship])")
        checked = WorkerOptions.of(**options, retention=self._retention)
        select_types(self.workflows, checked.types)
        return EngineWorker(self, checked)

    def blocking(self) -> Blocking:
        """The same engine for code that is not async."""
        return Blocking(self)

    # starting

    async def start(self, call: Call[R], *, connection: object = None, **options: Unpack[StartOptions]) -> Handle[R]:
        """Start a run. The same id (or idempotency key) with the same input gives the run that is there.

        On a `connection` of yours (asyncpg, psycopg, SQLAlchemy, Django…) the run is written in the transaction that is open
        there: it exists once you commit, and never if you roll back.

        With a `singleton`, one run of its key goes on at a time: raises `SingletonBusy`, gives the one that is there, or waits for its turn,
        as that says. With a `debounce`, several starts are one run, some time after the last of them.

        Raises `Overloaded` where enough waits already (see `watermarks`).

        Raises `RunExists` if it is there with another input or type, and `EncodeError`, `InvalidId`… before anything is written.
        """
        runs = [self._new_run(call, options)]
        if not self._backpressure.is_idle:
            await self._admit(runs, connection)
        [handle] = await self._create([call], runs, connection)
        return handle

    async def start_many(
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
    ) -> builtins.list[Handle[R]]:
        """Start many runs in one transaction: all of them, or none. On a `connection` of yours, in the one that is open there."""
        if ids is not None and len(ids) != len(calls):
            raise UsageError(f"{len(calls)} calls but {len(ids)} ids; give one id a call")
        options: StartOptions = {"at": at, "priority": priority, "queue": queue, "deadline": deadline}
        options["singleton"] = singleton
        runs = [
            self._new_run(call, options if ids is None else {**options, "id": ids[index]})
            for index, call in enumerate(calls)
        ]
        self._same.check_among(runs, calls)
        if not self._backpressure.is_idle:
            await self._admit(runs, connection)
        if connection is not None:
            return await self._create(calls, runs, connection)
        made = await create_all(await self._opened(), self._actor, runs, calls, self._same)
        return [Handle(self, run_id, call.returns) for run_id, call in zip(made, calls, strict=True)]

    async def _admit(self, runs: Sequence[NewRun], connection: object) -> None:
        if connection is None:
            await self._backpressure.admit(runs, await self._opened(), may_wait=True)
        else:
            # Nobody waits with a transaction open.
            looks = OnConnection(self._unless_closed(), connection, self._actor)
            await self._backpressure.admit(runs, looks, may_wait=False)

    async def _create(
        self, calls: Sequence[Call[R]], runs: Sequence[NewRun], connection: object
    ) -> builtins.list[Handle[R]]:
        if connection is None:
            created = await (await self._opened()).create(runs, self._actor)
            self._same.check_created(created, runs, calls)
        else:
            created = await create_on(connection, self._unless_closed(), self._actor, runs, calls, self._same)
        return [Handle(self, answer.run.id, call.returns) for answer, call in zip(created, calls, strict=True)]

    def _new_run(self, call: Call[Any], options: StartOptions) -> NewRun:
        if not isinstance(call, Call):
            raise UsageError(f"start takes a call such as `checkout(order)`, not {call!r}")
        if call.definition is not None and self.workflows and call.type not in self.workflows:
            raise UnknownWorkflow(
                f"workflow {call.type!r} is not one of this engine's ({', '.join(sorted(self.workflows))}); add it to "
                f"Engine(url, [...]), or start it by name where another engine serves it: Call.named({call.type!r}, ...)"
            )
        known = self._known(call)
        return new_run(known, known.encode(self._codec), options, self._system, self._store.clock())

    def _known(self, call: Call[Any]) -> Call[Any]:
        """A call by name as one by its code, which can check the arguments, where that is here."""
        known = self.workflows.get(call.type)
        if call.definition is not None or known is None:
            return call
        checked = known(*call.arguments) if isinstance(call.arguments, tuple) else known(**call.arguments)
        return replace(checked, settings=call.settings)

    # looking

    @overload
    async def get(self, run_id: str, workflow: None = None) -> Handle[Any]: ...

    @overload
    async def get(self, run_id: str, workflow: Definition[..., R]) -> Handle[R]: ...

    async def get(self, run_id: str, workflow: Definition[..., Any] | None = None) -> Handle[Any]:
        """A handle on a run that exists. Raises `RunNotFound`. Name the workflow for a typed result."""
        run = await self._run(run_id)
        known = self.workflows.get(run.type) if workflow is None else workflow
        return Handle(self, run.id, Any if known is None else known.signature.returns)

    # for handles and workers

    async def _opened(self) -> Store:
        refuse_in_workflow()
        if self._state == "open":
            return self._store
        self._unless_closed()
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._state == "new":
                await self._store.open()
                self._state = "open"
        return self._store

    def _is_at_hand(self) -> bool:
        self._unless_closed()
        return self._state == "open" or self._lent

    def _unless_closed(self) -> Store:
        refuse_in_workflow()
        if self._state == "closed":
            raise EngineClosed(f"the engine on {shown(self.url)} was closed; make a new one")
        if self._state == "forked":
            raise EngineClosed(
                f"the engine on {shown(self.url)} belongs to the process that this one was forked from; make a new one after the fork"
            )
        return self._store

    async def _result(self, run_id: str, returns: Any, timeout: Duration | None) -> Any:
        if timeout is not None:
            seconds(timeout)
        run = await self._run(run_id)
        if not run.status.finished:
            store = await self._opened()
            watch = self._watches.setdefault(asyncio.get_running_loop(), Watch(store, self._system))
            name, too_late = f"perdure result {run_id}", f"run {run_id!r} did not finish"
            run = await self._overdue.wait(run_id, lambda: watch.finished(run_id), name, timeout, too_late)
        return self._outcome(run, returns)

    def _outcome(self, run: Run, returns: Any) -> Any:
        if run.status is Status.COMPLETED:
            return self._codec.decode(run.output or "null", returns, f"result of run {run.id!r} ({run.type})")
        failure = Failure.from_json(run.error or "{}")
        if run.status is Status.CANCELLED:
            raise RunCancelled(failure.message, run_id=run.id)
        name = failure.type.rpartition(".")[2]
        raise RunFailed(
            f"run {run.id!r} ({run.type}) failed with {name}: {failure.message}", run_id=run.id, failure=failure
        ) from self._errors.restore(failure)

    def _make_worker(self, store: Store, options: WorkerOptions) -> Worker:
        if isinstance(store, Retrying) and not self._lent:
            store = store.bounded(WORKER_TIMEOUT)
        worker = Worker(
            store,
            select_types(self.workflows, options.types),
            system=self._system,
            codec=self._codec,
            errors=self._errors,
            options=options,
            hook_caller=self._hook_caller,
        )
        self._workers.add(worker)
        return worker


def _by_type(workflows: Iterable[Definable]) -> dict[str, Definition[Any, Any]]:
    known: dict[str, Definition[Any, Any]] = {}
    for workflow in map(definition_of, workflows):
        if known.setdefault(workflow.type, workflow) is not workflow:
            raise UsageError(f"two workflows have the type {workflow.type!r}; each needs its own")
        workflow.signature.resolve()
    return known


def _check_options(payload_warn: object, payload_limit: object, migrate: object, errors: tuple[object, ...]) -> None:
    check_whole("payload_warn", payload_warn, 1)
    check_whole("payload_limit", payload_limit, 1)
    check_flag("migrate", migrate)
    for error in errors:
        if not isinstance(error, type) or not issubclass(error, BaseException):
            raise UsageError(f"errors has {error!r}: give exception classes, such as [PaymentDeclined]")
