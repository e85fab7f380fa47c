"""Commands that send messages to runs."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from perdure.cli.console.output import Output, dump
from perdure.cli.console.params import Json, with_output, with_target
from perdure.cli.console.target import engine_at


@click.command("send")
@with_target
@click.argument("run")
@click.argument("name")
@click.argument("value", metavar="JSON", type=Json())
@click.option("--key", help="With a key, sending twice is sending once.")
@with_output
def send(target: str, run: str, name: str, value: Any, key: str | None, output: Output) -> None:
    """Send a message to a run; it is kept until the run receives it.

    For example: perdure send sqlite:///shop.db order-42 approval true
    """
    asyncio.run(_send(target, run, name, value, key))
    if output.json:
        output.document({"id": run, "name": name, "sent": True})
    else:
        output.line(f"Sent {name} to {run}.")


async def _send(target: str, run_id: str, name: str, value: Any, key: str | None) -> None:
    async with engine_at(target) as engine:
        await engine.send(run_id, name, value, key=key)


@click.command("ask")
@with_target
@click.argument("run")
@click.argument("name")
@click.argument("value", metavar="JSON", type=Json())
@click.option("--key", help="With a key, asking again gives the answer that there is.")
@click.option("--timeout", default="1m", help="How long to wait for the answer.", show_default=True)
@with_output
def ask(target: str, run: str, name: str, value: Any, key: str | None, timeout: str, output: Output) -> None:
    """Ask a run something and print what its workflow answers.

    For example: perdure ask sqlite:///shop.db order-42 quote 3
    """
    answer = asyncio.run(_ask(target, run, name, value, key, timeout))
    if output.json:
        output.document({"id": run, "name": name, "answer": answer})
    else:
        output.line(dump(answer))


async def _ask(target: str, run_id: str, name: str, value: Any, key: str | None, timeout: str) -> Any:
    async with engine_at(target) as engine:
        return await (await engine.get(run_id)).ask(name, value, key=key, timeout=timeout)


@click.command("broadcast")
@with_target
@click.argument("name")
@click.argument("value", metavar="JSON", type=Json())
@click.option("--correlation", required=True, help="The correlation value that the runs listen for.")
@click.option("--key", help="With a key, no run gets it twice.")
@with_output
def broadcast(target: str, name: str, value: Any, correlation: str, key: str | None, output: Output) -> None:
    """Send a message to every run that listens for a name and a correlation value.

    For example: perdure broadcast sqlite:///shop.db alarm '"fire"' --correlation ritz
    """
    sent = asyncio.run(_broadcast(target, name, value, correlation, key))
    if output.json:
        output.document({"name": name, "correlation": correlation, "sent": sent})
    else:
        output.line(f"{sent} {'run has' if sent == 1 else 'runs have'} {name}.")


async def _broadcast(target: str, name: str, value: Any, correlation: str, key: str | None) -> int:
    async with engine_at(target) as engine:
        return await engine.broadcast(name, value, correlation=correlation, key=key)
