"""`perdure stress`: throughput and latency of a database with worker processes, also when workers are killed.

It shows the progress while it runs, and the figures at the end: throughput, percentiles, failures. Worker
processes may be killed at intervals; none outlives the test.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import click
import msgspec
from msgspec import Struct

from perdure.cli.console.command_groups import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output
from perdure.cli.stress.workload import ENVIRONMENT, Workload, make_engine
from perdure.client.engine import Engine
from perdure.client.handle import Handle
from perdure.core.audit import Audit
from perdure.core.time.duration import seconds
from perdure.errors import PerdureError, RunFailed
from perdure.host import Host
from perdure.store import open_store
from perdure.workflow.definition import Call

if TYPE_CHECKING:
    from rich.progress import Progress

#: Seconds that workers may take to stop.
_STOP_TIMEOUT = 15.0


class WorkerExited(PerdureError):
    """A worker process ended that the test had not killed."""


class WorkerProcesses:
    """Worker processes, as many as `count` at a time."""

    def __init__(self, load: Workload, count: int, slots: int, lease: str) -> None:
        self._load = load
        self.count = count
        self._options = ["--slots", str(slots), "--lease", lease]
        self._processes: list[subprocess.Popen[bytes]] = []
        self.kills = 0

    def start(self) -> None:
        """Start processes until there are `count`."""
        while len(self._processes) < self.count:
            self._processes.append(self._spawn())

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "perdure.cli", "worker", "perdure.cli.stress.workload:engine", *self._options]
        # Runs that are to fail are no news.
        command += ["--log-level", "critical", "--stop-at-eof"]
        environment = {**os.environ, ENVIRONMENT: msgspec.json.encode(self._load).decode()}
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )

    def check(self) -> None:
        """Raise `WorkerExited` if a process has ended by itself."""
        for process in self._processes:
            code = process.poll()
            if code is not None:
                raise WorkerExited(f"worker process {process.pid} ended with {code}; its log is above")

    async def kill_every(self, seconds: float) -> None:
        """Kill a random process at intervals, and start another one."""
        while True:
            await asyncio.sleep(seconds)
            victim = self._processes.pop(random.randrange(len(self._processes)))  # noqa: S311 - not a secret
            victim.send_signal(signal.SIGKILL)
            _reap(victim)
            self.kills += 1
            self.start()

    def stop(self) -> None:
        """Stop all processes; kill those that do not stop in time."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
            _reap(process)
        self._processes.clear()


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


#: Seconds between two checks of the worker processes.
_POLL = 0.05


@click.command("stress", cls=Command, example="perdure stress --runs 5000 --workers 2 --kill 2s")
@click.option("--store", help="Database URL.  [default: a temporary SQLite file]")
@click.option("--runs", type=click.IntRange(1), default=1000, show_default=True, help="Number of runs.")
@click.option(
    "--concurrent", type=click.IntRange(1), default=100, show_default=True, help="Runs in flight at the same time."
)
@click.option("--steps", type=click.IntRange(0), default=3, show_default=True, help="Steps per run.")
@click.option("--activities", type=click.IntRange(0), default=0, show_default=True, help="Activities per run.")
@click.option(
    "--failure-rate", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Share of attempts that fail."
)
@click.option(
    "--attempts", type=click.IntRange(1), default=1, show_default=True, help="Maximum of attempts at each step."
)
@click.option("--latency", default="0s", show_default=True, help="Duration of a step.")
@click.option(
    "--payload", type=click.IntRange(0, 500_000), default=16, show_default=True, help="Bytes of each input and result."
)
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Worker processes.")
@click.option(
    "--slots", type=click.IntRange(1), default=300, show_default=True, help="Runs that a worker holds at the same time."
)
@click.option("--lease", default="15s", show_default=True, help="Lease of the workers; choose a short one with --kill.")
@click.option(
    "--kill", metavar="DURATION", help="Kill a worker with SIGKILL at this interval, such as 2s, and start another."
)
@click.option(
    "--audit",
    type=click.Choice([level.value for level in Audit]),
    default="lifecycle",
    show_default=True,
    help="Detail of the audit trail.",
)
@with_output
def command(
    store: str | None, workers: int, slots: int, lease: str, kill: str | None, output: Printer, **knobs: Any
) -> None:
    """Start many runs, execute them in worker processes, and report throughput and latency.

    With --store, the test creates tables with a prefix of their own in that database, and drops them at the end.
    """
    knobs["latency"] = seconds(knobs["latency"])
    every = None if kill is None else max(0.05, seconds(kill))
    seconds(lease)
    # SIGTERM raises KeyboardInterrupt, so that the worker processes are stopped with this one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _isolated_url(store) as url:
        load = Workload(url=url, **knobs)
        with ProgressBar(load.runs, quiet=output.json) as bar:
            result = asyncio.run(_stress(load, WorkerProcesses(load, workers, slots, lease), every, bar))
    if output.json:
        output.document({**msgspec.to_builtins(result), **knobs, "workers": workers})
    else:
        _print_result(output, result)


