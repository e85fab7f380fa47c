"""`perdure breakers`: circuit breakers, their state, and control by hand."""

from __future__ import annotations

import click
import msgspec

from perdure.cli.console.commands import Command, CommandGroup
from perdure.cli.console.describe import when
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.target import with_engine
from perdure.core.limits.breaker import BreakerInfo, Circuit

group = CommandGroup(
    "breakers",
    {
        "Commands": {
            "list": "perdure.cli.breakers:list_breakers",
            "open": "perdure.cli.breakers:open_breaker",
            "close": "perdure.cli.breakers:close_breaker",
            "reset": "perdure.cli.breakers:reset",
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
        output.table(("breaker", "state", "failures", "successes", "waiting"), [_row(one) for one in found])
    else:
        output.hint("There is no breaker yet.")


@click.command("open", cls=Command, example="perdure breakers open sqlite:///shop.db openai")
@with_target
@click.argument("name")
@with_output
def open_breaker(target: str, name: str, output: Printer) -> None:
    """Open a breaker: nothing passes until it is closed or reset."""
    with_engine(target, lambda engine: engine.breakers.open(name))
    _print_circuit(output, name, Circuit.OPEN, f"{name} is open until it is closed or reset.")


@click.command("close", cls=Command, example="perdure breakers close sqlite:///shop.db openai")
@with_target
@click.argument("name")
@with_output
def close_breaker(target: str, name: str, output: Printer) -> None:
    """Close a breaker: everything passes, despite failures, until it is opened or reset."""
    with_engine(target, lambda engine: engine.breakers.close(name))
    _print_circuit(output, name, Circuit.CLOSED, f"{name} is closed until it is opened or reset.")


@click.command("reset", cls=Command, example="perdure breakers reset sqlite:///shop.db openai")
@with_target
@click.argument("name")
@with_output
def reset(target: str, name: str, output: Printer) -> None:
    """Close a breaker, clear its counts, and let it open by itself again."""
    with_engine(target, lambda engine: engine.breakers.reset(name))
    _print_circuit(output, name, Circuit.CLOSED, f"{name} is closed, and opens by itself after too many failures.")


def _row(one: BreakerInfo) -> tuple[str, ...]:
    return one.name, _state(one), str(one.failures), str(one.successes), str(one.waiting)


def _state(one: BreakerInfo) -> str:
    if one.problem:
        return f"set aside, {one.problem}"
    by_hand = " by hand" if one.by_hand else ""
    until = f" until {when(one.until)}" if one.until else ""
    return f"{one.circuit.value.replace('_', ' ')}{by_hand}{until}"


def _print_circuit(output: Printer, name: str, circuit: Circuit, text: str) -> None:
    output.result({"name": name, "circuit": circuit.value}, text)
