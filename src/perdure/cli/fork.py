"""`perdure fork`: a new run that goes on from a step of another one."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from perdure.cli.output import Output
from perdure.cli.params import Json, Moment, with_output, with_target
from perdure.cli.target import engine_at


@click.command("fork")
@with_target
@click.argument("run")
@click.option("--from-step", metavar="PLACE", help="Where it goes another way, such as charge#2; else the beginning.")
@click.option("--input", type=Json(), help="Other arguments, as a JSON object by name.")
@click.option("--result", "results", multiple=True, metavar="PLACE=JSON", help="Another result of what came before.")
@click.option("--id", help="The new run's id.")
@click.option("--deadline", type=Moment(), help="By when the new run is to be finished.")
@with_output
def command(target: str, run: str, results: tuple[str, ...], output: Output, **options: Any) -> None:
    """Start a new run with the input of another one and, up to a step, its history.

    For example: perdure fork sqlite:///shop.db order-42 --from-step charge#2 --result quote=799
    """
    if options["input"] is not None and not isinstance(options["input"], dict):
        raise click.BadParameter("give the arguments by name, as a JSON object", param_hint="--input")
    options["results"] = dict(_result(text) for text in results)
    forked = asyncio.run(_fork(target, run, options))
    if output.json:
        output.document({"id": forked, "source": run})
    else:
        output.line(forked)


async def _fork(target: str, run_id: str, options: dict[str, Any]) -> str:
    async with engine_at(target) as engine:
        return (await (await engine.get(run_id)).fork(**options)).id


def _result(text: str) -> tuple[str, Any]:
    place, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r} is not of the form PLACE=JSON, such as charge=7.", param_hint="--result")
    return place, Json().convert(value, None, None)
