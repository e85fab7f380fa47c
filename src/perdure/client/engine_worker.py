"""A worker, as an engine hands it out."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from perdure.client.refusing import refuse_in_workflow
from perdure.core.time.duration import Duration, seconds
from perdure.errors import StoreRefused, StoreUnavailable, UsageError
from perdure.worker import Worker, WorkerOptions

if TYPE_CHECKING:
    from perdure.client.engine import Engine


logger = logging.getLogger("perdure.client")

#: Seconds between two attempts to reach a server when a worker starts: at first, and at the most.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 15.0


class EngineWorker:
    """A worker of an engine, to be entered or run."""

    def __init__(self, engine: Engine, options: WorkerOptions) -> None:
        self._engine = engine
        self._options = options
        self._worker: Worker | None = None
        self._process = 0

    @property
    def id(self) -> str:
        """The id of the worker's current life; empty before it has started."""
        return "" if self._worker is None else self._worker.id

    @property
    def errors(self) -> Mapping[str, int]:
        """How many errors each of its background loops has met and survived. They are in the log, and their sum in `engine.workers()`."""
        return {} if self._worker is None else dict(self._worker.health.errors)

    @property
    def problem(self) -> str:
        """What keeps the worker from working, such as that it drains; empty if nothing does."""
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

        A server that does not let the user in, or has no such database, is not waited for: that is `StoreRefused`, at once. `start` and `run` do so by themselves.
        """
        refuse_in_workflow()
        system, limit = self._engine._system, self._options.wait_for_database
        begun, pause = system.monotonic(), FIRST_PAUSE
        while True:
            try:
                await self._engine._opened()
            except StoreUnavailable as error:
                waited = system.monotonic() - begun
                # What is wrong with a file, a password or the name of a database does not mend itself.
                if waited >= limit or self._engine._store.exclusive or isinstance(error, StoreRefused):
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
        self._worker = self._engine._make_worker(await self._engine._opened(), self._options)
        return self._worker
