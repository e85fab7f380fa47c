"""Tell a worker to stop at every crash point: it ends by itself, and has given back all that it held without waiting for its lease."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from perdure.testing.crash import Trap
from tests.faults.evidence import judge, snapshot
from tests.faults.family import Family

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
AT_ONCE = 4

#: Nobody waits for this to pass: what others can take was given back.
LEASE = 600.0


#: Passed while the database is opened, before there is a worker that could be told.
BEFORE = [f"{verb}.{point}" for verb in ("status", "migrate") for point in ("enter", "begun", "written", "committed")]


@pytest.mark.timeout(7200 if WHOLE else 300)
async def test_a_worker_told_to_stop_at_any_point_ends_and_leaves_nothing_behind(
    processes: Family, tmp_path: Path
) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def stop_at(directory: Path, trap: Trap | None) -> list[str]:
        trapped = None if trap is None else msgspec.to_builtins(trap)
        worker = await processes.fork("work", directory, lease=LEASE, trap=trapped)
        client = await processes.fork("ask", directory)
        ending = asyncio.ensure_future(worker.ended())
        await asyncio.wait([ending, asyncio.ensure_future(client.ended())], return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            worker.signal(signal.SIGTERM)
        assert await ending == 0, f"told to stop at {trap}:\n{worker.noise()}"
        last = await processes.fork("drive", directory, last=True)
        assert await last.ended() == 0, f"told to stop at {trap}:\n{last.noise()}"
        assert await client.ended() == 0, f"told to stop at {trap}:\n{last.noise()}"
        wrong = judge(directory, [])
        reclaimed = [run for run, kind in snapshot(directory, "events").events if kind == "reclaimed"]
        assert not wrong, f"told to stop at {trap}, in {directory}:\n" + "\n".join(wrong) + worker.noise()
        assert not reclaimed, f"told to stop at {trap}, in {directory}: somebody had to take away {reclaimed}"
        return worker.passed

    async def case(number: int, trap: Trap) -> None:
        async with room:
            directory = tmp_path / f"{number:05}"
            await stop_at(directory, trap)
            shutil.rmtree(directory)

    passed = Counter(await stop_at(tmp_path / "dry", None))
    for point in BEFORE:
        passed.pop(point, None)
    async with asyncio.TaskGroup() as group:
        for number, (point, often) in enumerate(passed.items()):
            for hit in range(1, often + 1) if WHOLE else [random.randint(1, often)]:
                group.create_task(case(1000 * number + hit, Trap(point=point, hit=hit, signal=signal.SIGTERM)))
