"""A guard against slowing down: `make bench-check`.

Counts what a step and a run cost on SQLite in one process (`benchmarks.counted`) and compares that with the figure in
`figures.json`. More than three per cent fails, and says in which libraries and functions the work grew.

Instructions are counted by callgrind, which repeats itself to the eighth digit. A count belongs to one build of Python,
SQLite and msgspec. On another build, and with `--base REVISION`, the revision is counted on this machine, too, and
compared with; without `--base` that is the one that the committed figures belong to. Where there is no valgrind, CPU
time of both is measured in turns.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from benchmarks.counted import PARTS, RUNS, TRACED_RUNS

ROOT = Path(__file__).parent.parent
FIGURES = Path(__file__).parent / "figures.json"

#: By how much a figure may be greater than the one before.
ALLOWED = 0.03
#: By how much it may be greater with metrics.
ALLOWED_METRICS = 0.04
#: By how much it may be greater with traces of which 1 % are recorded.
ALLOWED_TRACES = 0.06
#: How often CPU time is measured where instructions cannot be counted; the least is nearest to the truth.
ROUNDS = 15
#: How many of the parts that grew are named.
NAMED = 12

Costs = dict[str, float]


class Figures(Struct, frozen=True):
    """What a step and a run cost, and where."""

    #: `instructions` or `CPU microseconds`
    unit: str
    #: By `step` and `run`: all of it.
    total: Costs
    #: By `step` and `run`: instructions by library.
    libraries: dict[str, Costs]
    #: By `step` and `run`: executed bytecodes by function.
    functions: dict[str, Costs]


def build() -> str:
    """The build that a count belongs to."""
    python = f"{platform.python_implementation()} {platform.python_version()} {' '.join(platform.python_build())}"
    libraries = f"SQLite {sqlite3.sqlite_version}, msgspec {version('msgspec')}"
    return f"{python}, {platform.python_compiler()}, {libraries}, {platform.system()} {platform.machine()}"


def each(short: float, long: float, runs: int = RUNS) -> Costs:
    """What a run and a step cost, from what the parts do."""
    return {
        "step": round((long - short) / runs / (PARTS["long"] - PARTS["short"]), 2),
        "run": round(short / runs, 2),
    }


def counted(source: Path, *options: str, runs: int = RUNS) -> Figures:
    """The figures of a source tree, by callgrind; `options` are those of `benchmarks.counted`."""
    # First, so that compiled files are there: what is loaded from them is laid out otherwise than what was just
    # compiled.
    functions = functions_of(source, runs, *options)
    with tempfile.TemporaryDirectory(prefix="perdure-count-") as folder:
        out = Path(folder, "callgrind")
        command = ["valgrind", "-q", "--tool=callgrind", "--dump-before=getsid", f"--callgrind-out-file={out}"]
        _run(source, folder, command, str(runs), *options)
        # The signs are at the beginning and the end of each part: 1 is what was before, 3 what was in between.
        short, long = (_by_library(Path(f"{out}.{number}")) for number in (2, 4))
    libraries = _split(short, long, runs)
    total = {unit: round(sum(costs.values()), 2) for unit, costs in libraries.items()}
    return Figures("instructions", total, libraries, functions)


def functions_of(source: Path, runs: int = RUNS, *options: str) -> dict[str, Costs]:
    """Executed bytecodes of a source tree by function."""
    with tempfile.TemporaryDirectory(prefix="perdure-count-") as folder:
        found = json.loads(_run(source, folder, [], "--opcodes", str(runs), *options))
    return _split(found["short"], found["long"], runs)


def timed(sources: Iterable[Path]) -> list[Figures]:
    """The figures of source trees in CPU time, measured in turns."""
    least: dict[Path, dict[str, float]] = {source: {} for source in sources}
    for _ in range(ROUNDS):
        for source, best in least.items():
            with tempfile.TemporaryDirectory(prefix="perdure-count-") as folder:
                found = json.loads(_run(source, folder, []))
            for name, seconds in found.items():
                best[name] = min(best.get(name, seconds), seconds)
    return [
        Figures("CPU microseconds", each(best["short"] * 1e6, best["long"] * 1e6), {}, functions_of(source))
        for source, best in least.items()
    ]


def _run(source: Path, folder: str, before: list[str], *arguments: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(source)}
    command = [*before, sys.executable, "-m", "benchmarks.counted", folder, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"the work to be counted failed on {source}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _split(short: Mapping[str, int], long: Mapping[str, int], runs: int = RUNS) -> dict[str, Costs]:
    costs: dict[str, Costs] = {"step": {}, "run": {}}
    for name in sorted({*short, *long}):
        for unit, value in each(short.get(name, 0), long.get(name, 0), runs).items():
            if value:
                costs[unit][name] = value
    return costs


def _by_library(out: Path) -> dict[str, int]:
    """The instructions of a file of callgrind's by the library that executed them."""
    names: dict[str, str] = {}
    found: dict[str, int] = {}
    current, called = "", False
    for line in out.read_text().splitlines():
        if match := re.fullmatch(r"(c?)ob=\((\d+)\)(?: (.+))?", line):
            callee, number, name = match.groups()
            if name is not None:
                names[number] = _library(name)
            if not callee:
                current = names[number]
        elif line.startswith("calls="):
            # What follows is the callee's cost, which is counted where it is executed.
            called = True
        elif match := re.fullmatch(r"[+*\-\d]\S* (\d+)", line):
            if not called:
                found[current] = found.get(current, 0) + int(match[1])
            called = False
    return found


