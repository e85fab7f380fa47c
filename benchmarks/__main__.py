"""`python -m benchmarks WORKLOAD|all [--store URL] [--json]`, and `python -m benchmarks peers`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
import msgspec

from benchmarks.auditing import audit
from benchmarks.bench import Bench, Result, Sizes
from benchmarks.claiming import w7
from benchmarks.errands import w9
from benchmarks.fleet import w8
from benchmarks.idling import idle
from benchmarks.latency import w3
from benchmarks.memory import memory
from benchmarks.observing import observed
from benchmarks.resuming import w6
from benchmarks.shapes import large, types
from benchmarks.sleeping import w5
from benchmarks.throughput import w1, w2, w4
from benchmarks.watching import watched
from perdure.cli.workers import fast_loop, tune_collector

WORKLOADS: dict[str, Callable[[Bench], Awaitable[Result]]] = {
    "w1": w1,
    "w2": w2,
    "w3": w3,
    "w4": w4,
    "w5": w5,
    "w6": w6,
    "w7": w7,
    "w8": w8,
    "w9": w9,
    "idle": idle,
    "types": types,
    "large": large,
    "memory": memory,
    "audit": audit,
    "watched": watched,
    "observed": observed,
}

DEFAULTS = Sizes()


@click.command(context_settings={"show_default": True})
@click.argument("workload", type=click.Choice([*WORKLOADS, "all"]), default="all")
@click.option("--store", metavar="URL", help="The database. By default an SQLite file in a new temporary directory.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--rounds", default=DEFAULTS.rounds, help="How often to measure; medians are reported.")
@click.option("--runs", default=DEFAULTS.runs, help="Runs a round.")
@click.option("--steps", default=DEFAULTS.steps, help="Parallel steps of w4; five times as many records in w6.")
@click.option("--sleep", default=DEFAULTS.sleep, help="Seconds that the runs of w5 sleep.")
@click.option("--finished", default=DEFAULTS.finished, help="Finished rows beside the due ones of w7.")
@click.option("--sleeping", default=DEFAULTS.sleeping, help="Sleeping rows of w7, parked rows of memory.")
@click.option("--foreign", default=DEFAULTS.foreign, help="Rows of w7 whose type the worker does not take.")
@click.option("--slots", default=DEFAULTS.slots, help="Runs that the worker holds at a time.")
@click.option("--raw-commits", default=DEFAULTS.raw_commits, help="Single-row commits in each sample of the raw rate.")
@click.option(
    "--raw-batches", default=DEFAULTS.raw_batches, help="Batches of 1,000 rows in each sample of the raw rate."
)
def main(workload: str, store: str | None, *, as_json: bool, **sizes: int | float) -> None:
    """Measure the engine on this machine, beside the raw rate of its database."""
    if workload == "all":
        # Each in a process of its own, so that none inherits the memory or the garbage of another.
        for name in WORKLOADS:
            arguments = [argument for argument in sys.argv[1:] if argument != "all"]
            subprocess.run([sys.executable, "-m", "benchmarks", name, *arguments], check=True)
        return
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        bench = Bench(workload, store or f"sqlite:///{Path(folder) / 'bench.db'}", msgspec.convert(sizes, Sizes))
        try:
            # As `perdure worker` does: a process that does nothing else.
            tune_collector()
            with asyncio.Runner(loop_factory=fast_loop()) as runner:
                result = runner.run(_run(bench))
        finally:
            bench.raw.close()
    print(msgspec.json.encode(result).decode() if as_json else _table(result), flush=True)


async def _run(bench: Bench) -> Result:
    return await WORKLOADS[bench.name](bench)


def _table(result: Result) -> str:
    lines = [f"{result['workload']} on {result['store']}: {(WORKLOADS[result['workload']].__doc__ or '').strip()}"]
    lines += [f"  {key:<28} {value:>14,}" for key, value in result.items() if isinstance(value, int | float)]
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["peers"]:
        # It needs the driver of PostgreSQL and the tests' servers, which the other workloads do without.
        from benchmarks.peers.command import peers

        peers(sys.argv[2:], prog_name="python -m benchmarks peers")
    else:
        main()
