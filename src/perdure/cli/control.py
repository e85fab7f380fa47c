"""Commands that act on one run: cancel, terminate, pause, resume, wake, evict, retry and fork."""

from __future__ import annotations

from typing import Any

import click

from perdure.cli.console.commands import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import JsonParam, TimeOrDuration, TimeParam, with_output, with_target
from perdure.cli.console.target import with_engine
from perdure.client.engine import Engine


@click.command("cancel", cls=Command, example="perdure cancel sqlite:///shop.db order-42 --reason 'sold out'")
@with_target
@click.argument("run")
@click.option("--reason", default="", metavar="TEXT", help="Stored with the run.")
@with_output
def cancel(target: str, run: str, reason: str, output: Printer) -> None:
    """Request that a run stops; its workflow may clean up first."""
    accepted = with_engine(target, lambda engine: engine.cancel(run, reason))
    text = f"{run}: cancellation requested." if accepted else f"{run} had finished already."
    output.result({"id": run, "cancelling": accepted}, text)


@click.command(
    "terminate", cls=Command, example="perdure terminate sqlite:///shop.db order-42 --reason 'ignores its cancellation'"
)
@with_target
@click.argument("run")
@click.option("--reason", default="", metavar="TEXT", help="Stored with the run.")
@click.option("--undo", is_flag=True, help="Undo its completed steps first, by a worker.")
@with_output
def terminate(target: str, run: str, reason: str, output: Printer, *, undo: bool) -> None:
    """End a run now, in whatever status it is, without its code.

    It fails, its steps are stopped and its children are cancelled. `perdure cancel` lets the workflow clean up.
    """
    ended = with_engine(target, lambda engine: engine.runs.terminate(run, reason, undo=undo))
    done = f"{run} undoes its steps and ends." if undo else f"{run} is terminated."
    output.result({"id": run, "terminated": ended}, done if ended else f"{run} had finished already.")


@click.command("pause", cls=Command, example="perdure runs pause sqlite:///shop.db order-42 --reason 'on holiday'")
@with_target
@click.argument("run")
@click.option("--reason", default="", metavar="TEXT", help="Shown by `perdure why`.")
@with_output
def pause(target: str, run: str, reason: str, output: Printer) -> None:
    """Pause a run: steps under way end, then it waits.

    `perdure queues pause` pauses all runs in a queue or of a type.
    """
    done = with_engine(target, lambda engine: engine.runs.pause(run, reason))
    text = f"{run} is paused." if done else f"{run} was paused already, or has finished."
    output.result({"run_id": run, "paused": done}, text)


@click.command("resume", cls=Command, example="perdure runs resume sqlite:///shop.db order-42")
@with_target
@click.argument("run")
@with_output
def resume(target: str, run: str, output: Printer) -> None:
    """Resume a paused run."""
    done = with_engine(target, lambda engine: engine.runs.resume(run))
    output.result({"run_id": run, "resumed": done}, f"{run} is resumed." if done else f"{run} was not paused.")


@click.command("wake", cls=Command, example="perdure runs wake sqlite:///shop.db order-42 --at 1h")
@with_target
@click.argument("run")
@click.option("--at", type=TimeParam(), help="End the sleep at this time, or this duration from now.  [default: now]")
@with_output
def wake(target: str, run: str, at: TimeOrDuration | None, output: Printer) -> None:
    """End the sleep of a run, or begin a run that is to start later."""
    with_engine(target, lambda engine: engine.runs.wake(run, at))
    text = f"{run} is woken." if at is None else f"{run} will be woken at that time."
    output.result({"id": run, "woken": True}, text)


@click.command("evict", cls=Command, example="perdure runs evict sqlite:///shop.db order-42")
@with_target
@click.argument("run")
@with_output
def evict(target: str, run: str, output: Printer) -> None:
    """Make the worker that holds a run release it, for another worker to claim.

    Steps under way may end first, within that worker's grace period.
    """
    held = with_engine(target, lambda engine: engine.runs.evict(run))
    text = f"{run} is about to be released." if held else f"{run} is held by no worker."
    output.result({"id": run, "evicted": held}, text)


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
