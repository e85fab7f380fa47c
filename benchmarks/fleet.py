"""w8: what a second worker process adds. Each worker is a process of its own; this one only queues and waits."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from benchmarks.bench import Bench, Result, median, none_left, probing, until
from benchmarks.programs import ALL, computing, steps
from perdure import Call, Engine, Status
from perdure.cli.workers import fast_loop, tune_collector

#: Sequential steps of each run.
STEPS = 10


async def w8(bench: Bench) -> Result:
    """The same queue of runs for one worker process and for two, with steps that do nothing and steps that compute."""
    # Many more than the workers have slots, so that both are at work until nearly the end: what one has taken, the
    # other cannot.
    runs = max(2, 5 * bench.sizes.runs)
    slower = max(2, bench.sizes.runs)
    slots = bench.sizes.slots
    alone, together, ratios = [], [], []
    computed, busy_ratios = [], []
    async with bench.engine() as engine:
        for _ in range(bench.sizes.rounds):
            bench.raw.sample()
            one, two = [await _work_off(bench, engine, [steps(STEPS)] * runs, n, slots) for n in (1, 2)]
            alone.append(one)
            together.append(two)
            ratios.append(one / two)
            one, two = [await _work_off(bench, engine, [computing(STEPS)] * slower, n, slots) for n in (1, 2)]
            computed.append(two)
            busy_ratios.append(one / two)
    return bench.result(
        runs=runs,
        steps=runs * STEPS,
        runs_per_s=runs / median(together),
        steps_per_s=runs * STEPS / median(together),
        alone_steps_per_s=runs * STEPS / median(alone),
        ratio_two_workers_to_one=median(ratios),
        computing_steps_per_s=slower * STEPS / median(computed),
        ratio_two_workers_to_one_computing=median(busy_ratios),
    )


async def _work_off(bench: Bench, engine: Engine, calls: Sequence[Call[int]], workers: int, slots: int) -> float:
    """Seconds from the start of the workers, whose processes are there already, until the last step."""
    for start in range(0, len(calls), 1000):
        await engine.start_many(calls[start : start + 1000])
    async with AsyncExitStack() as stack:
        children = [await stack.enter_async_context(_process(bench, slots)) for _ in range(workers)]
        begun = time.perf_counter()
        for child in children:
            _tell(child)
        await _done(children, len(calls) * STEPS)
        took = time.perf_counter() - begun
        await until(lambda: none_left(engine, Status.PENDING, Status.RUNNING, Status.WAITING), every=0.02)
    return took


async def _done(children: list[asyncio.subprocess.Process], expected: int) -> None:
    """Wait until the processes have reported so many steps. Asking the database would be part of what is measured."""
    counts = [0] * len(children)
    reached = asyncio.Event()

    async def listen(number: int, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            counts[number] = int(line)
            if sum(counts) >= expected:
                reached.set()
                return

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(listen(number, _lines(child))) for number, child in enumerate(children)]
        await reached.wait()
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def _process(bench: Bench, slots: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that is ready to be a worker; it becomes one at the first word and ends at the second."""
    command = (sys.executable, "-m", "benchmarks.fleet", bench.url, str(slots))
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    await _lines(child).readline()
    try:
        yield child
    finally:
        _tell(child)
        await child.communicate()
        if child.returncode:
            raise RuntimeError(f"a worker process ended with status {child.returncode}; the measurement is void")


def _lines(child: asyncio.subprocess.Process) -> asyncio.StreamReader:
    assert child.stdout is not None
    return child.stdout


def _tell(child: asyncio.subprocess.Process) -> None:
    assert child.stdin is not None
    child.stdin.write(b"\n")


async def _work(url: str, slots: int) -> None:
    words = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    async with Engine(url, ALL) as engine:
        print("ready", flush=True)
        await words.readline()
        async with probing(sys.maxsize) as probe, engine.worker(slots=slots):
            over = asyncio.ensure_future(words.readline())
            while not over.done():
                await asyncio.wait([over], timeout=0.005)
                print(len(probe.times), flush=True)


if __name__ == "__main__":
    tune_collector()
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        runner.run(_work(sys.argv[1], int(sys.argv[2])))
