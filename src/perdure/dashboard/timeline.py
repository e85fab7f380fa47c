"""Timeline of a run: its records, waits and running steps as rows of bars.

The functions are pure. `read_lanes` turns the facts of a run into lanes, one for each location. `Scale` maps times to
positions and folds long idle times, so that work stays visible. `draw` chooses the rows and bars that are visible at
one level of detail: its result is bounded, however long the history is.

Positions are percentages of the width. Bars carry names of errors, never messages or payloads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.codec.failure import Failure
from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.reports import ChildLink, original_records
from perdure.core.model.run import Run, Status
from perdure.core.model.waits import RunWaits, WaitKind
from perdure.core.model.worker_info import RunningStep
from perdure.core.time.duration import length

#: Rows of a page, and rows up to which every scope is open.
ROWS = 200
OPEN_ROWS = 60
#: Width below which neighbours merge, in percent.
_THIN = 0.15
#: Shortest idle time that is folded, in microseconds.
_SHORTEST_FOLD = 2_000_000
#: Width of a fold, and of all folds together, in percent.
_FOLD_WIDTH, _FOLDS_WIDTH = 10.0, 40.0
#: Shortest wait for a worker that has a row of its own, in microseconds.
_SHORTEST_QUEUE = 500_000
_TICKS = 8
#: Room for a label of the axis, in percent.
_LABEL = 6.0
#: Label of the row that shows the time before the first start.
QUEUED = "waits to start"

_WORK_KINDS = (RecordKind.STEP, RecordKind.ATTEMPT)


class BarKind(StrEnum):
    """Kind of a bar."""

    #: An attempt at a step.
    WORK = "work"
    #: A sleep, a wait for a message, a limit or a worker.
    WAIT = "wait"
    #: The time between two attempts.
    RETRY = "retry"
    CHILD = "child"


class BarState(StrEnum):
    """State of a bar, in the words of a run's status."""

    COMPLETED = "completed"
    FAILED = "failed"
    RUNNING = "running"
    WAITING = "waiting"
    #: The worker was lost or stopped.
    INTERRUPTED = "interrupted"


#: The state that is shown for several bars: the first that one of them has.
_LOUDEST = (BarState.FAILED, BarState.RUNNING, BarState.INTERRUPTED, BarState.WAITING, BarState.COMPLETED)


class Bar(Struct, frozen=True, kw_only=True):
    """A stretch of time in a row. Times are microseconds since the epoch."""

    kind: BarKind
    state: BarState
    start: int
    end: int
    attempt: int = 0
    #: Number of the record that ended it; -1: none has.
    seq: int = -1
    #: Class name of the error.
    error: str = ""
    #: Number of bars that it stands for.
    count: int = 1


class Lane(Struct, frozen=True, kw_only=True):
    """All bars of one location."""

    location: str
    #: Kind of the operation: `step`, `timer`, `message`, `child`, `limit` or `start`.
    kind: str
    bars: tuple[Bar, ...]
    #: Run that a child is.
    child: str = ""


class Mark(Struct, frozen=True, kw_only=True):
    """A moment that concerns the whole run."""

    at: int
    #: `takeover`, `stopped`, `cancel`, `fork`, `broken` or `attempt`.
    kind: str
    text: str


class RunFacts(Struct, frozen=True, kw_only=True):
    """All that a timeline is made of."""

    run: Run
    records: Sequence[Record]
    interruptions: Sequence[Interruption] = ()
    waits: RunWaits | None = None
    running: Sequence[RunningStep] = ()
    children: Sequence[ChildLink] = ()
    now: int


def as_of(facts: RunFacts, seq: int) -> RunFacts:
    """The facts as they were right after a record: later records are gone, and steps that ran then are running."""
    past = [record for record in facts.records if record.seq <= seq]
    if len(past) == len(facts.records):
        return facts
    now = past[-1].at if past else facts.run.started_at or facts.run.created_at
    later = [record for record in facts.records if record.seq > seq]
    done = {record.location for record in past if record.kind is not RecordKind.ATTEMPT}
    running: dict[str, RunningStep] = {}
    for record in later:
        if record.kind in _WORK_KINDS and 0 < record.started_at <= now and record.location not in done:
            running.setdefault(record.location, _running(facts.run, record))
    return RunFacts(
        run=msgspec.structs.replace(facts.run, status=Status.RUNNING, reason=None, finished_at=0),
        records=past,
        interruptions=[one for one in facts.interruptions if one.at <= now],
        running=tuple(running.values()),
        children=[child for child in facts.children if child.created_at <= now],
        now=now,
    )


