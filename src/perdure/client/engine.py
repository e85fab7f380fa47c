"""The engine: start runs, send to them, inspect them, and work on them.

An engine is a value: a database and the workflows it knows. Nothing is global.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never, TypeVar, Unpack, overload

from perdure.client import deploy
from perdure.client.audit import AuditTrail
from perdure.client.build import check_build
from perdure.client.dead_letters import DeadLetters
from perdure.client.events import Events
from perdure.client.handle import Handle, get_handle
from perdure.client.limits import Breakers, Limits
from perdure.client.locks import Locks
from perdure.client.outbox import Outbox, Subscription, check_subscriptions
from perdure.client.remote.transport import is_server
from perdure.client.runs import messages
from perdure.client.runs.namespace import Runs
from perdure.client.runs.start import Moment, StartOptions, create_all, create_on
from perdure.client.schedules import Schedules
from perdure.client.session import DATABASE_TIMEOUT, AsyncOnly, Session, SessionOptions, require_workflows
from perdure.client.tokens import Tokens
from perdure.client.watermarks import ConnectionReader
from perdure.client.workers import EngineWorker, Queues, Workers
from perdure.core.audit import Event
from perdure.core.codec.codec import Codec
from perdure.core.codec.snapshot import snapshot
from perdure.core.hooks import DeadLetterNotice, ErrorNotice, Hooks
from perdure.core.middleware import Middleware, check_middleware
from perdure.core.model.attributes import AttributeValue
from perdure.core.model.reports import DeployReport
from perdure.core.model.run import NewRun
from perdure.core.option_checks import check_flag, check_list, check_whole
from perdure.core.policy.retention import Retention
from perdure.core.policy.singleton import Singleton
from perdure.core.policy.watermark import Watermark
from perdure.core.printed_text import brief
from perdure.core.routing import select_types
from perdure.core.system import System
from perdure.core.time.duration import Duration
from perdure.core.tracing import Tracer, check_tracer
from perdure.errors import BadArguments, UsageError
from perdure.host import Host
from perdure.store.contract import Store
from perdure.store.url import check_url_text, shown
from perdure.worker import WorkerOptions
from perdure.workflow.channels import Channel
from perdure.workflow.definition import Call, Definition, misplaced_hint
from perdure.workflow.discover import Definable, definition_of
from perdure.workflow.signature import describe

if TYPE_CHECKING:
    from perdure.client.blocking import Engine as BlockingEngine

R = TypeVar("R")
T = TypeVar("T")


class Engine(AsyncOnly):
    """A database and the workflows that run on it. In a forked child it connects anew."""

    #: Address of the database.
    url: str
    #: Code of this engine, by type.
    workflows: dict[str, Definition[Any, Any]]

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
        token: str | None = None,
        build: str | None = None,
        pinned: bool = False,
        register_sources: bool = True,
        outbox: Iterable[Subscription] = (),
        middleware: Iterable[Middleware] = (),
        tracing: Tracer | None = None,
        system: System | None = None,
        store: Store | None = None,
    ) -> None:
        """Name a database by its `url`, such as `sqlite:///app.db`; `sqlite://` lives in memory.

        It connects on first use. With the URL of a server (`perdure serve`), such as `https://ops.example.com`, and a
        `token`, the engine works over HTTP, without access to the database; workers and locks need the database.

        `errors` are exception classes that come back as themselves although no registered module defines them.
        `retention` is how long finished runs are kept, such as `"30d"`, before workers delete them; by default they
        stay. `audit` is how much of the audit trail this engine and its workers write: `full`, `lifecycle` (the
        default) or `off`. Workers call `on_error`, `on_dead_letter` and `on_event` after the commit, best effort, with
        errors and events. `watermarks`: once this many runs are queued, `start` is refused or waits. `database_timeout`
        is how long a call waits for a server that cannot be reached before it raises `StoreUnavailable`; workers wait
        for as long as it takes. `build` names the version of the application, which runs keep; by default that of the
        package and the git commit of its checkout. With `pinned`, only workers of that build continue the runs of
        workflows that do not say `pinned` themselves. Workers store the source and docstring of each type for the
        dashboard, unless `register_sources` is false. `outbox`: subscriptions to published events, which workers serve.
        `middleware` surrounds what workers execute; the first is outermost. `tracing` makes spans: `Tracing()` of
        `perdure.tracing`. `system` and `store` are for tests.
        """
        errors = check_list("errors", errors, "[PaymentDeclined]")
        _check_options(payload_warn, payload_limit, migrate, errors)
        self.url = check_url_text(url)
        self.workflows = _by_type(workflows)
        _check_token(token, url)
        options = SessionOptions(
            errors=errors, migrate=migrate, codec=Codec(warn_bytes=payload_warn, max_bytes=payload_limit),
            retention=Retention.of(retention), watermarks=_checked_watermarks(watermarks),
            hooks=Hooks(on_error=on_error, on_dead_letter=on_dead_letter, on_event=on_event),
            database_timeout=database_timeout, build=None if build is None else check_build(build),
            pinned=check_flag("pinned", pinned), register_sources=check_flag("register_sources", register_sources),
            outbox=check_subscriptions(outbox), layers=check_middleware(middleware), tracer=check_tracer(tracing),
        )  # fmt: skip
        self._session = self._make_session(url, options, Host() if system is None else system, store, token)
        if audit is not None:
            self.audit.level = audit

    if not TYPE_CHECKING:  # for type checkers, both are an Engine

        def __new__(cls, url: str = "", *_: object, **__: object) -> Engine:
            """Make an engine on a database or, by its URL, on a server."""
            if cls is Engine and is_server(url):
                # Imported late: it builds on this class.
                from perdure.client.remote.engine import RemoteEngine

                return object.__new__(RemoteEngine)
            return object.__new__(cls)

    def _make_session(
        self, url: str, options: SessionOptions, system: System, store: Store | None, token: str | None
    ) -> Session:
        return Session(url, self.workflows, options, system, store)

    def __repr__(self) -> str:
        return f"<engine {shown(self.url)}>"

    async def __aenter__(self) -> Engine:
        await self._session.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect now instead of at the first use."""
        await self._session.connect()

    async def close(self) -> None:
        """Stop the workers in order and disconnect."""
        await self._session.close()

    # namespaces

    @property
    def runs(self) -> Runs:
        """List, explain, pause, retry, delete and prune runs."""
        return Runs(self._session)

    @property
    def schedules(self) -> Schedules:
        """Start runs by the clock."""
        return Schedules(self._session)

    @property
    def limits(self) -> Limits:
        """List limits of concurrency and rate, and change them at run time."""
        return Limits(self._session)

    @property
    def breakers(self) -> Breakers:
        """List, open, close and reset circuit breakers."""
        return Breakers(self._session)

    @property
    def locks(self) -> Locks:
        """Acquire and list named locks."""
        return Locks(self._session)

    @property
    def dead_letters(self) -> DeadLetters:
        """List, retry, discard and prune runs that failed for good."""
        return DeadLetters(self._session)

    @property
    def audit(self) -> AuditTrail:
        """List, follow and prune the audit trail, and set how much of it is written."""
        return AuditTrail(self._session)

    @property
    def workers(self) -> Workers:
        """List the workers of all processes."""
        return Workers(self._session)

    @property
    def queues(self) -> Queues:
        """Pause, resume and bound whole queues and types, and list registered types."""
        return Queues(self._session)

    @property
    def outbox(self) -> Outbox:
        """Publish, list and replay events for other systems."""
        return Outbox(self, self._session)

    @property
    def events(self) -> Events:
        """Emit sticky events, which runs wait for with `ctx.event`, and read, list and delete them."""
        return Events(self._session)

    @property
    def tokens(self) -> Tokens:
        """Create, list and revoke bearer tokens for access over HTTP."""
        return Tokens(self._session)

    # working

    def worker(self, **options: Unpack[WorkerOptions]) -> EngineWorker:
        """Make a worker for the engine's workflows.

        Use it as `async with engine.worker(): ...`, or `await engine.worker().run()`.

        `types` restricts it to some types, by patterns such as `["billing.%", "shop.checkout.v1"]`: a type, or the
        beginning of one followed by `%`. When it starts, it waits for a server that cannot be reached, at most for
        `wait_for_database`.
        """
        from perdure.worker import WorkerSettings

        code = self._session.served_code()
        require_workflows(code)
        checked = WorkerSettings.of(**options, retention=self._session.retention)
        select_types(code, checked.types)
        return EngineWorker(self._session, checked)

    def blocking(self) -> BlockingEngine:
        """Make a facade of this engine for code that is not async, with its own background event loop."""
        # Imported late: the facade mirrors this class.
        from perdure.client.blocking import engine_over

        return engine_over(self)

    async def check(
        self,
        *,
        types: Sequence[str] | None = None,
        limit: int | None = None,
        save: bool = True,
        pinned: bool = False,
    ) -> DeployReport:
        """Replay the history of every unfinished run, or of those of some types, against this code.

        The gate before a deploy: it names the runs that would diverge, where, and how to fix that. `limit` bounds the
        number of runs, newest first. Runs are only read. With `save`, a summary by type is stored for the dashboard; a
        database that refuses it is no error. Runs that are pinned to another build are left out and counted, unless
        `pinned`: check them before they are unpinned.
        """
        flags = {"save": check_flag("save", save), "pinned": check_flag("pinned", pinned)}
        return await deploy.check(self._session, types, limit, **flags)

    # starting

    async def start(
        self, call: Call[R], *misplaced: Never, connection: object = None, **options: Unpack[StartOptions]
    ) -> Handle[R]:
        """Start a run. The same id, or idempotency key, with the same input gives the existing run.

        On a `connection` of yours (asyncpg, psycopg, SQLAlchemy, Django…) the run is written in the transaction that is
        open there: it exists once you commit, and never if you roll back.

        With a `singleton`, at most one run of its key is unfinished: another start raises `SingletonBusy`, gives the
        existing run, replaces it or waits for it, by its policy. With a `debounce`, several starts are one run, some
        time after the last.

        Raises `RunExists` if the id exists with another input or type, `Overloaded` if a watermark is reached, and
        `EncodeError`, `InvalidId`… before anything is written.
        """
        if misplaced:
            raise BadArguments(misplaced_hint("engine.start", call))
        return await self._start(call, self._session.new_run(call, options), options, connection)

    async def _start(self, call: Call[R], run: NewRun, options: StartOptions, connection: object) -> Handle[R]:
        if self._session.system.monotonic() >= self._session.backpressure.idle_until:
            await self._admit([run], connection)
        [handle] = await self._create([call], [run], connection)
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
        attributes: Mapping[str, AttributeValue] | None = None,
        headers: Mapping[str, str] | None = None,
        connection: object = None,
    ) -> list[Handle[R]]:
        """Start many runs in one transaction, all or none.

        On a `connection` of yours, in the transaction that is open there.
        """
        calls = check_list("calls", calls, "[checkout(order)]")
        options: StartOptions = {"at": at, "priority": priority, "queue": queue, "deadline": deadline}
        options["singleton"], options["attributes"], options["headers"] = singleton, attributes, headers
        return await self._start_all(calls, self._new_runs(calls, ids, options), options, connection)

    async def _start_all(
        self, calls: Sequence[Call[R]], runs: Sequence[NewRun], options: StartOptions, connection: object
    ) -> list[Handle[R]]:
        if self._session.system.monotonic() >= self._session.backpressure.idle_until:
            await self._admit(runs, connection)
        if connection is not None:
            return await self._create(calls, runs, connection)
        made = await create_all(
            await self._session.connect(), self._session.actor, runs, calls, self._session.duplicates
        )
        return [Handle(self._session, run_id, call.returns) for run_id, call in zip(made, calls, strict=True)]

    def _new_runs(self, calls: Sequence[Call[Any]], ids: Sequence[str] | None, options: StartOptions) -> list[NewRun]:
        ids = None if ids is None else check_list("ids", ids, "['order-17']")
        if ids is not None and len(ids) != len(calls):
            raise UsageError(f"{len(calls)} calls but {len(ids)} ids; give one id a call")
        runs = self._session.new_runs(calls, options, ids)
        if ids is not None:
            self._session.duplicates.check_among(runs, calls)
        return runs

    async def _admit(self, runs: Sequence[NewRun], connection: object) -> None:
        if connection is None:
            await self._session.backpressure.admit(runs, await self._session.connect(), may_wait=True)
        else:
            # A wait would keep the caller's transaction open.
            reader = ConnectionReader(self._session.usable_store(), connection, self._session.actor)
            await self._session.backpressure.admit(runs, reader, may_wait=False)

    async def _create(self, calls: Sequence[Call[R]], runs: Sequence[NewRun], connection: object) -> list[Handle[R]]:
        if connection is None:
            created = [await self._session.start_batches.create(run, self._session.actor) for run in runs]
            self._session.duplicates.check_created(created, runs, calls)
        else:
            created = await create_on(
                connection, self._session.usable_store(), self._session.actor, runs, calls, self._session.duplicates
            )
            self._session.lent_starts.extend(answer.run.id for answer in created)
        return [Handle(self._session, answer.run.id, call.returns) for answer, call in zip(created, calls, strict=True)]

    @overload
    async def get(self, run_id: str, workflow: None = None) -> Handle[Any]: ...

    @overload
    async def get(self, run_id: str, workflow: Definition[..., R]) -> Handle[R]: ...

    async def get(self, run_id: str, workflow: Definition[..., Any] | None = None) -> Handle[Any]:
        """Make a handle on a run that exists. Raises `RunNotFound`. Name the workflow for a typed result."""
        return await get_handle(self._session, run_id, workflow)

    # messages

    @overload
    async def send(
        self,
        run_id: str,
        name: Channel[T],
        value: T,
        *,
        key: str | None = None,
        connection: object = None,
        reason: str = "",
    ) -> None: ...

    @overload
    async def send(
        self,
        run_id: str,
        name: str,
        value: object = None,
        *,
        key: str | None = None,
        connection: object = None,
        reason: str = "",
    ) -> None: ...

    def send(
        self,
        run_id: str,
        name: Channel[Any] | str,
        value: object = None,
        *,
        key: str | None = None,
        connection: object = None,
        reason: str = "",
    ) -> Coroutine[Any, Any, None]:
        """Send a message to a run; it is kept until the run receives it. Raises `RunNotFound` or `RunFinished`.

        With a `key`, sending it twice is sending it once. On a `connection` of yours, it is sent when you commit. The
        audit trail keeps the `reason`.
        """
        # A snapshot of the value now: the coroutine may be awaited later.
        return messages.send(self._session, run_id, name, snapshot(value), key, connection, reason)

    async def cancel(self, run_id: str, reason: str = "") -> bool:
        """Ask a run to stop: its workflow gets a `CancelledError` and may clean up.

        False if it had finished already.
        """
        return await messages.cancel(self._session, run_id, reason)


