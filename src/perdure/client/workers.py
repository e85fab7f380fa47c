"""Workers: one that an engine hands out, those of the whole fleet, and the queues and types that they serve."""

from __future__ import annotations

import builtins
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure.client.session import AsyncOnly, Session, refuse_in_workflow
from perdure.client.watermarks import Watermarks
from perdure.core.ids import check_id, check_name
from perdure.core.model.documents import (
    SOURCES_KEPT,
    DocumentKind,
    WorkflowSource,
    workflow_source,
)
from perdure.core.model.run import MOST_COUNTED, UNFINISHED, CountBy, RunFilter
from perdure.core.model.run_orders import OrderOutcome, Pause, PauseKind
from perdure.core.model.worker_info import BuildInfo, DrainOrder, WorkerInfo, list_builds
from perdure.core.option_checks import check_duration, check_text
from perdure.core.routing import TypeInfo
from perdure.core.time.duration import Duration, seconds
from perdure.errors import StoreRefused, StoreUnavailable, UsageError, WorkerNotFound
from perdure.workflow.definition import Definition

if TYPE_CHECKING:
    from perdure.worker import Worker, WorkerSettings

logger = logging.getLogger("perdure.client")

#: Seconds between two attempts to reach a server when a worker starts: at first, and at most.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 15.0


