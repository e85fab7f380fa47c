"""Handlers that find and read runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from perdure.client.runs.inspect import readable_runs
from perdure.client.runs.namespace import RunFilters
from perdure.client.session import session_of
from perdure.core.audit import EventFilter
from perdure.core.ids import check_id
from perdure.core.model.attributes import read_condition
from perdure.core.model.record import Message, Record
from perdure.core.model.reports import RunReport
from perdure.core.model.run import Reason, Run, Status
from perdure.core.model.waits import RunWaits
from perdure.core.run_log import MOST_LINES
from perdure.http.api import ApiRequest, Instant, Limit, Position, handle_on
from perdure.http.audit import EventView
from perdure.http.redaction import FailureView, Redactor
from perdure.http.views import (
    NumberedQuery,
    Page,
    Payload,
    ShownText,
    Time,
    attribute_view,
    attributes_view,
    numbered,
    time_of,
    view_of,
    views_of,
)
from perdure.store.contract import Store
from perdure.store.sql.reads import read_log


class RunView(Struct, frozen=True, kw_only=True):
    """A run."""

    id: str
    type: str
    status: Status
    reason: Reason | None
    queue: str
    priority: int
    #: Arguments and result; left out of listings unless they were asked for.
    input: Payload = UNSET
    output: Payload = UNSET
    error: FailureView | UnsetType | None = UNSET
    attempt: int
    generation: int
    claims: int
    #: Number that a retry may name, so that its repetition changes nothing.
    revision: int
    worker: str | None
    #: Build that began the run; empty if it is unknown.
    build: str
    #: Build whose workers alone continue the run; null: it is not pinned.
    pinned_to: str | None
    created_at: Time
    started_at: Time
    finished_at: Time
    wake_at: Time
    deadline: Time
    deleted_at: Time
    #: Time when the latest retry began.
    last_retry_at: Time
    #: Time of the last change, where one run is shown or runs are listed.
    updated_at: Time | UnsetType = UNSET
    parent_id: str | None
    parent_location: str | None
    idempotency_key: str | None
    attributes: dict[str, Any]
    #: Texts that travel with the run to its steps, children and activities.
    headers: dict[str, str]

    @classmethod
    def of(cls, run: Run, shown: Redactor, *, payloads: bool = True, updated_at: int | None = None) -> RunView:
        """Convert a run."""
        left_out = {} if payloads else {"input": UNSET, "output": UNSET}
        return view_of(
            cls,
            run,
            shown,
            error=shown.failure(run.error) if payloads else UNSET,
            revision=run.token,
            wake_at=None if run.status.finished else time_of(run.wake_at),
            attributes=attributes_view(run.attributes, shown),
            headers=shown.members(run.headers),
            updated_at=UNSET if updated_at is None else time_of(updated_at),
            **left_out,
        )


def _result_or_error(one: Record | Message, shown: Redactor) -> tuple[Any, FailureView | None]:
    return (None, shown.failure(one.payload)) if one.failed else (shown.payload(one.payload), None)


class RecordView(Struct, frozen=True, kw_only=True):
    """A record of a run's history."""

    seq: int
    kind: str
    location: str
    failed: bool
    result: Any
    error: FailureView | None
    at: Time
    started_at: Time
    attempts: int
    retry_at: Time
    run_attempt: int

    @classmethod
    def of(cls, record: Record, shown: Redactor) -> RecordView:
        """Convert a record."""
        result, error = _result_or_error(record, shown)
        return view_of(cls, record, shown, result=result, error=error)


class MessageView(Struct, frozen=True, kw_only=True):
    """A message that a run has not received yet."""

    seq: int
    kind: str
    name: str
    value: Any
    error: FailureView | None
    key: str
    sent_at: Time

    @classmethod
    def of(cls, message: Message, shown: Redactor) -> MessageView:
        """Convert a message."""
        value, error = _result_or_error(message, shown)
        return view_of(cls, message, shown, value=value, error=error)


class InterruptionView(Struct, frozen=True, kw_only=True):
    """A worker that lost a run, or stopped before the run's steps had ended."""

    at: Time
    worker: str
    reason: str
    generation: int
    attempt: int
    last: int
    steps: tuple[str, ...] | None


class LogView(Struct, frozen=True, kw_only=True):
    """A log line of a run."""

    number: int
    at: Time
    level: str
    logger: str
    text: ShownText
    location: str
    attempt: int
    traceback: ShownText


class FailedAttemptView(Struct, frozen=True, kw_only=True):
    """A failed attempt at a step, or at the run as a whole."""

    at: Time
    location: str
    attempt: int
    error: str
    message: ShownText
    retry_at: Time


