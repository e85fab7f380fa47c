"""`perdure schedules`: runs that start by the clock."""

from __future__ import annotations

import datetime
from typing import Any

import click
import msgspec

from perdure.cli.console.command_groups import Command, CommandGroup
from perdure.cli.console.describe import short, span, when
from perdure.cli.console.document import event_document, moment, schedule_document
from perdure.cli.console.output import Printer
from perdure.cli.console.params import (
    AttributeParam,
    F,
    HeaderParam,
    JsonParam,
    ParamType,
    TimeParam,
    in_the_future,
    in_the_past,
    with_output,
    with_reason,
    with_target,
)
from perdure.cli.console.target import with_engine
from perdure.cli.runs.start import make_call, named_values
from perdure.client.engine import Engine
from perdure.core.time.cron import At, Cron, Every, Timing, zone_of
from perdure.core.time.schedule import BackfillPreview, Fire, Overlap, Schedule
from perdure.errors import InvalidSchedule

_CREATE = "perdure schedules create sqlite:///shop.db nightly report.v1 --cron '30 2 * * *' --zone Europe/Prague"

group = CommandGroup(
    "schedules",
    {
        "Commands": {
            "create": "perdure.cli.schedules:create",
            "change": "perdure.cli.schedules:change",
            "list": "perdure.cli.schedules:list_schedules",
            "show": "perdure.cli.schedules:show",
            "next": "perdure.cli.schedules:next_times",
            "fires": "perdure.cli.schedules:fires",
            "runs": "perdure.cli.schedules:runs",
            "pause": "perdure.cli.schedules:pause",
            "resume": "perdure.cli.schedules:resume",
            "trigger": "perdure.cli.schedules:trigger",
            "backfill": "perdure.cli.schedules:backfill",
            "delete": "perdure.cli.schedules:delete",
        }
    },
    help="Create, inspect, change, pause and delete schedules.",
    example=_CREATE,
)


class DatesParam(ParamType):
    """Dates: `2026-12-24,2026-12-25`; `none` for no date."""

    name = "dates"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Split at the commas; the engine checks the dates."""
        return [] if value == "none" else [one.strip() for one in str(value).split(",")]


class MisfireParam(ParamType):
    """Misfire policy: `skip`, `once`, `all`, or a number of fire times."""

    name = "policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert digits to a number."""
        return int(value) if str(value).isdigit() else value


def _with_timing(function: F) -> F:
    """Give a command the options of a timing; `_timing` reads them."""
    for option in (
        click.option(
            "--skip", type=DatesParam(), help="Do not fire on these dates, such as 2026-12-24,2026-12-25; or none."
        ),
        click.option("--ends", type=TimeParam(local=True), help="Fire before this time, or this duration from now."),
        click.option("--starts", type=TimeParam(local=True), help="Fire from this time on, or this duration from now."),
        click.option("--start", type=TimeParam(), help="With --every: the first time.  [default: in one interval]"),
        click.option("--at", type=TimeParam(), help="Once, at this time or this duration from now."),
        click.option("--every", help="At an interval, such as 15m."),
        click.option("--zone", default="UTC", show_default=True, help="With --cron: the time zone."),
        click.option("--cron", help="Calendar: '30 2 * * MON-FRI' (minute, hour, day, month, weekday) or @daily."),
    ):
        function = option(function)
    return function


def _with_policies(function: F) -> F:
    """Give a command the options of the runs and of missed fire times."""
    for option in (
        click.option(
            "--attribute",
            "attributes",
            multiple=True,
            type=AttributeParam(filter=False),
            callback=lambda ctx, param, value: dict(value) or None,
            metavar="NAME=VALUE",
            help="Attribute of each run.",
        ),
        click.option(
            "--header",
            "headers",
            multiple=True,
            type=HeaderParam(),
            callback=lambda ctx, param, value: dict(value) or None,
            metavar="NAME=VALUE",
            help="Header of each run.",
        ),
        click.option("--deadline", metavar="DURATION", help="Maximum duration of each run."),
        click.option("--priority", type=int, help="Priority of each run; lower goes first.  [default: 100]"),
        click.option("--queue", help="Queue of each run.  [default: default]"),
        click.option(
            "--overlap",
            type=click.Choice([one.value for one in Overlap]),
            help="When a run is due before the last one has finished.",
        ),
        click.option("--within", metavar="DURATION", help="Do not make up for fire times missed longer ago."),
        click.option(
            "--grace",
            metavar="DURATION",
            help="How late a run may start before its fire time is missed.  [default: 1m]",
        ),
        click.option(
            "--misfire", type=MisfireParam(), help="Missed fire times to make up for: skip, once, all, or a number."
        ),
        click.option(
            "--jitter", metavar="DURATION", help="Delay each fire time by up to this, always by the same amount."
        ),
    ):
        function = option(function)
    return function