def _running(run: Run, record: Record) -> RunningStep:
    return RunningStep(
        run_id=run.id, type=run.type, location=record.location, attempt=record.attempts, since=record.started_at,
        token=run.token,
    )  # fmt: skip


# lanes


class _Draft(Struct):
    kind: str
    bars: list[Bar]
    child: str = ""


def read_lanes(facts: RunFacts) -> list[Lane]:
    """Lanes of a run, in the order in which they began."""
    drafts: dict[str, _Draft] = {}
    _add_records(drafts, facts)
    _add_interruptions(drafts, facts)
    _add_open(drafts, facts)
    lanes = [
        Lane(location=location, kind=draft.kind, bars=_with_retries(draft.bars), child=draft.child)
        for location, draft in drafts.items()
        if draft.bars
    ]
    lanes.sort(key=lambda lane: lane.bars[0].start)
    if (queued := _queued(facts)) is not None:
        lanes.insert(0, Lane(location=QUEUED, kind="start", bars=(queued,)))
    return lanes


def _add_records(drafts: dict[str, _Draft], facts: RunFacts) -> None:
    kept = original_records(facts.records)
    children = {child.parent_location: child.id for child in facts.children}
    before = facts.run.started_at or facts.run.created_at
    for record in facts.records:
        if record.seq not in kept and (bar := _bar_of(record, before)) is not None:
            draft = drafts.setdefault(record.location, _Draft(_kind_of(record), []))
            draft.bars.append(bar)
            if record.kind is RecordKind.CHILD:
                draft.child = children.get(record.location, "")
        before = record.at


def _kind_of(record: Record) -> str:
    if record.kind is RecordKind.ATTEMPT:
        return RecordKind.STEP.value
    return RecordKind.MESSAGE.value if record.kind is RecordKind.ASIDE else record.kind.value


def _bar_of(record: Record, before: int) -> Bar | None:
    """Bar of a record; None for records that took no time. `before` is the time of the record before it."""
    match record.kind:
        case RecordKind.STEP | RecordKind.ATTEMPT:
            kind, start = BarKind.WORK, record.started_at or record.at
        case RecordKind.CHILD:
            kind, start = BarKind.CHILD, record.started_at or before
        case RecordKind.TIMER | RecordKind.MESSAGE:
            # A message has no start of its own: the run has waited for it since it last did something.
            kind, start = BarKind.WAIT, record.started_at or before
        case RecordKind.ASIDE:
            kind, start = BarKind.WAIT, record.at
        case _:
            return None
    failed = record.failed or record.kind is RecordKind.ASIDE
    return Bar(
        kind=kind,
        state=BarState.FAILED if failed else BarState.COMPLETED,
        start=min(start, record.at),
        end=record.at,
        attempt=record.attempts,
        seq=record.seq,
        error=Failure.read(record.payload).type.rpartition(".")[2] if failed else "",
    )


def _add_interruptions(drafts: dict[str, _Draft], facts: RunFacts) -> None:
    """Add bars of attempts that a lost or stopped worker did not finish.

    Their start was never stored. The last record before them is the earliest that it can be.
    """
    times = {record.seq: record.at for record in facts.records}
    for one in facts.interruptions:
        if one.generation != facts.run.generation:
            continue
        start = times.get(one.last, facts.run.started_at or one.at)
        for location in one.steps or ():
            bars = drafts.setdefault(location, _Draft("step", [])).bars
            latest = max((bar.end for bar in bars if bar.end <= one.at), default=start)
            bar = Bar(kind=BarKind.WORK, state=BarState.INTERRUPTED, start=min(max(start, latest), one.at), end=one.at)
            bars.append(bar)
            bars.sort(key=lambda bar: (bar.start, bar.end))


