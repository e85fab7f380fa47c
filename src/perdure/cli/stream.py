"""`perdure stream`: what a run emits, as it comes."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.output import Output, dump
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at


@click.command("stream")
@with_target
@click.argument("run")
@click.argument("name")
@click.option("--after", type=click.IntRange(min=0), help="Go on after this position.")
@click.option("--follow/--no-follow", default=True, help="Wait for more until the run ends.", show_default=True)
@with_output
def command(target: str, run: str, name: str, after: int | None, follow: bool, output: Output) -> None:
    """Print the items of a stream, one JSON value a line; with --json, each with its position."""
    asyncio.run(_stream(target, run, name, after, follow, output))


async def _stream(target: str, run_id: str, name: str, after: int | None, follow: bool, output: Output) -> None:
    async with engine_at(target) as engine:
        async for item in (await engine.get(run_id)).stream(name, after=after, follow=follow):
            if output.json:
                output.document({"position": item.position, "value": item.value})
            else:
                output.line(dump(item.value))
