"""Commands that list and show runs."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import click
from msgspec import Struct

from perdure.cli.console import describe
from perdure.cli.console.describe import short, span, status, status_style, when
from perdure.cli.console.document import (
    Document,
    event_document,
    failure,
    interruption_document,
    message_document,
    record_document,
    run_document,
)
from perdure.cli.console.output import Output, dump, harmless_lines
from perdure.cli.console.params import Moment, with_output, with_target
from perdure.cli.console.target import engine_at
from perdure.core.audit import Event
from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Message, Record
from perdure.core.model.run import Run, RunPage, Status
from perdure.core.model.run_report import original_records


@click.command("runs")
@with_target
@click.option("--status", multiple=True, type=click.Choice([one.value for one in Status]), help="In this status.")
@click.option("--type", help="Of this workflow type.")
@click.option("--queue", help="In this queue.")
@click.option("--parent", metavar="RUN", help="Children of this run.")
@click.option("--since", "created_after", type=Moment(), help="Created after this time, or within this duration.")
@click.option("--until", "created_before", type=Moment(), help="Created before this time, or longer ago than this.")
@click.option("--deleted", is_flag=True, help="Those that were deleted.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@click.option("--cursor", help="Go on where an earlier listing ended.")
@with_output
def list_runs(target: str, output: Output, **filters: Any) -> None:
    """List runs, newest first."""
    for name in ("created_after", "created_before"):
        filters[name] = _in_the_past(filters[name])
    filters["status"] = [Status(one) for one in filters["status"]] or None
    page, unserved = asyncio.run(_list(target, filters))
    if output.json:
        runs = [{**run_document(run), "unserved": run.id in unserved} for run in page.runs]
        output.document({"runs": runs, "cursor": page.cursor})
    else:
        _show(output, page, unserved)


async def _list(target: str, filters: dict[str, Any]) -> tuple[RunPage, set[str]]:
    async with engine_at(target) as engine:
        page = await engine.runs.list(**filters)
        return page, await engine.runs.unserved(page.runs)


def _in_the_past(value: datetime.datetime | datetime.timedelta | None) -> datetime.datetime | None:
    return datetime.datetime.now(datetime.UTC) - value if isinstance(value, datetime.timedelta) else value


def _show(output: Output, page: RunPage, unserved: set[str]) -> None:
    if not page.runs:
        output.hint("No runs.")
        return
    rows = [
        (run.id, run.type, stands, run.queue, when(run.created_at), when(run.finished_at))
        for run in page.runs
        for stands in (f"{status(run)}: unserved" if run.id in unserved else status(run),)
    ]
    output.table(("id", "type", "status", "queue", "created", "finished"), rows, lambda row: status_style(row[2]))
    if page.cursor is not None:
        output.hint(f"There are more: --cursor {page.cursor}")


#: Children shown; `perdure runs --parent` lists them all.
_CHILDREN = 100


class Everything(Struct, frozen=True, kw_only=True):
    """What the database knows of a run."""

    run: Run
    why: str
    history: list[Record]
    interruptions: tuple[Interruption, ...]
    inbox: list[Message]
    events: list[Event]
    children: RunPage


@click.command("show")
@with_target
@click.argument("run")
@with_output
def show(target: str, run: str, output: Output) -> None:
    """Show a run: its state, its history with every attempt, what it has not read, its children and its audit trail."""
    known = asyncio.run(_look(target, run))
    if output.json:
        output.document(_document(known))
        return
    _show_run(output, known)
    _show_history(output, known)
    _show_interruptions(output, known)
    _show_inbox(output, known)
    _show_children(output, known)
    _show_events(output, known)


async def _look(target: str, run_id: str) -> Everything:
    async with engine_at(target) as engine:
        handle = await engine.get(run_id)
        return Everything(
            run=await handle.run(),
            why=await handle.why(),
            history=await handle.history(),
            interruptions=await handle.interruptions(),
            inbox=await handle.inbox(),
            events=await handle.events(),
            children=await engine.runs.list(parent=run_id, limit=_CHILDREN),
        )


def _document(known: Everything) -> Document:
    return {
        "run": run_document(known.run),
        "why": known.why,
        "history": [record_document(record) for record in known.history],
        "interruptions": [interruption_document(one) for one in known.interruptions],
        "inbox": [message_document(message) for message in known.inbox],
        "children": [run_document(child) for child in known.children.runs],
        "events": [event_document(event) for event in known.events],
    }


def _show_run(output: Output, known: Everything) -> None:
    run = known.run
    output.line(f"{run.id}  {status(run)}", status_style(run.status.value))
    output.fields(
        [
            ("why", known.why),
            ("type", run.type),
            ("queue", f"{run.queue}, priority {run.priority}"),
            ("input", short(run.input)),
            ("output", short(run.output)),
            ("error", describe.error(run.error)),
            (
                "attempt",
                f"{run.attempt} of {run.max_attempts}"
                if run.max_attempts
                else str(run.attempt)
                if run.attempt > 1
                else "",
            ),
            ("policy", run.options if run.options != "{}" else ""),
            ("start by", when(run.deadline) if run.close_by else ""),
            ("created", when(run.created_at)),
            ("started", when(run.started_at)),
            ("finished", when(run.finished_at)),
            ("deleted", when(run.deleted_at)),
            ("deadline", when(run.close_by or run.deadline)),
            ("worker", run.worker or ""),
            ("parent", f"{run.parent_id} at {run.parent_location}" if run.parent_id else ""),
            ("key", run.idempotency_key or ""),
        ]
    )
    error = failure(run.error)
    if error is not None:
        for text in (error["traceback"], *error["notes"]):
            _show_text(output, text)
        for location, problem in error["not_undone"].items():
            _show_text(output, f"What {location!r} did was not undone: {problem['type']}: {problem['message']}")


def _show_text(output: Output, text: str) -> None:
    for line in harmless_lines(text.rstrip("\n")) if text else ():
        output.line(f"    {line}")


def _show_history(output: Output, known: Everything) -> None:
    output.heading("History")
    if not known.history:
        output.line("  nothing yet")
        return
    # A run that waits for its next attempt has not begun that, and one that is in a later attempt began before.
    begun = min(record.started_at or record.at for record in known.history)
    if known.run.started_at:
        begun = min(begun, known.run.started_at)
    kept = original_records(known.history)
    rows = [
        (
            str(record.seq),
            f"+{span(record.at - begun)}",
            record.kind.value,
            record.location,
            span(record.at - record.started_at) if record.started_at else "",
            describe.outcome(record)
            + (f" (kept from attempt {kept[record.seq].run_attempt})" if record.seq in kept else ""),
        )
        for record in known.history
    ]
    failed = {str(record.seq) for record in known.history if record.failed}
    output.table(("seq", "at", "kind", "location", "took", "outcome"), rows, lambda row: "red" * (row[0] in failed))


def _show_interruptions(output: Output, known: Everything) -> None:
    if known.interruptions:
        output.heading("Interruptions")
        rows = [
            (
                when(one.at),
                f"worker {one.worker} {one.reason}",
                f"after record {one.last}" if one.last >= 0 else "before the first record",
                "whatever was under way" if one.steps is None else ", ".join(one.steps),
            )
            for one in known.interruptions
        ]
        output.table(("at", "why", "when", "interrupted"), rows)


def _show_inbox(output: Output, known: Everything) -> None:
    if known.inbox:
        output.heading("Unread messages")
        rows = [(str(m.seq), when(m.sent_at), m.kind.value, m.name, describe.content(m)) for m in known.inbox]
        output.table(("seq", "sent", "kind", "name", "value"), rows)


def _show_children(output: Output, known: Everything) -> None:
    if known.children.runs:
        output.heading("Children")
        rows = [(child.id, child.type, status(child)) for child in known.children.runs]
        output.table(("id", "type", "status"), rows, lambda row: status_style(row[2]))
        if known.children.cursor is not None:
            output.hint(f"There are more: perdure runs --parent {known.run.id}")


def _show_events(output: Output, known: Everything) -> None:
    output.heading("Events")
    rows = [(when(event.at), event.kind, event.actor, short(event.data)) for event in known.events]
    output.table(("at", "kind", "by", "data"), rows)


@click.command("why")
@with_target
@click.argument("run")
@with_output
def why(target: str, run: str, output: Output) -> None:
    """Say in a sentence why a run is where it is."""
    status, why = asyncio.run(_explain(target, run))
    if output.json:
        output.document({"id": run, "status": status.value, "why": why})
    else:
        output.line(why)


async def _explain(target: str, run_id: str) -> tuple[Status, str]:
    async with engine_at(target) as engine:
        handle = await engine.get(run_id)
        return await handle.status(), await handle.why()


@click.command("states")
@with_target
@click.argument("run")
@with_output
def states(target: str, run: str, output: Output) -> None:
    """Show what a run has published, by key."""
    states = asyncio.run(_states(target, run))
    if output.json:
        output.document({"id": run, "states": states})
    elif states:
        output.table(["key", "value"], [[key, dump(value)] for key, value in states.items()])
    else:
        output.hint(f"{run} has published nothing.")


async def _states(target: str, run_id: str) -> dict[str, Any]:
    async with engine_at(target) as engine:
        return await (await engine.get(run_id)).states()


@click.command("stream")
@with_target
@click.argument("run")
@click.argument("name")
@click.option("--after", type=click.IntRange(min=0), help="Go on after this position.")
@click.option("--follow/--no-follow", default=True, help="Wait for more until the run ends.", show_default=True)
@with_output
def stream(target: str, run: str, name: str, after: int | None, follow: bool, output: Output) -> None:
    """Print the items of a stream, one JSON value a line; with --json, each with its position."""
    asyncio.run(_stream(target, run, name, after, follow, output))


async def _stream(target: str, run_id: str, name: str, after: int | None, follow: bool, output: Output) -> None:
    async with engine_at(target) as engine:
        async for item in (await engine.get(run_id)).stream(name, after=after, follow=follow):
            if output.json:
                output.document({"position": item.position, "value": item.value})
            else:
                output.line(dump(item.value))
