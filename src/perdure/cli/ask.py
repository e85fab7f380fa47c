"""`perdure ask`: a question to a run, and its answer."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from perdure.cli.output import Output, dump
from perdure.cli.params import Json, with_output, with_target
from perdure.cli.target import engine_at


@click.command("ask")
@with_target
@click.argument("run")
@click.argument("name")
@click.argument("value", metavar="JSON", type=Json())
@click.option("--key", help="With a key, asking again gives the answer that there is.")
@click.option("--timeout", default="1m", help="How long to wait for the answer.", show_default=True)
@with_output
def command(target: str, run: str, name: str, value: Any, key: str | None, timeout: str, output: Output) -> None:
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
