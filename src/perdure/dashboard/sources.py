"""Sources of workflows, as their workers registered them, with the lines at which a run is.

No line of a run is stored. The traceback of a failed run has one. What a run waits for, or has under way, is found in
the source by its name: a name that several lines use marks all of them.
"""

from __future__ import annotations

import io
import keyword
import tokenize
from collections.abc import Iterator, Sequence
from urllib.parse import urlencode

from msgspec import Struct
from starlette.responses import Response

from perdure.core.codec.failure import Failure
from perdure.core.model.documents import WorkflowSource
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Status
from perdure.core.model.run_orders import PauseKind
from perdure.core.model.waits import Wait, WaitKind
from perdure.core.time.duration import length
from perdure.dashboard.actions import OrderForm, order_form
from perdure.dashboard.page_request import PageRequest, glyph
from perdure.dashboard.pages import watermark_forms
from perdure.dashboard.texts import count, frame_places
from perdure.dashboard.timeline import RunFacts
from perdure.workflow.call_sites import CallSite, call_sites, operation_name

_OPERATIONS = (RecordKind.STEP, RecordKind.ATTEMPT, RecordKind.CHILD, RecordKind.TIMER, RecordKind.MESSAGE)
#: Methods of the context that ask for a wait, for one whose name the source does not have.
_METHODS = {
    WaitKind.MESSAGE: ("receive", "receive_many", "receive_question", "ask"),
    WaitKind.TIMER: ("sleep", "sleep_until"),
    WaitKind.CHILD: ("call",),
    WaitKind.RUN: ("result", "state", "wait_state", "stream"),
}
#: Lines of one mark. More of them tell nothing.
_LINES = 5


class SourceMark(Struct, frozen=True, kw_only=True):
    """A remark at a line, in the colour of a status."""

    state: str
    text: str

    @property
    def glyph(self) -> str:
        """Glyph of the status."""
        return glyph(self.state)


class SourceLine(Struct, frozen=True, kw_only=True):
    """A line of a source, with its number in the file. Its parts are texts, each with the name of its kind."""

    number: int
    parts: tuple[tuple[str, str], ...]
    marks: tuple[SourceMark, ...] = ()


class ShownSource(Struct, frozen=True, kw_only=True):
    """A source as the caller may see it."""

    build: str
    file: str
    doc: str
    registered_at: int
    lines: tuple[SourceLine, ...]
    cut: bool
    #: Builds whose sources are stored, latest first.
    builds: tuple[str, ...]

    @property
    def marked(self) -> SourceLine | None:
        """The first line that has a mark."""
        return next((line for line in self.lines if line.marks), None)


class _Place(Struct, frozen=True, kw_only=True):
    """Something that a run does or waits for, and how to find its line."""

    mark: SourceMark
    name: str
    methods: tuple[str, ...] = ()
    #: Type of the child that it waits for.
    child: str = ""


async def read_source(request: PageRequest, type: str, build: str, facts: RunFacts | None = None) -> ShownSource | None:
    """Read the source of a type, of a build or else the latest one, with the lines at which a run is."""
    stored = await request.engine.queues.sources(type)
    if not stored:
        return None
    chosen = next((one for one in stored if one.build == build), stored[0])
    marks = _marks(request, chosen, facts) if facts is not None else {}
    text = request.shown.text(chosen.source)
    return ShownSource(
        build=chosen.build,
        file=chosen.file,
        doc=request.shown.text(chosen.doc),
        registered_at=chosen.registered_at,
        lines=tuple(
            SourceLine(number=number, parts=tuple(parts), marks=tuple(marks.get(number, ())))
            for number, parts in enumerate(_parts(text), max(1, chosen.line))
        ),
        cut=chosen.cut,
        builds=tuple(one.build for one in stored),
    )


async def show_type(request: PageRequest, type: str) -> Response:
    """The page of a type of runs: its docstring and source."""
    build = request.http.query_params.get("build", "")
    source = await read_source(request, type, build)
    builds = () if source is None else source.builds
    base = request.url("workflows", type)
    forms: list[OrderForm] = []
    if request.operates:
        paused = any(one.kind is PauseKind.TYPE and one.name == type for one in await request.engine.queues.paused())
        marks = [one for one in await request.engine.queues.watermarks.list() if one.type == type]
        forms.append(order_form(request, "type", type, "resume" if paused else "pause"))
        forms += watermark_forms(request, "type", type, marks[0] if marks else None)
    return request.render(
        "source.html",
        page="workflows",
        title=type,
        type=type,
        sentence="No worker has registered a source of this type."
        if source is None
        else f"The source of {type}, as the workers of {count(len(builds), 'build')} registered it.",
        source=source,
        forms=forms,
        builds=[(one, f"{base}?{urlencode({'build': one}, errors='replace')}") for one in builds],
    )


# lines at which a run is


