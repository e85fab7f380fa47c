"""Commands that act on runs: cancel, pause, resume, wake, evict, set-priority, retry, fork, delete, prune, and more."""

from __future__ import annotations

from typing import Any

import click

from perdure.cli.console.command_groups import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import JsonParam, TimeOrDuration, TimeParam, with_output, with_target
from perdure.cli.console.target import with_engine
from perdure.client.engine import Engine
from perdure.client.runs.namespace import PruneReport
from perdure.core.model.run import FINISHED


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
@click.option("--reason", default="", metavar="TEXT", help="Stored in the audit trail.")
@with_output
def resume(target: str, run: str, reason: str, output: Printer) -> None:
    """Resume a paused run."""
    done = with_engine(target, lambda engine: engine.runs.resume(run, reason))
    output.result({"run_id": run, "resumed": done}, f"{run} is resumed." if done else f"{run} was not paused.")


@click.command("wake", cls=Command, example="perdure runs wake sqlite:///shop.db order-42 --at 1h")
@with_target
@click.argument("run")
@click.option("--at", type=TimeParam(), help="End the sleep at this time, or this duration from now.  [default: now]")
@click.option("--reason", default="", metavar="TEXT", help="Stored in the audit trail.")
@with_output
def wake(target: str, run: str, at: TimeOrDuration | None, reason: str, output: Printer) -> None:
    """End the sleep of a run, or begin a run that is to start later."""
    with_engine(target, lambda engine: engine.runs.wake(run, at, reason))
    text = f"{run} is woken." if at is None else f"{run} will be woken at that time."
    output.result({"id": run, "woken": True}, text)


_PRIORITY = "perdure runs set-priority sqlite:///shop.db order-42 10 --reason 'waits since noon'"


@click.command("set-priority", cls=Command, example=_PRIORITY)
@with_target
@click.argument("run")
@click.argument("priority", type=int)
@click.option("--reason", default="", metavar="TEXT", help="Stored in the audit trail.")
@with_output
def set_priority(target: str, run: str, priority: int, reason: str, output: Printer) -> None:
    """Change the priority of a run that has not finished; lower numbers go first."""
    done = with_engine(target, lambda engine: engine.runs.set_priority(run, priority, reason))
    text = f"{run} has priority {priority}." if done else f"{run} had priority {priority} already, or has finished."
    output.result({"id": run, "priority": priority, "changed": done}, text)


_UNPIN = "perdure runs unpin sqlite:///shop.db order-42 --reason 'build 1.4.2 is gone, 1.4.3 follows its history'"


@click.command("unpin", cls=Command, example=_UNPIN)
@with_target
@click.argument("run")
@click.option("--reason", default="", metavar="TEXT", help="Stored in the audit trail.")
@with_output
def unpin(target: str, run: str, reason: str, output: Printer) -> None:
    """Let workers of every build continue a run that is pinned to the build that began it.

    Check first that the code follows its history: `perdure check app:engine --pinned`.
    """
    done = with_engine(target, lambda engine: engine.runs.unpin(run, reason))
    text = f"{run} is no longer pinned." if done else f"{run} was not pinned, or has finished."
    output.result({"id": run, "unpinned": done}, text)


@click.command("evict", cls=Command, example="perdure runs evict sqlite:///shop.db order-42")
@with_target
@click.argument("run")
@click.option("--reason", default="", metavar="TEXT", help="Stored in the audit trail.")
@with_output
def evict(target: str, run: str, reason: str, output: Printer) -> None:
    """Make the worker that holds a run release it, for another worker to claim.

    Steps under way may end first, within that worker's grace period.
    """
    held = with_engine(target, lambda engine: engine.runs.evict(run, reason))
    text = f"{run} is about to be released." if held else f"{run} is held by no worker."
    output.result({"id": run, "evicted": held}, text)


@click.command("retry", cls=Command, example="perdure retry sqlite:///shop.db order-42 --deadline 1h")
@with_target
@click.argument("run")
@click.option("--deadline", type=TimeParam(), help="New deadline; required if the old one has passed.")
@click.option("--reason", default="", metavar="TEXT", help="Stored in the audit trail.")
@with_output
def retry(target: str, run: str, deadline: TimeOrDuration | None, reason: str, output: Printer) -> None:
    """Let a failed, cancelled, blocked or waiting run go again.

    A failed or cancelled workflow continues where it failed: completed steps do not run again. A failed activity
    begins anew. A blocked run is unblocked. A run that waits for its next attempt tries again at once, with all its
    attempts.
    """
    generation = with_engine(target, lambda engine: engine.runs.retry(run, deadline=deadline, reason=reason))
    output.result({"id": run, "generation": generation}, f"{run} continues, as generation {generation}.")