def _by_type(workflows: Iterable[Definable]) -> dict[str, Definition[Any, Any]]:
    if isinstance(workflows, Definition | type | str) or not isinstance(workflows, Iterable):
        name = getattr(workflows, "__name__", "checkout")
        raise UsageError(f"workflows={brief(workflows)}: give a list, such as [{name}], or discover('package')")
    known: dict[str, Definition[Any, Any]] = {}
    for workflow in map(definition_of, workflows):
        first = known.setdefault(workflow.type, workflow)
        if first is not workflow:
            raise UsageError(
                f"two workflows have the type {workflow.type!r}: {describe(first)} and {describe(workflow)}; "
                'give each its own: @workflow("...")'
            )
        workflow.signature.resolve()
    return known


def _checked_watermarks(watermarks: Iterable[Watermark]) -> tuple[Watermark, ...]:
    marks = check_list("watermarks", watermarks, "[Watermark(queue='mail', high=1000)]")
    for mark in marks:
        if not isinstance(mark, Watermark):
            raise UsageError(f"watermarks has {brief(mark)}: give a Watermark(queue='mail', high=1000)")
    return marks


def _check_token(token: str | None, url: str) -> None:
    if token is not None and not is_server(url):
        raise UsageError(f"a token is for a server, such as https://ops.example.com; {shown(url)!r} is a database")


def _check_options(payload_warn: object, payload_limit: object, migrate: object, errors: tuple[object, ...]) -> None:
    check_whole("payload_warn", payload_warn, 1)
    check_whole("payload_limit", payload_limit, 1)
    check_flag("migrate", migrate)
    for error in errors:
        if not isinstance(error, type) or not issubclass(error, BaseException):
            raise UsageError(f"errors has {brief(error)}: give exception classes, such as [PaymentDeclined]")
