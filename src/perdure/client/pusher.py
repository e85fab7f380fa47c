"""A worker for queues, web hooks and serverless functions: it works on single runs that its caller names.

It claims nothing by itself. It signs on when it is first needed and stays, so that a message costs no registration.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from perdure.client.engine import Engine
from perdure.client.session import refuse_in_workflow, require_workflows, session_of
from perdure.core.codec.failure import Failure
from perdure.core.ids import check_id, check_name
from perdure.core.model.claim import ExecutionResult
from perdure.core.model.run import DEFAULT_QUEUE, Run
from perdure.core.policy.retry import Retry
from perdure.core.process_fork import never_finalize, watch_forks
from perdure.core.routing import PYTHON, SHARED
from perdure.core.time.duration import Duration, seconds
from perdure.errors import RunNotFound, UnknownWorkflow, UsageError
from perdure.store.url import shown

if TYPE_CHECKING:
    from perdure.worker import Worker

#: Runs of dead workers given back, and schedules fired, in one transaction.
_SWEPT = 500
_FIRED = 20


class Pusher:
    """A worker that executes only the runs that it is told to.

    It starts by itself; the engine stops it when it is closed.

    One pusher serves several event loops, one after the other or at once, with a worker for each.
    """

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
        self._session = session_of(engine)
        require_workflows(self._session.served_code())
        from perdure.worker import WorkerSettings

        self._settings = WorkerSettings.of(
            lease=lease, grace=grace, retry=retry, resident=resident, retention=self._session.retention, claims=False
        )
        self._begin()
        watch_forks(self._after_fork_in_child)

    def _begin(self) -> None:
        self._workers: dict[asyncio.AbstractEventLoop, Worker] = {}
        self._starting: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        self._latest: Worker | None = None

    def _after_fork_in_child(self) -> None:
        """Leave the workers to the parent, and sign on another when one is needed."""
        never_finalize(self._workers, self._starting, self._latest)
        self._begin()

    async def __aenter__(self) -> Pusher:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def id(self) -> str:
        """Id of the current life of the worker that signed on last; empty before the first."""
        return "" if self._latest is None else self._latest.id

    async def start(self) -> None:
        """Sign on. A second call does nothing."""
        await self._started()

    async def stop(self, grace: Duration | None = None) -> None:
        """Let executions under way finish for the grace period, give back the rest and sign off."""
        refuse_in_workflow()
        worker = self._workers.get(asyncio.get_running_loop())
        if worker is not None:
            await worker.stop(None if grace is None else seconds(grace))

    async def execute(
        self, run_id: str, *, timeout: Duration | None = None, credentials: Mapping[str, Any] | None = None
    ) -> ExecutionResult:
        """Work on one run, here and now, until it waits or ends, or the time is up; then give it back.

        A run that is finished, waits or is held by another worker is left alone, and the answer says when to try again.
        Steps and activities read the `credentials` with `perdure.credentials()`; they are never stored.

        Raises `RunNotFound`, and `UnknownWorkflow` for a run whose code is not this engine's, or whose type belongs to
        workers of another runtime.
        """
        limit = None if timeout is None else seconds(timeout)
        worker = await self._started()
        with self._naming(run_id):
            return await worker.executor.execute(check_id(run_id), limit, credentials)

    async def fail(self, run_id: str, failure: Failure, limit: str = "") -> Run | None:
        """Fail a run that is ready; return the run as it is if that is not possible.

        `limit` names the time limit it passed.

        Raises `RunNotFound` and `UnknownWorkflow`, as `execute` does.
        """
        worker = await self._started()
        with self._naming(run_id):
            return await worker.executor.fail(check_id(run_id), failure, limit)

    async def due(self, *, limit: int = 100, queues: str | Sequence[str] = (DEFAULT_QUEUE,)) -> builtins.list[str]:
        """Return the ids of runs that could be worked on now, longest waiting first.

        Call it now and then from a timer. It also gives back the runs of dead workers, fails runs past their deadline
        and fires schedules, as workers do, so that a fleet without workers goes on.
        """
        if not 1 <= limit <= 10_000:
            raise UsageError(f"limit must be between 1 and 10000, not {limit}")
        names = [check_name(queue, "queue") for queue in ([queues] if isinstance(queues, str) else queues)]
        if self._session.pinned_types(self._session.workflows):
            names += self._session.pinned_queues(names)[len(names) :]
        store = await self._session.connect()
        while (await store.sweep(_SWEPT)).more:
            pass
        while (await store.fire_schedules(_FIRED, self._session.actor)).next_due <= store.clock():
            pass
        elsewhere = {one.type for one in await store.types() if one.runtime not in (PYTHON, SHARED)}
        return await store.ready_run_ids(sorted(self._session.served_code().keys() - elsewhere), names, limit)

    @contextmanager
    def _naming(self, run_id: str) -> Generator[None]:
        """Name the run that cannot be executed here."""
        from perdure.worker import UnknownRun, UnservedType

        try:
            yield
        except UnknownRun:
            raise RunNotFound(f"there is no run {run_id!r} in {shown(self._session.url)}") from None
        except UnservedType as type:
            if str(type) in self._session.served_code():
                raise UnknownWorkflow(
                    f"run {run_id!r} is a {str(type)!r}, which belongs to workers of another runtime; see `perdure "
                    "queues types`"
                ) from None
            raise UnknownWorkflow(
                f"run {run_id!r} is a {str(type)!r}, which is none of this engine's workflows; add it to "
                "Engine(url, [...]), "
                "or send the run where it is known"
            ) from None

    async def _started(self) -> Worker:
        refuse_in_workflow()
        loop = asyncio.get_running_loop()
        worker = self._workers.get(loop)
        if worker is not None and worker.id:
            return worker
        async with self._starting.setdefault(loop, asyncio.Lock()):
            await self._abandon_closed()
            worker = self._workers.get(loop)
            if worker is None:
                await self._session.connect()
                worker = self._session.make_worker(self._settings)
                await worker.start()
                self._workers[loop] = self._latest = worker
            return worker

    async def _abandon_closed(self) -> None:
        """Sign off workers whose event loop is gone, and with it everything that they did."""
        for loop in [known for known in self._workers if known.is_closed()]:
            worker = self._workers.pop(loop)
            self._starting.pop(loop, None)
            self._session.workers.discard(worker)
            worker.abandon()
            await (await self._session.connect()).retire(worker.id)
