"""Namespaces of an engine on a server. Methods that are not here work as they are, on the verbs of `RemoteStore`.

A method that nothing carries out over HTTP is refused, here or by the store.
"""

from __future__ import annotations

import builtins
import datetime
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Never, Unpack

import msgspec

from perdure.client.audit import AuditTrail
from perdure.client.dead_letters import CHUNK, BulkResult, DeadLetters, DeadOptions, make_letter_filter
from perdure.client.events import Events
from perdure.client.handle import Handle
from perdure.client.limits import Breakers, Limits
from perdure.client.locks import Locks
from perdure.client.remote.bodies import duration_text, moment_text, present, retry_body, schedule_body
from perdure.client.remote.handle import RemoteHandle
from perdure.client.remote.session import LONG_POLL, RemoteSession
from perdure.client.remote.store import filter_fields, refused
from perdure.client.remote.values import decoded, members, restore_all, value_of
from perdure.client.runs.attempt_reports import failure_of
from perdure.client.runs.bulk import BulkJob
from perdure.client.runs.namespace import PruneReport, RunFilters, Runs, check_runs
from perdure.client.runs.reopen import RetryOptions
from perdure.client.runs.start import Moment
from perdure.client.schedules import ScheduleOptions, Schedules
from perdure.client.tokens import Tokens
from perdure.client.workers import Queues
from perdure.core.access import Role, TokenInfo
from perdure.core.codec.failure import Failure
from perdure.core.codec.snapshot import snapshot
from perdure.core.ids import check_id, check_name, uuid7
from perdure.core.limits.breaker import BreakerInfo
from perdure.core.limits.limit import LimitInfo, PermitInfo
from perdure.core.model.attempt_reports import read_token
from perdure.core.model.dead_letter import DeadLetter
from perdure.core.model.documents import StoredDeployReport, WorkflowSource
from perdure.core.model.lock import LockInfo
from perdure.core.model.reports import BulkPreview, BulkReport
from perdure.core.model.run import Run, RunFilter, RunGroup
from perdure.core.option_checks import check_datetime, check_flag, check_list, check_page, check_text
from perdure.core.time.cron import Timing
from perdure.core.time.duration import Duration, moment_of
from perdure.core.time.schedule import BackfillPreview, Fire, Schedule, ScheduledRun
from perdure.errors import RunNotFound, UsageError
from perdure.workflow.channels import Channel, expected_message
from perdure.workflow.definition import Call

#: Ids in one request.
_CHUNK = 1000


