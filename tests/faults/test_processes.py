"""Worker processes as they are run: told to stop, killed by what they run, blocked, sharing a queue, forked."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, Handle, Status
from perdure.core.model.worker_info import WorkerStatus
from tests.faults import app, labour
from tests.faults.evidence import scan_for_wrongs
from tests.faults.family import ROOT, Child, Family
from tests.faults.homes import SqliteHome
from tests.faults.roles import WORKFLOWS
from tests.helpers import eventually

#: A lease that no test waits for: what is taken over within its time was given back.
LONG = 600.0


class Site:
    """A directory in which workers work, and the client's view of it."""

    def __init__(self, processes: Family, directory: Path, engine: Engine) -> None:
        self.engine = engine
        self.directory = directory
        self.ledger = str(directory / "ledger")
        self._processes = processes

    async def worker(self, **options: Any) -> Child:
        worker = await self._processes.fork("work", self.directory, **options)
        await eventually(lambda: any(line["verb"] == "claim" for line in worker.answers()))
        return worker

    async def role(self, name: str, **options: Any) -> Child:
        return await self._processes.fork(name, self.directory, **options)

    def steps(self, location: str) -> list[dict[str, Any]]:
        """The executions of a step, in order."""
        return [line for line in app.read(Path(self.ledger)) if line.get("location") == location]

    def lines(self, did: str) -> list[dict[str, Any]]:
        return [line for line in app.read(Path(self.ledger)) if line["did"] == did]

    async def executed(self, location: str, times: int = 1) -> None:
        await eventually(lambda: len(self.steps(location)) >= times, saying=f"{times} executions of {location}")

    def open_gate(self) -> None:
        labour.gate(self.ledger).touch()

    async def events(self, handle: Handle[Any]) -> Counter[str]:
        return Counter(event.kind for event in await handle.events())


