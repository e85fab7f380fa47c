"""Working on runs one by one, as somebody outside names them: the half of an engine for queues, web hooks and serverless functions.

A pusher is a worker that looks for nothing by itself. It is made when it is first needed and kept, so that a message costs no
registration.
"""

from __future__ import annotations

import asyncio
import builtins
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from perdure.client.refusing import refuse_in_workflow
from perdure.core.codec.failure import Failure
from perdure.core.ids import check_id, check_name
from perdure.core.model.claim import ExecutionResult
from perdure.core.model.run import DEFAULT_QUEUE, Run
from perdure.core.policy.retention import Retention
from perdure.core.policy.retry import Retry
from perdure.core.process_fork import ForkAware, never_finalize, watch_forks
from perdure.core.time.duration import Duration, seconds
from perdure.errors import RunNotFound, UnknownWorkflow, UsageError
from perdure.store.contract import Store
from perdure.store.url import shown
from perdure.worker import UnknownRun, UnservedType, Worker, WorkerOptions
from perdure.workflow.definition import Definition

#: Runs of dead workers given back, and schedules fired, in one transaction.
_SWEPT = 500
_FIRED = 20


class Pushing(ABC):
    """What an `Engine` does at somebody's request."""

    url: str
    workflows: dict[str, Definition[Any, Any]]
    _actor: str
    _retention: Retention | None
    _workers: set[Worker]
    #: One for each event loop that has asked for it.
    _pushers: dict[asyncio.AbstractEventLoop, Pusher]

    @abstractmethod
    async def _opened(self) -> Store:
        """The store, ready to be used."""

    @abstractmethod
    def _make_worker(self, store: Store, options: WorkerOptions) -> Worker:
        """A worker that has not been started."""

    def pusher(
        self, *, lease: Duration = 15.0, grace: Duration = 10.0, retry: Retry | int | None = None, resident: int = 100
    ) -> Pusher:
        """A worker that takes only what it is told to: `async with engine.pusher() as pusher: await pusher.execute(run_id)`.

        The options are those of `worker`.
        """
        if not self.workflows:
            raise UsageError("this engine has no workflows to work on; pass them: Engine(url, [checkout, ship])")
        options = WorkerOptions.of(
            lease=lease, grace=grace, retry=retry, resident=resident, retention=self._retention, claims=False
        )
        return Pusher(self, options)

    async def execute(
        self, run_id: str, *, timeout: Duration | None = None, credentials: Mapping[str, Any] | None = None
    ) -> ExecutionResult:
        """Work on one run, here and now, until it waits or ends, or the time is up; then give it back.

        For queues and serverless functions. A run that is finished, waits or is held by another worker is left alone, and the answer
        says when to try again. The first call signs on a worker, which stays until the engine is closed. Steps and activities find the
        `credentials` by `perdure.credentials()`; nothing of them is stored.

        Raises `RunNotFound`, and `UnknownWorkflow` for a run whose code is not this engine's.
        """
        refuse_in_workflow()
        loop = asyncio.get_running_loop()
        pusher = self._pushers.get(loop)
        if pusher is None:
            for gone in [known for known in self._pushers if known.is_closed()]:
                await self._pushers.pop(gone).abandon()
            pusher = self._pushers[loop] = self.pusher()
        return await pusher.execute(run_id, timeout=timeout, credentials=credentials)

    async def due(self, *, limit: int = 100, queues: str | Sequence[str] = (DEFAULT_QUEUE,)) -> builtins.list[str]:
        """The ids of runs that could be worked on now, those that have waited longest first.

        For whoever tells others what to work on, now and then: it also gives back the runs of dead workers, fails what is past its
        deadline and fires schedules, as workers do, so that a fleet without any of those goes on.
        """
        if not 1 <= limit <= 10_000:
            raise UsageError(f"limit must be between 1 and 10000, not {limit}")
        names = [check_name(queue, "queue") for queue in ([queues] if isinstance(queues, str) else queues)]
        store = await self._opened()
        while (await store.sweep(_SWEPT)).more:
            pass
        while (await store.fire(_FIRED, self._actor)).next_due <= store.clock():
            pass
        return await store.due(sorted(self.workflows), names, limit)


class Pusher(ForkAware):
    """A worker that takes only what it is told to. Use it as an async context manager, or `start` and `stop` it."""

    def __init__(self, engine: Pushing, options: WorkerOptions) -> None:
        self._engine = engine
        self._options = options
        self._worker: Worker | None = None
        self._starting: asyncio.Lock | None = None
        watch_forks(self)

    def _after_fork_in_child(self) -> None:
        """Leave the worker to the parent, and sign on another when one is needed."""
        never_finalize(self._worker)
        self._worker = self._starting = None

    async def __aenter__(self) -> Pusher:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def id(self) -> str:
        """The id of the worker's current life; empty before it has started."""
        return "" if self._worker is None else self._worker.id

    async def start(self) -> None:
        """Sign on. Twice is once."""
        await self._started()

    async def stop(self, grace: Duration | None = None) -> None:
        """Let what is under way finish for the grace period, give back the rest and sign off."""
        refuse_in_workflow()
        if self._worker is not None:
            await self._worker.stop(None if grace is None else seconds(grace))

    async def abandon(self) -> None:
        """Sign off for a worker whose event loop is gone, and with it whatever it did."""
        refuse_in_workflow()
        if self._worker is not None:
            self._engine._workers.discard(self._worker)
            self._worker.abandon()
            await (await self._engine._opened()).retire(self._worker.id)

    async def execute(
        self, run_id: str, *, timeout: Duration | None = None, credentials: Mapping[str, Any] | None = None
    ) -> ExecutionResult:
        """See `Engine.execute`."""
        limit = None if timeout is None else seconds(timeout)
        worker = await self._started()
        with self._naming(run_id):
            return await worker.executor.execute(check_id(run_id), limit, credentials)

    async def fail(self, run_id: str, failure: Failure, limit: str = "") -> Run | None:
        """End a run that is ready as failed; the run as it is if that cannot be. `limit` is the limit of time that it has passed.

        Raises `RunNotFound` and `UnknownWorkflow`, as `execute` does.
        """
        worker = await self._started()
        with self._naming(run_id):
            return await worker.executor.fail(check_id(run_id), failure, limit)

    @contextmanager
    def _naming(self, run_id: str) -> Generator[None]:
        """Say which run it is that cannot be executed here."""
        try:
            yield
        except UnknownRun:
            raise RunNotFound(f"there is no run {run_id!r} in {shown(self._engine.url)}") from None
        except UnservedType as type:
            raise UnknownWorkflow(
                f"run {run_id!r} is a {str(type)!r}, which is none of this engine's workflows; add it to Engine(url, [...]), "
                "or send the run where it is known"
            ) from None

    async def _started(self) -> Worker:
        refuse_in_workflow()
        if self._worker is not None and self._worker.id:
            return self._worker
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self._worker is None:
                worker = self._engine._make_worker(await self._engine._opened(), self._options)
                await worker.start()
                self._worker = worker
            return self._worker
