"""The session of an engine on a server, and its waits for results."""

from __future__ import annotations

import logging
from typing import Any, cast

from perdure.client.remote.store import RemoteStore, refused
from perdure.client.remote.transport import Query, Transport, path_of
from perdure.client.remote.values import decoded, value_of
from perdure.client.runs.results import Results, disappeared
from perdure.client.session import Session, SessionOptions
from perdure.core.ids import check_id
from perdure.core.model.run import Run
from perdure.core.system import System
from perdure.core.time.duration import Duration, seconds
from perdure.errors import RunNotFound, StoreUnavailable
from perdure.store.contract import Store
from perdure.workflow.definition import Definition

logger = logging.getLogger("perdure.client")

#: Seconds that one request waits for a result. Many proxies give up after 30 to 60 seconds.
LONG_POLL = 25.0
#: Seconds between two attempts to reach a server that a wait has lost.
_LOST_PAUSE = 2.0


class RemoteSession(Session):
    """A server, the workflows whose types its answers have, and the process that uses them."""

    def __init__(
        self,
        url: str,
        workflows: dict[str, Definition[Any, Any]],
        options: SessionOptions,
        system: System,
        token: str | None,
    ) -> None:
        self._token = token
        super().__init__(url, workflows, options, system, None)

    def _new_results(self) -> Results:
        return RemoteResults(self)

    def _new_store(self) -> Store:
        transport = Transport(self.url, self._token, self.system, self._database_timeout, self.errors)
        return cast("Store", RemoteStore(transport, self.system))

    def _after_fork_in_child(self) -> None:
        """Begin anew: connections and waits are the parent's."""
        cast("RemoteStore", self.store).transport.detach()
        if self._state != "closed":
            self.store, self._state = self._new_store(), "new"
        self._begin()

    def set_call_timeout(self, timeout: Duration) -> None:
        """Set how long a call waits for a server that cannot be reached."""
        super().set_call_timeout(timeout)
        cast("RemoteStore", self.store).transport.bound = self._database_timeout

    async def close(self) -> None:
        """End waits and disconnect, also after a first request that failed."""
        await super().close()
        await cast("RemoteStore", self.store).transport.close()

    def make_worker(self, *_: object, **__: object) -> Any:
        """Refused: a worker needs the database."""
        raise refused("a worker")

    async def transport(self) -> Transport:
        """The opened connection to the server. Raises `EngineClosed`."""
        return cast("RemoteStore", await self.connect()).transport

    async def call(
        self,
        method: str,
        template: str,
        body: object = None,
        *,
        query: Query | None = None,
        wait: float = 0.0,
        slow: bool = False,
        **parts: object,
    ) -> bytes:
        """Make a request; the body of the answer."""
        path = path_of(template, **parts)
        return await (await self.transport()).request(method, path, query, body, wait=wait, slow=slow)

    async def order(self, template: str, body: object = None, **parts: Any) -> bool:
        """Give an order; False if there was nothing to do."""
        return bool(decoded(await self.call("POST", template, body, **parts), "done"))

    async def find(self, run_id: str) -> Run:
        """Read a run with its attributes. Raises `RunNotFound`."""
        return value_of(Run, await self.call("GET", "/runs/{run_id}", run_id=check_id(run_id)))


class RemoteResults(Results):
    """Waits of one engine for the outcomes of runs: each is a request that the server answers when the run ends."""

    def __init__(self, session: RemoteSession) -> None:
        super().__init__(session)
        self._remote = session

    async def wait_for(self, run_id: str, returns: Any, timeout: Duration | None) -> Any:
        """Wait for a run and return its result. Raises `RunFailed`, `RunCancelled` and `TimeoutError`."""
        if timeout is not None:
            seconds(timeout)
        run = await self._read(run_id, 0.0)
        if not run.status.finished:
            name, too_late = f"perdure result {run_id}", f"run {run_id!r} did not finish"
            run = await self.explainer.wait(run_id, lambda: self._ended(run_id), name, timeout, too_late)
        return self.outcome(run, returns)

    async def _ended(self, run_id: str) -> Run:
        """The run once it has ended. A server that is away is waited for, as a database is."""
        lost = False
        while True:
            try:
                run = await self._read(run_id, LONG_POLL)
            except StoreUnavailable as error:
                if not lost:
                    logger.warning("the wait for the result of run %s goes on without its server: %s", run_id, error)
                lost = True
                await self._remote.system.sleep(_LOST_PAUSE * (0.5 + self._remote.system.random() / 2))
            except RunNotFound:
                raise disappeared(run_id) from None
            else:
                lost = False
                if run.status.finished:
                    return run

    async def _read(self, run_id: str, wait: float) -> Run:
        answer = await self._remote.call(
            "GET", "/runs/{run_id}/result", query={"wait": wait}, wait=wait, run_id=check_id(run_id)
        )
        return value_of(Run, answer)

    async def _explain(self, run_id: str) -> tuple[Run, str]:
        run = await self._remote.find(run_id)
        return run, decoded(await self._remote.call("GET", "/runs/{run_id}/why", run_id=run_id), "why")