def _with_input(function: F) -> F:
    function = click.option("--arg", "named", multiple=True, metavar="NAME=VALUE", help="One argument by name.")(
        function
    )
    return click.option(
        "--input", "given", type=JsonParam(), help="Arguments: a JSON object by name, or an array by position."
    )(function)


@click.command("create", cls=Command, example=_CREATE)
@with_target
@click.argument("id")
@click.argument("type")
@_with_input
@_with_timing
@_with_policies
@click.option("--replace", is_flag=True, help="Change the schedule if the id exists.")
@with_output
def create(
    target: str, id: str, type: str, given: Any, named: tuple[str, ...], output: Printer, **options: Any
) -> None:
    """Create a schedule that runs the workflow TYPE."""
    timing = _timing(options)
    if timing is None:
        raise click.UsageError("give one of --cron, --every and --at")

    async def act(engine: Engine) -> Schedule:
        call = make_call(engine, type, given, named_values(named))
        return await engine.schedules.create(id, call, timing, **_given(options))

    _print_schedule(output, with_engine(target, act, create=True))


@click.command("change", cls=Command, example="perdure schedules change sqlite:///shop.db nightly --every 15m")
@with_target
@click.argument("id")
@click.option("--type", help="Run another workflow, with --input or --arg.")
@_with_input
@_with_timing
@_with_policies
@with_output
def change(
    target: str, id: str, type: str | None, given: Any, named: tuple[str, ...], output: Printer, **options: Any
) -> None:
    """Change the given options of a schedule."""
    timing = _timing(options)

    async def act(engine: Engine) -> Schedule:
        call = None
        if type is not None or given is not None or named:
            current = await engine.schedules.get(id)
            call = make_call(engine, type or current.type, given, named_values(named))
        return await engine.schedules.change(id, call=call, timing=timing, **_given(options))

    _print_schedule(output, with_engine(target, act))


@click.command("list", cls=Command, example="perdure schedules list sqlite:///shop.db")
@with_target
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum number of schedules."
)
@click.option("--after", default="", metavar="ID", help="After this id.")
@with_output
def list_schedules(target: str, limit: int, after: str, output: Printer) -> None:
    """List schedules by id."""
    found = with_engine(target, lambda engine: engine.schedules.list(limit=limit, after=after))
    if output.json:
        output.document({"schedules": [schedule_document(one) for one in found]})
    elif not found:
        output.hint("No schedules.")
    else:
        rows = [(one.id, one.type, _when(one), _status(one), when(one.next_fire_time), one.last_run) for one in found]
        output.table(("id", "type", "when", "status", "next", "last run"), rows)


@click.command("show", cls=Command, example="perdure schedules show sqlite:///shop.db nightly")
@with_target
@click.argument("id")
@with_output
def show(target: str, id: str, output: Printer) -> None:
    """Show a schedule and its latest events."""

    async def read(engine: Engine) -> tuple[Schedule, list[Any]]:
        return await engine.schedules.get(id), await engine.schedules.events(id)

    one, events = with_engine(target, read)
    if output.json:
        output.document({"schedule": schedule_document(one), "events": [event_document(event) for event in events]})
        return
    _print_schedule(output, one)
    output.heading("Events")
    output.table(("at", "kind", "by", "data"), [(when(e.at), e.kind, e.actor, short(e.data)) for e in events[-20:]])


