"""The engine on a server: the verbs of `Engine` over the HTTP API, for programs without access to the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Never, TypeVar

from perdure.client.audit import AuditTrail
from perdure.client.dead_letters import DeadLetters
from perdure.client.engine import Engine
from perdure.client.events import Events
from perdure.client.handle import Handle, get_handle
from perdure.client.limits import Breakers, Limits
from perdure.client.locks import Locks
from perdure.client.remote.bodies import attributes_body, call_body, moment_text, present
from perdure.client.remote.handle import RemoteHandle
from perdure.client.remote.namespaces import (
    RemoteAuditTrail,
    RemoteBreakers,
    RemoteDeadLetters,
    RemoteEvents,
    RemoteLimits,
    RemoteLocks,
    RemoteQueues,
    RemoteRuns,
    RemoteSchedules,
    RemoteTokens,
)
from perdure.client.remote.session import RemoteSession
from perdure.client.remote.store import refused
from perdure.client.remote.values import decoded
from perdure.client.runs.namespace import Runs
from perdure.client.runs.start import StartOptions
from perdure.client.schedules import Schedules
from perdure.client.session import Session, SessionOptions
from perdure.client.tokens import Tokens
from perdure.client.workers import Queues
from perdure.core.model.run import NewRun
from perdure.core.system import System
from perdure.store.contract import Store
from perdure.workflow.definition import Call, Definition

R = TypeVar("R")


class RemoteEngine(Engine):
    """An engine on a server."""

    _session: RemoteSession

    def _make_session(
        self, url: str, options: SessionOptions, system: System, store: Store | None, token: str | None
    ) -> Session:
        if not options.migrate:
            raise refused("migrate=False", "leave it out: the server has the database")
        for name, value in (
            ("retention", options.retention),
            ("watermarks", options.watermarks),
            ("outbox", options.outbox),
            ("on_error, on_dead_letter and on_event", options.hooks or None),
            ("store", store),
        ):
            if value:
                raise refused(name, "leave it out, or give it to the engine of the server and its workers")
        return RemoteSession(url, self.workflows, options, system, token)

    # namespaces

    @property
    def runs(self) -> Runs:
        return RemoteRuns(self._session)

    @property
    def schedules(self) -> Schedules:
        return RemoteSchedules(self._session)

    @property
    def limits(self) -> Limits:
        return RemoteLimits(self._session)

    @property
    def breakers(self) -> Breakers:
        return RemoteBreakers(self._session)

    @property
    def locks(self) -> Locks:
        return RemoteLocks(self._session)

    @property
    def dead_letters(self) -> DeadLetters:
        return RemoteDeadLetters(self._session)

    @property
    def audit(self) -> AuditTrail:
        return RemoteAuditTrail(self._session)

    @property
    def queues(self) -> Queues:
        return RemoteQueues(self._session)

    @property
    def events(self) -> Events:
        return RemoteEvents(self._session)

    @property
    def tokens(self) -> Tokens:
        return RemoteTokens(self._session)

    # refused

    def worker(self, **_: Any) -> Any:
        raise refused("a worker", "workers have the database: Engine('postgresql://...', [...]).worker()")

    async def check(
        self,
        *,
        types: Sequence[str] | None = None,
        limit: int | None = None,
        save: bool = True,
        pinned: bool = False,
    ) -> Never:
        raise refused(
            "check",
            "it compares histories with the code of this process; run it where the database is, or ask the server to "
            "check its own code: GET /api/v1/deploy-check",
        )

    # starting

    async def _start(self, call: Call[R], run: NewRun, options: StartOptions, connection: object) -> Handle[R]:
        _refuse_connection(connection)
        body = call_body(self._session, call, run) | present({"id": run.id, "idempotency_key": run.idempotency_key})
        body |= _common(options) | {"queue": run.queue, "priority": run.priority}
        answer = await self._session.call("POST", "/runs", body)
        return RemoteHandle(self._session, decoded(answer, "id"), call.returns)

    async def _start_all(
        self, calls: Sequence[Call[R]], runs: Sequence[NewRun], options: StartOptions, connection: object
    ) -> list[Handle[R]]:
        _refuse_connection(connection)
        await self._session.connect()
        if not calls:
            return []
        body = {
            "runs": [call_body(self._session, call, new) for call, new in zip(calls, runs, strict=True)],
            "ids": [new.id for new in runs],
            **_common(options),
            **present({"queue": options.get("queue"), "priority": options.get("priority")}),
        }
        made = decoded(await self._session.call("POST", "/runs/batch", body, slow=True), "ids", list[str])
        return [RemoteHandle(self._session, run_id, call.returns) for run_id, call in zip(made, calls, strict=True)]

    async def get(self, run_id: str, workflow: Definition[..., Any] | None = None) -> Handle[Any]:
        return await get_handle(self._session, run_id, workflow, RemoteHandle)


def _refuse_connection(connection: object) -> None:
    if connection is not None:
        raise refused("connection=...", "leave it out, or use an engine on the database of that connection")


def _common(options: StartOptions) -> dict[str, Any]:
    """Options of a start that the server applies: times count from its own time."""
    place = {"at": moment_text(options.get("at")), "deadline": moment_text(options.get("deadline"))}
    return present({**place, "attributes": attributes_body(options.get("attributes"))})
