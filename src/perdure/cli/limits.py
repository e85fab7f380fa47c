"""`perdure limits`: limits of concurrency and rate, what waits at them, and overrides at run time."""

from __future__ import annotations

import click
import msgspec

from perdure.cli.console.command_groups import Command, CommandGroup
from perdure.cli.console.describe import when
from perdure.cli.console.document import Document, moment
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output, with_reason, with_target
from perdure.cli.console.target import with_engine
from perdure.client.engine import Engine
from perdure.core.limits.breaker import BreakerInfo, Circuit
from perdure.core.limits.limit import KEYED, LimitBounds, LimitInfo, PermitInfo, make_bounds

_PAGE = 100

group = CommandGroup(
    "limits",
    {
        "Commands": {
            "list": "perdure.cli.limits:list_limits",
            "holders": "perdure.cli.limits:holders",
            "set": "perdure.cli.limits:override",
            "clear": "perdure.cli.limits:clear",
        }
    },
    help="List limits of concurrency and rate, and override them at run time.",
    example="perdure limits set sqlite:///shop.db payments --rate 100/m",
)


@click.command("list", cls=Command, example="perdure limits list sqlite:///shop.db")
@with_target
@click.option("--limit", default=100, show_default=True, help="Maximum number of limits.")
@click.option("--after", default="", metavar="NAME", help="After this name.")
@with_output
def list_limits(target: str, limit: int, after: str, output: Printer) -> None:
    """List the limits that runs have met or that were set, by name."""
    found = with_engine(target, lambda engine: engine.limits.list(limit=limit, after=after))
    if output.json:
        output.document([_document(one) for one in found])
    elif found:
        output.table(("limit", "admits", "set by", "held", "waiting", "next check"), [_row(one) for one in found])
    else:
        output.hint("No run has met a limit, and none was set.")


@click.command("holders", cls=Command, example="perdure limits holders sqlite:///shop.db payments")
@with_target
@click.argument("name")
@click.option("--limit", default=100, show_default=True, help="Maximum number of permits.")
@with_output
def holders(target: str, name: str, limit: int, output: Printer) -> None:
    """List the runs and steps that have a permit of a limit, the oldest first."""
    found = with_engine(target, lambda engine: engine.limits.holders(name, limit=limit))
    if output.json:
        output.document([_permit_document(one) for one in found])
    elif found:
        rows = [(one.run_id, one.location, one.worker or "", when(one.granted_at)) for one in found]
        output.table(("run", "step", "worker", "since"), rows)
    else:
        output.hint("No permit is in use.")


def _permit_document(permit: PermitInfo) -> Document:
    return {
        "limit": permit.limit,
        "run_id": permit.run_id,
        "location": permit.location,
        "granted_at": moment(permit.granted_at),
        "worker": permit.worker,
    }


@click.command("set", cls=Command, example="perdure limits set sqlite:///shop.db payments --rate 100/m --burst 10")
@with_target
@click.argument("name")
@click.option("--concurrency", type=int, metavar="N", help="At most N at once.")
@click.option("--rate", metavar="N/TIME", help="At most N in a time, such as 100/m.")
@click.option("--burst", type=int, metavar="N", help="With --rate: at most N at once after a pause.")
@with_reason
@with_output
def override(
    target: str, name: str, concurrency: int | None, rate: str | None, burst: int | None, reason: str, output: Printer
) -> None:
    """Override a limit that the code declares, from now on.

    NAME is a limit, one key of a limit (tenant/acme), a type (type:billing.charge.v1) or a queue (queue:emails). The
    override replaces concurrency and rate together: name both to keep both.
    """
    bounds = make_bounds(concurrency=concurrency, rate=rate, burst=burst)

    async def replace(engine: Engine) -> tuple[LimitBounds, bool]:
        before = await _bounds_of(engine, name)
        await engine.limits.set(name, concurrency=concurrency, rate=rate, burst=burst, reason=reason)
        next_names = await engine.limits.list(limit=_PAGE, after=f"{name}{KEYED}")
        return before, any(one.name.startswith(f"{name}{KEYED}") for one in next_names)

    before, keyed = with_engine(target, replace)
    document = {"name": name, "override": msgspec.to_builtins(bounds), "replaced": msgspec.to_builtins(before)}
    output.result(document, f"{name}: {bounds}{_describe_replaced(before, bounds)}.")
    if keyed:
        output.hint(
            f"{name!r} is a limit of its own; the keys {name}{KEYED}… keep theirs: set each key, or change the code."
        )


async def _bounds_of(engine: Engine, name: str) -> LimitBounds:
    """Bounds that apply to a limit now; none if no run has met it."""
    after = ""
    while found := await engine.limits.list(limit=_PAGE, after=after):
        for one in found:
            if one.name == name:
                return one.bounds
        after = found[-1].name
    return LimitBounds()


