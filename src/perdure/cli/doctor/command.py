"""`perdure doctor`: checks of a database and of the work in it, with a remedy for each finding."""

from __future__ import annotations

import asyncio
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator

import click

from perdure.cli.console.command_groups import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import DATABASE_TIMEOUT, with_output, with_target
from perdure.cli.console.target import check_exists, find_engine, is_url, load_engine
from perdure.cli.doctor.checks import CheckResult, CheckResults, Examination, Level, halves, ok, problem, skipped
from perdure.client.remote.transport import is_server
from perdure.client.session import DATABASE_TIMEOUT as DEFAULT_TIMEOUT
from perdure.core.time.duration import microseconds
from perdure.errors import PerdureError, UsageError
from perdure.host import Host
from perdure.store.url import shown

#: Exit code by the worst finding.
EXIT_CODES = {Level.OK: 0, Level.SKIPPED: 0, Level.WARNING: 1, Level.PROBLEM: 2}
_STYLES = {Level.OK: "green", Level.SKIPPED: "dim", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}
_ORDER = list(EXIT_CODES)


@click.command("doctor", cls=Command, example="perdure doctor postgresql://localhost/shop")
@with_target
@click.option("--thorough", is_flag=True, help="Check the rules of finished runs, too; reads whole tables.")
@with_output
def doctor(target: str, thorough: bool, output: Printer) -> None:
    """Check a database and the work in it, and say what to do.

    Checks the URL, the driver, the connection, migrations, clocks, settings that durability depends on, indexes,
    workers, runs that no worker serves, limits, waitlists, deadlocks over permits, pauses, schedules, blocked runs, and
    rules that rows must keep. Nothing is written. A target that is a server is checked as far as its API allows.

    Exit codes: 0 all is well, 1 there are warnings, 2 there are problems.
    """
    url = target if is_url(target) else load_engine(target).url
    found = asyncio.run(_examine(target, url, output, thorough=thorough))
    worst = max((one.level for one in found), key=_ORDER.index)
    if output.json:
        output.document(
            {
                "target": shown(url),
                "level": worst.value,
                "checks": [
                    {"check": one.check, "level": one.level.value, "text": one.text, "remedy": one.remedy or None}
                    for one in found
                ],
            }
        )
    else:
        output.line(_summary(found), _STYLES[worst])
    click.get_current_context().exit(EXIT_CODES[worst])


async def _examine(target: str, url: str, output: Printer, *, thorough: bool) -> CheckResults:
    found: CheckResults = []
    async for findings in _findings(target, url, thorough=thorough):
        found += findings
        if not output.json:
            for finding in findings:
                _print_finding(output, finding)
    return found


async def _findings(target: str, url: str, *, thorough: bool) -> AsyncIterator[CheckResults]:
    timeout = click.get_current_context().meta.get(DATABASE_TIMEOUT)
    seconds = DEFAULT_TIMEOUT if timeout is None else microseconds(timeout) / 1e6
    named = {} if is_url(target) else {"target": target}
    examination = Examination(url, Host(), timeout=seconds, thorough=thorough, **named)
    if not is_server(url):
        try:
            check_exists(url)
        except UsageError:
            # The examination says what is wrong with the URL.
            pass
        except PerdureError as error:
            yield [problem("reachable", *halves(error))]
            return
        async for findings in examination.database():
            yield findings
        if not examination.usable:
            return
    engine = find_engine(target)
    try:
        await engine.open()
    except PerdureError as error:
        yield [problem("reachable", *halves(error))]
        return
    try:
        if is_server(url):
            yield ok("reachable", f"{shown(url)} answers")
            yield skipped()
        async for findings in examination.fleet(engine):
            yield findings
    finally:
        await engine.close()


def _print_finding(output: Printer, finding: CheckResult) -> None:
    level, check = finding.level.value, finding.check
    for place, line in enumerate(_wrapped(finding.text)):
        head = f"{level:<7}  {check:<10}" if place == 0 else ""
        output.line(f"{head:<19}  {line}", _STYLES[finding.level])
    for place, line in enumerate(_wrapped(finding.remedy, less=3) if finding.remedy else []):
        output.line(f"{'':<19}  {'-> ' if place == 0 else '   '}{line}")


def _wrapped(text: str, less: int = 0) -> list[str]:
    """Break text into lines that fit beside the names on a terminal; one line anywhere else."""
    if not sys.stdout.isatty():
        return [text]
    width = max(30, shutil.get_terminal_size().columns - 22 - less)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _summary(found: CheckResults) -> str:
    problems = sum(one.level is Level.PROBLEM for one in found)
    warnings = sum(one.level is Level.WARNING for one in found)
    if not problems and not warnings:
        return "All is well."
    counts = [(problems, "problem"), (warnings, "warning")]
    return ", ".join(f"{count} {name}{'s' * (count > 1)}" for count, name in counts if count) + "."