class RemoteRuns(Runs):
    """Runs of a server: `engine.runs`."""

    _session: RemoteSession

    async def why(self, run_id: str) -> str:
        return str(decoded(await self._session.call("GET", "/runs/{run_id}/why", run_id=check_id(run_id)), "why"))

    def broadcast(  # pyright: ignore[reportIncompatibleMethodOverride] - the value is copied before the wait
        self, name: Channel[Any] | str, value: object = None, *, correlation: str, key: str | None = None
    ) -> Coroutine[Any, Any, int]:
        return self._broadcast(name, snapshot(value), correlation, key)

    async def _broadcast(self, channel: Channel[Any] | str, value: object, correlation: str, key: str | None) -> int:
        session, wanted = self._session, expected_message(channel)
        payload = session.codec.encode(value, f"broadcast {wanted.name!r}", wanted.type)
        body = {
            "name": wanted.name,
            "value": msgspec.Raw(payload.encode()),
            "correlation": correlation,
            "key": session.system.entropy(16).hex() if key is None else check_id(key, "key of a broadcast"),
        }
        return int(decoded(await session.call("POST", "/broadcasts", body, slow=True), "sent"))

    async def complete(self, token: str, value: object = None) -> None:
        read_token(check_text("token", token))
        payload = self._session.codec.encode(value, "result of an activity")
        await self._report(token, "complete", {"value": msgspec.Raw(payload.encode())})

    async def fail(self, token: str, error: BaseException | Failure | str) -> None:
        read_token(check_text("token", token))
        failure = failure_of(self._session, error)
        fields = ("type", "message", "args", "state", "traceback")
        await self._report(token, "fail", present({name: getattr(failure, name) for name in fields}))

    async def heartbeat(self, token: str, details: object = None) -> None:
        read_token(check_text("token", token))
        payload = self._session.codec.encode(details, "heartbeat of an activity")
        await self._report(token, "heartbeat", {"details": msgspec.Raw(payload.encode())})

    async def _report(self, token: str, verb: str, body: dict[str, Any]) -> None:
        await self._session.order(f"/activities/{{token}}/{verb}", body, token=token)

    async def unserved(self, runs: Sequence[Run]) -> set[str]:
        ids = [run.id for run in check_runs(runs)]
        found: set[str] = set()
        await self._session.connect()
        for at in range(0, len(ids), _CHUNK):
            answer = await self._session.call("POST", "/runs/unserved", {"ids": ids[at : at + _CHUNK]})
            found |= {*decoded(answer, "ids", list[str])}
        return found

    async def updated_at(self, runs: Sequence[Run]) -> dict[str, int]:
        ids = [run.id for run in check_runs(runs)]
        found: dict[str, int] = {}
        await self._session.connect()
        for at in range(0, len(ids), _CHUNK):
            answer = await self._session.call("POST", "/runs/updated", {"ids": ids[at : at + _CHUNK]})
            found |= decoded(answer, "times", dict[str, int])
        return found

    async def export(self, *_: Any, **__: Any) -> Never:
        raise refused("export", "a history is read with its seed, which no answer has; run it where the database is")

    async def terminate(self, run_id: str, reason: str = "", *, undo: bool = False) -> bool:
        body = {"reason": check_text("reason", reason), "undo": check_flag("undo", undo)}
        return await self._session.order("/runs/{run_id}/terminate", body, run_id=check_id(run_id))

    async def wake(self, run_id: str, at: Moment | None = None, reason: str = "") -> None:
        body = present({"at": moment_text(at)}) | {"reason": check_text("reason", reason)}
        await self._session.order("/runs/{run_id}/wake", body, run_id=check_id(run_id))

    async def retry(self, run_id: str, **changes: Unpack[RetryOptions]) -> int:
        run = await self._session.find(run_id)
        body = retry_body(self._session, changes) | {"revision": run.token}
        answer = await self._session.call("POST", "/runs/{run_id}/retry", body, run_id=run.id)
        return int(decoded(answer, "generation"))

    async def delete(self, run_id: str, reason: str = "", *, purge: bool = False) -> bool:
        reason = check_text("reason", reason)
        check_flag("purge", purge)
        run = await self._session.find(run_id)
        # A repetition of each request finds nothing to do, so the answer follows from the run as it was before.
        if purge:
            with suppress(RunNotFound):
                await self._session.order("/runs/{run_id}/purge", {"reason": reason}, run_id=run.id)
            return True
        await self._session.call("DELETE", "/runs/{run_id}", query={"reason": reason}, run_id=run.id)
        return not run.deleted_at

    async def prune(
        self,
        older_than: Duration,
        *,
        status: str | Sequence[str] | None = None,
        types: str | Sequence[str] | None = None,
        deleted: bool = False,
    ) -> PruneReport:
        body = {
            "older_than": duration_text(older_than),
            "status": _listed("status", status),
            "types": _listed("types", types),
            "deleted": check_flag("deleted", deleted),
        }
        return value_of(PruneReport, await self._session.call("POST", "/runs/prune", present(body), slow=True))

    async def preview_bulk(
        self, run_ids: str | Sequence[str] | None = None, *, where: RunFilters | None = None
    ) -> BulkPreview:
        from perdure.client.runs.bulk import selected

        answer = await self._session.call("POST", "/bulk/preview", _chosen(*selected(run_ids, where)))
        count = RunGroup("", decoded(answer, "count", int), decoded(answer, "exact", bool))
        return BulkPreview(count=count, first=tuple(restore_all(Run, members(answer)["first"])))

    async def _perform(
        self, job: BulkJob, id: str | None, on_progress: Callable[[BulkReport], object] | None
    ) -> BulkReport:
        from perdure.client.runs.bulk import follow

        job_id = await self._start_job(job, id)
        handle: Handle[BulkReport] = RemoteHandle(self._session, job_id, BulkReport)
        return await follow(handle, lambda: self.bulk_progress(job_id), on_progress)

    async def _start_job(self, job: BulkJob, id: str | None) -> str:
        session = self._session
        body = _chosen(job.ids, job.filter) | {"action": job.action, "reason": job.reason, "purge": job.purge}
        if job.payload is not None:
            body |= {"message": job.message, "value": msgspec.Raw(job.payload.encode())}
        body["id"] = uuid7(session.system.now(), session.system.entropy(10)) if id is None else check_id(id)
        return str(decoded(await session.call("POST", "/bulk", body), "id"))

    async def bulk_progress(self, job_id: str) -> BulkReport | None:
        answer = await self._session.call("GET", "/bulk/{job_id}", job_id=check_id(job_id))
        # An action that has not begun names none.
        return value_of(BulkReport, answer) if decoded(answer, "action") else None

    def bulk_worker(self, **_: Any) -> Any:
        raise refused("runs.bulk_worker", "the server works on bulk actions by itself")