@contextmanager
def _isolated_url(store: str | None) -> Generator[str]:
    """Return a URL with tables that only this test uses."""
    if store is None:
        with tempfile.TemporaryDirectory(prefix="perdure-stress-") as folder:
            yield f"sqlite:///{folder}/stress.db"
        return
    options = dict(parse_qsl(urlsplit(store).query, keep_blank_values=True))
    options["prefix"] = f"stress_{Host().entropy(4).hex()}_"
    # Not by `urlunsplit`, which would drop slashes of a SQLite path.
    yield f"{store.partition('?')[0]}?{urlencode(options)}"


@asynccontextmanager
async def _dropped_at_the_end(url: str) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        if "prefix=stress_" in url:
            store = open_store(url, Host(), migrate=False)
            await store.open()
            try:
                await store.remove()
            finally:
                await store.close()


async def _stress(load: Workload, workers: WorkerProcesses, every: float | None, bar: ProgressBar) -> StressResult:
    engine = make_engine(load)
    async with _dropped_at_the_end(load.url), engine:
        try:
            workers.start()
            # The start of the processes is not part of the measurement.
            while len(await engine.workers.list()) < workers.count:
                workers.check()
                await asyncio.sleep(_POLL)
            return await _measure(load, engine, workers, every, bar)
        finally:
            await asyncio.to_thread(workers.stop)


async def _measure(
    load: Workload, engine: Engine, workers: WorkerProcesses, every: float | None, bar: ProgressBar
) -> StressResult:
    numbers = iter(range(load.runs))
    latencies: list[float] = []
    failures = 0

    async def run_one_by_one() -> None:
        nonlocal failures
        for _ in numbers:
            begun = time.perf_counter()
            run: Handle[Any] = await engine.start(Call("perdure.stress.v1", {"payload": "x" * load.payload}))
            try:
                await run.result()
            except RunFailed:
                failures += 1
            latencies.append(time.perf_counter() - begun)
            bar.advance()

    async def watch() -> None:
        while True:
            workers.check()
            await asyncio.sleep(_POLL)

    begun = time.perf_counter()
    tasks = [asyncio.create_task(run_one_by_one()) for _ in range(min(load.concurrent, load.runs))]
    watchers = [asyncio.create_task(watch())]
    if every is not None:
        watchers.append(asyncio.create_task(workers.kill_every(every)))
    try:
        await _wait_for_all(asyncio.gather(*tasks), watchers)
    finally:
        for task in (*tasks, *watchers):
            task.cancel()
        await asyncio.gather(*tasks, *watchers, return_exceptions=True)
    taken = time.perf_counter() - begun
    return summarize(latencies, failures, load.steps + load.activities, taken, workers.kills)


async def _wait_for_all(work: asyncio.Future[Any], watchers: list[asyncio.Task[None]]) -> None:
    """Wait for the work; raise the error of a watcher that ends first."""
    done, _ = await asyncio.wait([work, *watchers], return_when=asyncio.FIRST_COMPLETED)
    with suppress(asyncio.CancelledError):
        for task in done:
            task.result()


def _print_result(output: Printer, result: StressResult) -> None:
    output.fields(
        [
            ("runs", f"{result.runs:,} in {result.seconds:.2f} s"),
            ("throughput", f"{result.runs_per_second:,.0f} runs/s, {result.steps_per_second:,.0f} steps/s"),
            ("latency", f"p50 {_ms(result.p50)}, p99 {_ms(result.p99)}, max {_ms(result.longest)}"),
            ("failed", f"{result.failed:,} ({result.failed_percent:.2f} %)"),
            ("killed", f"{result.kills} workers" if result.kills else ""),
        ]
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


#: Lines that report the progress where standard error is not a terminal.
_LINES = 10


class StressResult(Struct, frozen=True, kw_only=True):
    """Figures of a stress test; times in seconds."""

    runs: int
    completed: int
    failed: int
    seconds: float
    runs_per_second: float
    #: Steps and activities that succeeded.
    steps_per_second: float
    failed_percent: float
    p50: float
    p99: float
    longest: float
    #: Worker processes that were killed.
    kills: int


def summarize(latencies: Sequence[float], failed: int, operations: int, seconds: float, kills: int) -> StressResult:
    """Compute the figures from the latency of each run, from start to result."""
    ordered = sorted(latencies)
    completed = len(ordered) - failed
    return StressResult(
        runs=len(ordered),
        completed=completed,
        failed=failed,
        seconds=seconds,
        runs_per_second=len(ordered) / seconds,
        steps_per_second=completed * operations / seconds,
        failed_percent=100 * failed / len(ordered),
        p50=percentile(ordered, 0.50),
        p99=percentile(ordered, 0.99),
        longest=ordered[-1],
        kills=kills,
    )


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the smallest value that at least this part of the sorted values do not exceed."""
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)]


class ProgressBar:
    """Counter of finished runs on standard error: a bar on a terminal, else a line per tenth."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._total = total
        self._quiet = quiet
        self._done = 0
        self._bar: Progress | None = None

    def __enter__(self) -> ProgressBar:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task("runs", total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self) -> None:
        """Count one finished run."""
        before = self._done * _LINES // self._total
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])
        elif not self._quiet and self._done * _LINES // self._total > before:
            print(f"{self._done:,} of {self._total:,} runs", file=sys.stderr, flush=True)