class Workers:
    """Workers of all processes that share the database: `engine.workers`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def list(self) -> builtins.list[WorkerInfo]:
        """List the workers of the fleet, dead ones included until they are forgotten."""
        return await (await self._session.connect()).workers()

    async def builds(self) -> builtins.list[BuildInfo]:
        """List the builds that have live workers or unfinished runs, the latest first.

        Live workers without a build are listed as the build "", with the runs that they or no worker have begun.
        The counts are exact while at most 10,000 runs are unfinished. A build without live workers that has pinned runs
        is to be started again, or its runs are to be unpinned.
        """
        store = await self._session.connect()
        unfinished = RunFilter(status=UNFINISHED)
        begun = await store.count(unfinished, CountBy(column="build"), MOST_COUNTED)
        pinned = await store.count(unfinished, CountBy(column="queue"), MOST_COUNTED)
        return list_builds(await store.workers(), begun, pinned)

    async def drain(self, worker_id: str, reason: str = "", *, grace: Duration | None = None) -> bool:
        """Order a worker to drain: it claims no more runs, lets steps finish, gives back the rest and stops.

        The worker learns of it with its next heartbeat. `grace` is how long steps may go on, by default the worker's
        own grace period. False if it drains already, has stopped or is dead. A process that is started anew is another
        worker, and works. Raises `WorkerNotFound`.
        """
        session = self._session
        session.codec.encode(reason, "the reason of a drain")
        order = DrainOrder(
            key=session.system.entropy(16).hex(),
            reason=check_text("reason", reason),
            grace=None if grace is None else check_duration("grace", grace),
        )
        store = await session.connect()
        outcome = await store.drain(check_id(worker_id), order, session.actor)
        if outcome is OrderOutcome.UNKNOWN:
            raise WorkerNotFound(f"there is no worker {worker_id!r}; it may have ended more than a day ago")
        return outcome is OrderOutcome.DONE


class EngineWorker(AsyncOnly):
    """A worker of an engine, to be entered or run."""

    _awaited = "a worker cannot be awaited; write `async with engine.worker():`, or `await engine.worker().run()`"

    def __repr__(self) -> str:
        return f"<worker {self.id or 'not started'}>"

    def __init__(
        self, session: Session, settings: WorkerSettings, code: Mapping[str, Definition[Any, Any]] | None = None
    ) -> None:
        self._session = session
        self._settings = settings
        #: Code in place of the engine's.
        self._code = code
        self._worker: Worker | None = None
        self._process = 0

    @property
    def id(self) -> str:
        """Id of the worker's current life; empty before it has started."""
        return "" if self._worker is None else self._worker.id

    @property
    def errors(self) -> Mapping[str, int]:
        """Number of errors that each background loop has met and survived. The log has them all."""
        return {} if self._worker is None else dict(self._worker.health.errors)

    @property
    def problem(self) -> str:
        """Reason why the worker does not work, such as that it drains; empty if it works."""
        return "" if self._worker is None else self._worker.health.problem

    async def __aenter__(self) -> EngineWorker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin to work."""
        await (await self._make()).start()

    async def stop(self, grace: Duration | None = None) -> None:
        """Stop claiming, let steps finish for the grace period, give back the rest."""
        refuse_in_workflow()
        # A worker runs in one process. A child that was forked from it has nothing to stop.
        if self._worker is not None and self._process == os.getpid():
            await self._worker.stop(None if grace is None else seconds(grace))

    async def run(self) -> None:
        """Work until SIGTERM, SIGINT or cancellation, then stop in order. A second signal stops at once."""
        await (await self._make()).run_until_signalled()

    async def connect(self) -> None:
        """Connect to the database, waiting for a server that cannot be reached. Raises `StoreUnavailable`.

        A server that refuses the user or the database is not waited for: `StoreRefused` is raised at once. `start` and
        `run` connect by themselves.
        """
        refuse_in_workflow()
        system, limit = self._session.system, self._settings.wait_for_database
        begun, pause = system.monotonic(), FIRST_PAUSE
        while True:
            try:
                await self._session.connect()
            except StoreUnavailable as error:
                waited = system.monotonic() - begun
                # A broken file, a wrong password or a missing database does not mend itself.
                if waited >= limit or self._session.store.exclusive or isinstance(error, StoreRefused):
                    raise
                pause = min(pause, limit - waited)
                logger.warning(
                    "the worker waits for its database, %.0f s of %.0f s so far, and tries again in %.1f s: %s",
                    *(waited, limit, pause, error),
                )
                await system.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                return

    async def _make(self) -> Worker:
        refuse_in_workflow()
        if self._worker is not None:
            raise UsageError("this worker was started before; make another: engine.worker()")
        await self.connect()
        self._process = os.getpid()
        self._worker = self._session.make_worker(self._settings, self._code)
        return self._worker


class Queues:
    """Queues and types of an engine's database: `engine.queues`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def watermarks(self) -> Watermarks:
        """Bound the number of queued runs, beyond which starts are refused or wait."""
        return Watermarks(self._session)

    async def pause(self, *, queue: str | None = None, type: str | None = None, reason: str = "") -> bool:
        """Pause all runs in a queue, or of a type; False if it is paused already.

        Workers claim none of its runs any more. Runs that a worker has go on until they wait for something.
        """
        reason = check_text("reason", reason)
        self._session.codec.encode(reason, "the reason of a pause")
        kind, name = _place(queue, type)
        store = await self._session.connect()
        if any((one.kind, one.name) == (kind, name) for one in await store.pauses()):
            return False
        await store.pause(Pause(kind=kind, name=name, reason=reason), self._session.actor)
        return True

    async def resume(self, *, queue: str | None = None, type: str | None = None, reason: str = "") -> bool:
        """End the pause of a queue or a type; False if it was not paused."""
        reason = check_text("reason", reason)
        self._session.codec.encode(reason, "the reason for resuming")
        kind, name = _place(queue, type)
        store = await self._session.connect()
        if not any((one.kind, one.name) == (kind, name) for one in await store.pauses()):
            return False
        await store.resume(kind, name, self._session.actor, reason)
        return True

    async def paused(self) -> builtins.list[Pause]:
        """List the queues and types that are paused."""
        return await (await self._session.connect()).pauses()

    async def sources(self, type: str) -> builtins.list[WorkflowSource]:
        """Read source and docstring of a type, as the workers of the latest builds registered them; latest first."""
        store = await self._session.connect()
        found = await store.documents(DocumentKind.SOURCE, check_name(type, "workflow type"), SOURCES_KEPT)
        return [workflow_source(one) for one in found]

    async def types(self) -> builtins.list[TypeInfo]:
        """List the types that workers have registered: kind, runtime, and whether each is enabled.

        A type that is paused is not enabled, in whatever language its workers are written.
        """
        return await (await self._session.connect()).types()


def _place(queue: str | None, type: str | None) -> tuple[PauseKind, str]:
    if (queue is None) == (type is None):
        raise UsageError("name one thing, a queue or a type; such as pause(queue='reports')")
    if type is not None:
        return PauseKind.TYPE, check_name(type, "workflow type")
    return PauseKind.QUEUE, check_name(queue, "queue")
