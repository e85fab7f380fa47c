"""`perdure runs`: the group, and its commands that list and inspect runs."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import click
from msgspec import UNSET, Struct

from perdure.cli.console import describe
from perdure.cli.console.command_groups import Command, CommandGroup
from perdure.cli.console.describe import short, span, status, status_style, when
from perdure.cli.console.document import (
    Document,
    attributes_document,
    event_document,
    interruption_document,
    message_document,
    moment,
    record_document,
    run_document,
    step_document,
    waits_document,
)
from perdure.cli.console.output import Printer, dump
from perdure.cli.console.params import JsonParam, read_filters, with_filters, with_output, with_target
from perdure.cli.console.target import engine_at, fill_in_target, with_engine
from perdure.cli.runs.messages import print_set_aside, set_aside_document
from perdure.cli.runs.watch import watch_runs
from perdure.client.engine import Engine
from perdure.core.audit import Event
from perdure.core.model.headers import with_headers
from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Message, Record
from perdure.core.model.reports import RunReport, original_records
from perdure.core.model.run import NO_OPTIONS, Run, RunGroup, RunPage, Status
from perdure.core.model.set_aside_messages import SetAsideMessage
from perdure.core.printed_text import harmless_lines

group = CommandGroup(
    "runs",
    {
        "Inspect": {
            "list": "perdure.cli.runs.commands:list_runs",
            "count": "perdure.cli.runs.commands:count",
            "show": "perdure.cli.runs.commands:show",
            "why": "perdure.cli.runs.commands:why",
            "states": "perdure.cli.runs.commands:states",
            "stream": "perdure.cli.runs.commands:stream",
            "logs": "perdure.cli.runs.logs:logs",
        },
        "Control": {
            "cancel": "perdure.cli.runs.control:cancel",
            "terminate": "perdure.cli.runs.control:terminate",
            "pause": "perdure.cli.runs.control:pause",
            "resume": "perdure.cli.runs.control:resume",
            "wake": "perdure.cli.runs.control:wake",
            "evict": "perdure.cli.runs.control:evict",
            "unpin": "perdure.cli.runs.control:unpin",
            "set-priority": "perdure.cli.runs.control:set_priority",
            "bulk": "perdure.cli.runs.bulk:bulk",
            "bulk-worker": "perdure.cli.runs.bulk:bulk_worker",
        },
        "Run again": {
            "retry": "perdure.cli.runs.control:retry",
            "fork": "perdure.cli.runs.control:fork",
        },
        "Remove": {
            "delete": "perdure.cli.runs.control:delete",
            "undelete": "perdure.cli.runs.control:undelete",
            "prune": "perdure.cli.runs.control:prune",
        },
        "Run without a worker": {
            "due": "perdure.cli.push:list_due",
            "execute": "perdure.cli.push:execute",
        },
    },
    help="List, inspect and control runs.",
    moved={"recover": "runs retry", "unblock": "runs retry"},
    example="perdure runs list sqlite:///shop.db --status failed --since 1h",
)


@click.command("list", cls=Command, example="perdure runs list sqlite:///shop.db --status failed --since 1h")
@with_target
@with_filters
@click.option("--oldest", is_flag=True, help="Oldest first.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of runs.")
@click.option("--cursor", help="Continue where an earlier list ended.")
@click.option("--watch", is_flag=True, help="Refresh the list every second, until Ctrl-C.")
@with_output
def list_runs(
    target: str, output: Printer, oldest: bool, limit: int, cursor: str | None, watch: bool, **options: Any
) -> None:
    """List runs that fulfil all filters, newest first.

    With --watch, new and changed rows carry a mark. If the output is no terminal, each change is a line of its own,
    also with --json.
    """
    given = dict(options)
    filters = read_filters(options)
    order: Literal["newest", "oldest"] = "oldest" if oldest else "newest"

    async def read_page(engine: Engine) -> RunPage:
        # Durations such as --since 1h are counted back from each refresh.
        chosen = read_filters(dict(given)) if watch else filters
        return await engine.runs.list(order=order, limit=limit, cursor=cursor, **chosen)

    async def read(engine: Engine) -> tuple[RunPage, set[str], dict[str, int]]:
        page = await read_page(engine)
        return page, await engine.runs.unserved(page.runs), await engine.runs.updated_at(page.runs)

    if watch:
        if cursor is not None:
            raise click.UsageError("--watch shows the first page; leave out --cursor")
        watch_runs(target, output, read_page, limit, newest_first=not oldest)
        return
    page, unserved, updated = with_engine(target, read)
    if output.json:
        runs = [
            {**run_document(run), "updated_at": moment(updated.get(run.id, 0)), "unserved": run.id in unserved}
            for run in page.runs
        ]
        output.document({"runs": runs, "cursor": page.cursor, "previous": page.previous})
    else:
        _print_page(output, page, unserved)


def _print_page(output: Printer, page: RunPage, unserved: set[str]) -> None:
    if not page.runs:
        output.hint("No runs.")
        return
    columns = ["id", "type", "status", "queue", "created", "finished"]
    if any(run.attributes for run in page.runs):
        columns.append("attributes")
    rows = [
        (
            (run.id, run.type, f"{status(run)}{note}", run.queue, when(run.created_at), when(run.finished_at))
            + ((describe.attributes(run.attributes),) if len(columns) > 6 else ())
        )
        for run in page.runs
        for note in (": unserved" if run.id in unserved else "",)
    ]
    output.table(columns, rows, lambda row: status_style(row[2]))
    if page.cursor is not None:
        output.hint(f"There are more: --cursor {page.cursor}")


@click.command("count", cls=Command, example="perdure runs count sqlite:///shop.db --by status --since 1d")
@with_target
@with_filters
@click.option("--by", metavar="WHAT", help="Group by status, type, queue or attribute:NAME.")
@with_output
def count(target: str, output: Printer, by: str | None, **options: Any) -> None:
    """Count the runs that fulfil all filters, exactly up to 10,000."""
    filters = read_filters(options)

    async def read(engine: Engine) -> list[RunGroup]:
        return [await engine.runs.count(**filters)] if by is None else await engine.runs.count_by(by, **filters)

    groups = with_engine(target, read)
    if output.json:
        documents = [{"value": group_text(one.value), "count": one.count, "exact": one.exact} for one in groups]
        output.document({"count": documents[0] if by is None else None, "groups": documents if by else []})
    elif by is None:
        output.line(str(groups[0]))
    elif groups:
        output.table((by, "runs"), [(str(group_text(one.value)), str(one)) for one in groups])
    else:
        output.hint("No runs.")


def group_text(value: Any) -> Any:
    """Convert what a group has in common; a time becomes text."""
    return attributes_document({"": value})[""]


#: Children shown; `perdure runs list --parent` lists all of them.
_CHILDREN = 100


class RunDetails(Struct, frozen=True, kw_only=True):
    """Everything that the database knows about a run."""

    run: Run
    why: str
    history: list[Record]
    interruptions: tuple[Interruption, ...]
    inbox: list[Message]
    set_aside: list[SetAsideMessage]
    events: list[Event]
    children: RunPage
    report: RunReport


@click.command("show", cls=Command, example="perdure show sqlite:///shop.db order-42")
@with_target
@click.argument("run")
@with_output
def show(target: str, run: str, output: Printer) -> None:
    """Show the state, waits, steps under way, history, unread messages, children and events of a run."""

    async def read(engine: Engine) -> RunDetails:
        handle = await engine.get(run)
        return RunDetails(
            run=await handle.info(),
            why=fill_in_target(await handle.why(), target),
            history=await handle.history(),
            interruptions=await handle.interruptions(),
            inbox=await handle.inbox(),
            set_aside=await handle.set_aside_messages(),
            events=await handle.events(),
            children=await engine.runs.list(parent=run, limit=_CHILDREN),
            report=await handle.report(),
        )

    details = with_engine(target, read)
    if output.json:
        output.document(_details_document(details))
        return
    _print_run(output, details)
    _print_waits(output, details)
    _print_running(output, details)
    _print_history(output, details)
    _print_interruptions(output, details)
    _print_inbox(output, details)
    if details.set_aside:
        output.heading("Messages that were set aside")
        print_set_aside(output, details.set_aside)
    _print_children(output, details)
    _print_events(output, details)


def _details_document(details: RunDetails) -> Document:
    return {
        "run": run_document(details.run),
        "why": details.why,
        "updated_at": moment(details.report.updated_at),
        "last_retry_at": moment(details.report.last_retry_at),
        "waits": waits_document(details.report.waits),
        "running": [step_document(step) for step in details.report.running],
        "history": [record_document(record) for record in details.history],
        "interruptions": [interruption_document(one) for one in details.interruptions],
        "inbox": [message_document(message) for message in details.inbox],
        "set_aside": [set_aside_document(message) for message in details.set_aside],
        "children": [run_document(child) for child in details.children.runs],
        "events": [event_document(event) for event in details.events],
    }


def _print_run(output: Printer, details: RunDetails) -> None:
    run = details.run
    output.line(f"{run.id}  {status(run)}", status_style(run.status.value))
    output.fields(
        [
            ("why", details.why),
            ("type", run.type),
            ("queue", f"{run.queue}, priority {run.priority}"),
            ("begun by build", f"{run.build}, pinned to it" if run.pinned_to == run.build and run.build else run.build),
            ("input", short(run.input)),
            ("output", short(run.output)),
            ("error", describe.error(run.error)),
            ("attempt", _attempt(run)),
            ("policy", _policy(run)),
            ("start by", when(run.deadline) if run.close_by else ""),
            ("created", when(run.created_at)),
            ("started", when(run.started_at)),
            ("finished", when(run.finished_at)),
            ("last retry", when(details.report.last_retry_at)),
            ("updated", when(details.report.updated_at)),
            ("deleted", when(run.deleted_at)),
            ("deadline", when(run.close_by or run.deadline)),
            ("worker", run.worker or ""),
            ("parent", f"{run.parent_id} at {run.parent_location}" if run.parent_id else ""),
            ("key", run.idempotency_key or ""),
            ("attributes", describe.attributes(run.attributes)),
            ("headers", describe.attributes(run.headers)),
        ]
    )
    if run.error is not None:
        _print_indented(output, describe.traceback(run.error))


def _print_waits(output: Printer, details: RunDetails) -> None:
    found = details.report.waits
    if found is not None and found.waits:
        output.heading("Waits for")
        rows = [(one.kind.value, one.name, when(one.since), when(one.until), one.detail) for one in found.waits]
        output.table(("kind", "name", "since", "at most until", "detail"), rows)
        if found.more:
            output.hint(f"There are {found.more} more.")


def _print_running(output: Printer, details: RunDetails) -> None:
    if details.report.running:
        output.heading("Under way")
        rows = [
            (step.location, str(step.attempt), when(step.since), when(step.heartbeat_at))
            for step in details.report.running
        ]
        output.table(("location", "attempt", "since", "last heartbeat"), rows)


def _attempt(run: Run) -> str:
    if run.max_attempts:
        return f"{run.attempt} of {run.max_attempts}"
    return str(run.attempt) if run.attempt > 1 else ""


def _policy(run: Run) -> str:
    """Settings of the call, without the headers, which have a line of their own."""
    options = with_headers(run.options, {}) if run.headers else run.options
    return options if options != NO_OPTIONS else ""


def _print_indented(output: Printer, text: str) -> None:
    for line in harmless_lines(text.rstrip("\n")) if text else ():
        output.line(f"    {line}")


def _print_history(output: Printer, details: RunDetails) -> None:
    output.heading("History")
    if not details.history:
        output.line("  nothing yet")
        return
    # `started_at` of the run is that of its current attempt, which is 0 or later than earlier attempts' records.
    begun = min(record.started_at or record.at for record in details.history)
    if details.run.started_at:
        begun = min(begun, details.run.started_at)
    kept = original_records(details.history)
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
        for record in details.history
    ]
    failed = {str(record.seq) for record in details.history if record.failed}
    output.table(("seq", "at", "kind", "location", "took", "outcome"), rows, lambda row: "red" * (row[0] in failed))


def _print_interruptions(output: Printer, details: RunDetails) -> None:
    if details.interruptions:
        output.heading("Interruptions")
        rows = [
            (
                when(one.at),
                f"worker {one.worker} {one.reason}",
                f"after record {one.last}" if one.last >= 0 else "before the first record",
                "all steps under way" if one.steps is None else ", ".join(one.steps),
            )
            for one in details.interruptions
        ]
        output.table(("at", "why", "when", "interrupted"), rows)


def _print_inbox(output: Printer, details: RunDetails) -> None:
    if details.inbox:
        output.heading("Unread messages")
        rows = [(str(m.seq), when(m.sent_at), m.kind.value, m.name, describe.content(m)) for m in details.inbox]
        output.table(("seq", "sent", "kind", "name", "value"), rows)


def _print_children(output: Printer, details: RunDetails) -> None:
    if details.children.runs:
        output.heading("Children")
        rows = [(child.id, child.type, status(child)) for child in details.children.runs]
        output.table(("id", "type", "status"), rows, lambda row: status_style(row[2]))
        if details.children.cursor is not None:
            output.hint(f"There are more: perdure runs list --parent {details.run.id}")


def _print_events(output: Printer, details: RunDetails) -> None:
    output.heading("Events")
    rows = [(when(event.at), event.kind, event.actor, short(event.data)) for event in details.events]
    output.table(("at", "kind", "by", "data"), rows)


@click.command("why", cls=Command, example="perdure why sqlite:///shop.db order-42")
@with_target
@click.argument("run")
@with_output
def why(target: str, run: str, output: Printer) -> None:
    """Explain in a sentence why a run is in its status, and what it waits for."""

    async def read(engine: Engine) -> tuple[Status, str]:
        handle = await engine.get(run)
        return await handle.status(), fill_in_target(await handle.why(), target)

    status, reason = with_engine(target, read)
    if output.json:
        output.document({"id": run, "status": status.value, "why": reason})
    else:
        output.lines(reason)


@click.command("states", cls=Command, example="perdure runs states sqlite:///shop.db order-42")
@with_target
@click.argument("run")
@click.option("--wait", "key", metavar="KEY[=JSON]", help="Wait for a value of a key, or for this value.")
@click.option("--timeout", metavar="DURATION", help="Wait no longer than this, such as 5m.  [default: without end]")
@with_output
def states(target: str, run: str, key: str | None, timeout: str | None, output: Printer) -> None:
    """Show the values that a run has published, by key."""

    async def read(engine: Engine) -> dict[str, Any]:
        handle = await engine.get(run)
        if key is not None:
            name, given, text = key.partition("=")
            wanted = JsonParam().convert(text, None, None) if given else UNSET
            return {name: await handle.wait_state(name, wanted, timeout=timeout)}
        return await handle.states()

    published = with_engine(target, read)
    if output.json:
        output.document({"id": run, "states": published})
    elif published:
        output.table(["key", "value"], [[key, dump(value)] for key, value in published.items()])
    else:
        output.hint(f"{run} has published nothing.")


@click.command("stream", cls=Command, example="perdure runs stream sqlite:///shop.db order-42 progress")
@with_target
@click.argument("run")
@click.argument("name")
@click.option("--after", type=click.IntRange(min=0), help="Continue after this position.")
@click.option("--follow/--no-follow", default=True, help="Wait for more until the run ends.", show_default=True)
@with_output
def stream(target: str, run: str, name: str, after: int | None, follow: bool, output: Printer) -> None:
    """Print the items of a stream, one JSON value a line.

    With --json, each line also has the item's position.
    """
    asyncio.run(_print_stream(target, run, name, after, follow, output))


async def _print_stream(target: str, run: str, name: str, after: int | None, follow: bool, output: Printer) -> None:
    async with engine_at(target) as engine:
        async for item in (await engine.get(run)).stream(name, after=after, follow=follow):
            output.result({"position": item.position, "value": item.value}, dump(item.value))
