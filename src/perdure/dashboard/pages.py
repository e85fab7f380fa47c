"""Pages besides that of one run: overview, runs, workflows, schedules, queues, dead letters, workers."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from perdure.client.session import session_of
from perdure.core.codec.failure import Failure
from perdure.core.limits.breaker import BreakerInfo, Circuit
from perdure.core.limits.limit import LimitBounds, LimitInfo, PermitInfo, WaitingRun, pace_of
from perdure.core.model.cloud_event import EVENT_TYPE
from perdure.core.model.dead_letter import DeadLetter
from perdure.core.model.run import DEFAULT_QUEUE, STICKY_TYPE, Reason, Run, RunPage, RunTimes, Status
from perdure.core.model.run_orders import Pause, PauseKind
from perdure.core.model.worker_info import WorkerInfo, WorkerStatus
from perdure.core.policy.watermark import REFUSE, Watermark
from perdure.core.time.cron import At, Cron, Every, Window, zone_of
from perdure.core.time.duration import NEVER, length, microseconds, moment_of
from perdure.core.time.schedule import Fire, Schedule
from perdure.dashboard.actions import BULK, BULK_DANGER, OrderForm, order_form
from perdure.dashboard.charts import RANGES
from perdure.dashboard.figures import (
    HOUR,
    ErrorGroup,
    durations,
    group_letters,
    overview_figures,
    percentile,
    root_cause,
)
from perdure.dashboard.page_request import PageRequest, shown_attributes
from perdure.dashboard.query import TERMS, Query, Term
from perdure.dashboard.texts import age, count
from perdure.errors import InvalidSchedule, PerdureError, UsageError
from perdure.http.redaction import FailureView
from perdure.store.contract import Store

#: Latest runs from which rates and percentiles are computed, rows of a page, and dead letters that are grouped.
SAMPLE = 1000
ROWS = 50
LETTERS = 1000
#: Permits, and runs on waitlists, that the page of queues reads of all limits.
_PERMITS = 500
#: Ready runs of a queue are counted up to this.
_MOST_READY = 10_000
#: Latest fires of a schedule that are shown.
FIRES = 30
_MINUTE = 60_000_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class RunLine(Struct, frozen=True, kw_only=True):
    """A row of a table of runs, as the caller may see it."""

    run: Run
    spent: str
    note: str
    error: FailureView | None
    attributes: dict[str, str] = {}

    @property
    def id(self) -> str:
        """Id of the run."""
        return self.run.id


def run_line(request: PageRequest, run: Run, now: int) -> RunLine:
    """Make the row of a run."""
    until = f", {age(run.wake_at, now)}" if run.status is Status.WAITING and age(run.wake_at, now) else ""
    notes = {
        # The status says what it waits for.
        Status.WAITING: until.removeprefix(", "),
        Status.PENDING: "a free slot of a worker",
        Status.RUNNING: f"worker {run.worker[-8:]}" if run.worker else "",
    }
    spent = run.finished_at or (now if run.status in (Status.RUNNING, Status.WAITING) else 0)
    error = run.error if run.status is not Status.COMPLETED else None
    return RunLine(
        run=run,
        spent=length(spent - run.started_at) if spent and run.started_at else "",
        note=notes.get(run.status, ""),
        error=None if error is None else request.shown.error(root_cause(Failure.read(error))),
        attributes=shown_attributes(request, run),
    )


# overview


class Need(Struct, frozen=True, kw_only=True):
    """Something that needs a person."""

    state: str
    title: str
    text: str
    where: str
    number: str
    first: int
    last: int
    href: str


class WorkerLine(Struct, frozen=True, kw_only=True):
    """A worker, as pages show it."""

    info: WorkerInfo
    state: str
    busy: int
    share: int
    note: str
    problem: str

    @property
    def name(self) -> str:
        """The end of its id, which is random."""
        return self.info.id[-8:]


def worker_line(request: PageRequest, info: WorkerInfo, now: int) -> WorkerLine:
    """Make the row of a worker."""
    left = info.taken_over_in
    state = info.status.value
    note = ""
    if info.is_draining and info.drain is not None:
        state = "draining"
        reason = request.shown.text(info.drain.reason)
        note = f"ordered by {info.drain.actor} {age(info.drain.at, now)}{f': {reason}' if reason else ''}"
    if info.status is WorkerStatus.ALIVE and info.is_late(info.read_at or now):
        state = "late"
        note = "its runs go to others at the next sweep" if not left else f"its runs go to others in {left:.0f} s"
    busy = len(info.running.steps) + info.running.more
    return WorkerLine(
        info=info,
        state=state,
        busy=busy,
        share=min(100, 100 * busy // max(1, info.slots)),
        note=note,
        problem=request.shown.text(info.problem),
    )


class QueueLine(Struct, frozen=True, kw_only=True):
    """A queue, as pages show it."""

    name: str
    ready: str
    oldest: str
    #: Time since which the oldest ready run waits; 0: there is none.
    since: int
    workers: int
    paused: bool
    reason: str
    #: Watermark that is set in the database; empty: none.
    watermark: str = ""
    forms: tuple[OrderForm, ...] = ()


async def _queues(
    request: PageRequest, workers: Sequence[WorkerInfo], pauses: Sequence[Pause], now: int, others: Iterable[str] = ()
) -> list[QueueLine]:
    alive = [one for one in workers if one.status is WorkerStatus.ALIVE]
    names = {DEFAULT_QUEUE, *others, *(queue for one in alive for queue in one.queues)}
    names |= {pause.name for pause in pauses if pause.kind is PauseKind.QUEUE}
    paused = {pause.name: pause for pause in pauses if pause.kind is PauseKind.QUEUE}
    store = await session_of(request.engine).connect()
    lines: list[QueueLine] = []
    for name in sorted(names)[:100]:
        backlog = await store.backlog(name, _MOST_READY)
        ready, oldest = backlog.waiting, backlog.oldest
        lines.append(
            QueueLine(
                name=name,
                ready=f"{ready:,}" if ready < _MOST_READY else f"{_MOST_READY:,}+",
                oldest=length(now - oldest) if 0 < oldest <= now else "",
                since=oldest,
                workers=sum(1 for one in alive if name in one.queues),
                paused=name in paused,
                reason=request.shown.text(paused[name].reason) if name in paused else "",
            )
        )
    return lines


async def overview(request: PageRequest) -> Response:
    """The overview: figures, and first what needs a person."""
    engine = request.engine
    store = await session_of(engine).connect()
    now = await store.now()
    workers = await engine.workers.list()
    recent = await _recent(store, now, HOUR)
    latest = await engine.runs.list(limit=10)
    pauses = await engine.queues.paused()
    needs = await _needs(request, workers, now)
    lines = await _queues(request, workers, pauses, now)
    chosen = request.http.query_params.get("range", "")
    return request.render(
        "overview.html",
        page="",
        title="Overview",
        sentence=_overview_sentence(needs, recent, workers, now),
        figures=overview_figures(recent, workers, min((one.since for one in lines if one.since), default=0), now),
        ranges=[*RANGES],
        range=chosen if chosen in RANGES else "1h",
        figures_note=f"Figures are those of the last {SAMPLE:,} runs; the hour had more."
        if len(recent) == SAMPLE
        else "",
        needs=needs,
        queues=lines,
        workers=[worker_line(request, one, now) for one in workers if one.status is WorkerStatus.ALIVE][:20],
        latest=[run_line(request, run, now) for run in latest.runs],
        now=now,
    )


async def _recent(store: Store, now: int, age: int) -> list[RunTimes]:
    """Times of the latest runs. The bounds change once a minute, so that views share the read."""
    minute = now // _MINUTE * _MINUTE
    found = await store.run_times(minute - age, minute + 60 * _MINUTE, SAMPLE)
    return [one for one in found if one.created_at > now - age]


def _moment(time: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(microseconds=time)


async def _needs(request: PageRequest, workers: Sequence[WorkerInfo], now: int) -> list[Need]:
    letters, more = await read_letters(request)
    found = [_need_of_group(request, group, more=more) for group in group_letters(letters, request.shown)[:10]]
    blocked = await request.engine.runs.list(status=Status.BLOCKED, limit=SAMPLE)
    for reason in (Reason.DIVERGED, Reason.BROKEN):
        runs = [run for run in blocked.runs if run.reason is reason]
        if runs:
            types = sorted({run.type for run in runs})
            text = "its code no longer follows its history" if reason is Reason.DIVERGED else "its code raised an error"
            found.append(
                Need(
                    state="blocked", title=f"{count(len(runs), 'run')} blocked: {reason.value}", text=text,
                    where=", ".join(types[:3]), number=f"{len(runs):,}", first=min(run.wake_at for run in runs),
                    last=max(run.wake_at for run in runs), href=request.runs_url("status:blocked"),
                )
            )  # fmt: skip
    found += await _unserved(request)
    for line in (worker_line(request, one, now) for one in workers):
        if line.state == "late" or (line.problem and line.info.status is WorkerStatus.ALIVE):
            title = f"worker {line.name} {'sends no heartbeat' if line.state == 'late' else 'has a problem'}"
            found.append(
                Need(
                    state="blocked", title=title, text=line.problem or line.note, number="", first=0,
                    where=f"{line.info.host}:{line.info.pid}", last=line.info.heartbeat_at,
                    href=f"{request.url('workers')}#worker-{line.info.id}",
                )
            )  # fmt: skip
    return found


def _need_of_group(request: PageRequest, group: ErrorGroup, *, more: bool) -> Need:
    return Need(
        state="failed" if group.reason == "failed" else "blocked",
        title=group.type,
        text=group.message,
        where=group.location or ", ".join(group.types[:3]),
        number=f"{len(group.letters):,}{'+' * more}",
        first=group.first,
        last=group.last,
        href=f"{request.url('dead-letters')}#group-{group.key}",
    )


async def _unserved(request: PageRequest) -> list[Need]:
    """Ready runs that no live worker takes, by type."""
    ready = await request.engine.runs.list(status=Status.PENDING, limit=100)
    ids = await request.engine.runs.unserved(ready.runs)
    types: dict[str, list[Run]] = {}
    for run in ready.runs:
        if run.id in ids:
            types.setdefault(run.type, []).append(run)
    return [
        Need(
            state="pending", title="no live worker serves it", text="start a worker whose engine has this type",
            where=type, number=f"{len(runs):,}{'+' * (ready.cursor is not None)}",
            first=min(run.created_at for run in runs), last=max(run.created_at for run in runs),
            href=request.runs_url(f"type:{type} status:pending"),
        )
        for type, runs in sorted(types.items())
    ]  # fmt: skip


def _overview_sentence(
    needs: Sequence[Need], recent: Sequence[RunTimes], workers: Sequence[WorkerInfo], now: int
) -> str:
    failed = [run for run in recent if run.status is Status.FAILED and not run.deleted_at]
    alive = [one for one in workers if one.status is WorkerStatus.ALIVE and not one.is_late(one.read_at or now)]
    if not alive:
        return "No worker is alive, so nothing goes on. Start one: perdure worker app:engine"
    serving = f"{count(len(alive), 'worker')} {'serves' if len(alive) == 1 else 'serve'} this database"
    if failed:
        types = Counter(run.type for run in failed).most_common()
        where = f"all of {types[0][0]}" if len(types) == 1 else ", ".join(f"{n} of {type}" for type, n in types[:3])
        more = " and others" if len(types) > 3 else ""
        return f"{count(len(failed), 'run')} of the last hour failed: {where}{more}. {serving}."
    if needs:
        return f"{count(len(needs), 'thing')} need{'s' * (len(needs) == 1)} a person. {serving}."
    return f"All is well: {serving}, and no run of the last hour failed."


# runs


class Choice(Struct, frozen=True, kw_only=True):
    """A value of a facet."""

    name: str
    href: str
    chosen: bool
    number: str = ""


class Facet(Struct, frozen=True, kw_only=True):
    """A filter with its values."""

    name: str
    choices: tuple[Choice, ...]


class Chip(Struct, frozen=True):
    """A term of the query, and the address without it."""

    text: str
    href: str


async def runs(request: PageRequest) -> Response:
    """The runs that fit the query in the URL."""
    parameters = request.http.query_params
    query = Query.parse(parameters.get("q", ""))
    if len(query.terms) == 1 and query.words and (found := await _exact(request, query.words)) is not None:
        return request.redirect(request.url("runs", found))
    store = await session_of(request.engine).connect()
    now = await store.now()
    page, problem = RunPage((), None), ""
    filters: dict[str, Any] = {}
    try:
        filters = query.filters(_moment(now))
        page = await request.engine.runs.list(limit=ROWS, cursor=parameters.get("cursor") or None, **filters)
    except (PerdureError, OverflowError) as error:
        problem = str(error)
    total = "" if problem else str(await request.engine.runs.count(**_without_order(filters)))
    lines = [run_line(request, run, now) for run in page.runs]
    request.columns = _columns(parameters.get("columns"), lines)
    columns = parameters.get("columns", "")
    facets = await _facets(request, query, {} if problem else filters)
    return request.render(
        "runs.html",
        status=422 if problem else 200,
        page="runs",
        title="Runs",
        sentence=_runs_sentence(query, total, problem),
        total=total,
        bulk=[*BULK],
        bulk_danger=BULK_DANGER,
        query=str(query),
        problem=problem,
        chips=[Chip(str(term), request.runs_url(str(query.without(term)))) for term in query.terms],
        facets=facets,
        words=_words(facets, lines),
        runs=lines,
        next=request.runs_url(str(query), cursor=page.cursor, columns=columns) if page.cursor else "",
        previous=request.runs_url(str(query), cursor=page.previous, columns=columns) if page.previous else "",
        now=now,
    )


def _columns(chosen: str | None, lines: Sequence[RunLine]) -> tuple[str, ...]:
    """Attributes that have a column: those in the URL, or else the two of users that most runs of the page have."""
    if chosen is not None:
        return tuple(name for name in chosen.split(",") if name)[:10]
    counts = Counter(name for line in lines if line.run.type != EVENT_TYPE for name in line.attributes)
    return tuple(sorted(name for name, _ in counts.most_common(2)))


def _words(facets: Sequence[Facet], lines: Sequence[RunLine]) -> list[str]:
    """Terms that the query line completes: those of the filters, attributes of the page, and examples of the others."""
    found = [str(Term(facet.name, choice.name)) for facet in facets for choice in facet.choices]
    attributes = sorted({(name, value) for line in lines for name, value in line.attributes.items()})
    found += [f"attr.{name}={value}" for name, value in attributes if " " not in value][:100]
    named = {facet.name for facet in facets}
    return [*dict.fromkeys([*found, *(text for name, text in TERMS.items() if name not in named)])]


async def _exact(request: PageRequest, words: str) -> str | None:
    """The id of a run that is named exactly."""
    try:
        return (await request.engine.get(words)).id
    except PerdureError:
        return None


def _runs_sentence(query: Query, total: str, problem: str) -> str:
    if problem:
        return "The query cannot be read."
    runs = f"{total} run{'s' * (total != '1')}"
    if query.terms:
        return f"{runs} fit{'s' * (total == '1')} the query."
    return f"{runs}, newest first."


def _without_order(filters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in filters.items() if name != "order"}


async def _facets(request: PageRequest, query: Query, filters: dict[str, Any]) -> list[Facet]:
    """The filters by status, type and queue; each counts the runs that fit the rest of the query."""
    types = {one.type for one in await request.engine.queues.types()}
    alive = [one for one in await request.engine.workers.list() if one.status is WorkerStatus.ALIVE]
    known = {
        "status": [status.value for status in Status],
        "type": sorted(types),
        "queue": sorted({DEFAULT_QUEUE, *(name for one in alive for name in one.queues)}),
    }
    facets: list[Facet] = []
    for name, values in known.items():
        rest = {key: value for key, value in _without_order(filters).items() if key != name}
        groups = await request.engine.runs.count_by(name, **rest)
        counts = {str(group.value): str(group) for group in groups}
        others = [value for value in sorted(counts) if value not in values]
        choices = [
            Choice(
                name=one,
                href=request.runs_url(str(query.toggled(name, one))),
                chosen=query.has(name, one),
                number=counts.get(one, ""),
            )
            for one in [*values, *others][:30]
        ]
        facets.append(Facet(name=name, choices=tuple(choices)))
    return facets


# workflows


class TypeLine(Struct, frozen=True, kw_only=True):
    """A type of run with its figures."""

    name: str
    kind: str
    runtime: str
    description: str
    paused: bool
    runs: int
    failed: int
    p50: str
    p99: str
    workers: int


async def workflows(request: PageRequest) -> Response:
    """The types of runs, with figures of the latest ones."""
    engine = request.engine
    types = {one.type: one for one in await engine.queues.types()}
    store = await session_of(engine).connect()
    recent = await store.run_times(0, NEVER, SAMPLE)
    alive = [one for one in await engine.workers.list() if one.status is WorkerStatus.ALIVE]
    paused = {pause.name for pause in await engine.queues.paused() if pause.kind is PauseKind.TYPE}
    lines: list[TypeLine] = []
    # Perdure's own types last. A sticky event is no work.
    names = {*types, *(run.type for run in recent)} - {STICKY_TYPE}
    for name in sorted(names, key=lambda name: (name.startswith("perdure."), name)):
        mine = [run for run in recent if run.type == name]
        spent, info = durations(mine), types.get(name)
        lines.append(
            TypeLine(
                name=name,
                kind="unknown" if info is None else info.kind,
                runtime="" if info is None else info.runtime,
                description="" if info is None else info.description,
                paused=name in paused or (info is not None and not info.enabled),
                runs=len(mine),
                failed=sum(1 for run in mine if run.status is Status.FAILED),
                p50=length(percentile(spent, 0.5)) if spent else "",
                p99=length(percentile(spent, 0.99)) if spent else "",
                workers=sum(1 for one in alive if name in one.types),
            )
        )
    unserved = [line.name for line in lines if not line.workers and line.kind != "activity"]
    sentence = f"{count(len(lines), 'type')} of runs."
    if unserved:
        sentence += f" No live worker serves {', '.join(unserved[:3])}{' and more' * (len(unserved) > 3)}."
    return request.render(
        "workflows.html", page="workflows", title="Workflows", sentence=sentence, types=lines, sample=len(recent),
        notice=request.http.query_params.get("done", "")[:300],
    )  # fmt: skip


# schedules


class ScheduleLine(Struct, frozen=True, kw_only=True):
    """A schedule with its next fire times: the time, and its text in the schedule's zone."""

    schedule: Schedule
    timing: str
    zone: str
    #: Its bounds and the number of skipped dates, in words; empty if it has none.
    window: str
    next: tuple[tuple[int, str], ...]
    #: Latest fires, oldest first, each with its time in the schedule's zone.
    fires: tuple[tuple[Fire, str], ...]
    reason: str
    error: str