def _library(path: str) -> str:
    # Without versions, so that two builds can be told apart by more than their names.
    name = re.split(r"\.(?:so|cpython|abi3)\b", Path(path).name)[0]
    return {"???": "other"}.get(name, name)


class Verdict(Struct, frozen=True):
    """What a comparison found, for people, and whether all is well."""

    text: str
    passed: bool


def compare(before: Figures, now: Figures, against: str, allowed: float = ALLOWED) -> Verdict:
    """Hold the figures of now against those of before."""
    lines = [f"{now.unit} on SQLite, one process, against {against}:"]
    grown = []
    for unit, value in now.total.items():
        change = value / before.total[unit] - 1
        lines.append(f"  a {unit:<5} {value:>12,.0f}   before {before.total[unit]:>12,.0f}   {change:+.2%}")
        if change > allowed:
            grown.append(unit)
    for unit in grown:
        lines.append(f"A {unit} costs more than {allowed:.0%} more. What grew:")
        lines += _growth("instructions", before.libraries.get(unit, {}), now.libraries.get(unit, {}))
        lines += _growth("bytecodes", before.functions.get(unit, {}), now.functions.get(unit, {}))
    return Verdict("\n".join(lines), not grown)


def _growth(what: str, before: Costs, now: Costs) -> list[str]:
    changes = {name: now.get(name, 0) - before.get(name, 0) for name in {*before, *now}}
    most = sorted(changes, key=lambda name: (-changes[name], name))[:NAMED]
    return [
        f"  {changes[name]:>+12,.1f} {what:<12} {name}{'' if before.get(name) else ' (new)'}"
        for name in most
        if changes[name] > 0
    ]


def _source_of(revision: str, folder: str) -> Path:
    archive = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise click.ClickException(f"git has no source of {revision}: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return Path(folder, "src")


def _revision_of_figures() -> str:
    command = ["git", "log", "-1", "--format=%H", "--", str(FIGURES)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    if not found:
        raise click.ClickException(
            f"there is no figure for this build ({build()}), and no commit of figures to count instead; "
            "name a revision with --base (make bench-check BASE=...)"
        )
    return found


def _committed() -> dict[str, Figures]:
    return msgspec.json.decode(FIGURES.read_bytes(), type=dict[str, Figures]) if FIGURES.exists() else {}


def _write(figures: Figures) -> None:
    all_of_them = {**_committed(), build(): figures}
    FIGURES.write_bytes(msgspec.json.format(msgspec.json.encode(all_of_them), indent=1) + b"\n")


@click.command()
@click.option("--base", metavar="REVISION", help="Count this revision, too, and compare with it.")
@click.option(
    "--write", is_flag=True, help="Make the count, that of --base if it is given, the committed figure of this build."
)
@click.option("--metrics", is_flag=True, help="Count what metrics add, too; fail if that is more than 4 %.")
@click.option("--traces", is_flag=True, help="Count what traces sampled at 1 % add; fail if that is more than 6 %.")
def main(base: str | None, *, write: bool, metrics: bool, traces: bool) -> None:
    """Count what a step and a run cost; fail if that is more than 3 % more than before."""
    source = ROOT / "src"
    counting = shutil.which("valgrind") is not None
    if metrics or traces:
        what, allowed = ("metrics", ALLOWED_METRICS) if metrics else ("traces", ALLOWED_TRACES)
        if not counting:
            raise click.ClickException(f"what {what} add is counted by valgrind, which is not installed")
        without, listening = [counted(source, *options, runs=TRACED_RUNS) for options in ((), (f"--{what}",))]
        verdict = compare(without, listening, f"the same without {what}", allowed)
        print(verdict.text)
        sys.exit(not verdict.passed)
    if write:
        if not counting:
            raise click.ClickException("committed figures are instructions, which valgrind counts; it is not installed")
        with tempfile.TemporaryDirectory(prefix="perdure-base-") as folder:
            _write(counted(_source_of(base, folder) if base else source))
        print(f"written to {FIGURES.name}, for {build()}")
        return
    figures = _committed().get(build()) if counting and not base else None
    if figures is not None:
        verdict = compare(figures, counted(source), FIGURES.name)
    else:
        revision = base or _revision_of_figures()
        with tempfile.TemporaryDirectory(prefix="perdure-base-") as folder:
            former = _source_of(revision, folder)
            pair = [counted(former), counted(source)] if counting else timed([former, source])
        verdict = compare(pair[0], pair[1], revision)
    print(verdict.text)
    if not verdict.passed:
        sys.exit(1)


if __name__ == "__main__":
    main()