class StepView(Struct, frozen=True, kw_only=True):
    """A step, child or other operation in the history of a run."""

    location: str
    kind: str
    status: str
    attempts: int
    started_at: Time
    finished_at: Time
    duration: float
    errors: tuple[FailedAttemptView, ...]
    interruptions: tuple[InterruptionView, ...]


class WaitView(Struct, frozen=True, kw_only=True):
    """One thing that a run waits for."""

    kind: str
    name: str
    since: Time
    until: Time
    detail: str


class RunningStepView(Struct, frozen=True, kw_only=True):
    """An attempt at a step that has been under way for a while."""

    run_id: str
    type: str
    location: str
    attempt: int
    since: Time
    heartbeat_at: Time


class ReportView(Struct, frozen=True, kw_only=True):
    """Attempts, steps, durations and errors of a run, with what it waits for or has under way."""

    run: RunView
    attempts: int
    last_retry_at: Time
    started_at: Time
    finished_at: Time
    #: Time of the last change that the run's row, history or audit trail tells of.
    updated_at: Time
    duration: float
    steps: tuple[StepView, ...]
    errors: tuple[FailedAttemptView, ...]
    interruptions: tuple[InterruptionView, ...]
    waits: tuple[WaitView, ...]
    waits_more: int
    running: tuple[RunningStepView, ...]

    @classmethod
    def of(cls, report: RunReport, shown: Redactor) -> ReportView:
        """Convert the report of a run."""
        waits = RunWaits(token=0) if report.waits is None else report.waits
        return view_of(cls, report, shown, waits=views_of(WaitView, waits.waits, shown), waits_more=waits.more)


#: A condition on an attribute.
ConditionText = Annotated[
    str, Meta(description='Such as customer=acme, amount>=100, city^=Ber or tier=["a","b"].', examples=["amount>=100"])
]


class RunsFilter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter of runs; a run has to fulfil all that are given."""

    status: tuple[Status, ...] = ()
    type: str | None = None
    queue: str | None = None
    parent: str | None = None
    schedule: str | None = None
    id_prefix: str | None = None
    #: Runs without a parent only.
    roots: bool = False
    #: Part of the message or class of the error.
    error: str | None = None
    #: Build that began the run.
    build: str | None = None
    #: Conditions such as `customer=acme`, `amount>=100`, `city^=Ber` (prefix) and `tier=["a","b"]` (one of).
    attribute: tuple[ConditionText, ...] = ()
    created_after: Instant | None = None
    created_before: Instant | None = None
    #: Ready runs only whose type or queue no live worker serves.
    unserved: bool = False
    #: Deleted runs only.
    deleted: bool = False
    #: Deleted runs as well.
    with_deleted: bool = False


class RunsQuery(RunsFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Page of a listing of runs."""

    order: Literal["newest", "oldest"] = "newest"
    #: Most runs that are examined; the page may then have fewer runs than `limit`.
    scan: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    #: Include inputs, outputs and errors.
    payloads: bool = False
    limit: Limit = 100
    cursor: str | None = None


async def list_runs(api: ApiRequest, query: RunsQuery) -> Page[RunView]:
    """List runs, newest first, a page at a time."""
    page = await api.engine.runs.list(
        **filters_of(query, api.shown), order=query.order, scan=query.scan, limit=query.limit, cursor=query.cursor
    )
    times = await api.engine.runs.updated_at(page.runs)
    items = tuple(
        RunView.of(run, api.shown, payloads=query.payloads, updated_at=times.get(run.id)) for run in page.runs
    )
    return Page(items, page.cursor, page.previous)