def _add_open(drafts: dict[str, _Draft], facts: RunFacts) -> None:
    """Add bars of what the run waits for and has under way."""
    latest = facts.records[-1].at if facts.records else facts.run.started_at or facts.run.created_at
    children = {child.id: child for child in facts.children}
    for step in facts.running:
        bar = Bar(
            kind=BarKind.WORK, state=BarState.RUNNING, start=step.since, end=max(facts.now, step.since),
            attempt=step.attempt,
        )  # fmt: skip
        drafts.setdefault(step.location, _Draft("step", [])).bars.append(bar)
    for wait in () if facts.waits is None else facts.waits.waits:
        start = min(wait.since or latest, facts.now)
        location, kind, name = wait.name, BarKind.WAIT, wait.kind.value
        child = ""
        if wait.kind is WaitKind.RETRY:
            kind, name = BarKind.RETRY, "step"
        elif wait.kind is WaitKind.CHILD:
            found = children.get(wait.name)
            location = (found.parent_location if found is not None else None) or wait.name
            kind, child = BarKind.CHILD, wait.name
        elif wait.kind in (WaitKind.LIMIT, WaitKind.BREAKER):
            location, name = wait.detail or wait.name, "limit"
        draft = drafts.setdefault(location, _Draft(name, []))
        draft.child = draft.child or child
        draft.bars.append(Bar(kind=kind, state=BarState.WAITING, start=start, end=facts.now))


def _with_retries(bars: list[Bar]) -> tuple[Bar, ...]:
    """Fill the time between two attempts at a step."""
    found: list[Bar] = []
    for bar in bars:
        last = found[-1] if found else None
        between = last is not None and last.kind is BarKind.WORK and bar.kind is BarKind.WORK
        if last is not None and between and last.state is not BarState.COMPLETED and bar.start > last.end:
            found.append(Bar(kind=BarKind.RETRY, state=BarState.WAITING, start=last.end, end=bar.start))
        found.append(bar)
    return tuple(found)


def _queued(facts: RunFacts) -> Bar | None:
    run = facts.run
    started = run.started_at or (run.finished_at if run.status.finished else facts.now)
    first = min([started, *(record.started_at or record.at for record in facts.records[:1])])
    if run.attempt > 1 or run.generation > 1 or first - run.created_at < _SHORTEST_QUEUE:
        return None
    waiting = run.started_at == 0 and not run.status.finished
    state = BarState.WAITING if waiting else BarState.COMPLETED
    return Bar(kind=BarKind.WAIT, state=state, start=run.created_at, end=first)


def read_marks(facts: RunFacts) -> list[Mark]:
    """Moments that concern the whole run, in order."""
    marks = [
        Mark(
            at=one.at,
            kind="takeover" if one.reason == "lost" else "stopped",
            text=f"worker {one.worker} {'was lost; another one took over' if one.reason == 'lost' else 'stopped'}",
        )
        for one in facts.interruptions
        if one.generation == facts.run.generation
    ]
    attempt = 1
    for record in facts.records:
        if record.run_attempt > attempt:
            attempt = record.run_attempt
            marks.append(Mark(at=record.at, kind="attempt", text=f"attempt {attempt} at the whole run"))
        if record.kind is RecordKind.CANCEL:
            marks.append(Mark(at=record.at, kind="cancel", text="the run was asked to stop"))
        elif record.kind is RecordKind.FORK:
            marks.append(Mark(at=record.at, kind="fork", text="the records before were copied from another run"))
        elif record.kind is RecordKind.BROKEN:
            marks.append(Mark(at=record.at, kind="broken", text="the code was broken here, and the run was blocked"))
    return sorted(marks, key=lambda mark: mark.at)


# scale


class Fold(Struct, frozen=True, kw_only=True):
    """An idle time that takes less room than its length; positions are in percent."""

    start: int
    end: int
    x: float
    width: float

    @property
    def text(self) -> str:
        """Length of the time that is folded."""
        return length(self.end - self.start)


class Tick(Struct, frozen=True, kw_only=True):
    """A label of the axis."""

    x: float
    text: str


