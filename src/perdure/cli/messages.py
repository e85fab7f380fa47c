"""Commands that send messages to runs and ask them questions."""

from __future__ import annotations

from typing import Any

import click

from perdure.cli.console.commands import Command
from perdure.cli.console.output import Printer, dump
from perdure.cli.console.params import JsonParam, with_output, with_target
from perdure.cli.console.target import with_engine
from perdure.client.engine import Engine


@click.command("send", cls=Command, example="perdure send sqlite:///shop.db order-42 approval true")
@with_target
@click.argument("run")
@click.argument("name")
@click.argument("value", metavar="JSON", type=JsonParam())
@click.option("--key", help="Idempotency key: a message with the same key is sent once.")
@with_output
def send(target: str, run: str, name: str, value: Any, key: str | None, output: Printer) -> None:
    """Send a message to a run, which is stored until the run receives it."""
    with_engine(target, lambda engine: engine.send(run, name, value, key=key))
    output.result({"id": run, "name": name, "sent": True}, f"Sent {name} to {run}.")


@click.command("ask", cls=Command, example="perdure ask sqlite:///shop.db order-42 quote 3")
@with_target
@click.argument("run")
@click.argument("name")
@click.argument("value", metavar="JSON", type=JsonParam())
@click.option("--key", help="Idempotency key: asking again with the same key returns the same answer.")
@click.option("--timeout", default="1m", help="How long to wait for the answer.", show_default=True)
@with_output
def ask(target: str, run: str, name: str, value: Any, key: str | None, timeout: str, output: Printer) -> None:
    """Ask a run a question and print the answer of its workflow."""

    async def act(engine: Engine) -> Any:
        return await (await engine.get(run)).ask(name, value, key=key, timeout=timeout)

    answer = with_engine(target, act)
    output.result({"id": run, "name": name, "answer": answer}, dump(answer))


@click.command("broadcast", cls=Command, example="perdure broadcast sqlite:///shop.db alarm true --correlation ritz")
@with_target
@click.argument("name")
@click.argument("value", metavar="JSON", type=JsonParam())
@click.option("--correlation", required=True, help="The correlation value that the runs listen for.")
@click.option("--key", help="Idempotency key: each run receives the message once.")
@with_output
def broadcast(target: str, name: str, value: Any, correlation: str, key: str | None, output: Printer) -> None:
    """Send a message to all runs that listen for a name and a correlation value."""
    sent = with_engine(target, lambda engine: engine.broadcast(name, value, correlation=correlation, key=key))
    text = f"Sent {name} to {sent} {'run' if sent == 1 else 'runs'}."
    output.result({"name": name, "correlation": correlation, "sent": sent}, text)
