"""`perdure stress`: how much a database and some workers can do, and what becomes of it when workers are killed."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import click
import msgspec

from perdure.cli.console.output import Output
from perdure.cli.console.params import with_output
from perdure.cli.stress.crew import Workers
from perdure.cli.stress.load import Load, engine_of
from perdure.cli.stress.outcome import Outcome, outcome_of
from perdure.cli.stress.progress import Bar
from perdure.core.audit import Audit
from perdure.core.time.duration import seconds
from perdure.errors import RunFailed
from perdure.host import Host
from perdure.store import open_store
from perdure.workflow.definition import Call

#: How often to look at the workers, in seconds.
_LOOK = 0.05


@click.command("stress")
@click.option(
    "--store", help="A database to use; its own tables are made in it and dropped.  [default: a file of its own]"
)
@click.option("--runs", type=click.IntRange(1), default=1000, show_default=True, help="Runs in all.")
@click.option("--concurrent", type=click.IntRange(1), default=100, show_default=True, help="Runs under way at once.")
@click.option("--steps", type=click.IntRange(0), default=3, show_default=True, help="Steps of each run.")
@click.option("--activities", type=click.IntRange(0), default=0, show_default=True, help="Activities that each awaits.")
@click.option("--failure-rate", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Attempts that fail.")
@click.option("--attempts", type=click.IntRange(1), default=1, show_default=True, help="Attempts at each step.")
@click.option("--latency", default="0s", show_default=True, help="How long a step takes.")
@click.option("--payload", type=click.IntRange(0, 500_000), default=16, show_default=True, help="Bytes of each value.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Worker processes.")
@click.option("--slots", type=click.IntRange(1), default=300, show_default=True, help="Runs that one works on at once.")
@click.option("--lease", default="15s", show_default=True, help="Of the workers; shorter where they are killed.")
@click.option("--kill", help="Kill a worker with SIGKILL so often, such as 2s, and start another.")
@click.option("--audit", type=click.Choice([level.value for level in Audit]), default="lifecycle", show_default=True)
@with_output
def command(
    store: str | None, workers: int, slots: int, lease: str, kill: str | None, output: Output, **knobs: Any
) -> None:
    """Start many runs, work on them in processes of their own, and report how long it took.

    Without --store, a file that is thrown away; with it, tables of a name of their own, which are dropped in the end.
    """
    knobs["latency"] = seconds(knobs["latency"])
    every = None if kill is None else max(0.05, seconds(kill))
    seconds(lease)
    # The workers are children of this process: whoever ends it must not leave them behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _place(store) as url:
        load = Load(url=url, **knobs)
        with Bar(load.runs, quiet=output.json) as bar:
            outcome = asyncio.run(_stress(load, Workers(load, workers, slots, lease), every, bar))
    if output.json:
        output.document({**msgspec.to_builtins(outcome), **knobs, "workers": workers})
    else:
        _show(output, outcome)


@contextmanager
def _place(store: str | None) -> Generator[str]:
    """A URL whose tables are nobody else's."""
    if store is None:
        with tempfile.TemporaryDirectory(prefix="perdure-stress-") as folder:
            yield f"sqlite:///{folder}/stress.db"
        return
    parts = urlsplit(store)
    options = {**dict(parse_qsl(parts.query, keep_blank_values=True)), "prefix": f"stress_{Host().entropy(4).hex()}_"}
    # Nothing between the slashes is dropped by this: a relative file has none there.
    url = urlunsplit(parts._replace(query=urlencode(options)))
    yield url if not store.startswith("sqlite:///") else f"{store.partition('?')[0]}?{urlencode(options)}"


@asynccontextmanager
async def _removed_in_the_end(url: str) -> AsyncGenerator[None]:
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


async def _stress(load: Load, workers: Workers, every: float | None, bar: Bar) -> Outcome:
    engine = engine_of(load)
    async with _removed_in_the_end(load.url), engine:
        try:
            workers.start()
            # What is measured is the work, and not how long a process takes to start.
            while len(await engine.workers.list()) < workers.count:
                workers.check()
                await asyncio.sleep(_LOOK)
            return await _measure(load, engine, workers, every, bar)
        finally:
            await asyncio.to_thread(workers.stop)


async def _measure(load: Load, engine: Any, workers: Workers, every: float | None, bar: Bar) -> Outcome:
    numbers = iter(range(load.runs))
    latencies: list[float] = []
    failures = 0

    async def one_after_another() -> None:
        nonlocal failures
        for _ in numbers:
            begun = time.perf_counter()
            run = await engine.start(Call("perdure.stress.v1", {"payload": "x" * load.payload}))
            try:
                await run.result()
            except RunFailed:
                failures += 1
            latencies.append(time.perf_counter() - begun)
            bar.advance()

    async def watch() -> None:
        while True:
            workers.check()
            await asyncio.sleep(_LOOK)

    begun = time.perf_counter()
    tasks = [asyncio.create_task(one_after_another()) for _ in range(min(load.concurrent, load.runs))]
    beside = [asyncio.create_task(watch())]
    if every is not None:
        beside.append(asyncio.create_task(workers.kill_every(every)))
    try:
        await _first_trouble(asyncio.gather(*tasks), beside)
    finally:
        for task in (*tasks, *beside):
            task.cancel()
        await asyncio.gather(*tasks, *beside, return_exceptions=True)
    taken = time.perf_counter() - begun
    return outcome_of(latencies, failures, load.steps + load.activities, taken, workers.kills)


async def _first_trouble(work: asyncio.Future[Any], beside: list[asyncio.Task[None]]) -> None:
    """Wait for the work; raise what goes wrong beside it."""
    done, _ = await asyncio.wait([work, *beside], return_when=asyncio.FIRST_COMPLETED)
    with suppress(asyncio.CancelledError):
        for task in done:
            task.result()


def _show(output: Output, outcome: Outcome) -> None:
    output.fields([
        ("runs", f"{outcome.runs:,} in {outcome.seconds:.2f} s"),
        ("throughput", f"{outcome.runs_per_second:,.0f} runs/s, {outcome.steps_per_second:,.0f} steps/s"),
        ("latency", f"p50 {outcome.p50 * 1000:,.1f} ms, p99 {outcome.p99 * 1000:,.1f} ms, max {outcome.longest * 1000:,.1f} ms"),
        ("failed", f"{outcome.failed:,} ({outcome.failed_percent:.2f} %)"),
        ("killed", f"{outcome.kills} workers" if outcome.kills else ""),
    ])  # fmt: skip
