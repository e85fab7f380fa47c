"""State that all parts of one engine share: the database and its life, the code, the codec and the clock.

An engine, its namespaces, handles and workers are views of one `Session`. It connects when it is first used. In a
forked child it connects anew, because connections, workers and waiters belong to the parent.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

from msgspec import Struct, structs

from perdure.client.build import build_of
from perdure.client.outbox import Subscription, delivery_code
from perdure.client.runs.results import Results
from perdure.client.runs.start import DuplicateCheck, RunMaker, StartBatches, StartOptions
from perdure.client.watermarks import Backpressure
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import ErrorTypes
from perdure.core.hooks import Hooks
from perdure.core.ids import check_id
from perdure.core.middleware import NO_LAYERS, Layers
from perdure.core.model.headers import check_headers
from perdure.core.model.run import NewRun, Run
from perdure.core.option_checks import check_time
from perdure.core.pinning import pinned_queue
from perdure.core.policy.retention import Retention
from perdure.core.policy.watermark import Watermark
from perdure.core.printed_text import closest
from perdure.core.process_fork import never_finalize, watch_forks
from perdure.core.routing import select_types
from perdure.core.system import System
from perdure.core.time.duration import Duration
from perdure.core.tracing import Tracer, request_headers
from perdure.errors import EngineClosed, NotInWorkflow, RunNotFound, UnknownWorkflow, UsageError
from perdure.store import Retrying, open_store
from perdure.store.contract import Store
from perdure.store.url import is_in_memory, shown, with_shared_pool
from perdure.worker import in_workflow
from perdure.workflow.definition import Call, Definition, Workflow, call_hint

if TYPE_CHECKING:
    from perdure.client.engine import Engine
    from perdure.worker import HookCaller, TraceListener, Worker, WorkerSettings, WorkerTracing


#: Seconds for which a client repeats a call while the server cannot be reached. Longer than any statement may take.
DATABASE_TIMEOUT = 15.0
#: Ids of runs that are kept for messages.
_LENT_STARTS = 100
#: Seconds for which a worker repeats a call before it makes the call anew.
WORKER_TIMEOUT = 30.0


def refuse_in_workflow() -> None:
    """Raise `NotInWorkflow` if the caller is workflow code.

    The loop of a run cannot wait for a database, and replay would repeat the call. So every verb of the client refuses
    first.
    """
    if in_workflow():
        raise NotInWorkflow(
            "workflow code does not call the engine: replay would repeat the call; start children and send "
            "messages through the context (`ctx.start`, `ctx.send`), or call the engine in a step: "
            "`await ctx.step(function, ...)`"
        )


class SessionOptions(Struct, frozen=True, kw_only=True):
    """Checked options of an engine, as `Engine` takes them."""

    errors: tuple[type[Exception], ...]
    migrate: bool
    codec: Codec
    retention: Retention | None
    hooks: Hooks
    watermarks: tuple[Watermark, ...]
    database_timeout: Duration
    build: str | None = None
    pinned: bool = False
    register_sources: bool = True
    outbox: tuple[Subscription, ...] = ()
    layers: Layers = NO_LAYERS
    tracer: Tracer | None = None


class Session:
    """A database, the workflows that run on it, and the process that uses them."""

    def __init__(
        self,
        url: str,
        workflows: Mapping[str, Definition[Any, Any]],
        options: SessionOptions,
        system: System,
        store: Store | None,
    ) -> None:
        self.url = url
        #: What the store is opened with.
        self._store_url = url
        #: Code of this engine, by type.
        self.workflows = workflows
        self.system = system
        self.codec = options.codec
        #: Exception classes that stored failures are restored to.
        self.errors = ErrorTypes(options.errors, {one.function.__module__ for one in workflows.values()})
        self.retention = options.retention
        self._build = options.build
        self._pinned = options.pinned
        self._register_sources = options.register_sources
        self._hooks = options.hooks
        #: Subscriptions to published events, which the workers of this engine deliver.
        self.outbox = options.outbox
        #: Middleware.
        self.layers = options.layers
        self._tracer = options.tracer
        self._trace_listener: TraceListener | None = None
        self._migrate = options.migrate
        self._database_timeout = _checked_timeout(options.database_timeout)
        #: The database, opened or not. Most callers want `opened` or `unclosed`.
        self.store: Store = self._new_store() if store is None else store
        self._lent = store is not None
        #: Watermarks and counts that starts are admitted by.
        self.backpressure = Backpressure(system, options.watermarks)
        self.duplicates = DuplicateCheck(self.codec, workflows)
        #: Ids of the latest runs that were started on connections of the user.
        self.lent_starts: deque[str] = deque(maxlen=_LENT_STARTS)
        self._state = "new"
        self._begin()
        watch_forks(self._after_fork_in_child)

    def _begin(self) -> None:
        """Set up what belongs to one process."""
        #: Name of this client in the audit trail.
        self.actor = f"client:{self.system.entropy(4).hex()}"
        self._hook_caller = self._new_hook_caller() if self._hooks else None
        self._opening: asyncio.Lock | None = None
        #: Workers and pushers that `close` stops.
        self.workers: set[Worker] = set()
        #: Waits for outcomes of runs.
        self.results = self._new_results()
        #: Starts that share commits.
        self.start_batches = StartBatches(self.connect)

    def _new_hook_caller(self) -> HookCaller:
        from perdure.worker import HookCaller

        return HookCaller(self._hooks, self.store, self.system)

    def _new_results(self) -> Results:
        return Results(self)

    def _new_store(self) -> Store:
        store = open_store(self._store_url, self.system, migrate=self._migrate)
        return Retrying(store, self.system, self._database_timeout, strict=True)

    def _after_fork_in_child(self) -> None:
        """Begin anew: connections, workers and waiters are the parent's."""
        never_finalize(self.store, self.workers, self.results, self._hook_caller)
        begun = self._state == "open" or self._opening is not None
        if self._lent or (begun and is_in_memory(self.url)):
            self._state = "forked" if self._state != "closed" else "closed"
        elif self._state != "closed":
            audit = self.store.audit
            self.store, self._state = self._new_store(), "new"
            self.store.audit = audit
        self._begin()

    async def connect(self) -> Store:
        """Connect to the database, unless that was done; returns the store. Raises `EngineClosed`."""
        refuse_in_workflow()
        if self._state == "open":
            return self.store
        self.usable_store()
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._state == "new":
                await self.store.open()
                self._state = "open"
        return self.store

    def usable_store(self) -> Store:
        """The store, connected or not. Raises `EngineClosed`."""
        refuse_in_workflow()
        if self._state == "closed":
            raise EngineClosed(
                f"the engine on {shown(self.url)} was closed, as at the end of `async with`; move this into the block, "
                "or make a new engine"
            )
        if self._state == "forked":
            raise EngineClosed(
                f"the engine on {shown(self.url)} belongs to the process that this one was forked from; "
                "make a new one after the fork"
            )
        return self.store

    @property
    def build(self) -> str:
        """Build of the application: the one that was given, or found in its files when it was first asked for."""
        if self._build is None:
            self._build = build_of(self.workflows)
        return self._build

    def is_connected(self) -> bool:
        """Return whether the store is open already, or was handed in by the caller. Raises `EngineClosed`."""
        self.usable_store()
        return self._state == "open" or self._lent

    async def close(self) -> None:
        """Stop the workers in order, end waits and disconnect."""
        refuse_in_workflow()
        for worker in list(self.workers):
            await worker.stop()
        if self._state == "closed":
            return
        for subscription in self.outbox:
            await subscription.close()
        was_open, self._state = self._state == "open", "closed"
        await self.results.close()
        if was_open:
            await self.store.close()
        self.system.end_idle_threads()

    def set_call_timeout(self, timeout: Duration) -> None:
        """Set how long a call waits for a server that cannot be reached.

        For tools that are handed a finished engine.
        """
        self._database_timeout = _checked_timeout(timeout)
        if isinstance(self.store, Retrying):
            self.store.bound = self._database_timeout

    def share_connections(self, processes: int) -> None:
        """Use one part of the connections that the URL allows, because so many processes share them.

        For tools that are handed a finished engine, before it connects.
        """
        if self._lent or processes == 1 or self._state != "new":
            return
        audit = self.store.audit
        self._store_url = with_shared_pool(self.url, processes)
        self.store = self._new_store()
        self.store.audit = audit
        self._begin()

    def make_worker(self, settings: WorkerSettings, code: Mapping[str, Definition[Any, Any]] | None = None) -> Worker:
        """Make a worker on the open database that has not been started; `close` stops it. `code`: not the engine's."""
        from perdure.worker import Worker

        store = self.store
        if isinstance(store, Retrying) and not self._lent:
            store = store.bounded(WORKER_TIMEOUT)
        served = select_types(self.served_code() if code is None else code, settings.types)
        pinned = self.pinned_types(served)
        if pinned:
            settings = structs.replace(settings, queues=self.pinned_queues(settings.queues))
        worker = Worker(
            store,
            served,
            system=self.system,
            codec=self.codec,
            errors=self.errors,
            settings=settings,
            hook_caller=self._hook_caller,
            where=shown(self.url),
            build=self.build,
            pinned=pinned,
            registers_sources=self._register_sources,
            layers=self.layers,
            tracing=self._trace(),
        )
        self.workers.add(worker)
        return worker

    def _trace(self) -> WorkerTracing | None:
        """Return the tracing of a worker, if spans go anywhere; one listener gets all claims and commits."""
        tracer = self._tracer
        if tracer is None or not tracer.is_active():
            return None
        from perdure.worker import TraceListener, WorkerTracing

        if self._trace_listener is None:
            self._trace_listener = TraceListener()
            self.system.telemetry.attach(self._trace_listener)
        return WorkerTracing(tracer, self._trace_listener)

    def served_code(self) -> Mapping[str, Definition[Any, Any]]:
        """Return the code that workers serve: that of the engine, and the deliveries of its outbox."""
        return {**self.workflows, **delivery_code(self, self.outbox)} if self.outbox else self.workflows

    def pinned_types(self, workflows: Mapping[str, Definition[Any, Any]]) -> frozenset[str]:
        """Return the types whose runs are pinned to the build that begins them."""
        return frozenset(
            type
            for type, one in workflows.items()
            if isinstance(one, Workflow) and (self._pinned if one.pinned is None else one.pinned)
        )

    def pinned_queues(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Return queues together with those of runs that are pinned to this build. Raises `UsageError`."""
        if not self.build:
            raise UsageError(
                "runs are pinned to a build, and the build of this application is unknown; name it: "
                "Engine(..., build='1.4.2')"
            )
        queues = tuple(queues)
        return (*queues, *(pinned_queue(queue, self.build) for queue in queues))

    async def find(self, run_id: str) -> Run:
        """Read a run. Raises `RunNotFound`."""
        run = await (await self.connect()).get(check_id(run_id))
        if run is None:
            raise self.not_found(run_id)
        return run

    def not_found(self, run_id: str) -> RunNotFound:
        """Make the error about a run that does not exist."""
        place = shown(self.url)
        if place == "sqlite://":
            place += ", which is in memory and new with each engine"
        if run_id in self.lent_starts:
            place += "; it exists once the transaction in which it was started has been committed"
        return RunNotFound(f"there is no run {run_id!r} in {place}")

    def new_run(self, call: Call[Any], options: StartOptions, where: str = "start") -> NewRun:
        """Make the row of a run from a call, or raise `UsageError` and the like; nothing is written.

        `where`: name of the method that was called, for errors.
        """
        [new] = self.new_runs([call], options, where=where)
        return new

    def new_runs(
        self,
        calls: Sequence[Call[Any]],
        options: StartOptions,
        ids: Sequence[str | None] | None = None,
        where: str = "start",
    ) -> list[NewRun]:
        """Make the rows of runs with the same options, as `new_run` does; with `ids`, each has an id of its own."""
        known = [self._known(call, where) for call in calls]
        inputs = [call.encode(self.codec) for call in known]
        carried = request_headers.get() if self._tracer is None else self._tracer.outgoing() or request_headers.get()
        if carried:
            options = {**options, "headers": {**carried, **check_headers(options.get("headers"))}}
        maker = self.run_maker(options, len(known))
        if ids is None:
            return list(map(maker.make, known, inputs))
        return list(map(maker.make, known, inputs, ids))

    def run_maker(self, options: StartOptions, count: int = 1) -> RunMaker:
        """Make a maker of the rows of up to `count` runs."""
        repeatable = isinstance(self.system, SeededSystem)
        return RunMaker(options, self.system, self.store.clock(), count, repeatable=repeatable)

    def _known(self, call: object, where: str) -> Call[Any]:
        if not isinstance(call, Call):
            raise UsageError(f"{where} takes a call such as `checkout(order)`, not {call_hint(call)}")
        if call.definition is None:
            return self.resolve_call(call)
        if self.workflows and call.type not in self.workflows:
            raise UnknownWorkflow(
                f"workflow {call.type!r} is not one of this engine's ({closest(call.type, self.workflows)}); add it to "
                "Engine(url, [...]), or start it by name where another engine serves it: "
                f"Call.named({call.type!r}, ...)"
            )
        return call

    def resolve_call(self, call: Call[Any]) -> Call[Any]:
        """Turn a call by name into a call of its code, which checks the arguments, where this engine has that code."""
        known = self.workflows.get(call.type)
        if call.definition is not None or known is None:
            return call
        checked = known(*call.arguments) if isinstance(call.arguments, tuple) else known(**call.arguments)
        return replace(checked, settings=call.settings)


class SeededSystem:
    """A system whose random bytes follow from a seed, so that a repeated request makes the same ids and keys."""

    def __init__(self, system: System, seed: bytes) -> None:
        self._system = system
        self._seed = seed
        self._drawn = 0

    def entropy(self, size: int, /) -> bytes:
        """Draw the next bytes."""
        self._drawn += 1
        return hashlib.shake_256(self._seed + self._drawn.to_bytes(8, "big")).digest(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)


def acting_as(engine: Engine, actor: str, seed: bytes | None = None) -> Engine:
    """Make a view of an open engine whose writes have another actor in the audit trail.

    It lives no longer than the engine, and shares its connections, waits and workers. With a `seed`, the ids and keys
    that it makes follow from the seed: the store recognises a verb that is repeated with the same seed.
    """
    session = copy(session_of(engine))
    session.actor = actor
    if seed is not None:
        session.system = cast("System", SeededSystem(session.system, seed))
    return _with_session(engine, session)


def reading_through(engine: Engine, store: Store) -> Engine:
    """Make a view of an open engine that uses another store of the same database, such as one that shares reads."""
    session = copy(session_of(engine))
    session.store = store
    return _with_session(engine, session)


def _with_session(engine: Engine, session: Session) -> Engine:
    view = copy(engine)
    view._session = session
    return view


def session_of(engine: Engine) -> Session:
    """Return the session of an engine, for packages that build on it. `Engine` itself keeps it out of users' sight."""
    return engine._session


def require_workflows(workflows: Iterable[str]) -> None:
    """Raise `UsageError` if an engine that is to work has no code."""
    if not workflows:
        raise UsageError("this engine has no workflows to work on; pass them: Engine(url, [checkout, ship])")


def _checked_timeout(timeout: Duration) -> float:
    return check_time("database_timeout", timeout) or DATABASE_TIMEOUT


class AsyncOnly:
    """Base of async context managers. A `with` or an `await` is refused with an error that says what to write."""

    #: Advice for code that is not async.
    _instead: ClassVar[str] = "perdure.blocking.Engine is for code that is not async"
    #: Advice for code that awaits it.
    _awaited: ClassVar[str] = "{} cannot be awaited; enter it: `async with`"

    if not TYPE_CHECKING:  # type checkers report these mistakes by themselves

        def __enter__(self) -> NoReturn:
            refuse_in_workflow()
            raise UsageError(f"{self!r} is entered by `async with`, not by `with`; {self._instead}")

        def __exit__(self, *_: object) -> None: ...

        def __await__(self) -> NoReturn:
            refuse_in_workflow()
            raise UsageError(self._awaited.format(repr(self)))