def _marks(request: PageRequest, source: WorkflowSource, facts: RunFacts) -> dict[int, list[SourceMark]]:
    """Marks by the number of their line in the file."""
    first = max(1, source.line)
    found: dict[int, list[SourceMark]] = {}
    for number in _failed_at(source, facts):
        error = Failure.read(facts.run.error).type.rpartition(".")[2] if request.shown.shows_payloads else ""
        found.setdefault(number, []).append(
            SourceMark(state="failed", text=f"failed here{f': {error}' if error else ''}")
        )
    try:
        sites = call_sites(source.source)
    except (SyntaxError, ValueError, RecursionError):
        # A source that was cut does not parse.
        return found
    for place in () if found else _places(facts):
        lines = _lines_of(place, sites)
        several = f" (one of {len(lines)} lines)" if len(lines) > 1 else ""
        for line in lines if len(lines) <= _LINES else ():
            marks = found.setdefault(first + line - 1, [])
            mark = SourceMark(state=place.mark.state, text=f"{request.shown.text(place.mark.text)}{several}")
            if mark not in marks:
                marks.append(mark)
    return found


def _failed_at(source: WorkflowSource, facts: RunFacts) -> list[int]:
    """The line of the source at which the run failed, from its traceback."""
    run = facts.run
    if run.error is None or run.status not in (Status.FAILED, Status.BLOCKED):
        return []
    last = source.line + len(source.source.splitlines())
    places = frame_places(Failure.read(run.error).traceback)
    return [line for file, line in places if file == source.file and source.line <= line < last][-1:]


def _places(facts: RunFacts) -> Iterator[_Place]:
    """All that the run waits for or has under way; else the operation that ended last."""
    waits = () if facts.waits is None else facts.waits.waits
    yield from (_place_of_wait(one) for one in waits)
    for step in facts.running:
        attempt = f", attempt {step.attempt}" if step.attempt > 1 else ""
        text = f"{step.location} runs for {length(facts.now - step.since)}{attempt}"
        yield _Place(mark=SourceMark(state="running", text=text), name=operation_name(step.location))
    if waits or facts.running or facts.run.finished_at:
        return
    last = next((one for one in reversed(facts.records) if one.kind in _OPERATIONS), None)
    if last is not None:
        mark = SourceMark(state=facts.run.status.value, text=f"last record: {last.location}")
        methods = ("call",) if last.kind is RecordKind.CHILD else ()
        child = operation_name(last.location) if last.kind is RecordKind.CHILD else ""
        yield _Place(mark=mark, name=operation_name(last.location), methods=methods, child=child)


def _place_of_wait(wait: Wait) -> _Place:
    name, text = operation_name(wait.name), f"waits for {wait.kind.value} {wait.name}"
    match wait.kind:
        case WaitKind.MESSAGE:
            name = wait.name
        case WaitKind.TIMER:
            pass
        case WaitKind.CHILD:
            name = ""
        case WaitKind.RUN:
            name, text = "", f"waits for {wait.detail or 'the end'} of run {wait.name}"
        case WaitKind.COMPLETION:
            text = "waits for its completion from outside"
        case WaitKind.RETRY:
            text = f"waits to try {wait.name} again"
        case WaitKind.LIMIT | WaitKind.BREAKER:
            name, text = operation_name(wait.detail), f"{wait.detail} waits for {wait.kind.value} {wait.name}"
    mark = SourceMark(state="waiting", text=text)
    child = wait.detail if wait.kind is WaitKind.CHILD else ""
    return _Place(mark=mark, name=name, methods=_METHODS.get(wait.kind, ()), child=child)


def _lines_of(place: _Place, sites: Sequence[CallSite]) -> list[int]:
    """Lines of the calls that fit a place best: by name, by the function of a child, or by method alone."""
    named = [one for one in sites if place.name and place.name in one.names]
    of_method = [one for one in sites if one.method in place.methods]
    parts = place.child.split(".")
    of_child = [one for one in of_method if place.child and one.callee.rpartition(".")[2] in parts]
    return sorted({one.line for one in named or of_child or of_method})


# colours


def _parts(text: str) -> list[list[tuple[str, str]]]:
    """The lines of a source, each in parts: `k` for keywords, `s` for strings, `c` for comments, or empty."""
    lines = text.splitlines()
    kinds: list[list[tuple[int, int, str]]] = [[] for _ in lines]
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            kind = _kind(token)
            for number in range(token.start[0], token.end[0] + 1) if kind else ():
                start = token.start[1] if number == token.start[0] else 0
                end = token.end[1] if number == token.end[0] else len(lines[number - 1])
                kinds[number - 1].append((start, end, kind))
    except (tokenize.TokenError, SyntaxError, IndexError):
        # The rest of a source that was cut has no colours.
        pass
    return [[*_cut_parts(line, found)] for line, found in zip(lines, kinds, strict=True)]


def _kind(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.COMMENT:
        return "c"
    if token.type == tokenize.STRING or tokenize.tok_name[token.type].startswith("FSTRING"):
        return "s"
    return "k" if token.type == tokenize.NAME and keyword.iskeyword(token.string) else ""


def _cut_parts(line: str, kinds: Sequence[tuple[int, int, str]]) -> Iterator[tuple[str, str]]:
    at = 0
    for start, end, kind in kinds:
        if start > at:
            yield "", line[at:start]
        if end > start:
            yield kind, line[start:end]
        at = end
    if at < len(line):
        yield "", line[at:]
