"""`perdure runs bulk`: one action on many runs; `perdure runs bulk-worker` does what others have started."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import click

from perdure.cli.console import logs
from perdure.cli.console.command_groups import Command
from perdure.cli.console.describe import status, status_style, when
from perdure.cli.console.document import run_document
from perdure.cli.console.output import Printer
from perdure.cli.console.params import JsonParam, read_filters, with_filters, with_output, with_target
from perdure.cli.console.target import with_engine
from perdure.client.engine import Engine
from perdure.client.runs.namespace import BulkOptions, RunFilters
from perdure.core.model.reports import BulkAction, BulkPreview, BulkReport
from perdure.host import Host
from perdure.store.url import shown


@click.command("bulk", cls=Command, example="perdure runs bulk sqlite:///shop.db cancel --status waiting --dry-run")
@with_target
@click.argument("action", type=click.Choice(list(map(str, BulkAction))))
@click.option("--run", "run_ids", multiple=True, metavar="ID", help="This run; may be repeated.")
@with_filters
@click.option("--all", "everything", is_flag=True, help="All runs, if no filter is given.")
@click.option("--dry-run", is_flag=True, help="Only say how many runs it would be, and the first ten.")
@click.option("--reason", default="", metavar="TEXT", help="Stored with the runs, or in the audit trail.")
@click.option("--purge", is_flag=True, help="With delete: for good.")
@click.option("--message", metavar="NAME", help="With send: name of the message.")
@click.option("--value", type=JsonParam(), help="With send: value of the message.")
@click.option("--id", "job_id", metavar="JOB", help="Id of the job; the same id goes on where it was interrupted.")
@click.option("--detach", is_flag=True, help="Only start the job, for `perdure runs bulk-worker`.")
@with_output
def bulk(
    target: str,
    action: str,
    run_ids: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    job_id: str | None,
    detach: bool,
    output: Printer,
    **options: Any,
) -> None:
    """Do ACTION to the runs that are named, or to all that fulfil the filters.

    The job is a run itself. If this process dies, the same command with the same --id goes on where it was.
    """
    where = read_filters(options)
    if not any(value not in (None, False) for value in where.values()):
        where = RunFilters()
    if bool(run_ids) == bool(where or everything):
        raise click.UsageError("give --run, or filters, or --all")
    chosen = list(run_ids) or None
    filters = None if run_ids else where
    given: BulkOptions = {"reason": options["reason"], "purge": options["purge"]}
    if options["message"] is not None:
        given["message"], given["value"] = options["message"], options["value"]
    if dry_run:
        _print_preview(output, with_engine(target, lambda engine: engine.runs.preview_bulk(chosen, where=filters)))
        return
    job = job_id or f"bulk-{Host().entropy(8).hex()}"

    async def start(engine: Engine) -> None:
        await engine.runs.start_bulk(action, chosen, where=filters, id=job, **given)

    async def act(engine: Engine) -> BulkReport:
        preview = await engine.runs.preview_bulk(chosen, where=filters)
        with _bar(output, action, preview) as on_progress:
            return await engine.runs.bulk(action, chosen, where=filters, id=job, on_progress=on_progress, **given)

    if detach:
        with_engine(target, start)
        output.result({"id": job}, job)
        return
    output.hint(f"Job {job}; if it is interrupted, the same command with --id {job} goes on.")
    _print_report(output, job, with_engine(target, act))


@click.command("bulk-worker", cls=Command, example="perdure runs bulk-worker sqlite:///shop.db")
@with_target
@with_output
def bulk_worker(target: str, output: Printer) -> None:
    """Work on bulk actions until SIGTERM or SIGINT.

    They are started by `perdure runs bulk --detach`, in code or by plain SQL. This needs a database, and no code.
    """

    async def work(engine: Engine) -> None:
        worker = engine.runs.bulk_worker()
        await worker.connect()
        _print_event(output, "working", engine)
        await worker.run()
        _print_event(output, "stopped", engine)

    logs.configure(None, None, json=output.json)
    with_engine(target, work)


def _print_event(output: Printer, event: str, engine: Engine) -> None:
    document = {"event": event, "pid": os.getpid(), "url": shown(engine.url)}
    output.result(document, f"{event} on bulk actions of {shown(engine.url)} as process {os.getpid()}")


@contextmanager
def _bar(output: Printer, action: str, preview: BulkPreview) -> Generator[Callable[[BulkReport], object] | None]:
    """A progress bar, on a terminal only."""
    if output.json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(action, total=preview.count.count if preview.count.exact else None)
        yield lambda report: progress.update(task, completed=report.done + report.skipped + report.failed)


def _print_preview(output: Printer, preview: BulkPreview) -> None:
    if output.json:
        count = {"count": preview.count.count, "exact": preview.count.exact}
        output.document({**count, "first": [run_document(run) for run in preview.first]})
        return
    output.line(f"{preview.count} {'run' if str(preview.count) == '1' else 'runs'}.")
    if preview.first:
        rows = [(run.id, run.type, status(run), when(run.created_at)) for run in preview.first]
        output.table(("id", "type", "status", "created"), rows, lambda row: status_style(row[2]))


def _print_report(output: Printer, job: str, report: BulkReport) -> None:
    """Print the numbers, and the runs that were not acted on with the reason; exit with 1 if one failed."""
    if output.json:
        output.document(
            {
                "id": job,
                "action": report.action,
                "done": report.done,
                "skipped": report.skipped,
                "failed": report.failed,
                "skipped_runs": report.skipped_runs,
                "failed_runs": report.failed_runs,
            }
        )
    else:
        output.line(f"{report.action}: {report.done:,} done, {report.skipped:,} skipped, {report.failed:,} failed.")
        for why in (*report.failed_runs.values(), *report.skipped_runs.values()):
            output.hint(f"perdure: {why}")
    if report.failed:
        click.get_current_context().exit(1)