@pytest.fixture
async def site(processes: Family, tmp_path: Path) -> AsyncIterator[Site]:
    async with Engine(f"sqlite:///{tmp_path}/runs.db", WORKFLOWS) as engine:
        yield Site(processes, tmp_path, engine)
    assert not await scan_for_wrongs(SqliteHome(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("in_a_thread", [False, True], ids=["async", "thread"])
async def test_a_worker_told_to_stop_lets_its_steps_finish_and_gives_its_runs_back(
    site: Site, number: signal.Signals, in_a_thread: bool
) -> None:
    location = "waits_in_a_thread" if in_a_thread else "waits"
    first = await site.worker(lease=LONG, grace=LONG, trap={"point": "shutdown.begin", "signal": 0})
    run = await site.engine.start(labour.waiting(site.ledger, in_a_thread=in_a_thread))
    await site.executed(location)
    first.signal(number)
    await eventually(lambda: first.caught == "shutdown.begin")
    site.open_gate()
    assert await first.ended() == 0, first.noise()
    assert await run.status() is Status.PENDING
    assert [record.location for record in await run.history()] == [location]
    await site.worker(lease=LONG)
    await run.result(timeout=30)
    assert [len(site.steps(each)) for each in (location, "effect")] == [1, 1]


@pytest.mark.parametrize("in_a_thread", [False, True], ids=["async", "thread"])
async def test_what_has_not_finished_within_the_grace_period_is_given_back_at_once(
    site: Site, in_a_thread: bool
) -> None:
    first = await site.worker(lease=LONG, grace=0.05)
    run = await site.engine.start(labour.waiting(site.ledger, in_a_thread=in_a_thread))
    location = "waits_in_a_thread" if in_a_thread else "waits"
    await site.executed(location)
    first.signal(signal.SIGTERM)
    assert await first.ended() == 0, first.noise()
    assert len(site.lines("cancelled")) == (0 if in_a_thread else 1)
    site.open_gate()
    second = await site.worker(lease=LONG)
    await run.result(timeout=30)
    assert [line["pid"] for line in site.steps(location)] == [first.pid, second.pid]


async def test_a_second_signal_does_not_wait_for_the_grace_period(site: Site) -> None:
    worker = await site.worker(lease=LONG, grace=LONG, trap={"point": "shutdown.begin", "signal": 0})
    run = await site.engine.start(labour.waiting(site.ledger))
    await site.executed("waits")
    worker.signal(signal.SIGTERM)
    await eventually(lambda: worker.caught == "shutdown.begin")
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == 0, worker.noise()
    assert await run.status() is Status.PENDING


async def test_a_second_signal_ends_a_worker_that_the_database_keeps_waiting(site: Site) -> None:
    worker = await site.worker(lease=LONG, grace=LONG, trap={"point": "shutdown.begin", "signal": 0})
    run = await site.engine.start(labour.waiting(site.ledger))
    await site.executed("waits")
    holder = sqlite3.connect(site.directory / "runs.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        worker.signal(signal.SIGTERM)
        await eventually(lambda: worker.caught == "shutdown.begin")
        worker.signal(signal.SIGTERM)
        # Far less than the half minute for which a verb waits for a busy database.
        async with asyncio.timeout(20):
            assert await worker.ended() == 0, worker.noise()
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    assert await run.status() is Status.RUNNING


async def test_an_interpreter_ends_although_a_step_is_still_in_its_thread(site: Site) -> None:
    code = (
        "from pathlib import Path; from tests.faults.roles import ROLES; "
        f"ROLES['work'](Path({str(site.directory)!r}), lease={LONG}, grace=0.05)"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=ROOT)
    try:
        run = await site.engine.start(labour.waiting(site.ledger, in_a_thread=True))
        await site.executed("waits_in_a_thread")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert await run.status() is Status.PENDING


async def test_two_workers_share_a_queue_and_execute_nothing_twice(site: Site) -> None:
    workers = [await site.worker(lease=LONG, slots=4) for _ in range(2)]
    started = 0
    while {line["pid"] for line in site.steps("effect")} != {worker.pid for worker in workers}:
        assert started < 2000, "one of them does all the work"
        runs = await site.engine.start_many([labour.quick(site.ledger)] * 100)
        started += 100
        await asyncio.gather(*(run.result(timeout=60) for run in runs))
    executed = Counter(line["run"] for line in site.steps("effect"))
    assert len(executed) == started
    assert set(executed.values()) == {1}


@pytest.mark.timeout(240)
async def test_a_run_that_kills_its_workers_is_set_aside_and_the_healthy_ones_go_on(site: Site) -> None:
    poison = await site.engine.start(labour.killing(site.ledger), priority=1)
    neighbours = await site.engine.start_many([labour.quick(site.ledger)] * 10)
    supervising = asyncio.ensure_future(_supervise(site))
    try:
        healthy = 0
        while await poison.status() is not Status.BLOCKED:
            run = await site.engine.start(labour.quick(site.ledger))
            await run.result(timeout=60)
            healthy += 1
        await asyncio.gather(*(run.result(timeout=60) for run in neighbours))
    finally:
        supervising.cancel()
    # Twice among others, then with all who died with it, then with half of those at a time, and three times alone.
    assert 2 + 3 <= len(site.steps("kills")) <= 2 + 1 + 3 + 3
    assert healthy
    assert (await poison.info()).reason == "poison"
    assert "claimed 5 times" in (await poison.info()).error  # type: ignore[operator] # it has one


async def _supervise(site: Site) -> None:
    """Keep two workers running, as an init system would."""

    async def keep_one() -> None:
        while True:
            # A worker that got no processor for its lease would lose the run without being killed by it.
            worker = await site.role("work", lease=2.0)
            assert await worker.ended() == -signal.SIGKILL, worker.noise()

    await asyncio.gather(keep_one(), keep_one())


async def test_a_blocked_event_loop_does_not_cost_the_lease(site: Site) -> None:
    lease = 6.0
    first = await site.worker(lease=lease)
    run = await site.engine.start(labour.blocking(site.ledger))
    await site.executed("blocks")
    await site.worker(lease=lease)
    begun = await _heartbeat(site, first)

    async def has_outlived_its_lease() -> bool:
        return await _heartbeat(site, first) - begun > 1.5 * lease * 1e6

    await eventually(has_outlived_its_lease)
    site.open_gate()
    await run.result(timeout=30)
    assert len(site.steps("blocks")) == 1
    assert not (await site.events(run))["reclaimed"]


async def _heartbeat(site: Site, process: Child) -> int:
    [worker] = [worker for worker in await site.engine.workers.list() if worker.pid == process.pid]
    return worker.heartbeat_at


async def test_a_worker_blocked_for_too_long_loses_its_runs_and_begins_a_new_life(site: Site) -> None:
    first = await site.worker(lease=1.5, stall_limit=1.5)
    run = await site.engine.start(labour.blocking(site.ledger))
    await site.executed("blocks")
    second = await site.worker(lease=5.0)
    result = await run.result(timeout=30)
    assert [line["pid"] for line in site.steps("blocks")] == [first.pid, second.pid]
    second.signal(signal.SIGTERM)
    assert await second.ended() == 0, second.noise()
    site.open_gate()
    await (await site.engine.start(labour.quick(site.ledger), id="next")).result(timeout=30)
    assert [line["pid"] for line in site.steps("effect")] == [first.pid]
    lives = [worker.status for worker in await site.engine.workers.list() if worker.pid == first.pid]
    assert sorted(lives) == [WorkerStatus.ALIVE, WorkerStatus.DEAD]
    assert await run.result() == result == site.steps("blocks")[-1]["value"]
    assert "has been blocked for" in first.noise()


async def test_a_worker_full_of_abandoned_threads_says_so_and_claims_nothing_until_they_end(site: Site) -> None:
    worker = await site.worker(lease=LONG)
    abandoning = await site.engine.start(labour.abandoning(site.ledger, 50))
    assert await abandoning.result(timeout=30) == 50
    run = await site.engine.start(labour.quick(site.ledger))
    await eventually(lambda: "50 threads" in worker.noise())
    assert await run.status() is Status.PENDING
    site.open_gate()
    await run.result(timeout=30)
    assert len(site.lines("returned")) == 50
    assert {record.failed for record in await abandoning.history()} == {True}


async def test_an_engine_is_used_and_closed_in_a_forked_process_and_its_parent_goes_on(site: Site) -> None:
    process = await site.role("fork")
    assert await process.ended() == 0, process.noise()
    assert await (await site.engine.get("after the fork")).status() is Status.PENDING
