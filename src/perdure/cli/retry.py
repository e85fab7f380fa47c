"""Commands that let a run go again, or start a variant of it."""

from __future__ import annotations

from typing import Any

import click

from perdure.cli.console.commands import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import JsonParam, TimeOrDuration, TimeParam, with_output, with_target
from perdure.cli.console.target import with_engine
from perdure.client.engine import Engine


@click.command("retry", cls=Command, example="perdure retry sqlite:///shop.db order-42 --deadline 1h")
@with_target
@click.argument("run")
@click.option("--deadline", type=TimeParam(), help="New deadline; required if the old one has passed.")
@with_output
def retry(target: str, run: str, deadline: TimeOrDuration | None, output: Printer) -> None:
    """Let a failed, cancelled, blocked or waiting run go again.

    A failed or cancelled workflow continues where it failed: completed steps do not run again. A failed activity
    begins anew. A blocked run is unblocked. A run that waits for its next attempt tries again at once, with all its
    attempts.
    """
    generation = with_engine(target, lambda engine: engine.runs.retry(run, deadline=deadline))
    output.result({"id": run, "generation": generation}, f"{run} continues, as generation {generation}.")


_FORK = "perdure runs fork sqlite:///shop.db order-42 --from-step charge#2 --result quote=799"


@click.command("fork", cls=Command, example=_FORK)
@with_target
@click.argument("run")
@click.option("--from-step", metavar="STEP", help="First step to run again, such as charge#2.  [default: the first]")
@click.option("--input", type=JsonParam(), help="Other arguments, as a JSON object by name.")
@click.option("--result", "results", multiple=True, metavar="STEP=JSON", help="Another result of an earlier step.")
@click.option("--id", help="Id of the new run.")
@click.option("--deadline", type=TimeParam(), help="Deadline of the new run.")
@with_output
def fork(target: str, run: str, results: tuple[str, ...], output: Printer, **options: Any) -> None:
    """Start a new run with the input of a run and its history up to a step."""
    if options["input"] is not None and not isinstance(options["input"], dict):
        raise click.BadParameter("give the arguments by name, as a JSON object", param_hint="--input")
    options["results"] = dict(_parse_result(text) for text in results)

    async def act(engine: Engine) -> str:
        return (await (await engine.get(run)).fork(**options)).id

    forked = with_engine(target, act)
    output.result({"id": forked, "source": run}, forked)


def _parse_result(text: str) -> tuple[str, Any]:
    step, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r} is not of the form STEP=JSON, such as charge=7", param_hint="--result")
    return step, JsonParam().convert(value, None, None)
