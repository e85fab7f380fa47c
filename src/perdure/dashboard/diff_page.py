"""The page that compares two runs."""

from __future__ import annotations

from msgspec import Struct
from starlette.responses import Response

from perdure.client.runs.inspect import read_report
from perdure.client.session import session_of
from perdure.core.model.record import Record
from perdure.core.model.reports import ChildLink
from perdure.core.model.run import Run
from perdure.dashboard.diff import DiffLine, DiffRow, RunDiff, Verdict, compare, line_diff
from perdure.dashboard.page_request import PageRequest
from perdure.dashboard.run_page import bar_text
from perdure.dashboard.texts import count, pretty
from perdure.dashboard.timeline import Row, RunFacts

_CHILDREN = 200
#: Rows whose values are compared line by line.
_COMPARED = 50


class ValueDiff(Struct, frozen=True, kw_only=True):
    """Two values of one place, as the caller may see them."""

    title: str
    lines: list[DiffLine]


async def choose_diff(request: PageRequest, run_id: str) -> Response:
    """Lead from the form to the page that compares two runs. Raises `RunNotFound`."""
    other = request.http.query_params.get("with", "").strip()
    if not other:
        return request.redirect(f"{request.url('runs', run_id)}?tab=family#tabs")
    await request.engine.get(other)
    return request.redirect(request.url("runs", run_id, "diff", other))


async def show_diff(request: PageRequest, first_id: str, second_id: str) -> Response:
    """The page that compares two runs."""
    first, second = await _facts(request, first_id), await _facts(request, second_id)
    parameters = request.http.query_params
    only_different = parameters.get("show") != "all"
    start = int(parameters["row"]) if parameters.get("row", "").isdecimal() and len(parameters["row"]) < 9 else 0
    diff = compare(first, second, only_different=only_different, start=start)
    changed = [row for row in diff.rows if row.verdict is Verdict.CHANGED][:_COMPARED]
    values = [_values(request, row) for row in changed]
    return request.render(
        "diff.html",
        page="runs",
        title=f"{first_id} and {second_id}",
        sentence=_sentence(first.run, second.run, diff),
        first=first.run,
        second=second.run,
        diff=diff,
        input=_compared(request, "input", first.run.input, second.run.input),
        output=_compared(request, "output", first.run.output, second.run.output),
        values={row.location: one for row, one in zip(changed, values, strict=True)},
        bar_text=bar_text,
        row_of=_row_of,
        only_different=only_different,
        here=request.url("runs", first_id, "diff", second_id),
        start=start,
        swapped=request.url("runs", second_id, "diff", first_id),
    )


def _row_of(row: DiffRow) -> Row:
    """The row as texts of bars want it."""
    shapes = row.first_shapes or row.second_shapes
    return Row(
        location=row.location, label=row.location, kind=row.kind, depth=0, shapes=shapes, state=shapes[0].bar.state
    )


async def _facts(request: PageRequest, run_id: str) -> RunFacts:
    handle = await request.engine.get(run_id)
    store = await session_of(request.engine).connect()
    run, records = await handle.info(), await handle.history()
    report = await read_report(store, run, records, ())
    page = await request.engine.runs.list(parent=run_id, limit=_CHILDREN)
    children = [
        ChildLink(id=one.id, parent_location=one.parent_location, created_at=one.created_at) for one in page.runs
    ]
    return RunFacts(
        run=run, records=records, interruptions=report.interruptions, waits=report.waits, running=report.running,
        children=children, now=await store.now(),
    )  # fmt: skip


def _sentence(first: Run, second: Run, diff: RunDiff) -> str:
    if not diff.different:
        same = "" if first.type == second.type else ", although their types differ"
        return f"Both runs recorded the same at every place{same}."
    places = count(diff.different, "place")
    verb = "differs" if diff.different == 1 else "differ"
    return f"{places} {verb}; the first is {diff.first_difference}."


def _values(request: PageRequest, row: DiffRow) -> list[DiffLine]:
    return line_diff(_text(request, row.first), _text(request, row.second))


def _text(request: PageRequest, record: Record | None) -> str:
    if record is None:
        return "nothing yet"
    if record.failed:
        error = request.shown.failure(record.payload)
        return "failed" if error is None else f"{error.type}: {error.message}"
    return pretty(request.shown.payload(record.payload))


def _compared(request: PageRequest, title: str, first: str | None, second: str | None) -> ValueDiff | None:
    """Two payloads of the runs, if they differ."""
    if first == second:
        return None
    texts = [pretty(request.shown.payload(one)) if one is not None else "none" for one in (first, second)]
    return ValueDiff(title=title, lines=line_diff(texts[0], texts[1]))