async def schedules(request: PageRequest) -> Response:
    """The schedules, each with its next ten fire times."""
    store = await session_of(request.engine).connect()
    now = await store.now()
    found = await request.engine.schedules.list(limit=ROWS, after=request.http.query_params.get("after", ""))
    lines = [await _schedule_line(request, one) for one in found]
    paused = sum(1 for one in found if one.paused)
    soon = min((one.next_fire_time for one in found if not one.paused), default=0)
    sentence = f"{count(len(found), 'schedule')}{f', {paused} paused' if paused else ''}."
    if age(soon, now):
        sentence += f" The next one fires {age(soon, now)}."
    more = f"{request.url('schedules')}?{urlencode({'after': found[-1].id})}" if len(found) == ROWS else ""
    return request.render(
        "schedules.html", page="schedules", title="Schedules", sentence=sentence, schedules=lines, next=more, now=now,
        notice=request.http.query_params.get("done", "")[:300],
    )  # fmt: skip


def _local_time(time: datetime.datetime) -> str:
    return f"{time:%a %Y-%m-%d %H:%M:%S %Z}"


def _window_text(window: Window) -> str:
    zone = zone_of(window.timing)
    parts = [f"{word} {_local_time(at.astimezone(zone))}" for word, at in (("from", window.starts),
             ("until", window.ends)) if at is not None]  # fmt: skip
    return ", ".join([*parts, *([f"skips {count(len(window.skip), 'date')}"] if window.skip else [])])


