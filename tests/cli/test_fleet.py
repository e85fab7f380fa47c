"""`perdure worker --processes`: several worker processes that one supervisor starts, replaces and drains."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from perdure import Engine
from perdure.cli.children.parent_side import RestartPauses
from perdure.cli.fleet.shares import Shares, usable_processors
from perdure.errors import UsageError
from perdure.store.url import parse, with_shared_pool
from tests.helpers import eventually
from tests.servers.private import free_port
from tests.stage import Stage

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux lets one wait for such a process")

SHOP = """
import asyncio, os, pathlib
from perdure import Context, Engine, Retry, step, workflow

@step(retry=Retry.never())
async def work(name: str, waits: bool) -> str:
    pathlib.Path(f"began-{name}-{os.getpid()}").touch()
    while waits and not pathlib.Path(f"go-{name}").exists():
        await asyncio.sleep(0.01)
    return "VERSION"

@workflow("flow.v1")
async def flow(ctx: Context, name: str, waits: bool = False) -> str:
    return await ctx.step(work, name, waits)

engine = Engine(os.environ["SHOP_URL"], [flow])
"""


class Fleet:
    """A `perdure worker --processes` in a process of its own, and the lines that it writes."""

    def __init__(self, process: subprocess.Popen[str], place: Path) -> None:
        self.process = process
        self.place = place
        self.seen: list[dict[str, Any]] = []
        self._queue: Queue[dict[str, Any] | None] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        # The test may close the pipe while this thread waits for a line.
        with contextlib.suppress(ValueError):
            for line in self.process.stdout:
                self._queue.put(json.loads(line))
        self._queue.put(None)

    def until(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next line that fits."""
        while True:
            line = self._queue.get(timeout=90)
            assert line is not None, self.seen
            self.seen.append(line)
            if fits(line):
                return line

    def working(self, count: int) -> dict[int, int]:
        """Wait for so many processes to work; returns their process ids by number."""
        lines = [self.until(lambda line: line.get("event") == "working") for _ in range(count)]
        return {line["process"]: line["pid"] for line in lines}

    def logged(self, pattern: str) -> dict[str, Any]:
        """Wait for a log record."""
        return self.until(lambda line: re.search(pattern, line.get("message", "")) is not None)

    def rest(self) -> list[dict[str, Any]]:
        """The lines up to the end of the process and of its children."""
        found = []
        while (line := self._queue.get(timeout=90)) is not None:
            found.append(line)
        return found

    async def began(self, name: str) -> int:
        """Wait for the step of a run to begin; returns the id of its process."""

        def look() -> list[str]:
            return [one.name for one in self.place.glob(f"began-{name}-*")]

        found = await eventually(look, saying=f"step {name} having begun")
        return int(found[-1].rpartition("-")[2])

    def go(self, name: str) -> None:
        """Let the step of a run end."""
        (self.place / f"go-{name}").touch()


def write(place: Path, version: str) -> None:
    (place / "shop.py").write_text(SHOP.replace("VERSION", version), encoding="utf-8")


@contextmanager
def fleet(place: Path, url: str, *options: str, processes: str = "2") -> Iterator[Fleet]:
    if not (place / "shop.py").exists():
        write(place, "one")
    command = [
        *(sys.executable, "-m", "perdure.cli", "worker", "shop:engine", "--json", "--processes", processes),
        *("--log-format", "json", *options),
    ]  # fmt: skip
    environment = {**os.environ, "SHOP_URL": url, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield Fleet(process, place)
        finally:
            process.kill()


def ends(pid: int) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 60)[0])
    finally:
        os.close(handle)


async def start(engine: Engine, name: str, **arguments: Any) -> Any:
    from perdure import Call

    return await engine.start(Call.named("flow.v1", name=name, **arguments), id=name)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.mark.parametrize("stage", ["file", "postgres"], indirect=True)
