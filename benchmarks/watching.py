"""watched: what open dashboards cost the workers, side by side with none.

The server of the dashboards and their tabs are a process of their own: `python -m benchmarks.watching URL`. A tab does
what `app.js` does: it reads its page once and follows the stream of that view.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from urllib.parse import urlencode

from benchmarks.bench import Bench, Result, Spent, median, until, work_off
from benchmarks.programs import ALL, steps
from perdure import Engine
from perdure.dashboard import Dashboard
from perdure.http import Access, HttpApp
from perdure.http.server import make_server

TABS = 10
#: Pages that are open, in turns.
PAGES = ("/", "/runs", "/workflows", "/queues", "/workers")


async def watched(bench: Bench) -> Result:
    """Workflows of ten sequential steps, with ten dashboards open and with none, in turns."""
    sizes = bench.sizes
    runs = max(1, sizes.runs)
    measured: dict[str, list[float]] = {}
    async with bench.engine() as engine:
        await engine.open()
        for _ in range(sizes.rounds):
            bench.raw.sample()
            spent: list[Spent] = []
            # Between two others, so that tables that grow and a machine that is busy slow down both alike.
            for name in ("alone", "watched", "alone"):
                async with _dashboards(bench.url) if name == "watched" else contextlib.nullcontext() as pages:
                    one = await work_off(engine, [steps(10) for _ in range(runs)], runs * 10, sizes.slots)
                    if pages is not None:
                        # In percent of a core: server and tabs, which share the machine with the worker.
                        measured.setdefault("pages_cpu_percent", []).append(await pages.cpu_percent())
                measured.setdefault(f"{name}_steps_per_s", []).append(runs * 10 / one.wall)
                measured.setdefault(f"{name}_cpu_us_per_step", []).append(one.cpu / runs / 10 * 1e6)
                spent.append(one)
            ratio = (spent[0].wall + spent[2].wall) / 2 / spent[1].wall
            measured.setdefault("ratio_watched_to_alone", []).append(ratio)
    figures = {name: (min if "cpu_us" in name else median)(values) for name, values in measured.items()}
    return bench.result(runs=runs, steps=runs * 10, tabs=TABS, **figures)


class _Pages:
    """The process that serves the dashboards to their tabs; it tells its CPU time and the time when it is asked."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._first = (0.0, 0.0)

    async def begin(self) -> None:
        """Wait until all tabs are open."""
        self._first = await self._read()

    async def cpu_percent(self) -> float:
        """CPU of the process since all tabs were open, in percent of a core."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"?\n")
        await self._process.stdin.drain()
        cpu, at = await self._read()
        return 100 * (cpu - self._first[0]) / (at - self._first[1])

    async def _read(self) -> tuple[float, float]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the server of the dashboards did not start, or has ended")
        cpu, at = line.split()
        return float(cpu), float(at)


def _answer() -> None:
    if sys.stdin.readline():
        _tell()


def _tell() -> None:
    print(time.process_time(), time.perf_counter(), flush=True)


@contextlib.asynccontextmanager
async def _dashboards(url: str) -> AsyncIterator[_Pages]:
    """A server with open tabs, in a process of its own."""
    command = (sys.executable, "-m", "benchmarks.watching", url)
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        pages = _Pages(process)
        await pages.begin()
        yield pages
        if process.returncode is not None:
            raise RuntimeError("the server of the dashboards ended; the measurement is void")
    finally:
        with contextlib.suppress(ProcessLookupError):
            # It only reads; to end in order, it would wait for its streams.
            process.kill()
        await process.wait()


async def serve(url: str) -> None:
    """Serve the pages of a database to ten tabs, until the process is ended."""
    async with Engine(url, ALL) as engine:
        app = HttpApp(engine, access=Access(anonymous="viewer"), pages=Dashboard(), rate=1e6, burst=10**6)
        server = make_server(app, "127.0.0.1", 0)
        server.config.log_level = "critical"
        task = asyncio.ensure_future(server.serve())

        async def started() -> bool:
            return server.started

        await until(started, every=0.01)
        port: int = server.servers[0].sockets[0].getsockname()[1]
        tabs = [_Tab(port, PAGES[number % len(PAGES)]) for number in range(TABS)]
        following = [asyncio.ensure_future(tab.follow()) for tab in tabs]
        await asyncio.gather(*(tab.connected.wait() for tab in tabs))
        _tell()
        asyncio.get_running_loop().add_reader(sys.stdin, _answer)
        # None of them ends by itself.
        done, _ = await asyncio.wait({task, *following}, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()


class _Tab:
    """An open page."""

    def __init__(self, port: int, page: str) -> None:
        self._port = port
        self._page = page
        self.connected = asyncio.Event()

    async def follow(self) -> None:
        """Read the page, then the contents that the server sends when the view has changed."""
        await self._read()
        reader = await self._ask(f"/live?{urlencode({'view': self._page})}")
        if not (await reader.read(65536)).startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the view of {self._page} cannot be followed")
        self.connected.set()
        while await reader.read(65536):
            pass
        raise RuntimeError(f"the stream of {self._page} ended; the measurement is void")

    async def _read(self) -> None:
        answer = await (await self._ask(self._page)).read()
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{self._page} could not be read: {answer[:200]!r}")

    async def _ask(self, path: str) -> _Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        return _Answer(reader, writer)


class _Answer:
    """Bytes of an answer; it keeps the writer, because a connection ends with it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, most: int = -1) -> bytes:
        """Read some, or all."""
        return await self._reader.read(most)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