async def _schedule_line(request: PageRequest, one: Schedule) -> ScheduleLine:
    zone, timing, error = "UTC", one.spec, one.error
    upcoming: list[datetime.datetime] = []
    window = ""
    clock_zone: datetime.tzinfo = datetime.UTC
    try:
        window, clock_zone = _window_text(one.window), zone_of(one.timing)
        match one.timing:
            case Cron(expression, name):
                timing, zone = expression, name
            case Every(interval, _):
                timing = f"every {length(microseconds(interval))}"
            case At(moment):
                timing = f"once, at {moment.isoformat()}"
        upcoming = await request.engine.schedules.next(one.id, 10)
    except (InvalidSchedule, UsageError) as problem:
        error = error or str(problem)
    return ScheduleLine(
        schedule=one,
        timing=timing,
        zone=zone,
        window=window,
        next=tuple(((time - _EPOCH) // datetime.timedelta(microseconds=1), _local_time(time))
                   for time in upcoming),
        fires=tuple((fire, _local_time(moment_of(fire.at).astimezone(clock_zone)))
                    for fire in reversed(await request.engine.schedules.fires(one.id, FIRES))),
        reason=request.shown.text(one.reason),
        error=request.shown.text(error),
    )  # fmt: skip


# queues


class WaitingKey(Struct, frozen=True, kw_only=True):
    """The runs of one fairness key that wait for a limit."""

    key: str
    number: int
    since: int


class LimitLine(Struct, frozen=True, kw_only=True):
    """A limit, the permits that are in use, the fairness keys that wait, and its forms."""

    info: LimitInfo
    permits: tuple[PermitInfo, ...]
    #: Empty if the runs that wait have no keys.
    waiting: tuple[WaitingKey, ...]
    forms: tuple[OrderForm, ...]


class BreakerLine(Struct, frozen=True, kw_only=True):
    """A breaker, and its forms."""

    info: BreakerInfo
    forms: tuple[OrderForm, ...]


class WatermarkLine(Struct, frozen=True, kw_only=True):
    """The watermark of a type, and its forms."""

    name: str
    text: str
    forms: tuple[OrderForm, ...]


def watermark_text(mark: Watermark) -> str:
    """A watermark in a few words."""
    verb = "refuses" if mark.when_full == REFUSE else "delays"
    return f"{verb} starts from {mark.high:,} on, until fewer than {mark.floor:,}"


def watermark_forms(request: PageRequest, kind: str, name: str, mark: Watermark | None) -> list[OrderForm]:
    """Forms that set and remove the watermark of a queue or a type."""
    if not request.operates:
        return []
    given = {} if mark is None else {"high": str(mark.high), "low": str(mark.floor), "when_full": mark.when_full}
    forms = [order_form(request, kind, name, "set-watermark", **given)]
    return forms if mark is None else [*forms, order_form(request, kind, name, "remove-watermark")]


def _queue_with_forms(request: PageRequest, line: QueueLine, mark: Watermark | None) -> QueueLine:
    forms = [order_form(request, "queue", line.name, "resume" if line.paused else "pause")] if request.operates else []
    return replace(
        line,
        watermark="" if mark is None else watermark_text(mark),
        forms=(*forms, *watermark_forms(request, "queue", line.name, mark)),
    )


def _waiting_keys(request: PageRequest, runs: Sequence[WaitingRun]) -> tuple[WaitingKey, ...]:
    keys: dict[str, list[WaitingRun]] = {}
    for run in runs:
        keys.setdefault(run.key, []).append(run)
    if not any(keys):
        return ()
    found = [
        WaitingKey(
            key=request.shown.text(key) or "without a key", number=len(mine), since=min(run.since for run in mine)
        )
        for key, mine in keys.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.number))


