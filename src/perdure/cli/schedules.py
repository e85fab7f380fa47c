"""`perdure schedule ...`: what runs by the clock."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from perdure.cli.console.describe import short, span, when
from perdure.cli.console.document import Document, event_document, schedule_document
from perdure.cli.console.output import Output
from perdure.cli.console.params import F, Json, Moment, with_output, with_target
from perdure.cli.console.target import engine_at
from perdure.cli.start import make_call, pairs
from perdure.client.engine import Engine
from perdure.core.time.cron import At, Cron, Every, Timing
from perdure.core.time.schedule import Overlap, Schedule
from perdure.errors import InvalidSchedule

T = TypeVar("T")


class Misfired(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic in the newest releases of click only
    """`skip`, `once`, `all`, or how many."""

    name = "policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A number where it is one."""
        return int(value) if str(value).isdigit() else value


@click.group("schedule")
def command() -> None:
    """What runs by the clock: create, list, show, change, pause, trigger and delete schedules."""


def _timed(function: F) -> F:
    """Give a command the options that say when."""
    for option in (
        click.option("--start", type=Moment(), help="With --every: the first time; one interval from now by default."),
        click.option("--at", type=Moment(), help="Once: at this time, or this duration from now."),
        click.option("--every", help="At an interval, such as 15m."),
        click.option("--zone", default="UTC", show_default=True, help="With --cron: the time zone."),
        click.option(
            "--cron", help="By the calendar: '30 2 * * MON-FRI' (minute, hour, day, month, weekday) or @daily."
        ),
    ):
        function = option(function)
    return function


def _with_policies(function: F) -> F:
    """Give a command the options that say how."""
    for option in (
        click.option("--deadline", help="How long each run may take."),
        click.option("--priority", type=int, help="Lower goes first; 100 by default."),
        click.option("--queue", help="The queue; `default` by default."),
        click.option(
            "--overlap", type=click.Choice([one.value for one in Overlap]), help="While the last run goes on."
        ),
        click.option("--within", help="Missed slots that are older are not made up for."),
        click.option("--grace", help="How late a slot may be before it is missed; 1m by default."),
        click.option("--misfire", type=Misfired(), help="Missed slots to make up for: skip, once, all, or how many."),
        click.option("--jitter", help="Delay each slot by up to this, always by the same."),
    ):
        function = option(function)
    return function


def _with_input(function: F) -> F:
    function = click.option("--arg", "named", multiple=True, metavar="NAME=VALUE", help="One argument.")(function)
    return click.option("--input", "given", type=Json(), help="The arguments: a JSON object, or an array.")(function)


@command.command("create")
@with_target
@click.argument("id")
@click.argument("type")
@_with_input
@_timed
@_with_policies
@click.option("--replace", is_flag=True, help="Change a schedule of that id that is there.")
@with_output
def create(target: str, id: str, type: str, given: Any, named: tuple[str, ...], output: Output, **told: Any) -> None:
    """Run the workflow TYPE by the clock.

    For example: perdure schedule create sqlite:///shop.db nightly report --cron '30 2 * * *' --zone Europe/Prague
    """
    timing = _timing(told)
    if timing is None:
        raise click.UsageError("Say when: one of --cron, --every and --at.")

    async def made(engine: Engine) -> Schedule:
        call = make_call(engine, type, given, pairs(named))
        return await engine.schedules.create(id, call, timing, **_given(told))

    _say(output, _with(target, made, create=True))


@command.command("change")
@with_target
@click.argument("id")
@click.option("--type", help="Run another workflow, with --input or --arg.")
@_with_input
@_timed
@_with_policies
@with_output
def change(
    target: str, id: str, type: str | None, given: Any, named: tuple[str, ...], output: Output, **told: Any
) -> None:
    """Change a schedule in what is given."""
    timing = _timing(told)

    async def changed(engine: Engine) -> Schedule:
        call = None
        if type is not None or given is not None or named:
            there = await engine.schedules.get(id)
            call = make_call(engine, type or there.type, given, pairs(named))
        return await engine.schedules.change(id, call=call, timing=timing, **_given(told))

    _say(output, _with(target, changed))


@command.command("list")
@with_target
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most so many.")
@click.option("--after", default="", metavar="ID", help="Past this one.")
@with_output
def list_all(target: str, limit: int, after: str, output: Output) -> None:
    """List schedules by id."""
    found = _with(target, lambda engine: engine.schedules.list(limit=limit, after=after))
    if output.json:
        output.document({"schedules": [schedule_document(one) for one in found]})
    elif not found:
        output.hint("No schedules.")
    else:
        rows = [(one.id, one.type, _when(one), _stands(one), when(one.next_slot), one.last_run) for one in found]
        output.table(("id", "type", "when", "status", "next", "last run"), rows)


@command.command("show")
@with_target
@click.argument("id")
@with_output
def show(target: str, id: str, output: Output) -> None:
    """Show a schedule and what happened to it lately."""

    async def look(engine: Engine) -> tuple[Schedule, list[Any]]:
        return await engine.schedules.get(id), await engine.schedules.events(id)

    one, events = _with(target, look)
    if output.json:
        output.document({"schedule": schedule_document(one), "events": [event_document(event) for event in events]})
        return
    _say(output, one)
    output.heading("events")
    output.table(("at", "what", "by", ""), [(when(e.at), e.kind, e.actor, short(e.data)) for e in events[-20:]])