def idle_times(lanes: Iterable[Lane], begin: int, end: int) -> list[tuple[int, int]]:
    """Times in which no step ran and nothing ended."""
    busy: list[tuple[int, int]] = [(begin, begin), (end, end)]
    for lane in lanes:
        busy += [(bar.start if bar.kind is BarKind.WORK else bar.end, bar.end) for bar in lane.bars]
    gaps: list[tuple[int, int]] = []
    until = begin
    for start, stop in sorted(busy):
        if start > until:
            gaps.append((until, start))
        until = max(until, stop)
    return gaps


def folded(gaps: Sequence[tuple[int, int]], begin: int, end: int) -> list[tuple[int, int]]:
    """The idle times to fold: as many of the longest as are each longer than all that stays unfolded."""
    longest = sorted(gaps, key=lambda gap: gap[0] - gap[1])
    rest, chosen = end - begin, 0
    for number, (start, stop) in enumerate(longest, 1):
        rest -= stop - start
        if stop - start >= _SHORTEST_FOLD and stop - start > rest:
            chosen = number
    return sorted(longest[:chosen])


class Scale:
    """Map of the times of a window to percentages of the width; folds have a fixed width."""

    def __init__(self, begin: int, end: int, folds: Sequence[tuple[int, int]] = ()) -> None:
        self.begin, self.end = begin, max(end, begin + 1)
        inside = [(max(a, begin), min(b, self.end)) for a, b in folds if a < self.end and b > begin]
        each = min(_FOLD_WIDTH, _FOLDS_WIDTH / len(inside)) if inside else 0.0
        open_time = self.end - self.begin - sum(b - a for a, b in inside)
        # One idle time may be the whole window.
        ratio = (100.0 - each * len(inside)) / open_time if open_time > 0 else 0.0
        if open_time <= 0 and inside:
            each = 100.0 / len(inside)
        self.folds: list[Fold] = []
        self._times: list[int] = [self.begin]
        self._places: list[float] = [0.0]
        for a, b in inside:
            x = self._places[-1] + (a - self._times[-1]) * ratio
            self.folds.append(Fold(start=a, end=b, x=x, width=each))
            self._times += [a, b]
            self._places += [x, x + each]
        self._times.append(self.end)
        self._places.append(100.0)

    def x(self, time: int) -> float:
        """Position of a time, in percent; times outside are at the edges."""
        if time <= self.begin:
            return 0.0
        if time >= self.end:
            return 100.0
        index = bisect_right(self._times, time) - 1
        left, right = self._times[index], self._times[index + 1]
        low, high = self._places[index], self._places[index + 1]
        return low + (high - low) * (time - left) / (right - left) if right > left else low

    def time(self, x: float) -> int:
        """The time at a position."""
        index = min(bisect_right(self._places, x) - 1, len(self._places) - 2)
        low, high = self._places[index], self._places[index + 1]
        left, right = self._times[index], self._times[index + 1]
        return left + round((right - left) * (x - low) / (high - low)) if high > low else left

    def ticks(self, origin: int) -> list[Tick]:
        """Labels of the axis, as times since `origin`, where no idle time is folded."""
        parts = [
            (a, b, x, y)
            for (a, x), (b, y) in pairwise(zip(self._times, self._places, strict=True))
            if b > a and y > x and not any(fold.start == a and fold.end == b for fold in self.folds)
        ]
        open_time = sum(b - a for a, b, _, _ in parts)
        step = _nice(open_time / _TICKS) if open_time else 1
        found: list[Tick] = []
        for a, b, _, _ in parts:
            first = origin + -(-(a - origin) // step) * step
            # After a fold, the first label says where the work goes on.
            times = range(first, b + 1, step) if first <= b else (a,)
            for time in times:
                place = self.x(time)
                near = any(0 <= fold.x - place < _LABEL for fold in self.folds)
                if (not found or place - found[-1].x >= _LABEL) and place < 100 - _LABEL and not near:
                    found.append(Tick(x=place, text=length(time - origin)))
        return found


def _nice(microseconds: float) -> int:
    """The next round length of time."""
    seconds = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800)
    if microseconds < 1_000_000:
        unit = 1
        while True:
            for factor in (1, 2, 5):
                if unit * factor >= microseconds:
                    return unit * factor
            unit *= 10
    for one in seconds:
        if one * 1_000_000 >= microseconds:
            return one * 1_000_000
    return -(-int(microseconds) // 604_800_000_000) * 604_800_000_000


# rows


class TimelineView(Struct, frozen=True, kw_only=True):
    """The part of a timeline that is asked for. All of it is in the URL."""

    #: Scopes and groups that are open besides those that are by default.
    open: frozenset[str] = frozenset()
    true_scale: bool = False
    #: Bounds of the window, in microseconds since the timeline's begin; None: all of it.
    since: int | None = None
    until: int | None = None
    #: Number of the first row.
    first: int = 0


class Shape(Struct, frozen=True, kw_only=True):
    """A bar with its position, in percent."""

    bar: Bar
    x: float
    width: float


class Row(Struct, frozen=True, kw_only=True):
    """A row of a timeline: a location, or a scope or group of several."""

    location: str
    label: str
    kind: str
    depth: int
    shapes: tuple[Shape, ...]
    state: BarState
    #: Number of operations in a scope or group; 0 for a single operation.
    operations: int = 0
    is_open: bool = False
    child: str = ""
    attempts: int = 0

    #: Time from its first bar to its last, in microseconds.
    spent: int = 0


class PlacedMark(Struct, frozen=True, kw_only=True):
    """A mark with its position, in percent."""

    mark: Mark
    x: float


class DrawnTimeline(Struct, frozen=True, kw_only=True):
    """A timeline as it is drawn."""

    rows: tuple[Row, ...]
    #: Number of all rows, of which `rows` are some, from `first` on.
    total: int
    first: int
    folds: tuple[Fold, ...]
    ticks: tuple[Tick, ...]
    marks: tuple[PlacedMark, ...]
    begin: int
    end: int
    #: Bounds of the window.
    since: int
    until: int
    #: True if the window is not the whole.
    zoomed: bool
    #: True if there is an idle time to fold.
    foldable: bool


class _Node(Struct):
    path: str
    label: str
    lane: Lane | None = None
    children: dict[str, Any] = {}
    #: Several operations of one name.
    group: bool = False


def draw(facts: RunFacts, view: TimelineView) -> DrawnTimeline:
    """The rows and bars of a run that a view shows."""
    lanes, marks = read_lanes(facts), read_marks(facts)
    begin, end = _span(facts, lanes, marks)
    since = begin if view.since is None else min(max(begin, begin + view.since), end - 1)
    until = end if view.until is None else min(max(since + 1, begin + view.until), end)
    folds = folded(idle_times(lanes, begin, end), begin, end)
    scale = Scale(since, until, () if view.true_scale else folds)
    rows = list(_rows(_tree(lanes), view, opened=len(lanes) <= OPEN_ROWS))
    first = min(max(0, view.first), max(0, len(rows) - 1))
    placed = [PlacedMark(mark=mark, x=scale.x(mark.at)) for mark in marks if since <= mark.at <= until]
    return DrawnTimeline(
        rows=tuple(make(scale) for make in rows[first : first + ROWS]),
        total=len(rows),
        first=first,
        folds=tuple(scale.folds),
        ticks=tuple(scale.ticks(begin)),
        marks=tuple(placed[-ROWS:]),
        begin=begin,
        end=end,
        since=since,
        until=until,
        zoomed=(since, until) != (begin, end),
        foldable=bool(folds),
    )


def _span(facts: RunFacts, lanes: Sequence[Lane], marks: Sequence[Mark]) -> tuple[int, int]:
    run = facts.run
    starts = [lane.bars[0].start for lane in lanes] or [run.started_at or run.created_at]
    ends = [bar.end for lane in lanes for bar in lane.bars]
    # A worker may be lost before the first bar: the steps that it had begun were not stored.
    begin = min([*starts, *(mark.at for mark in marks)])
    end = max([*ends, run.finished_at if run.status.finished else facts.now])
    return begin, max(end, begin + 1)


def _tree(lanes: Sequence[Lane]) -> _Node:
    """Scopes nest by their paths; many operations of one name form a group if there are many rows."""
    root = _Node("", "", children={})
    grouped = _groups(lanes) if len(lanes) > OPEN_ROWS else frozenset[str]()
    for lane in lanes:
        # The label of the row before the start is no path.
        *scopes, name = lane.location.split("/") if lane.kind != "start" else [lane.location]
        node, path = root, ""
        for scope in scopes:
            path += f"{scope}/"
            node = node.children.setdefault(path, _Node(path, scope, children={}))
        stem = f"{path}{name.partition('#')[0]}#"
        if stem in grouped:
            node = node.children.setdefault(stem, _Node(stem, name.partition("#")[0], children={}, group=True))
        node.children[lane.location] = _Node(lane.location, name, lane=lane, children={})
    return root


def _groups(lanes: Sequence[Lane]) -> frozenset[str]:
    counts: dict[str, int] = {}
    for lane in lanes:
        scope, slash, name = lane.location.rpartition("/")
        stem = f"{scope}{slash}{name.partition('#')[0]}#"
        counts[stem] = counts.get(stem, 0) + 1
    return frozenset(stem for stem, count in counts.items() if count > 1)


class _RowMaker(Struct, frozen=True):
    node: _Node
    depth: int
    is_open: bool

    def __call__(self, scale: Scale) -> Row:
        node = self.node
        if node.lane is not None:
            bars: Sequence[Bar] = node.lane.bars
            kind, child, operations = node.lane.kind, node.lane.child, 0
        else:
            found = list(_lanes_of(node))
            bars = [bar for lane in found for bar in lane.bars if bar.kind is not BarKind.RETRY]
            kind, child, operations = "group" if node.group else "scope", "", len(found)
        states = {bar.state for bar in bars}
        last = [bar.state for bar in bars[-1:]] if node.lane is not None else []
        state = last[0] if last else next(one for one in _LOUDEST if one in states)
        return Row(
            location=node.path,
            label=node.label,
            kind=kind,
            depth=self.depth,
            shapes=visible_shapes(bars, scale),
            state=state,
            operations=operations,
            is_open=self.is_open,
            child=child,
            attempts=max((bar.attempt for bar in bars), default=0) if node.lane is not None else 0,
            spent=max(bar.end for bar in bars) - min(bar.start for bar in bars),
        )


def _lanes_of(node: _Node) -> Iterator[Lane]:
    if node.lane is not None:
        yield node.lane
    for child in node.children.values():
        yield from _lanes_of(child)


def _rows(node: _Node, view: TimelineView, *, opened: bool, depth: int = 0) -> Iterator[_RowMaker]:
    """Makers of the visible rows below a node; a row is made only if its page shows it."""
    for child in node.children.values():
        is_open = child.lane is None and (opened or child.path in view.open)
        yield _RowMaker(child, depth, is_open)
        if is_open:
            yield from _rows(child, view, opened=opened, depth=depth + 1)


def visible_shapes(bars: Sequence[Bar], scale: Scale) -> tuple[Shape, ...]:
    """Bars of a row within the window; those of one state that are too thin to be told apart become one."""
    visible = sorted(
        (bar for bar in bars if bar.end >= scale.begin and bar.start <= scale.end),
        key=lambda bar: (bar.start, bar.end),
    )
    found: list[Shape] = []
    last: dict[tuple[BarKind, BarState], int] = {}
    for bar in visible:
        x = scale.x(bar.start)
        shape = Shape(bar=bar, x=x, width=scale.x(bar.end) - x)
        index = last.get((bar.kind, bar.state))
        if index is not None and _merge(found[index], shape):
            found[index] = _merged(found[index], shape)
        else:
            last[bar.kind, bar.state] = len(found)
            found.append(shape)
    return tuple(found)


def _merge(one: Shape, other: Shape) -> bool:
    gap = other.x - (one.x + one.width)
    return gap < _THIN and (other.width < _THIN * 2 or one.width < _THIN * 2 or gap < -_THIN)


def _merged(one: Shape, other: Shape) -> Shape:
    bar = msgspec.structs.replace(
        one.bar,
        end=max(one.bar.end, other.bar.end),
        count=one.bar.count + other.bar.count,
        error=one.bar.error or other.bar.error,
    )
    return Shape(bar=bar, x=one.x, width=max(one.x + one.width, other.x + other.width) - one.x)