def _limit_line(
    request: PageRequest, info: LimitInfo, permits: Sequence[PermitInfo], waiting: Sequence[WaitingRun]
) -> LimitLine:
    forms: list[OrderForm] = []
    if request.operates:
        bounds = info.bounds
        given = {"concurrency": str(bounds.concurrency or ""), "rate": rate_text(bounds)}
        given["burst"] = str(bounds.burst) if bounds.pace else ""
        forms.append(order_form(request, "limit", info.name, "set", **given))
        if info.override is not None:
            forms.append(order_form(request, "limit", info.name, "clear"))
    mine = tuple(permit for permit in permits if permit.limit == info.name)
    keys = _waiting_keys(request, [run for run in waiting if run.limit == info.name])
    return LimitLine(info=info, permits=mine, waiting=keys, forms=tuple(forms))


def rate_text(bounds: LimitBounds) -> str:
    """The rate of a limit as a person would write it: `100/m`; empty if it has none."""
    for unit, seconds in (("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)) if bounds.pace else ():
        text = f"{round(seconds * 1_000_000 / bounds.pace)}/{unit}"
        if not text.startswith("0/") and pace_of(text) == bounds.pace:
            return text
    return f"{1_000_000 / bounds.pace:.6f}/s" if bounds.pace else ""


def _breaker_line(request: PageRequest, info: BreakerInfo) -> BreakerLine:
    verbs = ("close", "reset") if info.circuit is Circuit.OPEN else ("open", "close", "reset")
    forms = [order_form(request, "breaker", info.name, verb) for verb in verbs] if request.operates else []
    return BreakerLine(info=info, forms=tuple(forms))


async def queues(request: PageRequest) -> Response:
    """The queues, limits, breakers and locks."""
    engine = request.engine
    store = await session_of(engine).connect()
    now = await store.now()
    marks = {(one.kind, one.name): one for one in await engine.queues.watermarks.list()}
    marked = [name for kind, name in marks if kind == "queue"]
    lines = await _queues(request, await engine.workers.list(), await engine.queues.paused(), now, marked)
    limits = await engine.limits.list(limit=200)
    breakers = await engine.breakers.list(limit=200)
    used = [one.name for one in limits if one.held]
    permits = await store.permits(used, _PERMITS) if used else []
    full = [one.name for one in limits if one.waiting]
    waiting = await store.waiting_runs(full, _PERMITS) if full else []
    return request.render(
        "queues.html",
        page="queues",
        title="Queues",
        sentence=_queues_sentence(lines, limits),
        queues=[_queue_with_forms(request, line, marks.get(("queue", line.name))) for line in lines],
        watermarks=[
            WatermarkLine(
                name=name, text=watermark_text(mark), forms=tuple(watermark_forms(request, "type", name, mark))
            )
            for (kind, name), mark in sorted(marks.items())
            if kind == "type"
        ],
        limits=[_limit_line(request, one, permits, waiting) for one in limits],
        breakers=[_breaker_line(request, one) for one in breakers],
        locks=await engine.locks.list(limit=200),
        lock_form=lambda name: order_form(request, "lock", name, "release"),
        now=now,
        notice=request.http.query_params.get("done", "")[:300],
    )


def _queues_sentence(lines: Sequence[QueueLine], limits: Sequence[LimitInfo]) -> str:
    paused = [line.name for line in lines if line.paused]
    if paused:
        return f"Paused: {', '.join(paused)}. Their runs wait until the queue is resumed."
    tightest = max(limits, key=lambda one: one.waiting, default=None)
    if tightest is not None and tightest.waiting:
        return f"{count(tightest.waiting, 'run')} wait{'s' * (tightest.waiting == 1)} for the limit {tightest.name}."
    waiting = [line for line in lines if line.ready != "0"]
    if waiting:
        return f"{waiting[0].ready} ready in {waiting[0].name}; the oldest waits {waiting[0].oldest}."
    return "Nothing waits: every ready run was claimed."


# dead letters


async def read_letters(request: PageRequest) -> tuple[list[DeadLetter], bool]:
    """The latest dead letters, and whether there are more."""
    found: list[DeadLetter] = []
    cursor: str | None = None
    while len(found) < LETTERS:
        page = await request.engine.dead_letters.list(limit=200, cursor=cursor)
        found += page.letters
        cursor = page.cursor
        if cursor is None:
            break
    return found, cursor is not None


async def dead_letters(request: PageRequest) -> Response:
    """The dead letters, grouped by error."""
    store = await session_of(request.engine).connect()
    letters, more = await read_letters(request)
    groups = group_letters(letters, request.shown)
    sentence = "No run is dead." if not letters else (
        f"{'The latest ' * more}{count(len(letters), 'dead run')} in {count(len(groups), 'group')} of like errors; "
        f"the largest is {groups[0].type}{f' at {groups[0].location}' if groups[0].location else ''} with "
        f"{len(groups[0].letters):,}."
    )  # fmt: skip
    return request.render(
        "dead_letters.html",
        page="dead-letters",
        title="Dead letters",
        sentence=sentence,
        groups=groups,
        now=await store.now(),
        notice=request.http.query_params.get("done", "")[:300],
    )


async def find_group(request: PageRequest, key: str) -> ErrorGroup | None:
    """The group of dead letters with that key."""
    letters, _ = await read_letters(request)
    return next((group for group in group_letters(letters, request.shown) if group.key == key), None)


# workers


def _builds(lines: Sequence[WorkerLine]) -> str:
    """The builds of live workers, if there are several."""
    builds = Counter(line.info.build or "(none)" for line in lines if line.info.status is WorkerStatus.ALIVE)
    if len(builds) < 2:
        return ""
    named = ", ".join(f"{number} of build {build}" for build, number in builds.most_common(3))
    return f" ({named}{' and others' * (len(builds) > 3)})"


async def workers(request: PageRequest) -> Response:
    """The workers, with their running steps."""
    store = await session_of(request.engine).connect()
    now = await store.now()
    found = [worker_line(request, one, now) for one in await request.engine.workers.list()]
    order = {"late": 0, "draining": 1, "alive": 2, "dead": 3, "stopped": 4}
    found.sort(key=lambda line: (order[line.state], -line.info.started_at))
    alive = sum(1 for line in found if line.state == "alive")
    late = sum(1 for line in found if line.state == "late")
    draining = sum(1 for line in found if line.state == "draining")
    sentence = f"{count(alive, 'worker')} alive" if alive else "No worker is alive"
    sentence += f", {draining} draining" if draining else ""
    sentence += _builds(found)
    sentence += f", {late} {'is' if late == 1 else 'are'} late with the heartbeat." if late else "."
    builds = await request.engine.workers.builds()
    if lost := [one for one in builds if one.pinned.count and one.workers == one.draining]:
        sentence += (
            f" {lost[0].pinned} run{'s' * (str(lost[0].pinned) != '1')} pinned to the build {lost[0].build} wait"
            f"{'s' * (str(lost[0].pinned) == '1')}: start a worker of that build, or unpin them."
        )
    return request.render(
        "workers.html", page="workers", title="Workers", sentence=sentence, workers=found[:200], now=now,
        builds=builds if len(builds) > 1 or any(one.pinned.count for one in builds) else [],
        notice=request.http.query_params.get("done", "")[:300],
    )  # fmt: skip
