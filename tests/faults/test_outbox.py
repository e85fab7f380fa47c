"""Kill the process that publishes and delivers events at the crash points that it passes; another one goes on."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from perdure import Context, Engine, workflow
from perdure.host import Host
from perdure.outbox import CloudEvent, Subscription
from perdure.testing.crash import CrashingHost, Trap
from tests.helpers import eventually

CASES = 200 if os.environ.get("PERDURE_PROVE") else 12
EVENTS = 3
RUN = "published"


@workflow("faults.publishes.v1")
async def publishes(ctx: Context) -> None:
    for index in range(EVENTS):
        ctx.publish_event("counted", index, key="one")
        ctx.publish_event("counted", index, key="other", id=f"other-{index}")
        if index:
            await ctx.step(pause)


def pause() -> None: ...


async def work(url: str, file: Path, system: Host) -> None:
    """Publish, and work until every event has arrived in two places and every run has ended."""

    async def keep(name: str, event: CloudEvent) -> None:
        line = json.dumps([name, event.partitionkey, event.data, event.id]) + "\n"
        with file.open("a") as out:
            out.write(line)

    outbox = [Subscription(name, partial(keep, name)) for name in ("a", "b")]
    async with Engine(url, [publishes], outbox=outbox, system=system) as engine:
        await engine.start(publishes(), id=RUN)

        async def over() -> bool:
            runs = (await engine.runs.list(limit=100)).runs
            return len(runs) == 1 + 2 * EVENTS * 3 and all(run.status.finished for run in runs)

        async with engine.worker(lease="1s"):
            await eventually(over)


def in_process(url: str, file: Path, hit: int) -> int:
    """Work in another process, killed at that crash point; 0: at none. Returns the number of points passed, or -9."""
    command = [sys.executable, "-m", "tests.faults.test_outbox", url, str(file), str(hit)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=120)
    return done.returncode or int(done.stdout)


def check(file: Path) -> None:
    first: dict[tuple[str, str], list[int]] = {}
    ids: dict[tuple[str, int], set[str]] = {}
    for line in file.read_text().splitlines():
        name, key, index, id = json.loads(line)
        arrived = first.setdefault((name, key), [])
        if index not in arrived:
            arrived.append(index)
        ids.setdefault((key, index), set()).add(id)
    expected = list(range(EVENTS))
    assert first == {(name, key): expected for name in ("a", "b") for key in ("one", "other")}
    assert {len(known) for known in ids.values()} == {1}


def test_events_arrive_in_order_wherever_the_process_is_killed(tmp_path: Path) -> None:
    points = in_process(f"sqlite:///{tmp_path / 'none.db'}", tmp_path / "none", 0)
    check(tmp_path / "none")
    for case in range(CASES):
        url, file = f"sqlite:///{tmp_path / f'{case}.db'}", tmp_path / f"{case}.txt"
        killed = in_process(url, file, 1 + case * (points - 1) // CASES)
        assert killed < 0 or case, "the first points are passed in every run"
        assert in_process(url, file, 0) > 0
        check(file)


if __name__ == "__main__":
    hit = int(sys.argv[3])
    host = CrashingHost(Trap(hit=hit) if hit else None)
    asyncio.run(work(sys.argv[1], Path(sys.argv[2]), host))
    print(len(host.passed))