class CountBody(RunsFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter of a count, and what to group it by."""

    #: `status`, `type`, `queue`, `build` or `attribute:NAME`.
    by: str | None = None


class CountView(Struct, frozen=True, kw_only=True):
    """Number of runs in one group; `value` is what they have in common. While `exact` is false, there are more."""

    value: Any
    count: int
    exact: bool


async def count_runs(api: ApiRequest, body: CountBody) -> Page[CountView]:
    """Count runs, exactly up to 10,000, as a whole or by group, the largest first."""
    filters, runs = filters_of(body, api.shown), api.engine.runs
    groups = [await runs.count(**filters)] if body.by is None else await runs.count_by(body.by, **filters)
    _, attribute, name = (body.by or "").partition("attribute:")
    return Page(
        tuple(
            CountView(
                value=attribute_view(name, one.value, api.shown) if attribute else one.value,
                count=one.count,
                exact=one.exact,
            )
            for one in groups
        )
    )


def filters_of(query: RunsFilter, shown: Redactor) -> RunFilters:
    """Filters of a listing. Raises `Refused` for one of values that the caller may not see."""
    conditions: dict[str, list[object]] = {}
    for text in query.attribute:
        name, condition = read_condition(text)
        conditions.setdefault(name, []).append(condition)
    shown.check_filter(query.error, conditions)
    return {
        "status": query.status or None,
        "type": query.type,
        "queue": query.queue,
        "parent": query.parent,
        "schedule": query.schedule,
        "id_prefix": query.id_prefix,
        "roots": query.roots,
        "error": query.error,
        "build": query.build,
        "attributes": conditions or None,
        "created_after": query.created_after,
        "created_before": query.created_before,
        "unserved": query.unserved,
        "deleted": None if query.with_deleted else query.deleted,
    }


async def show(api: ApiRequest, run_id: str) -> RunView:
    """Read a run."""
    run = await handle_on(api, run_id).info()
    times = await api.engine.runs.updated_at([run])
    return RunView.of(run, api.shown, updated_at=times.get(run.id))


class WhyView(Struct, frozen=True):
    """Reason why a run is where it is, in a sentence."""

    why: str


async def why(api: ApiRequest, run_id: str) -> WhyView:
    """Explain why a run is where it is."""
    if api.shown.shows_payloads:
        return WhyView(api.shown.text(await handle_on(api, run_id).why()))
    # The explanation repeats messages of errors.
    run = await handle_on(api, run_id).info()
    return WhyView(f"It is {run.status.value}{'' if run.reason is None else f': {run.reason.value}'}.")


async def report(api: ApiRequest, run_id: str) -> ReportView:
    """Summarize attempts, steps, durations and errors of a run, with what it waits for or has under way."""
    return ReportView.of(await handle_on(api, run_id).report(), api.shown)


async def interruptions(api: ApiRequest, run_id: str) -> Page[InterruptionView]:
    """List the attempts at a run that ended because their worker was lost or stopped."""
    handle = handle_on(api, run_id)
    await handle.info()
    return Page(views_of(InterruptionView, await handle.interruptions(), api.shown))


async def history(api: ApiRequest, run_id: str, query: NumberedQuery) -> Page[RecordView]:
    """Read the recorded operations of a run, in order."""
    store = await _existing(api, run_id)
    found = await store.history(run_id, -1 if query.cursor is None else query.cursor, query.limit + 1)
    return numbered(views_of(RecordView, found, api.shown), "seq", query)


async def inbox(api: ApiRequest, run_id: str, query: NumberedQuery) -> Page[MessageView]:
    """List the messages that a run has not received yet, in order."""
    store = await _existing(api, run_id)
    found = await store.inbox(run_id, query.cursor or 0, query.limit + 1)
    return numbered(views_of(MessageView, found, api.shown), "seq", query)


async def events(api: ApiRequest, run_id: str, query: NumberedQuery) -> Page[EventView]:
    """Read the audit trail of a run, in order."""
    store = await _existing(api, run_id)
    found = await store.events_page(EventFilter(run_id=run_id), query.limit + 1, after=query.cursor or 0)
    return numbered(views_of(EventView, found, api.shown), "id", query)


class LogQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lines of a run's log: the latest ones, or those past a number."""

    after: Position | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_LINES)] = 100


async def logs(api: ApiRequest, run_id: str, query: LogQuery) -> Page[LogView]:
    """Read the log lines that were kept with a run, in order: the latest ones, or the first ones past a number."""
    store = await _existing(api, run_id)
    return Page(views_of(LogView, await read_log(store, run_id, _last(query.after), query.limit), api.shown))


def _last(after: int | None) -> int:
    return -1 if after is None else after


async def _existing(api: ApiRequest, run_id: str) -> Store:
    """The store, if it has the run. Raises `RunNotFound`."""
    await handle_on(api, run_id).status()
    return await session_of(api.engine).connect()


class UpdatedBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Runs to look at."""

    ids: Annotated[list[str], Meta(max_length=1000)]


class UpdatedView(Struct, frozen=True):
    """Time of the last change of each run, by id, in microseconds since the epoch."""

    times: dict[str, int]


async def updated(api: ApiRequest, body: UpdatedBody) -> UpdatedView:
    """Read the times of the last changes of runs."""
    store = await session_of(api.engine).connect()
    return UpdatedView(await store.updated_at([check_id(one) for one in body.ids]))


class UnservedBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Runs to look at."""

    ids: Annotated[list[str], Meta(max_length=1000)]


class UnservedView(Struct, frozen=True):
    """Ids of runs that are ready, but whose type or queue no live worker serves."""

    ids: tuple[str, ...]


async def unserved(api: ApiRequest, body: UnservedBody) -> UnservedView:
    """Find runs that are ready, but whose type or queue no live worker serves."""
    store = await session_of(api.engine).connect()
    runs = await readable_runs(store, [check_id(one) for one in body.ids])
    return UnservedView(tuple(sorted(await api.engine.runs.unserved(runs))))
