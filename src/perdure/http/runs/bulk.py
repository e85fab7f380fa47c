"""Handlers for actions on many runs. An action is a run itself, which a worker of the server works on."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from perdure.client.runs.namespace import BulkOptions, RunFilters
from perdure.core.access import Role
from perdure.core.model.reports import BulkAction
from perdure.core.model.run import Status
from perdure.http.api import ApiRequest, Reason, Reply, handle_on
from perdure.http.problems import FORBIDDEN, Refused
from perdure.http.redaction import Redactor
from perdure.http.runs.inspect import RunsFilter, RunView, filters_of


class BulkWhere(RunsFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter of runs; empty for all of them."""


class BulkChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Runs to act on: those named, or all that `where` selects."""

    ids: Annotated[list[str], Meta(max_length=10_000)] | None = None
    where: BulkWhere | None = None

    def filters(self, shown: Redactor) -> RunFilters | None:
        """Filters of `where`."""
        return None if self.where is None else filters_of(self.where, shown)


class PreviewView(Struct, frozen=True, kw_only=True):
    """Number of runs, and the first ten. While `exact` is false, there are more."""

    count: int
    exact: bool
    first: tuple[RunView, ...]


async def preview_bulk(api: ApiRequest, body: BulkChoice) -> PreviewView:
    """Count the runs that an action would be done to. Nothing is written."""
    found = await api.engine.runs.preview_bulk(body.ids, where=body.filters(api.shown))
    first = tuple(RunView.of(run, api.shown, payloads=False) for run in found.first)
    return PreviewView(count=found.count.count, exact=found.count.exact, first=first)


class BulkBody(BulkChoice, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An action on many runs. The same `id` with the same options gives the existing action."""

    action: BulkAction
    id: str | None = None
    reason: Reason = ""
    #: With `delete`: for good, which needs the role admin.
    purge: bool = False
    #: With `send`: name and value of the message.
    message: str | None = None
    value: Any = UNSET


class BulkActionView(Struct, frozen=True, kw_only=True):
    """An action on many runs, and what was done so far."""

    id: str
    status: Status
    finished: bool
    action: str = ""
    done: int = 0
    skipped: int = 0
    failed: int = 0
    #: By id, why there was nothing to do, and the error.
    skipped_runs: dict[str, str] = {}
    failed_runs: dict[str, str] = {}


async def start_bulk(api: ApiRequest, body: BulkBody) -> Reply[BulkActionView]:
    """Do an action to many runs: cancel, terminate, retry, pause, resume, delete or send."""
    if body.purge and not api.principal.role.includes(Role.ADMIN):
        raise Refused(FORBIDDEN, f"purge needs the role admin; {api.principal.name} is {api.principal.role.value}")
    options: BulkOptions = {"reason": body.reason, "purge": body.purge}
    if body.message is not None:
        options["message"] = body.message
        options["value"] = None if isinstance(body.value, UnsetType) else body.value
    key = body.id or api.request.headers.get("idempotency-key")
    job_id = await api.engine.runs.start_bulk(body.action, body.ids, where=body.filters(api.shown), id=key, **options)
    return Reply(await _view(api, job_id), 202)


async def show_bulk(api: ApiRequest, job_id: str) -> BulkActionView:
    """Read what an action on many runs has done so far."""
    return await _view(api, job_id)


async def _view(api: ApiRequest, job_id: str) -> BulkActionView:
    run = await handle_on(api, job_id).info()
    report = await api.engine.runs.bulk_progress(job_id)
    if not run.status.finished:
        # Also for an action that another server began.
        await api.services.start_bulk_worker()
    state = BulkActionView(id=run.id, status=run.status, finished=run.status.finished)
    if report is None:
        return state
    return BulkActionView(
        id=run.id,
        status=run.status,
        finished=run.status.finished,
        action=report.action,
        done=report.done,
        skipped=report.skipped,
        failed=report.failed,
        skipped_runs={name: api.shown.text(why) for name, why in report.skipped_runs.items()},
        failed_runs={name: api.shown.text(why) for name, why in report.failed_runs.items()},
    )
