"""Commands that hide, restore and delete finished runs."""

from __future__ import annotations

import click

from perdure.cli.console.commands import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.target import with_engine
from perdure.client.runs import PruneReport
from perdure.core.model.run import FINISHED


@click.command("delete", cls=Command, example="perdure runs delete sqlite:///shop.db order-42 --reason 'a test'")
@with_target
@click.argument("run")
@click.option("--reason", default="", metavar="TEXT", help="Stored in the audit trail.")
@click.option("--purge", is_flag=True, help="Delete the run for good, with its history and its children.")
@with_output
def delete(target: str, run: str, reason: str, purge: bool, output: Printer) -> None:
    """Hide a finished run from lists; `perdure runs undelete` restores it.

    The result of a hidden run stays readable.
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
