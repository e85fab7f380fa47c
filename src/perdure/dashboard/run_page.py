"""The page of one run: the sentence that explains it, its timeline, one step in detail, and its tabs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from perdure.client.runs.inspect import EXPLAINING, explain, read_open_work
from perdure.client.session import session_of
from perdure.core.audit import EventFilter
from perdure.core.codec.failure import Failure
from perdure.core.ids import check_id
from perdure.core.model.outputs import Interruption, Output, OutputKind
from perdure.core.model.record import Message, Record, RecordKind
from perdure.core.model.reports import RunSnapshot
from perdure.core.model.run import Run, Status
from perdure.core.model.set_aside_messages import SetAsideMessage, set_aside_of
from perdure.core.run_log import LoggedLine
from perdure.core.time.duration import NEVER, length
from perdure.dashboard.actions import run_actions
from perdure.dashboard.page_request import HEADERS, PageRequest, glyph, shown_attributes, shown_headers
from perdure.dashboard.sources import read_source
from perdure.dashboard.texts import age, count
from perdure.dashboard.timeline import Bar, BarKind, BarState, DrawnTimeline, Row, RunFacts, TimelineView, as_of, draw
from perdure.http.redaction import FailureView
from perdure.store.contract import Store
from perdure.store.sql.reads import read_log

#: Rows of the tabs, and records of one step in detail.
PAGE = 100
DETAILS = 50
_CHILDREN = 200
#: Runs of the family that are shown.
_FAMILY = 200
_STREAM_ITEMS = 50
#: Latest items of each stream among the logs.
_LOGGED_ITEMS = 200
#: Latest lines of workers among the logs.
_LOGGED_LINES = 1000
#: Digits of a position in the URL.
_LONGEST_NUMBER = 15
_EVENTS = 1000
#: Outputs that every tab needs.
_OUTPUTS = (*EXPLAINING, OutputKind.INTERRUPTION)
_SHORT = 200

_OPERATIONS = (RecordKind.STEP, RecordKind.ATTEMPT, RecordKind.CHILD, RecordKind.TIMER)
TABS = (
    ("steps", "Steps"),
    ("messages", "Messages"),
    ("state", "State & streams"),
    ("family", "Family"),
    ("audit", "Audit"),
    ("logs", "Logs"),
    ("history", "History"),
    ("source", "Source"),
)


class RunLinks:
    """Addresses of the views of one run: the part of the page that is open is in the URL."""

    def __init__(self, request: PageRequest, run_id: str, drawn: DrawnTimeline) -> None:
        self._request = request
        self._base = request.url("runs", run_id)
        self._given = [
            (name, value)
            for name, value in request.http.query_params.multi_items()
            if name in ("tab", "step", "at", "open", "scale", "from", "to", "row", "page", "build", "stream", "before")
        ]
        self._drawn = drawn

    def _with(self, anchor: str = "", **changes: object) -> str:
        names = {"since": "from", "until": "to"}
        changed = {names.get(name, name): value for name, value in changes.items()}
        kept = [(name, value) for name, value in self._given if name not in changed]
        kept += [(name, str(value)) for name, value in changed.items() if value is not None]
        query = urlencode(kept, errors="replace")
        return self._base + (f"?{query}" if query else "") + anchor

    def tab(self, name: str) -> str:
        """Another tab."""
        return self._with("#tabs", tab=name, page=None, stream=None, before=None)

    def stream(self, name: str, before: int) -> str:
        """The items of a stream before a position."""
        return self._with("#tabs", tab="state", stream=name, before=before)

    def build(self, name: str) -> str:
        """The source of another build."""
        return self._with("#tabs", build=name)

    def step(self, one: Any) -> str:
        """One step in detail."""
        return self._with("#step", step=one.location)

    @property
    def no_step(self) -> str:
        """No step in detail."""
        return self._with(step=None)

    def as_of(self, seq: int) -> str:
        """The run as it was after a record."""
        return self._with(at=seq)

    @property
    def present(self) -> str:
        """The run as it is."""
        return self._with(at=None)

    @property
    def kept(self) -> list[tuple[str, str]]:
        """Parameters that a form of the scrubber keeps."""
        return [(name, value) for name, value in self._given if name != "at"]

    @property
    def scale(self) -> str:
        """The other scale."""
        return self._with(scale=None if self._request.http.query_params.get("scale") == "true" else "true")

    def toggle(self, row: Row) -> str:
        """Open or close a scope or a group."""
        opened = [value for name, value in self._given if name == "open"]
        after = [one for one in opened if one != row.location] if row.is_open else [*opened, row.location]
        others = [(name, value) for name, value in self._given if name not in ("open", "row")]
        query = urlencode([*others, *(("open", one) for one in after)], errors="replace")
        return self._base + (f"?{query}" if query else "")

    # windows

    def _window(self, since: float, until: float) -> str:
        """A part of the window, in shares of its width."""
        drawn = self._drawn
        width = drawn.until - drawn.since
        low = max(drawn.begin, drawn.since + round(width * since))
        high = min(drawn.end, drawn.since + round(width * until))
        return self._with(since=low - drawn.begin, until=max(high, low + 1) - drawn.begin)

    @property
    def zoom_in(self) -> str:
        """The middle half of the window; nothing for a window that is too short."""
        return self._window(0.25, 0.75) if self._drawn.until - self._drawn.since > 20 else ""

    @property
    def zoom_out(self) -> str:
        """Twice the window."""
        return self._window(-0.5, 1.5)

    @property
    def left(self) -> str:
        """The window before."""
        return self._window(-0.5, 0.5)

    @property
    def right(self) -> str:
        """The window after."""
        return self._window(0.5, 1.5)

    def zoom_to(self, span: tuple[int, int]) -> str:
        """A window around a stretch of time."""
        room = max(10, (span[1] - span[0]) // 10)
        begin = self._drawn.begin
        return self._with(since=max(0, span[0] - room - begin), until=max(1, span[1] + room - begin))

    @property
    def whole(self) -> str:
        """The whole timeline."""
        return self._with(since=None, until=None)

    @property
    def rows_before(self) -> str:
        """Rows above those shown."""
        first = self._drawn.first
        return self._with(row=max(0, first - len(self._drawn.rows))) if first else ""

    @property
    def rows_after(self) -> str:
        """Rows below those shown."""
        last = self._drawn.first + len(self._drawn.rows)
        return self._with(row=last) if last < self._drawn.total else ""

    steps_before = ""
    steps_after = ""

    def paginate(self, number: int, total: int) -> str:
        """Set the links to other pages of a tab, and describe this one."""
        last = min(total, (number + 1) * PAGE)
        self.steps_before = self._with("#tabs", page=number - 1) if number else ""
        self.steps_after = self._with("#tabs", page=number + 1) if last < total else ""
        return f"{number * PAGE + 1:,} to {last:,} of {total:,}" if total > PAGE else ""


class FamilyNode(Struct, frozen=True):
    """A run with its children."""

    run: Run
    children: tuple[FamilyNode, ...] = ()
    #: There are children that are not shown.
    more: bool = False


def _number(request: PageRequest, name: str) -> int | None:
    text = request.http.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 18 else None


async def show_run(request: PageRequest, run_id: str) -> Response:
    """The page of a run."""
    session = session_of(request.engine)
    store = await session.connect()
    chosen = request.http.query_params.get("tab", "steps")
    tab = chosen if chosen in dict(TABS) else "steps"
    # Long results are read for the records that are shown.
    kinds = (*_OUTPUTS, OutputKind.STATE) if tab == "state" else _OUTPUTS
    snapshot = await store.snapshot(check_id(run_id), kinds=kinds, children=_CHILDREN)
    if snapshot is None:
        raise session.not_found(run_id)
    run, records, now = snapshot.run, snapshot.records, await store.now()
    attributes = (await store.attributes([run_id])).get(run_id, {})
    work = await read_open_work(store, run, records, snapshot)
    present = RunFacts(
        run=replace(run, attributes=attributes), records=records, interruptions=work.interruptions, waits=work.waits,
        running=work.running, children=snapshot.children, now=now,
    )  # fmt: skip
    run = present.run
    at = _number(request, "at")
    facts = present if at is None else as_of(present, at)
    in_past = facts is not present
    drawn = draw(facts, _view(request))
    links = RunLinks(request, run_id, drawn)
    step = request.http.query_params.get("step", "")
    values = await _TAB_VALUES[tab](request, snapshot, facts, links)
    last = facts.records[-1] if facts.records else None
    return request.render(
        "run.html",
        page="runs",
        title=run.id,
        run=run,
        why=await _why(request, store, snapshot),
        advice=_advice(request, run, records),
        attributes=shown_attributes(request, run),
        headers=shown_headers(request, run),
        actions=run_actions(request, run, work.waits),
        can_fork=request.operates,
        drawn=drawn,
        links=links,
        true_scale=request.http.query_params.get("scale") == "true",
        step=step,
        detail=await _detail(request, facts, step) if step else None,
        tab=tab,
        tabs=[(name, text, _badge(name, run, records)) for name, text in TABS],
        now=now,
        in_past=in_past,
        records=len(records),
        first_seq=records[0].seq if records else 0,
        last_seq=records[-1].seq if records else 0,
        at=at if in_past else (records[-1].seq if records else 0),
        at_number=len(facts.records),
        at_time=last.at if last is not None else 0,
        row_glyph=_row_glyph,
        row_text=_row_text,
        bar_text=bar_text,
        notice=request.http.query_params.get("done", "")[:200],
        **values,
    )


def _view(request: PageRequest) -> TimelineView:
    parameters = request.http.query_params
    return TimelineView(
        open=frozenset(parameters.getlist("open")),
        true_scale=parameters.get("scale") == "true",
        since=_number(request, "from"),
        until=_number(request, "to"),
        first=_number(request, "row") or 0,
    )


async def _why(request: PageRequest, store: Store, snapshot: RunSnapshot) -> str:
    run = snapshot.run
    if request.shown.shows_payloads:
        return request.shown.text(await explain(store, run, snapshot))
    # The explanation repeats messages of errors.
    return f"It is {run.status.value}{'' if run.reason is None else f': {run.reason.value}'}."


def _advice(request: PageRequest, run: Run, records: Sequence[Record]) -> str:
    if run.status not in (Status.FAILED, Status.BLOCKED) or not request.operates:
        return ""
    failed = next((one.location for one in reversed(records) if one.failed and one.kind in _OPERATIONS), "")
    kept = len({one.location for one in records if not one.failed and one.kind in _OPERATIONS})
    again = f"does {failed} again" if failed else "goes on where it stopped"
    return f"Retry {again}; {count(kept, 'finished operation')} {'is' if kept == 1 else 'are'} kept."


def _badge(name: str, run: Run, records: Sequence[Record]) -> str:
    if name == "messages" and run.inbox_seq > run.inbox_read:
        return str(run.inbox_seq - run.inbox_read)
    return f"{len(records):,}" if name == "history" and records else ""


# texts of the timeline


def _row_glyph(row: Row) -> str:
    return glyph(row.state.value)


def _row_text(row: Row) -> str:
    attempts = f", {row.attempts} attempts" if row.attempts > 1 else ""
    several = f", {row.operations} operations" if row.operations else ""
    return f"{row.kind} {row.location}: {row.state.value}{attempts}{several}, {length(row.spent)}"


def bar_text(row: Row, bar: Bar) -> str:
    """Text of a bar, for the pointer and for screen readers."""
    took = length(bar.end - bar.start)
    if bar.count > 1:
        return f"{bar.count} bars, {bar.state.value}, {took}"
    if bar.kind is BarKind.RETRY:
        return f"{row.label}: {took} until the next attempt"
    attempt = f", attempt {bar.attempt}" if bar.attempt > 1 or bar.state is BarState.FAILED else ""
    error = f" with {bar.error}" if bar.error else ""
    since = "for " if bar.state in (BarState.RUNNING, BarState.WAITING) else ""
    return f"{row.label}{attempt}: {bar.state.value}{error}, {since}{took}"


# one step


class StepRecord(Struct, frozen=True, kw_only=True):
    """One record of a step, as the caller may see it."""

    record: Record
    title: str
    took: str
    result: Any = None
    error: FailureView | None = None
    download: str = ""


class StepDetail(Struct, frozen=True, kw_only=True):
    """A step with all of its attempts."""

    location: str
    records: tuple[StepRecord, ...]
    interruptions: tuple[Interruption, ...]
    note: str
    #: From the start of its first attempt to the end of its last; None without a record.
    span: tuple[int, int] | None


async def _whole(request: PageRequest, run: Run, records: Sequence[Record]) -> list[Record]:
    """The same records of a brief history, with their results."""
    store = await session_of(request.engine).connect()
    cut = [one.seq for one in records if one.payload is None and one.kind is RecordKind.STEP and one.started_at]
    found = {one.seq: one for one in await store.records(run.id, cut)} if cut else {}
    return [found.get(one.seq, one) for one in records]


async def _detail(request: PageRequest, facts: RunFacts, location: str) -> StepDetail:
    of_step = [record for record in facts.records if record.location == location][-DETAILS:]
    found = await _whole(request, facts.run, of_step)
    running = next((one for one in facts.running if one.location == location), None)
    note = "it is not under way"
    if running is not None:
        note = f"attempt {running.attempt} began {age(running.since, facts.now)} and is under way"
    return StepDetail(
        location=location,
        records=tuple(_step_record(request, facts.run, record) for record in found),
        interruptions=tuple(one for one in facts.interruptions if one.steps is not None and location in one.steps),
        note=note,
        span=(min(one.started_at or one.at for one in found), found[-1].at) if found else None,
    )


def _step_record(request: PageRequest, run: Run, record: Record) -> StepRecord:
    title = f"attempt {record.attempts}" if record.attempts else record.kind.value
    failed = record.failed or record.kind is RecordKind.ASIDE
    return StepRecord(
        record=record,
        title=f"{title} failed" if failed else title,
        took=length(record.at - record.started_at) if record.started_at else "",
        result=None if failed else request.shown.payload(record.payload),
        error=request.shown.failure(record.payload) if failed else None,
        download=request.url("runs", run.id, "payload", f"record-{record.seq}"),
    )


# tabs


def brief_json(value: Any) -> str:
    """A JSON value in a line."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        text = str(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


