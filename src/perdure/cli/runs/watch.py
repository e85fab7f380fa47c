"""`perdure runs list --watch`: the listing, refreshed, with new and changed rows marked.

On a terminal the rows of the last refreshes that are new or have changed carry a mark. Anywhere else each change is a
line, or with `--json` a document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from msgspec import Struct

from perdure.cli.console.describe import status, status_style, when
from perdure.cli.console.document import moment, run_document
from perdure.cli.console.output import Printer
from perdure.cli.console.screen import INTERVAL, Section, run_until_interrupted, show_live
from perdure.cli.console.target import engine_at
from perdure.client.engine import Engine
from perdure.core.model.run import Run, RunPage
from perdure.errors import StoreUnavailable
from perdure.host import Host

ReadPage = Callable[[Engine], Awaitable[RunPage]]
Kind = Literal["listed", "new", "changed", "left"]

#: Refreshes for which a row that is new or has changed carries a mark.
_MARKED = 5


class RowChange(Struct, frozen=True):
    """A difference between two refreshes. `before` is the earlier status of a row that was there."""

    kind: Kind
    run: Run
    before: str = ""


class Changes:
    """The rows of a listing as last seen. `limit` is the length of a page."""

    def __init__(self, limit: int, *, newest_first: bool) -> None:
        self._limit = limit
        self._newest_first = newest_first
        self._seen: dict[str, Run] | None = None

    def update(self, runs: Sequence[Run]) -> list[RowChange]:
        """Compare a page with the last one, oldest run first."""
        before, self._seen = self._seen, {run.id: run for run in runs}
        ordered = sorted(runs, key=_age)
        if before is None:
            return [RowChange("listed", run) for run in ordered]
        found = [
            RowChange("left", run, status(run))
            for run in before.values()
            if run.id not in self._seen and self._left(run)
        ]
        for run in ordered:
            old = before.get(run.id)
            if old is None:
                # An older run that fills up the page again was there before.
                is_new = not self._newest_first or not before or _age(run) > min(map(_age, before.values()))
                found.append(RowChange("new" if is_new else "listed", run))
            elif _state(old) != _state(run):
                found.append(RowChange("changed", run, status(old)))
        return found

    def _left(self, run: Run) -> bool:
        """Tell a run that no longer fulfils the filters from one that newer runs have pushed off the page."""
        assert self._seen is not None
        pushed = self._newest_first and len(self._seen) >= self._limit
        return not pushed or _age(run) > min(map(_age, self._seen.values()))


def _age(run: Run) -> tuple[int, str]:
    return run.created_at, run.id


def _state(run: Run) -> tuple[object, ...]:
    return status(run), run.generation, run.attempt, run.worker, run.priority, run.attributes


def watch_runs(target: str, output: Printer, read: ReadPage, limit: int, *, newest_first: bool) -> None:
    """Refresh a listing until Ctrl-C."""
    changes = Changes(limit, newest_first=newest_first)

    async def main() -> None:
        async with engine_at(target) as engine:
            if output.is_terminal:
                marks: dict[str, int] = {}
                await show_live(lambda: _view(engine, read, changes, marks))
            else:
                await _print_changes(engine, read, changes, output)

    run_until_interrupted(main)


async def _view(engine: Engine, read: ReadPage, changes: Changes, marks: dict[str, int]) -> list[Section]:
    page = await read(engine)
    for run_id in list(marks):
        marks[run_id] -= 1
        if not marks[run_id]:
            del marks[run_id]
    for change in changes.update(page.runs):
        if change.kind in ("new", "changed"):
            marks[change.run.id] = _MARKED
    rows = [
        ("*" if run.id in marks else "", run.id, run.type, status(run), run.queue, when(run.created_at))
        for run in page.runs
    ]
    more = "" if page.cursor is None else " of more"
    head = f"{when(Host().now())}  rows: {len(page.runs)}{more}; * is new or has changed; Ctrl-C ends"
    columns = ("", "id", "type", "status", "queue", "created")
    return [
        Section(rows=[(head,)], style=lambda _: "dim"),
        Section(
            columns=columns,
            rows=rows,
            style=lambda row: f"{'bold ' if row[0] else ''}{status_style(row[3])}",
        ),
    ]


async def _print_changes(engine: Engine, read: ReadPage, changes: Changes, output: Printer) -> None:
    away = False
    while True:
        try:
            for change in changes.update((await read(engine)).runs):
                _print_change(output, change)
            away = False
        except StoreUnavailable as error:
            if not away:
                output.hint(f"{error}; trying again")
            away = True
        await asyncio.sleep(INTERVAL)


def _print_change(output: Printer, change: RowChange) -> None:
    now, run = Host().now(), change.run
    if output.json:
        document = {"at": moment(now), "change": change.kind, "before": change.before or None}
        output.document({**document, **run_document(run)})
        return
    became = "" if change.kind == "left" else status(run)
    arrow = " -> " if change.before and became else ""
    output.line(f"{when(now)}  {change.kind:<7}  {run.id}  {run.type}  {change.before}{arrow}{became}")
