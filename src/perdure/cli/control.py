"""Commands that control one run: cancel, terminate, pause, resume, wake and evict."""

from __future__ import annotations

import click

from perdure.cli.console.commands import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import TimeOrDuration, TimeParam, with_output, with_target
from perdure.cli.console.target import with_engine


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