async def test_a_process_that_is_killed_is_replaced_and_its_runs_go_on(stage: Stage, tmp_path: Path) -> None:
    engine = stage.engine()
    with fleet(tmp_path, stage.url, "--slots", "5", "--lease", "5s", "--worker-id", "shop") as shop:
        first = await asyncio.to_thread(shop.working, 2)
        workers = {one.pid: one for one in await engine.workers.list()}
        assert {pid: (one.slots, one.id.partition(".")[0]) for pid, one in workers.items()} == {
            first[1]: (3, "shop-1"),
            first[2]: (2, "shop-2"),
        }
        run = await start(engine, "a", waits=True)
        victim = await shop.began("a")
        os.kill(victim, signal.SIGKILL)
        line = await asyncio.to_thread(shop.logged, "was killed by SIGKILL")
        assert (line["level"], f"pid {victim}" in line["message"]) == ("error", True)
        second = await asyncio.to_thread(shop.working, 1)
        [number] = second
        assert (first[number], second[number] != victim) == (victim, True)
        shop.go("a")
        assert await run.result() == "one"
        shop.process.send_signal(signal.SIGTERM)
        assert (await asyncio.to_thread(shop.rest))[-1] == {"event": "stopped", "pid": shop.process.pid}
        assert shop.process.wait(timeout=60) == 0


@pytest.mark.parametrize("stage", ["file", "postgres"], indirect=True)
async def test_children_of_a_supervisor_that_is_killed_drain(stage: Stage, tmp_path: Path) -> None:
    engine = stage.engine()
    with fleet(tmp_path, stage.url, "--grace", "10m") as shop:
        pids = await asyncio.to_thread(shop.working, 2)
        run = await start(engine, "a", waits=True)
        holder = await shop.began("a")
        shop.process.kill()
        [other] = set(pids.values()) - {holder}
        assert await asyncio.to_thread(ends, other)
        assert is_alive(holder)
        shop.go("a")
        assert await asyncio.to_thread(ends, holder)
        assert await run.result() == "one"
        assert [one.is_draining or str(one.status) for one in await engine.workers.list()] == ["stopped", "stopped"]


async def test_sighup_starts_processes_with_the_new_code_and_drains_the_old_ones(
    on_disk: Stage, tmp_path: Path
) -> None:
    engine = on_disk.engine()
    with fleet(tmp_path, on_disk.url, "--grace", "10m") as shop:
        old = await asyncio.to_thread(shop.working, 2)
        before = await start(engine, "before", waits=True)
        holder = await shop.began("before")

        (tmp_path / "shop.py").write_text("def (", encoding="utf-8")
        shop.process.send_signal(signal.SIGHUP)
        line = await asyncio.to_thread(shop.logged, "the old worker processes go on")
        assert (line["level"], "SyntaxError" in line["message"]) == ("error", True)

        write(tmp_path, "two")
        shop.process.send_signal(signal.SIGHUP)
        new = await asyncio.to_thread(shop.working, 2)
        [other] = set(old.values()) - {holder}
        assert await asyncio.to_thread(ends, other)
        after = await start(engine, "after")
        assert await after.result() == "two"
        assert is_alive(holder)
        shop.go("before")
        assert await before.result() == "one"
        assert await asyncio.to_thread(ends, holder)
        assert [is_alive(pid) for pid in new.values()] == [True, True]


async def test_one_signal_drains_even_if_every_process_gets_it_and_a_second_one_ends(
    on_disk: Stage, tmp_path: Path
) -> None:
    engine = on_disk.engine()
    with fleet(tmp_path, on_disk.url, "--grace", "10m") as shop:
        pids = await asyncio.to_thread(shop.working, 2)
        first, second = await start(engine, "a", waits=True), await start(engine, "b", waits=True)
        for name in "ab":
            await shop.began(name)
        # As systemd does, which signals all processes of a service.
        for pid in (shop.process.pid, *pids.values()):
            # One process may have begun both runs; the other ends at the supervisor's signal.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        # Such a process may have ended at its own signal before the supervisor counts.
        await asyncio.to_thread(shop.logged, "[12] worker processes drain")
        shop.go("a")
        assert await first.result() == "one"
        assert shop.process.poll() is None
        shop.process.send_signal(signal.SIGINT)
        await asyncio.to_thread(shop.logged, "second signal")
        assert await asyncio.to_thread(shop.process.wait, 60) == 0
        # The run was given back, not left to the end of a lease.
        assert await second.status() == "pending"