class RemoteSchedules(Schedules):
    """Schedules of a server: `engine.schedules`."""

    _session: RemoteSession

    async def create(
        self, id: str, call: Call[Any], timing: Timing, *, replace: bool = False, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        id = check_name(id, "schedule id")
        body = schedule_body(self._session, call, timing, options) | {"replace": check_flag("replace", replace)}
        return value_of(Schedule, await self._session.call("PUT", "/schedules/{id}", body, id=id))

    async def change(
        self,
        id: str,
        *,
        call: Call[Any] | None = None,
        timing: Timing | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        body = schedule_body(self._session, call, timing, options)
        return value_of(Schedule, await self._call("PATCH", "/schedules/{id}", id, body))

    async def pause(self, id: str, reason: str = "") -> bool:
        body = {"reason": check_text("reason", reason)}
        return bool(decoded(await self._call("POST", "/schedules/{id}/pause", id, body), "done"))

    async def resume(self, id: str, *, catch_up: bool = False, reason: str = "") -> bool:
        body = {"catch_up": check_flag("catch_up", catch_up), **_reason_body(reason)}
        return bool(decoded(await self._call("POST", "/schedules/{id}/resume", id, body), "done"))

    async def trigger(self, id: str, reason: str = "") -> Handle[Any]:
        run = value_of(Run, await self._call("POST", "/schedules/{id}/trigger", id, _reason_body(reason) or None))
        known = self._session.workflows.get(run.type)
        return RemoteHandle(self._session, run.id, Any if known is None else known.signature.returns)

    async def backfill(
        self, id: str, start: datetime.datetime, end: datetime.datetime, reason: str = ""
    ) -> builtins.list[str]:
        body = _range_body(start, end) | _reason_body(reason)
        return [*decoded(await self._call("POST", "/schedules/{id}/backfill", id, body, slow=True), "ids", list[str])]

    async def preview_backfill(self, id: str, start: datetime.datetime, end: datetime.datetime) -> BackfillPreview:
        body = _range_body(start, end)
        return value_of(BackfillPreview, await self._call("POST", "/schedules/{id}/backfill/preview", id, body))

    async def fires(self, id: str, limit: int = 30) -> builtins.list[Fire]:
        answer = await self._call("GET", "/schedules/{id}/fires", id, query={"limit": check_page(limit)})
        return restore_all(Fire, members(answer)["items"])

    async def runs(self, id: str, limit: int = 100) -> builtins.list[ScheduledRun]:
        answer = await self._call("GET", "/schedules/{id}/runs", id, query={"limit": check_page(limit)})
        return [*decoded(answer, "items", list[ScheduledRun])]

    async def next(self, id: str, count: int = 5) -> builtins.list[datetime.datetime]:
        answer = await self._call("GET", "/schedules/{id}/next", id, query={"count": count})
        return [*decoded(answer, "times", list[datetime.datetime])]

    async def _call(self, method: str, template: str, id: str, body: object = None, **options: Any) -> bytes:
        return await self._session.call(method, template, body, id=check_name(id, "schedule id"), **options)


class RemoteLimits(Limits):
    """Limits of a server: `engine.limits`."""

    _session: RemoteSession

    async def set(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
        reason: str = "",
    ) -> None:
        body = present({"concurrency": concurrency, "rate": rate, "burst": burst})
        body["reason"] = check_text("reason", reason)
        await self._session.call("PUT", "/limits/{name}", body, name=name)

    async def clear(self, name: str, reason: str = "") -> None:
        query = {"reason": check_text("reason", reason)}
        await self._session.call("DELETE", "/limits/{name}", query=query, name=name)

    async def list(self, *, limit: int = 100, after: str = "") -> builtins.list[LimitInfo]:
        return await _named(self._session, LimitInfo, "/limits", limit, after)

    async def holders(self, name: str, *, limit: int = 100) -> builtins.list[PermitInfo]:
        query = {"limit": check_page(limit)}
        answer = await self._session.call("GET", "/limits/{name}/permits", query=query, name=check_text("name", name))
        return restore_all(PermitInfo, members(answer)["items"])


class RemoteBreakers(Breakers):
    """Circuit breakers of a server: `engine.breakers`."""

    _session: RemoteSession

    async def list(self, *, limit: int = 100, after: str = "") -> builtins.list[BreakerInfo]:
        return await _named(self._session, BreakerInfo, "/breakers", limit, after)


class RemoteLocks(Locks):
    """Named locks of a server: `engine.locks`."""

    _session: RemoteSession

    async def acquire(self, *_: Any, **__: Any) -> Any:
        raise lock_refused()

    def hold(self, *_: Any, **__: Any) -> Any:
        raise lock_refused()

    async def get(self, name: str) -> LockInfo | None:
        found = members(await self._session.call("GET", "/locks/{name}", name=name))["lock"]
        return None if bytes(found) == b"null" else value_of(LockInfo, found)

    async def list(self, *, limit: int = 100, after: str = "") -> builtins.list[LockInfo]:
        return await _named(self._session, LockInfo, "/locks", limit, after)


class RemoteDeadLetters(DeadLetters):
    """Dead letters of a server: `engine.dead_letters`."""

    _session: RemoteSession

    async def get(self, run_id: str) -> DeadLetter:
        return value_of(DeadLetter, await self._session.call("GET", "/dead-letters/{id}", id=check_id(run_id)))

    async def _retry(self, run_id: str, changes: RetryOptions) -> None:
        # One at a time, each with its revision: a repetition of a request for all would retry new failures.
        await RemoteRuns(self._session).retry(run_id, **changes)

    async def discard(
        self, run_ids: str | Sequence[str] | None = None, *, where: DeadOptions | None = None, reason: str = ""
    ) -> BulkResult:
        reason = check_text("reason", reason)
        await self._session.connect()
        ids = [one async for one in self._chosen(run_ids, where)]
        done: builtins.list[str] = []
        refused: dict[str, str] = {}
        # By id, so that a repetition of a request has the same answer.
        for at in range(0, len(ids), _CHUNK):
            body = {"ids": ids[at : at + _CHUNK], "reason": reason}
            answer = await self._session.call("POST", "/dead-letters/discard", body, slow=True)
            part = value_of(BulkResult, answer)
            done += part.done
            refused |= part.refused
        return BulkResult(done=tuple(done), refused=refused)

    async def _chosen(
        self, run_ids: str | Sequence[str] | None, where: DeadOptions | None
    ) -> AsyncGenerator[str, None]:
        if run_ids is not None or where is None:
            async for run_id in super()._chosen(run_ids, where):
                yield run_id
            return
        # Listed before anything is done: the clock of this machine cannot leave out those that die meanwhile.
        store, filter, cursor = await self._session.connect(), make_letter_filter(where), None
        ids: builtins.list[str] = []
        while True:
            page = await store.list_dead_letters(filter, CHUNK, cursor)
            ids += [one.run_id for one in page.letters]
            cursor = page.cursor
            if cursor is None:
                break
        for run_id in ids:
            yield run_id

    async def prune(self, older_than: Duration, **which: Unpack[DeadOptions]) -> PruneReport:
        body = {"older_than": duration_text(older_than), "where": _where(which)}
        return value_of(PruneReport, await self._session.call("POST", "/dead-letters/prune", body, slow=True))


class RemoteAuditTrail(AuditTrail):
    """The audit trail of a server: `engine.audit`."""

    _session: RemoteSession

    async def prune(self, older_than: Duration) -> int:
        body = {"older_than": duration_text(older_than)}
        return int(decoded(await self._session.call("POST", "/events/prune", body, slow=True), "deleted"))

    async def deploy_checks(self, *, limit: int = 10) -> builtins.list[StoredDeployReport]:
        answer = await self._session.call("GET", "/deploy-checks", query={"limit": check_page(limit)})
        return restore_all(StoredDeployReport, members(answer)["items"])


class RemoteQueues(Queues):
    """Queues and types of a server: `engine.queues`."""

    _session: RemoteSession

    async def sources(self, type: str) -> builtins.list[WorkflowSource]:
        answer = await self._session.call("GET", "/types/{type}/sources", type=check_name(type, "workflow type"))
        return restore_all(WorkflowSource, members(answer)["items"])


def lock_refused() -> UsageError:
    """The error of a lock that is to be acquired."""
    return refused(
        "a lock",
        "acquire it in a process that has the database; `locks.list` shows locks, and `locks.force_release` breaks one",
    )


class RemoteTokens(Tokens):
    """Tokens of a server, for its admins: `engine.tokens`. The text of a new token does not leave this process."""

    _session: RemoteSession

    async def list(self, *, limit: int = 100, after: str = "") -> builtins.list[TokenInfo]:
        return await _named(self._session, TokenInfo, "/tokens", limit, after)

    async def _create(self, name: str, role: Role, expires: Moment | None, digest: str) -> TokenInfo:
        body = present({"name": name, "role": role.value, "expires": moment_text(expires), "digest": digest})
        return value_of(TokenInfo, members(await self._session.call("POST", "/tokens", body))["info"])

    async def _revoke(self, found: TokenInfo) -> TokenInfo:
        query = {"created_at": moment_of(found.created_at).isoformat()}
        return value_of(TokenInfo, await self._session.call("DELETE", "/tokens/{name}", query=query, name=found.name))

    async def _find(self, name: str) -> TokenInfo:
        return value_of(TokenInfo, await self._session.call("GET", "/tokens/{name}", name=name))


class RemoteEvents(Events):
    """Sticky events of a server: `engine.events`."""

    _session: RemoteSession

    async def _delete(self, id: str, reason: str) -> bool:
        return await RemoteRuns(self._session).delete(id, reason, purge=True)

    async def _wait(self, name: str, type: Any) -> Any:
        while (found := await self.get(name, type)) is None:
            await self._session.call(
                "GET", "/sticky-events/{name}", query={"wait": LONG_POLL}, wait=LONG_POLL, name=name
            )
        return found.value


async def _named(session: RemoteSession, kind: Any, path: str, limit: int, after: str) -> builtins.list[Any]:
    query = {"limit": check_page(limit), "cursor": check_text("after", after)}
    return restore_all(kind, members(await session.call("GET", path, query=query))["items"])


def _reason_body(reason: str) -> dict[str, object]:
    """Part of a body; servers before reasons take a body without one."""
    return {"reason": reason} if check_text("reason", reason) else {}


def _range_body(start: object, end: object) -> dict[str, object]:
    # A wall clock is that of the schedule, whose zone the server knows.
    return {name: check_datetime(name, value).isoformat() for name, value in (("start", start), ("end", end))}


def _listed(name: str, given: str | Sequence[str] | None) -> list[str] | None:
    return None if given is None else [given] if isinstance(given, str) else [*check_list(name, given, "['failed']")]


def _where(where: DeadOptions) -> dict[str, Any]:
    filter = make_letter_filter(where)
    found = filter_fields(filter)
    found.pop("with_deleted", None)
    return {**found, "deleted": filter.deleted}


def _chosen(ids: tuple[str, ...] | None, filter: RunFilter | None) -> dict[str, Any]:
    return {"ids": ids} if filter is None else {"where": filter_fields(filter)}