_FORK = "perdure runs fork sqlite:///shop.db order-42 --from-step charge#2 --result quote=799"


@click.command("fork", cls=Command, example=_FORK)
@with_target
@click.argument("run")
@click.option("--from-step", metavar="STEP", help="First step to run again, such as charge#2.  [default: the first]")
@click.option("--from-index", type=int, metavar="N", help="The same, by its number: SEQ in `perdure show`.")
@click.option("--input", type=JsonParam(), help="Other arguments, as a JSON object by name.")
@click.option("--result", "results", multiple=True, metavar="STEP=JSON", help="Another result of an earlier step.")
@click.option("--id", help="Id of the new run.")
@click.option("--deadline", type=TimeParam(), help="Deadline of the new run.")
@click.option("--reason", default="", metavar="TEXT", help="Stored in the audit trail.")
@with_output
def fork(
    target: str, run: str, from_index: int | None, results: tuple[str, ...], output: Printer, **options: Any
) -> None:
    """Start a new run with the input of a run and its history up to a step."""
    if from_index is not None:
        if options["from_step"] is not None:
            raise click.UsageError("give either --from-step or --from-index")
        options["from_step"] = from_index
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


@click.command("delete", cls=Command, example="perdure runs delete sqlite:///shop.db order-42 --reason 'a test'")
@with_target
@click.argument("run")
@click.option("--reason", default="", metavar="TEXT", help="Stored in the audit trail.")
@click.option("--purge", is_flag=True, help="Delete the run for good, with its history and its children.")
@with_output
def delete(target: str, run: str, reason: str, purge: bool, output: Printer) -> None:
    """Hide a run from lists; `perdure runs undelete` restores it.

    A run that is not over is paused until then. The result of a hidden run stays readable.
    """
    deleted = with_engine(target, lambda engine: engine.runs.delete(run, reason, purge=purge))
    text = f"{run} is deleted." if deleted else f"{run} was deleted before."
    output.result({"id": run, "deleted": deleted}, text)


@click.command("undelete", cls=Command, example="perdure runs undelete sqlite:///shop.db order-42")
@with_target
@click.argument("run")
@with_output
def undelete(target: str, run: str, output: Printer) -> None:
    """Restore a deleted run or a discarded dead letter."""
    restored = with_engine(target, lambda engine: engine.runs.undelete(run))
    output.result({"id": run, "restored": restored}, f"{run} is restored." if restored else f"{run} is not deleted.")


@click.command("prune", cls=Command, example="perdure runs prune sqlite:///shop.db --older-than 30d --status completed")
@with_target
@click.option("--older-than", required=True, metavar="DURATION", help="Finished longer ago than this, such as 30d.")
@click.option("--status", multiple=True, type=click.Choice(sorted(one.value for one in FINISHED)), help="Final status.")
@click.option("--type", "types", multiple=True, help="Of this type, or of types with a prefix: 'billing.%'.")
@click.option("--deleted", is_flag=True, help="Only runs that were deleted longer ago than this.")
@with_output
def prune(
    target: str, older_than: str, status: tuple[str, ...], types: tuple[str, ...], deleted: bool, output: Printer
) -> None:
    """Delete old finished runs for good, with history, messages, outputs and events.

    A run is deleted together with its parent and children.
    """
    pruned = with_engine(
        target,
        lambda engine: engine.runs.prune(older_than, status=status or None, types=types or None, deleted=deleted),
    )
    print_deleted(output, pruned)


def print_deleted(output: Printer, report: PruneReport) -> None:
    """Print how many runs were deleted, and how many had to stay."""
    kept = f"; {report.spared} kept, because a parent or child has not finished" if report.spared else ""
    text = f"{report.runs} {'run' if report.runs == 1 else 'runs'} deleted{kept}."
    output.result({"deleted": report.runs, "spared": report.spared}, text)
