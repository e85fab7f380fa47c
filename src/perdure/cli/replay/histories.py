"""`perdure export` and `perdure replay`: histories in a file, for CI without a database."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from perdure.cli.console.command_groups import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import read_filters, with_filters, with_output, with_target
from perdure.cli.console.target import is_url, load_engine, with_engine
from perdure.cli.replay.deploy import FAILED, finding_document, print_findings
from perdure.core.model.histories import HistoriesReport

_EXPORT = "perdure export sqlite:///shop.db --type checkout --since 7d -o histories.jsonl --redact-key password"


@click.command("export", cls=Command, example=_EXPORT)
@with_target
@click.option("-o", "--output-file", "file", default="-", metavar="FILE", help="File to write; - is standard output.")
@click.option("--run", "run_ids", multiple=True, metavar="RUN", help="Only this run; without the filters.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of runs, newest first.")
@click.option("--redact-key", "keys", multiple=True, metavar="PATTERN", help="Replace values of keys: '*_token'.")
@click.option("--redact-text", "texts", multiple=True, metavar="REGEX", help="Replace what matches: 'sk-[a-z0-9]+'.")
@with_filters
@with_output
def export(
    target: str,
    output: Printer,
    file: str,
    run_ids: tuple[str, ...],
    limit: int | None,
    keys: tuple[str, ...],
    texts: tuple[str, ...],
    **options: Any,
) -> int:
    """Write the histories of runs that fulfil all filters to a file, for `perdure replay` and `perdure debug`.

    Runs are only read. A named file appears once it is complete. It exits with 1 if a run cannot be read, and was left
    out.
    """
    where = None if run_ids else read_filters(options)
    chosen: Any = sys.stdout.buffer if file == "-" else file
    report = with_engine(
        target,
        lambda engine: engine.runs.export(
            chosen, run_ids or None, where=where, limit=limit, redact_keys=keys, redact_texts=texts
        ),
    )
    if file != "-":
        more = "; there are more" if report.more else ""
        text = f"{report.runs} run{'' if report.runs == 1 else 's'}, {report.records} records in {file}{more}."
        document = {"file": file, "runs": report.runs, "records": report.records, "more": report.more}
        left_out = [{"id": one.run_id, "error": one.error} for one in report.unreadable]
        output.result({**document, "unreadable": left_out}, text)
    for one in report.unreadable:
        output.hint(f"{one.run_id} was left out: {one.error}")
    return FAILED if report.unreadable else 0


@click.command("replay", cls=Command, example="perdure replay shop:engine histories.jsonl")
@with_target
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--type", "types", multiple=True, help="Only runs of this workflow type.")
@with_output
def replay(target: str, file: str, types: tuple[str, ...], output: Printer) -> int:
    """Replay the histories of a file against the current code, and report those that would diverge.

    It needs no database. It exits with 1 if a run would diverge, or if a line of the file is damaged. TARGET is an
    engine, such as shop:engine; FILE is one of `perdure export`.
    """
    if is_url(target):
        raise click.UsageError("a replay needs code: name an engine such as shop:engine, not a database")
    report = asyncio.run(load_engine(target).runs.replay(file, types=types or None))
    if output.json:
        output.document(_document(report))
    else:
        _print_report(output, report)
    return 0 if report.ok else FAILED


def _document(report: HistoriesReport) -> dict[str, object]:
    return {
        "ok": report.ok,
        "checked": report.checked,
        "findings": [finding_document(finding) for finding in report.findings],
        "damaged": [{"line": one.line, "error": one.error} for one in report.damaged],
    }


def _print_report(output: Printer, report: HistoriesReport) -> None:
    print_findings(output, report.findings)
    for one in report.damaged:
        output.line(f"line {one.line} is damaged: {one.error}", "red")
    bad = len({finding.run_id for finding in report.findings if not finding.is_warning})
    runs = f"{report.checked} {'history' if report.checked == 1 else 'histories'} replayed"
    rest = f"; {len(report.damaged)} damaged" if report.damaged else ""
    output.line(f"{runs}, {bad} would diverge{rest}." if bad else f"{runs}, all follow this code{rest}.")