@command.command("next")
@with_target
@click.argument("id")
@click.option("--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many.")
@with_output
def next_times(target: str, id: str, count: int, output: Output) -> None:
    """Show when a schedule runs next."""
    times = _with(target, lambda engine: engine.schedules.next(id, count))
    if output.json:
        output.document([moment.isoformat() for moment in times])
    for moment in [] if output.json else times:
        output.line(moment.isoformat(sep=" "))


@command.command("pause")
@with_target
@click.argument("id")
@click.option("--reason", default="", help="Why; shown to whoever asks.")
@with_output
def pause(target: str, id: str, reason: str, output: Output) -> None:
    """Let a schedule start no more runs."""
    done = _with(target, lambda engine: engine.schedules.pause(id, reason))
    _done(output, {"id": id, "paused": done}, f"{id} is paused." if done else f"{id} was paused already.")


@command.command("resume")
@with_target
@click.argument("id")
@click.option("--catch-up", is_flag=True, help="Slots that came meanwhile count as missed, and are not passed over.")
@with_output
def resume(target: str, id: str, catch_up: bool, output: Output) -> None:
    """Let a schedule go on."""
    done = _with(target, lambda engine: engine.schedules.resume(id, catch_up=catch_up))
    _done(output, {"id": id, "resumed": done}, f"{id} goes on." if done else f"{id} was not paused.")


@command.command("trigger")
@with_target
@click.argument("id")
@with_output
def trigger(target: str, id: str, output: Output) -> None:
    """Start a run of a schedule now."""
    run = _with(target, lambda engine: engine.schedules.trigger(id))
    _done(output, {"id": id, "run": run.id}, run.id)


@command.command("backfill")
@with_target
@click.argument("id")
@click.option("--from", "start", type=Moment(), required=True, help="From this time, or this duration ago.")
@click.option("--to", "end", type=Moment(), help="Before this time, or this duration ago; now by default.")
@with_output
def backfill(target: str, id: str, start: Any, end: Any, output: Output) -> None:
    """Start the runs of all slots of a range that have none."""

    async def filled(engine: Engine) -> list[str]:
        return await engine.schedules.backfill(id, _past(start), _past(end or datetime.timedelta()))

    runs = _with(target, filled)
    _done(output, {"id": id, "runs": runs}, f"{len(runs)} slots have their runs.")


@command.command("delete")
@with_target
@click.argument("id")
@with_output
def delete(target: str, id: str, output: Output) -> None:
    """Forget a schedule; runs that it has started go on."""
    _with(target, lambda engine: engine.schedules.delete(id))
    _done(output, {"id": id, "deleted": True}, f"{id} is deleted.")


def _with(target: str, ask: Callable[[Engine], Awaitable[T]], *, create: bool = False) -> T:
    async def asked() -> T:
        async with engine_at(target, create=create) as engine:
            return await ask(engine)

    return asyncio.run(asked())


def _timing(told: dict[str, Any]) -> Timing | None:
    """When, from the options that say so, which are taken out."""
    cron, zone, every, at, start = (told.pop(name) for name in ("cron", "zone", "every", "at", "start"))
    if sum(one is not None for one in (cron, every, at)) > 1:
        raise click.UsageError("Say when in one way: --cron, --every or --at.")
    if cron is not None:
        return Cron(cron, zone)
    if every is not None:
        return Every(every, None if start is None else _future(start))
    return None if at is None else At(_future(at))


def _given(told: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if value is not None}


def _future(value: datetime.datetime | datetime.timedelta) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + value if isinstance(value, datetime.timedelta) else value


def _past(value: datetime.datetime | datetime.timedelta) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) - value if isinstance(value, datetime.timedelta) else value


def _done(output: Output, document: Document, line: str) -> None:
    if output.json:
        output.document(document)
    else:
        output.line(line)


def _say(output: Output, one: Schedule) -> None:
    if output.json:
        output.document(schedule_document(one))
        return
    limit = one.misfire.limit
    output.line(f"{one.id}  {_stands(one)}", "bold")
    output.fields(
        [
            ("type", one.type),
            ("input", short(one.input)),
            ("when", _when(one)),
            ("next", when(one.next_slot)),
            ("queue", one.queue),
            ("priority", str(one.priority)),
            ("deadline", span(one.deadline) if one.deadline else ""),
            ("jitter", f"up to {span(one.jitter)}" if one.jitter else ""),
            ("missed", "all are made up for" if limit is None else f"at most {limit} made up for"),
            ("overlap", one.overlap.value),
            ("waiting", f"{len(one.waiting)} slots" if one.waiting else ""),
            ("last run", one.last_run),
            ("error", one.error),
        ]
    )


def _stands(one: Schedule) -> str:
    if one.paused:
        return f"paused: {one.reason}" if one.reason else "paused"
    return "active" if when(one.next_slot) or one.waiting else "over"


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
