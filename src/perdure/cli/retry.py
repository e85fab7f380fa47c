"""Commands that let a run go again."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import click

from perdure.cli.console.output import Output
from perdure.cli.console.params import Json, Moment, with_output, with_target
from perdure.cli.console.target import engine_at
from perdure.client.engine import Engine
from perdure.errors import RunNotFound, UsageError


@click.command("retry")
@with_target
@click.argument("run")
@click.option("--deadline", type=Moment(), help="By when it is to be finished now; needed if its deadline has passed.")
@with_output
def retry(target: str, run: str, deadline: datetime.datetime | datetime.timedelta | None, output: Output) -> None:
    """Open a run that failed or was cancelled again, where it failed. What succeeded is not done again."""
    generation = asyncio.run(_retry(target, run, deadline))
    if output.json:
        output.document({"id": run, "generation": generation})
    else:
        output.line(f"{run} goes on, as generation {generation}.")


async def _retry(target: str, run_id: str, deadline: datetime.datetime | datetime.timedelta | None) -> int:
    async with engine_at(target) as engine:
        return await (await engine.get(run_id)).retry(deadline=deadline)


@click.command("recover")
@with_target
@click.argument("run")
@with_output
def recover(target: str, run: str, output: Output) -> None:
    """Give what has failed in a run its attempts anew, at once: failing steps, the failed run, one set aside as poison."""
    recovered = asyncio.run(_recover(target, run))
    if output.json:
        output.document({"id": run, "recovered": recovered})
    else:
        output.line(f"{run} goes on with all its attempts." if recovered else f"{run} has nothing to recover.")


async def _recover(target: str, run_id: str) -> bool:
    async with engine_at(target) as engine:
        return await _let_go(engine, run_id)


@click.command("unblock")
@with_target
@click.argument("run")
@with_output
def unblock(target: str, run: str, output: Output) -> None:
    """Let a blocked run go on, once what blocked it is mended."""
    unblocked = asyncio.run(_unblock(target, run))
    if output.json:
        output.document({"id": run, "unblocked": unblocked})
    else:
        output.line(f"{run} goes on." if unblocked else f"{run} is not blocked.")


async def _unblock(target: str, run_id: str) -> bool:
    async with engine_at(target) as engine:
        return await _let_go(engine, run_id)


async def _let_go(engine: Engine, run_id: str) -> bool:
    try:
        await engine.runs.retry(run_id)
    except RunNotFound:
        raise
    except UsageError:
        return False
    return True


@click.command("fork")
@with_target
@click.argument("run")
@click.option("--from-step", metavar="PLACE", help="Where it goes another way, such as charge#2; else the beginning.")
@click.option("--input", type=Json(), help="Other arguments, as a JSON object by name.")
@click.option("--result", "results", multiple=True, metavar="PLACE=JSON", help="Another result of what came before.")
@click.option("--id", help="The new run's id.")
@click.option("--deadline", type=Moment(), help="By when the new run is to be finished.")
@with_output
def fork(target: str, run: str, results: tuple[str, ...], output: Output, **options: Any) -> None:
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