async def test_one_end_point_has_the_metrics_of_all_processes(on_disk: Stage, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    address = f"127.0.0.1:{free_port()}"
    with fleet(tmp_path, on_disk.url, "--slots", "5", "--metrics", address) as shop:
        await asyncio.to_thread(shop.working, 2)

        def has_all() -> bool:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
                text = answer.read().decode()
            return "perdure_workers 2.0" in text and 'perdure_worker_slots{state="free"} 5.0' in text

        await eventually(lambda: asyncio.to_thread(has_all), saying="the end point showing 2 workers with 5 slots")


def test_processes_that_die_at_once_are_a_crash_loop(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", encoding="utf-8")
    with fleet(tmp_path, "sqlite:///shop.db") as shop:
        lines = [shop.logged("another starts") for _ in range(3)]
        assert [re.findall(r"another starts in (\S+) s", one["message"])[0] for one in lines] == ["0.5", "1", "2"]
        assert [one["level"] for one in lines] == ["error", "error", "critical"]
        assert lines[-1]["message"].startswith("crash loop: worker process 1")
        shop.process.send_signal(signal.SIGTERM)
        assert shop.process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import nothing_of_that_name", "nothing_of_that_name"),
        ("from perdure import Engine\nengine = Engine('sqlite://')", "a database in memory"),
    ],
)
def test_code_that_cannot_be_used_ends_the_command(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "shop.py").write_text(text, encoding="utf-8")
    with fleet(tmp_path, "sqlite:///shop.db") as shop:
        [last] = shop.rest()
        assert (last["error"]["type"], error in last["error"]["message"]) == ("UsageError", True)
        assert shop.process.wait(timeout=60) == 1


def test_auto_is_one_process_on_sqlite(tmp_path: Path) -> None:
    with fleet(tmp_path, "sqlite:///shop.db", processes="auto") as shop:
        assert list(shop.working(1)) == [1]
        assert any("SQLite has one writer at a time" in one.get("message", "") for one in shop.seen)
        shop.process.send_signal(signal.SIGINT)
        assert [one for one in shop.rest() if one.get("event") == "working"] == []


def test_shares_add_up_to_what_was_given() -> None:
    shares = Shares(slots=10, step_processes=2, worker_id="w")
    parts = [shares.of(number, 4) for number in (1, 2, 3, 4)]
    assert [one.slots for one in parts] == [3, 3, 2, 2]
    assert [one.step_processes for one in parts] == [1, 1, 1, 1]
    with pytest.raises(UsageError, match="slots=10: 11 processes share the slots"):
        shares.check(11)


@pytest.mark.parametrize(
    ("url", "pools"),
    [
        ("postgresql://a:b@c/d", {1: 10, 2: 5, 3: 4, 100: 4}),
        ("postgresql://a:b@c/d?pool=40&notify=off", {4: 10}),
        ("postgresql://a:b@c/d?notify=off&pool=3", {4: 3}),
        ("mysql://a:b@c/d?pool=12", {2: 6}),
    ],
)
def test_processes_share_the_connections_of_the_url(url: str, pools: dict[int, int]) -> None:
    for processes, pool in pools.items():
        shared = parse(with_shared_pool(url, processes))
        assert shared == parse(re.sub(r"(?<=[?&])pool=\d+", f"pool={pool}", url)) or shared.pool == pool  # type: ignore[union-attr]
    assert with_shared_pool("sqlite:///a.db", 4) == "sqlite:///a.db"


def test_processors_are_those_of_the_container(tmp_path: Path) -> None:
    all_of_them = usable_processors(tmp_path / "missing")
    quota = tmp_path / "cpu.max"
    for text, expected in [("max 100000", all_of_them), ("50000 100000", 1), ("9900000 100000", all_of_them)]:
        quota.write_text(text, encoding="ascii")
        assert usable_processors(quota) == expected


def test_pauses_grow_while_children_die_young() -> None:
    pauses = RestartPauses(stable=30, first=0.5, longest=3)
    assert [pauses.after(lived) for lived in (1, 1, 29, 1, 1, 31, 1)] == [0.5, 1, 2, 3, 3, 0, 0.5]
