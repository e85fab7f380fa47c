"""The table of a comparison, and its place in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from benchmarks.bench import median
from benchmarks.peers.catalog import Missing
from benchmarks.peers.measure import WORKLOADS, Workload

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"


class System(Struct, kw_only=True):
    """The figures of one system, by workload, one for each round."""

    name: str
    version: str
    note: str = ""
    figures: dict[str, list[float | None]]


class Comparison(Struct, kw_only=True):
    """The result of the command. The first system is ours."""

    date: str
    machine: str
    server: dict[str, str]
    command: str
    rounds: int = 0
    #: Load of the machine at the end, over 15 minutes: with more than one for each core, others were at work.
    load: float = 0.0
    systems: list[System]
    missing: list[Missing]

    def value(self, system: System, workload: str) -> float | None:
        """Return the median of the rounds."""
        found = [figure for figure in system.figures.get(workload, []) if figure is not None]
        return median(found) if found else None

    def ratio(self, system: System, workload: Workload) -> float | None:
        """Return how many times as fast ours is: the median of the ratios of the rounds."""
        pairs = zip(self.systems[0].figures.get(workload.name, []), system.figures.get(workload.name, []), strict=False)
        ratios = [(a / b if workload.rate else b / a) for a, b in pairs if a and b]
        return median(ratios) if ratios else None


def render(result: Comparison) -> str:
    """Return the comparison as Markdown."""
    server = result.server
    head = "| system | version | " + " | ".join(f"{one.title}, {one.unit}" for one in WORKLOADS) + " |"
    title = (
        f"`{result.command}` on {result.date}: {result.machine}; PostgreSQL {server['server_version']} with `fsync` "
        f"{server['fsync']} and `synchronous_commit` {server['synchronous_commit']}; "
        f"medians of {result.rounds} rounds, with a load of {result.load:.0f} on the machine."
    )
    lines = [
        title,
        "",
        head,
        "|---|---|" + "--:|" * len(WORKLOADS),
    ]
    for system in result.systems:
        cells = [_cell(result, system, workload) for workload in WORKLOADS]
        lines.append(f"| {system.name} | {system.version} | " + " | ".join(cells) + " |")
    notes = [f"* {system.name}: {system.note}." for system in result.systems if system.note]
    notes += [f"* {one.name} is missing: {one.reason}." for one in result.missing]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def _cell(result: Comparison, system: System, workload: Workload) -> str:
    value = result.value(system, workload.name)
    if value is None:
        return "-"
    shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    ratio = result.ratio(system, workload)
    if system is result.systems[0] or ratio is None:
        return shown
    return f"{shown} ({ratio:.3g})" if ratio < 100 else f"{shown} ({ratio:.0f})"


def insert(page: str, table: str) -> str:
    """Put a table between the markers of a page. Raises `ValueError` if they are not there."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"the page has no {BEGIN} and {END}; put the markers where the table belongs")
    wrapped = "\n".join(_wrapped(line) for line in table.rstrip().splitlines())
    return pattern.sub(lambda match: f"{BEGIN}\n{wrapped}\n{END}", page, count=1)


def _wrapped(line: str) -> str:
    """Break a line of prose at 120 columns; a row of a table stays whole."""
    if line.startswith("|") or len(line) <= 120:
        return line
    indent = "  " if line.startswith("* ") else ""
    cut = line.rfind(" ", 0, 120)
    return f"{line[:cut]}\n{_wrapped(indent + line[cut + 1 :])}"


def write(path: Path, result: Comparison) -> None:
    """Write the table into a page."""
    path.write_text(insert(path.read_text(encoding="utf-8"), render(result)), encoding="utf-8")