@click.command("next", cls=Command, example="perdure schedules next sqlite:///shop.db nightly --count 10")
@with_target
@click.argument("id")
@click.option("--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="Number of fire times.")
@with_output
def next_times(target: str, id: str, count: int, output: Printer) -> None:
    """Print the next fire times of a schedule."""
    times = with_engine(target, lambda engine: engine.schedules.next(id, count))
    if output.json:
        output.document([one.isoformat() for one in times])
    for one in [] if output.json else times:
        output.line(one.isoformat(sep=" "))


@click.command("pause", cls=Command, example="perdure schedules pause sqlite:///shop.db nightly --reason holidays")
@with_target
@click.argument("id")
@click.option("--reason", default="", metavar="TEXT", help="Shown with the schedule.")
@with_output
def pause(target: str, id: str, reason: str, output: Printer) -> None:
    """Pause a schedule: it starts no runs until it is resumed."""
    done = with_engine(target, lambda engine: engine.schedules.pause(id, reason))
    output.result({"id": id, "paused": done}, f"{id} is paused." if done else f"{id} was paused already.")


@click.command("resume", cls=Command, example="perdure schedules resume sqlite:///shop.db nightly --catch-up")
@with_target
@click.argument("id")
@click.option("--catch-up", is_flag=True, help="Treat fire times during the pause as missed instead of skipping them.")
@with_reason
@with_output
def resume(target: str, id: str, catch_up: bool, reason: str, output: Printer) -> None:
    """Resume a paused schedule."""
    done = with_engine(target, lambda engine: engine.schedules.resume(id, catch_up=catch_up, reason=reason))
    output.result({"id": id, "resumed": done}, f"{id} is resumed." if done else f"{id} was not paused.")


@click.command("trigger", cls=Command, example="perdure schedules trigger sqlite:///shop.db nightly")
@with_target
@click.argument("id")
@with_reason
@with_output
def trigger(target: str, id: str, reason: str, output: Printer) -> None:
    """Start a run of a schedule now and print its id."""
    run = with_engine(target, lambda engine: engine.schedules.trigger(id, reason))
    output.result({"id": id, "run": run.id}, run.id)


@click.command("backfill", cls=Command, example="perdure schedules backfill sqlite:///shop.db nightly --from 7d")
@with_target
@click.argument("id")
@click.option(
    "--from",
    "start",
    type=TimeParam(local=True),
    required=True,
    help="From this time (in the schedule's time zone, if it names none), or this duration ago.",
)
@click.option("--to", "end", type=TimeParam(local=True), help="Before this time, or this duration ago.  [default: now]")
@click.option("--dry-run", is_flag=True, help="Only count the fire times.")
@with_reason
@with_output
def backfill(target: str, id: str, start: Any, end: Any, reason: str, output: Printer, *, dry_run: bool) -> None:
    """Start the runs of all past fire times in a range that have none, regardless of overlap."""

    async def act(engine: Engine) -> list[str]:
        until = in_the_past(end or datetime.timedelta())
        return await engine.schedules.backfill(id, in_the_past(start), until, reason)

    async def preview(engine: Engine) -> BackfillPreview:
        return await engine.schedules.preview_backfill(id, in_the_past(start), in_the_past(end or datetime.timedelta()))

    if dry_run:
        found = with_engine(target, preview)
        first = [one.isoformat() for one in found.first]
        text = f"Fire times: {found.fire_times}, of them without a run: {found.missing}. Nothing was started."
        document = {"id": id, "fire_times": found.fire_times, "missing": found.missing, "first": first}
        output.result(document, text)
        return
    runs = with_engine(target, act)
    output.result({"id": id, "runs": runs}, f"Fire times with a run: {len(runs)}.")


@click.command("fires", cls=Command, example="perdure schedules fires sqlite:///shop.db nightly")
@with_target
@click.argument("id")
@click.option("--limit", type=click.IntRange(1, 1000), default=30, show_default=True, help="Maximum number.")
@with_output
def fires(target: str, id: str, limit: int, output: Printer) -> None:
    """List the latest fire times with their runs, or the reason why they were skipped."""
    found = with_engine(target, lambda engine: engine.schedules.fires(id, limit))
    if output.json:
        output.document([_fire_document(one) for one in found])
    elif found:
        rows = [(when(one.at), one.run_id, one.status or f"skipped: {one.skipped}") for one in found]
        output.table(("fire time", "run", "status"), rows)
    else:
        output.hint(f"{id} has not fired yet.")


@click.command("runs", cls=Command, example="perdure schedules runs sqlite:///shop.db nightly")
@with_target
@click.argument("id")
@click.option("--limit", type=click.IntRange(1, 1000), default=30, show_default=True, help="Maximum number.")
@with_output
def runs(target: str, id: str, limit: int, output: Printer) -> None:
    """List the latest runs of a schedule, with times in its time zone."""
    found = with_engine(target, lambda engine: engine.schedules.runs(id, limit))
    if output.json:
        output.document([msgspec.to_builtins(one) for one in found])
    elif found:
        rows = [
            (
                _local(one.fire_time) or "by hand",
                one.run_id,
                one.status,
                _local(one.started_at),
                _local(one.finished_at),
            )
            for one in found
        ]
        output.table(("fire time", "run", "status", "started", "finished"), rows)
    else:
        output.hint(f"{id} has started no run yet.")


def _local(time: datetime.datetime | None) -> str:
    return "" if time is None else time.isoformat(sep=" ", timespec="seconds")


def _fire_document(one: Fire) -> dict[str, object]:
    return {
        "at": moment(one.at),
        "since": moment(one.since),
        "run_id": one.run_id,
        "status": one.status,
        "finished_at": moment(one.finished_at),
        "skipped": one.skipped,
    }


@click.command("delete", cls=Command, example="perdure schedules delete sqlite:///shop.db nightly")
@with_target
@click.argument("id")
@with_reason
@with_output
def delete(target: str, id: str, reason: str, output: Printer) -> None:
    """Delete a schedule; runs that it has started continue."""
    with_engine(target, lambda engine: engine.schedules.delete(id, reason))
    output.result({"id": id, "deleted": True}, f"{id} is deleted.")


def _timing(options: dict[str, Any]) -> Timing | None:
    """Take the options of `_with_timing` out and return their timing; None if none was given."""
    options |= {name: in_the_future(options[name]) for name in ("starts", "ends")}
    cron, zone, every, at, start = (options.pop(name) for name in ("cron", "zone", "every", "at", "start"))
    if sum(one is not None for one in (cron, every, at)) > 1:
        raise click.UsageError("give only one of --cron, --every and --at")
    if cron is not None:
        return Cron(cron, zone)
    if every is not None:
        return Every(every, None if start is None else in_the_future(start))
    return None if at is None else At(in_the_future(at))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _print_schedule(output: Printer, one: Schedule) -> None:
    if output.json:
        output.document(schedule_document(one))
        return
    limit = one.misfire.limit
    output.line(f"{one.id}  {_status(one)}", "bold")
    output.fields(
        [
            ("type", one.type),
            ("input", short(one.input)),
            ("when", _when(one)),
            *_window_fields(one),
            ("next", when(one.next_fire_time)),
            ("queue", one.queue),
            ("priority", str(one.priority)),
            ("deadline", span(one.deadline) if one.deadline else ""),
            ("jitter", f"up to {span(one.jitter)}" if one.jitter else ""),
            ("missed", "made up for" if limit is None else (f"at most {limit} made up for" if limit else "skipped")),
            ("overlap", one.overlap.value),
            ("waiting", f"{len(one.waiting)} fire times" if one.waiting else ""),
            ("last run", one.last_run),
            ("error", one.error),
        ]
    )


def _window_fields(one: Schedule) -> list[tuple[str, str]]:
    try:
        window, zone = one.window, zone_of(one.timing)
    except InvalidSchedule:
        return []
    bounds = (("starts", window.starts), ("ends", window.ends))
    skipped = f"{', '.join(str(day) for day in window.skip[:5])}{', …' if len(window.skip) > 5 else ''}"
    return [*((name, _local(at and at.astimezone(zone))) for name, at in bounds), ("skips", skipped)]


def _status(one: Schedule) -> str:
    if one.paused:
        return f"paused: {one.reason}" if one.reason else "paused"
    return "active" if when(one.next_fire_time) or one.waiting else "finished"


def _when(one: Schedule) -> str:
    try:
        timing = one.timing
    except InvalidSchedule:
        return one.spec
    match timing:
        case Cron(expression, zone):
            return f"{expression} ({zone})"
        case Every(interval):
            return f"every {interval}"
        case At(moment):
            return f"at {moment.isoformat(sep=' ')}"
