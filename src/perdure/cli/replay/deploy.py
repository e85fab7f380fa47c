"""`perdure check`: replay of unfinished runs against new code, before a deploy; and the stored reports of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import click
import msgspec

from perdure.cli.console.command_groups import Command
from perdure.cli.console.describe import when
from perdure.cli.console.document import moment
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.target import find_engine, is_url, with_engine
from perdure.core.model.documents import StoredDeployReport
from perdure.core.model.reports import DeployFinding, DeployReport

FAILED = 1


@click.command("check", cls=Command, example="perdure check shop:engine --type checkout")
@with_target
@click.option("--type", "types", multiple=True, help="Only runs of this workflow type.")
@click.option("--own", is_flag=True, help="Only runs of the engine's own types.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of runs, newest first.")
@click.option("--pinned", is_flag=True, help="Also runs that are pinned to another build.")
@click.option("--save/--no-save", default=True, help="Store a summary for the dashboard.  [default: save]")
@with_output
def check(target: str, types: tuple[str, ...], own: bool, output: Printer, **options: Any) -> int:
    """Replay all unfinished runs against the current code, and report those that would diverge.

    Run it before a deploy: it leaves runs as they are and exits with 1 if a run would diverge. It stores a summary
    for the dashboard, unless the database refuses. Runs that are pinned to another build are left out. TARGET is an
    engine, such as shop:engine.
    """
    if is_url(target):
        raise click.UsageError("a check needs code: name an engine such as shop:engine, not a database")
    report = asyncio.run(_check(target, types, own=own, **options))
    if output.json:
        output.document(_document(report))
    else:
        _print_report(output, report)
    return 0 if report.ok else FAILED


async def _check(target: str, types: tuple[str, ...], *, own: bool, **options: Any) -> DeployReport:
    engine = find_engine(target)
    try:
        wanted = [*types, *(engine.workflows if own else ())]
        return await engine.check(types=wanted or None, **options)
    finally:
        await engine.close()


def _document(report: DeployReport) -> dict[str, object]:
    return {
        "ok": report.ok,
        "checked": report.checked,
        "more": report.more,
        "pinned": report.pinned,
        "findings": [finding_document(finding) for finding in report.findings],
    }


def finding_document(finding: DeployFinding) -> dict[str, object]:
    """Return a finding as a JSON document."""
    return {
        "id": finding.run_id,
        "type": finding.type,
        "problem": finding.problem.value,
        "warning": finding.is_warning,
        "expected": finding.expected,
        "found": finding.found,
        "fix": finding.fix,
    }


def print_findings(output: Printer, findings: Iterable[DeployFinding]) -> None:
    """Print the runs that the code does not fit, where, and the most likely fix."""
    for finding in findings:
        style = "yellow" if finding.is_warning else "red"
        output.line(f"{finding.run_id} ({finding.type}): {finding.problem.value}", style)
        output.line(f"  - {finding.expected}")
        output.line(f"  + {finding.found}")
        output.line(f"  fix: {finding.fix}")


def _print_report(output: Printer, report: DeployReport) -> None:
    print_findings(output, report.findings)
    bad = len({finding.run_id for finding in report.findings if not finding.is_warning})
    runs = f"{report.checked} run{'' if report.checked == 1 else 's'} checked"
    rest = "; there are more" if report.more else ""
    rest += f"; {report.pinned} pinned to other builds left out" if report.pinned else ""
    output.line(f"{runs}, {bad} would diverge{rest}." if bad else f"{runs}, all continue with this code{rest}.")


@click.command("checks", cls=Command, example="perdure audit checks sqlite:///shop.db")
@with_target
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Maximum number of reports.")
@with_output
def checks(target: str, limit: int, output: Printer) -> None:
    """List the latest reports of `perdure check`, by type."""
    reports = with_engine(target, lambda engine: engine.audit.deploy_checks(limit=limit))
    if output.json:
        output.document([_report_document(one) for one in reports])
        return
    if not reports:
        output.hint("No check has been stored yet: run `perdure check shop:engine`.")
    for report in reports:
        more = "; there are more" if report.more else ""
        output.heading(f"{when(report.at)}  {report.build}  {report.actor}  {report.checked} checked{more}")
        rows = [(one.type, str(one.goes_on), str(one.diverged), one.expected, one.fix) for one in report.types]
        output.table(("type", "go on", "diverge", "first at", "fix"), rows)


def _report_document(report: StoredDeployReport) -> dict[str, object]:
    return {
        "id": report.id,
        "at": moment(report.at),
        "actor": report.actor,
        "build": report.build,
        "ok": report.ok,
        "checked": report.checked,
        "more": report.more,
        "types": [{**msgspec.to_builtins(one), "goes_on": one.goes_on} for one in report.types],
    }
