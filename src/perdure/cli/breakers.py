"""`perdure breakers ...`: circuit breakers, where they stand and what people say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click
import msgspec

from perdure.cli.console.describe import when
from perdure.cli.console.output import Output
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.target import engine_at
from perdure.client.engine import Engine
from perdure.core.limits.breaker import BreakerInfo, Circuit

T = TypeVar("T")


@click.group("breakers")
def command() -> None:
    """Circuit breakers: list, open, close and reset them."""


@command.command("list")
@with_target
@click.option("--limit", default=100, show_default=True, help="How many.")
@with_output
def list_(target: str, limit: int, output: Output) -> None:
    """List the breakers, where they stand, what was counted and who waits."""
    found = _with(target, lambda engine: engine.breakers.list(limit=limit))
    if output.json:
        output.document([msgspec.to_builtins(one) for one in found])
        return
    for one in found:
        output.line(f"{one.name}: {_describe(one)}")
    if not found:
        output.line("There is no breaker yet.")


@command.command("open")
@with_target
@click.argument("name")
@with_output
def open_(target: str, name: str, output: Output) -> None:
    """Let nothing pass until the breaker is closed or reset.

    For example: perdure breakers open sqlite:///shop.db openai
    """
    _with(target, lambda engine: engine.breakers.open(name))
    _done(output, name, Circuit.OPEN, f"{name} is open until it is closed or reset.")


@command.command("close")
@with_target
@click.argument("name")
@with_output
def close(target: str, name: str, output: Output) -> None:
    """Let everything pass, whatever fails, until the breaker is opened or reset."""
    _with(target, lambda engine: engine.breakers.close(name))
    _done(output, name, Circuit.CLOSED, f"{name} is closed until it is opened or reset.")


@command.command("reset")
@with_target
@click.argument("name")
@with_output
def reset(target: str, name: str, output: Output) -> None:
    """Close the breaker, forget what was counted, and let it open and close by itself."""
    _with(target, lambda engine: engine.breakers.reset(name))
    _done(output, name, Circuit.CLOSED, f"{name} is closed, and opens by itself when too much fails.")


def _describe(one: BreakerInfo) -> str:
    if one.problem:
        return f"set aside, {one.problem}"
    by_hand = " by hand" if one.by_hand else ""
    until = f" until {when(one.until)}" if one.until else ""
    waiting = f", {one.waiting} waiting" if one.waiting else ""
    counted = f"{one.failures} failures and {one.successes} successes counted"
    return f"{one.circuit.value.replace('_', ' ')}{by_hand}{until}, {counted}{waiting}"


def _done(output: Output, name: str, circuit: Circuit, text: str) -> None:
    if output.json:
        output.document({"name": name, "circuit": circuit.value})
    else:
        output.line(text)


def _with(target: str, act: Callable[[Engine], Awaitable[T]]) -> T:
    async def run() -> T:
        async with engine_at(target) as engine:
            return await act(engine)

    return asyncio.run(run())