def _describe_replaced(before: LimitBounds, bounds: LimitBounds) -> str:
    if before in (bounds, LimitBounds()):
        return ""
    gone = [
        f"no {what} applies; to keep it, name --{what}, too"
        for what, had, has in (
            ("concurrency", before.concurrency, bounds.concurrency),
            ("rate", before.pace, bounds.pace),
        )
        if had and not has
    ]
    return f", in place of {before}" + "".join(f"; {one}" for one in gone)


@click.command("clear", cls=Command, example="perdure limits clear sqlite:///shop.db payments")
@with_target
@click.argument("name")
@with_reason
@with_output
def clear(target: str, name: str, reason: str, output: Printer) -> None:
    """Remove an override; the limit declared in code applies again."""
    with_engine(target, lambda engine: engine.limits.clear(name, reason))
    output.result({"name": name, "override": None}, f"{name}: override removed; the limit declared in code applies.")


def _row(limit: LimitInfo) -> tuple[str, ...]:
    return (
        limit.name,
        "nothing: its row cannot be read" if limit.problem else str(limit.bounds),
        "override" if limit.override else "code",
        str(limit.held),
        str(limit.waiting),
        when(limit.due_at) if limit.due_at else "",
    )


def _document(limit: LimitInfo) -> Document:
    return {
        "name": limit.name,
        "bounds": msgspec.to_builtins(limit.bounds),
        "override": msgspec.to_builtins(limit.override),
        "held": limit.held,
        "waiting": limit.waiting,
        "due_at": moment(limit.due_at),
        "problem": limit.problem or None,
    }


breakers = CommandGroup(
    "breakers",
    {
        "Commands": {
            "list": "perdure.cli.limits:list_breakers",
            "open": "perdure.cli.limits:open_breaker",
            "close": "perdure.cli.limits:close_breaker",
            "reset": "perdure.cli.limits:reset",
        }
    },
    help="List, open, close and reset circuit breakers.",
    example="perdure breakers open sqlite:///shop.db openai",
)


@click.command("list", cls=Command, example="perdure breakers list sqlite:///shop.db")
@with_target
@click.option("--limit", default=100, show_default=True, help="Maximum number of breakers.")
@with_output
def list_breakers(target: str, limit: int, output: Printer) -> None:
    """List the breakers with their state, counts and waiting runs."""
    found = with_engine(target, lambda engine: engine.breakers.list(limit=limit))
    if output.json:
        output.document([msgspec.to_builtins(one) for one in found])
    elif found:
        output.table(("breaker", "state", "failures", "successes", "waiting"), [_breaker_row(one) for one in found])
    else:
        output.hint("There is no breaker yet.")


@click.command("open", cls=Command, example="perdure breakers open sqlite:///shop.db openai")
@with_target
@click.argument("name")
@with_reason
@with_output
def open_breaker(target: str, name: str, reason: str, output: Printer) -> None:
    """Open a breaker: nothing passes until it is closed or reset."""
    with_engine(target, lambda engine: engine.breakers.open(name, reason))
    _print_circuit(output, name, Circuit.OPEN, f"{name} is open until it is closed or reset.")


@click.command("close", cls=Command, example="perdure breakers close sqlite:///shop.db openai")
@with_target
@click.argument("name")
@with_reason
@with_output
def close_breaker(target: str, name: str, reason: str, output: Printer) -> None:
    """Close a breaker: everything passes, despite failures, until it is opened or reset."""
    with_engine(target, lambda engine: engine.breakers.close(name, reason))
    _print_circuit(output, name, Circuit.CLOSED, f"{name} is closed until it is opened or reset.")


@click.command("reset", cls=Command, example="perdure breakers reset sqlite:///shop.db openai")
@with_target
@click.argument("name")
@with_reason
@with_output
def reset(target: str, name: str, reason: str, output: Printer) -> None:
    """Close a breaker, clear its counts, and let it open by itself again."""
    with_engine(target, lambda engine: engine.breakers.reset(name, reason))
    _print_circuit(output, name, Circuit.CLOSED, f"{name} is closed, and opens by itself after too many failures.")


def _breaker_row(one: BreakerInfo) -> tuple[str, ...]:
    return one.name, _state(one), str(one.failures), str(one.successes), str(one.waiting)


def _state(one: BreakerInfo) -> str:
    if one.problem:
        return f"set aside, {one.problem}"
    by_hand = " by hand" if one.by_hand else ""
    until = f" until {when(one.until)}" if one.until else ""
    return f"{one.circuit.value.replace('_', ' ')}{by_hand}{until}"


def _print_circuit(output: Printer, name: str, circuit: Circuit, text: str) -> None:
    output.result({"name": name, "circuit": circuit.value}, text)
