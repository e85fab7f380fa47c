"""`perdure types`: what there is to run, and who runs it."""

from __future__ import annotations

import asyncio

import click
import msgspec

from perdure.cli.output import Output
from perdure.cli.params import with_output, with_target
from perdure.cli.target import engine_at
from perdure.core.routing import TypeInfo


@click.command("types")
@with_target
@with_output
def command(target: str, output: Output) -> None:
    """List the types that workers have registered: who serves each, and whether it is enabled.

    A type is disabled with `perdure pause --type` and enabled with `perdure resume --type`.
    """
    types = asyncio.run(_types(target))
    if output.json:
        output.document([msgspec.to_builtins(one) for one in types])
        return
    for one in types:
        disabled = "" if one.enabled else ", disabled"
        output.line(
            f"{one.type} ({one.kind}, {one.runtime}{disabled}){f': {one.description}' if one.description else ''}"
        )
    if not types:
        output.line("No worker has registered a type yet.")


async def _types(target: str) -> list[TypeInfo]:
    async with engine_at(target) as engine:
        return await engine.types()