class StepLine(Struct, frozen=True, kw_only=True):
    """A row of the table of steps."""

    location: str
    kind: str
    status: str
    attempts: int
    took: str
    at: int
    result: str
    error: FailureView | None


def _page(request: PageRequest, items: Sequence[Any], links: RunLinks) -> tuple[Sequence[Any], str]:
    number = min(_number(request, "page") or 0, max(0, (len(items) - 1) // PAGE))
    return items[number * PAGE : (number + 1) * PAGE], links.paginate(number, len(items))


async def _steps(request: PageRequest, snapshot: RunSnapshot, facts: RunFacts, links: RunLinks) -> dict[str, Any]:
    run, shown = facts.run, request.shown
    last: dict[str, Record] = {}
    for record in facts.records:
        if record.kind in _OPERATIONS:
            last[record.location] = record
    page, text = _page(request, list(last.values()), links)
    past = facts.run.finished_at == 0
    return {
        "input": shown.payload(run.input),
        "has_output": run.output is not None and run.status is Status.COMPLETED,
        "output": shown.payload(run.output),
        "run_error": shown.failure(run.error) if not past or run.status is Status.BLOCKED else None,
        "steps": [_step_line(request, record) for record in await _whole(request, run, page)],
        "steps_pages": text,
    }


def _step_line(request: PageRequest, record: Record) -> StepLine:
    status = "retrying" if record.kind is RecordKind.ATTEMPT else "failed" if record.failed else "completed"
    kind = RecordKind.STEP if record.kind is RecordKind.ATTEMPT else record.kind
    return StepLine(
        location=record.location,
        kind=kind.value,
        status=status,
        attempts=record.attempts,
        took=length(record.at - record.started_at) if record.started_at else "",
        at=record.at,
        result="" if record.failed else brief_json(request.shown.payload(record.payload)),
        error=request.shown.failure(record.payload) if record.failed else None,
    )


class MessageLine(Struct, frozen=True, kw_only=True):
    """A message, or a record of one."""

    seq: int
    kind: str
    name: str
    text: str
    sent_at: int = 0
    at: int = 0


class SetAsideLine(Struct, frozen=True, kw_only=True):
    """A message that was set aside, as the caller may see it."""

    number: int
    name: str
    value: Any
    error: FailureView
    at: int
    decision: str


async def _messages(request: PageRequest, snapshot: RunSnapshot, facts: RunFacts, links: RunLinks) -> dict[str, Any]:
    store = await session_of(request.engine).connect()
    received = [record for record in facts.records if record.kind is RecordKind.MESSAGE][-PAGE:]
    return {
        "inbox": [_unread(request, one) for one in await store.inbox(facts.run.id, 0, PAGE)],
        "set_aside": [
            _set_aside(request, set_aside_of(one)) for one in snapshot.outputs if one.kind is OutputKind.SET_ASIDE
        ][:PAGE],
        "received": [
            MessageLine(
                seq=one.seq,
                kind="message",
                name=one.location,
                text=brief_json(request.shown.payload(one.payload)),
                at=one.at,
            )
            for one in received
        ],
    }


def _unread(request: PageRequest, one: Message) -> MessageLine:
    if one.failed and one.payload:
        text = brief_json(request.shown.text(Failure.read(one.payload).message))
    else:
        text = brief_json(request.shown.payload(one.payload))
    return MessageLine(seq=one.seq, kind=one.kind.value, name=one.name, text=text, sent_at=one.sent_at)


def _set_aside(request: PageRequest, one: SetAsideMessage) -> SetAsideLine:
    return SetAsideLine(
        number=one.number,
        name=one.name,
        value=request.shown.payload(one.payload),
        error=request.shown.error(one.error),
        at=one.at,
        decision=one.decision,
    )


class StreamLines(Struct, frozen=True, kw_only=True):
    """Some items of a stream, and the addresses of those before and after them; empty if there are none."""

    name: str
    #: "all 3 items", or "items 951 to 1,000, the newest".
    text: str
    items: tuple[str, ...]
    older: str
    newer: str


async def _state(request: PageRequest, snapshot: RunSnapshot, facts: RunFacts, links: RunLinks) -> dict[str, Any]:
    store = await session_of(request.engine).connect()
    query = request.http.query_params
    given = query.get("before", "")
    before = int(given) if given.isdecimal() and given.isascii() and len(given) <= _LONGEST_NUMBER else NEVER
    name = query.get("stream") or None
    found: dict[str, list[Output]] = {}
    for output in await store.outputs(facts.run.id, OutputKind.STREAM, name, -1, _STREAM_ITEMS, before=before):
        found.setdefault(output.name, []).append(output)
    states = {
        output.name: request.shown.payload(output.payload)
        for output in snapshot.outputs
        if output.kind is OutputKind.STATE
    }
    return {
        "states": states,
        "streams": [_stream_lines(request, items, before, links) for items in found.values()],
        "all_streams": links.tab("state") if name is not None else "",
    }


def _stream_lines(request: PageRequest, items: Sequence[Output], before: int, links: RunLinks) -> StreamLines:
    name, first, last = items[0].name, items[0].position, items[-1].position
    newest = last < before - 1
    whole = newest and first == 0
    text = f"items {first + 1:,} to {last + 1:,}{', the newest' * newest}"
    return StreamLines(
        name=name,
        text=f"all {count(len(items), 'item')}" if whole else text,
        items=tuple(brief_json(request.shown.payload(one.payload)) for one in items),
        older=links.stream(name, first) if first > 0 else "",
        newer="" if newest else links.stream(name, last + 1 + _STREAM_ITEMS),
    )


async def _family(request: PageRequest, snapshot: RunSnapshot, facts: RunFacts, links: RunLinks) -> dict[str, Any]:
    """The ancestors of a run, each with the line that leads to it, and its descendants."""
    run = facts.run
    left = [_FAMILY]
    node = await _descendants(request, run, left, depth=0)
    seen = {run.id}
    while run.parent_id is not None and run.parent_id not in seen and len(seen) < 20:
        seen.add(run.parent_id)
        store = await session_of(request.engine).connect()
        parent = await store.get(run.parent_id)
        if parent is None:
            break
        run, node = parent, FamilyNode(parent, (node,), more=True)
    return {"family": node, "origin": _origin(facts.records)}


def _origin(records: Sequence[Record]) -> str:
    """The run that a fork was made from; empty if it is none."""
    fork = next((one for one in records if one.kind is RecordKind.FORK), None)
    try:
        said = msgspec.json.decode(fork.payload or "") if fork is not None else None
    except msgspec.DecodeError:
        return ""
    found = said.get("run") if isinstance(said, dict) else None
    return found if isinstance(found, str) else ""


async def _descendants(request: PageRequest, run: Run, left: list[int], depth: int) -> FamilyNode:
    if depth >= 5 or left[0] <= 0:
        return FamilyNode(run)
    page = await request.engine.runs.list(parent=run.id, limit=min(50, left[0]))
    left[0] -= len(page.runs)
    children = [await _descendants(request, child, left, depth + 1) for child in reversed(page.runs)]
    return FamilyNode(run, tuple(children), more=page.cursor is not None)


class EventLine(Struct, frozen=True, kw_only=True):
    """An event, as the caller may see it."""

    at: int
    kind: str
    actor: str
    text: str


async def _audit(request: PageRequest, snapshot: RunSnapshot, facts: RunFacts, links: RunLinks) -> dict[str, Any]:
    store = await session_of(request.engine).connect()
    events = reversed(await store.events_page(EventFilter(run_id=facts.run.id), _EVENTS))
    return {
        "events": [
            EventLine(at=one.at, kind=one.kind, actor=one.actor, text=brief_json(request.shown.payload(one.data)))
            for one in events
            if one.at <= facts.now
        ]
    }


class RecordLine(Struct, frozen=True, kw_only=True):
    """A record, as the caller may see it."""

    seq: int
    at: int
    kind: str
    location: str
    took: str
    text: str
    error: FailureView | None


async def _history(request: PageRequest, snapshot: RunSnapshot, facts: RunFacts, links: RunLinks) -> dict[str, Any]:
    page, text = _page(request, facts.records, links)
    lines = [
        RecordLine(
            seq=one.seq,
            at=one.at,
            kind=one.kind.value,
            location=one.location,
            took=length(one.at - one.started_at) if one.started_at else "",
            text="" if one.failed else brief_json(request.shown.payload(one.payload)),
            error=request.shown.failure(one.payload) if one.failed else None,
        )
        for one in await _whole(request, facts.run, page)
    ]
    return {"history": lines, "steps_pages": text}


class LogLine(Struct, frozen=True, kw_only=True):
    """A line of the log of a run, as the caller may see it."""

    at: int
    level: str
    source: str
    text: str
    detail: str = ""


async def _logs(request: PageRequest, snapshot: RunSnapshot, facts: RunFacts, links: RunLinks) -> dict[str, Any]:
    """All that is stored about a run, merged by time: records, events, takeovers and the items of its streams."""
    store = await session_of(request.engine).connect()
    lines = [_log_of_record(request, one) for one in facts.records]
    lines += [
        LogLine(at=one.at, level="info", source=one.actor, text=one.kind, detail=_payload_line(request, one.data))
        for one in await store.events(facts.run.id)
    ]
    lines += [
        LogLine(
            at=one.at,
            level="warning",
            source=one.worker,
            text=f"the worker {'was lost' if one.reason == 'lost' else 'stopped'}",
            detail=", ".join(one.steps or ()),
        )
        for one in facts.interruptions
    ]
    lines += [
        LogLine(at=one.at, level="info", source=f"stream {one.name}", text=_payload_line(request, one.payload))
        for one in await store.outputs(facts.run.id, OutputKind.STREAM, None, -1, _LOGGED_ITEMS, before=NEVER)
    ]
    lines += [_log_of_line(request, line) for line in await read_log(store, facts.run.id, -1, _LOGGED_LINES)]
    found = sorted((line for line in lines if line.at <= facts.now), key=lambda line: line.at)
    page, text = _page(request, found, links)
    return {"log": page, "steps_pages": text}


def _payload_line(request: PageRequest, payload: str | None) -> str:
    return "" if payload is None else brief_json(request.shown.payload(payload))


def _log_of_record(request: PageRequest, record: Record) -> LogLine:
    title = (
        f"attempt {record.attempts}" if record.attempts > 1 or record.kind is RecordKind.ATTEMPT else record.kind.value
    )
    took = f" after {length(record.at - record.started_at)}" if record.started_at else ""
    if record.failed:
        error = request.shown.failure(record.payload)
        detail = "" if error is None else f"{error.type.rpartition('.')[2]}: {error.message}"
        return LogLine(at=record.at, level="error", source=record.location, text=f"{title} failed{took}", detail=detail)
    detail = _payload_line(request, record.payload)
    return LogLine(at=record.at, level="info", source=record.location, text=f"{title} ended{took}", detail=detail)


def _log_of_line(request: PageRequest, line: LoggedLine) -> LogLine:
    level = "error" if line.level in ("ERROR", "CRITICAL") else "warning" if line.level == "WARNING" else "info"
    return LogLine(
        at=line.at,
        level=level,
        source=line.location or line.logger,
        text=request.shown.text(line.text),
        detail=request.shown.text(line.traceback),
    )


async def _source(request: PageRequest, snapshot: RunSnapshot, facts: RunFacts, links: RunLinks) -> dict[str, Any]:
    wanted = request.http.query_params.get("build", facts.run.build)
    source = await read_source(request, facts.run.type, wanted, facts)
    builds = () if source is None else source.builds
    return {
        "source": source,
        "builds": [(one, links.build(one)) for one in builds],
        "other_build": bool(facts.run.build) and facts.run.build not in builds,
    }


_TAB_VALUES: Mapping[str, Callable[[PageRequest, RunSnapshot, RunFacts, RunLinks], Any]] = {
    "steps": _steps,
    "messages": _messages,
    "state": _state,
    "family": _family,
    "audit": _audit,
    "logs": _logs,
    "history": _history,
    "source": _source,
}


async def download(request: PageRequest, run_id: str, what: str) -> Response:
    """A whole payload: `input`, `output`, or `record-17`."""
    handle = await request.engine.get(run_id)
    run = await handle.info()
    text = run.input if what == "input" else run.output if what == "output" else None
    if what.startswith("record-") and what[7:].isdecimal():
        store = await session_of(request.engine).connect()
        number = int(what[7:]) if len(what) < 18 else -1
        text = next((one.payload for one in await store.records(run_id, [number])), None)
    content = msgspec.json.encode(request.shown.payload(text))
    # As a file, so that no browser shows it as a page. The name comes from the URL: it may not end the header.
    name = what if what.isascii() and what.replace("-", "").isalnum() else "payload"
    headers = {**HEADERS, "content-disposition": f'attachment; filename="{name.lower()}.json"'}
    return Response(content, 200, headers, media_type="application/json")
