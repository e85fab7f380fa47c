"""Write the database of an older version: runs in every status, most of them in flight, and the rows of every feature.

Take the older code out of the repository and run this with it:

    git archive COMMIT src | tar -x -C /tmp/older
    PYTHONPATH=/tmp/older/src python -m tests.store.migrations.older.write URL NAME

The rows go to `NAME-KIND.json.gz` beside this file. The URL is that of an empty database or schema. Only names of the
interface that the older version has are used here, so no type checker is asked about them.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import perdure as _perdure

perdure: Any = _perdure
if not hasattr(perdure, "machine"):
    # State machines had no module of their own.
    sys.modules.setdefault("perdure.machine", perdure)

from tests.store.migrations.older import dump, flows  # noqa: E402  the older version has no `perdure.machine`

COMMAND = [sys.executable, "-m", "tests.store.migrations.older.write"]


async def until(question: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for a condition."""
    for _ in range(6000):
        if await question():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{what} did not happen")


async def is_(engine: Any, run_id: str, status: str, reason: str | None = None) -> None:
    """Wait until a run has a status."""

    async def so() -> bool:
        page = await engine.list(limit=100)
        return any((run.id, run.status, run.reason) == (run_id, status, reason) for run in page.runs)

    await until(so, f"{run_id} being {status}: {reason}")


async def begin(engine: Any) -> None:
    """Start everything; leave it waiting."""
    plain = await engine.start(flows.plain(1), id="message", idempotency_key="key-1")
    await engine.start(flows.sleep("3m"), id="timer")
    await engine.start(flows.sleep(flows.LONG), id="long-timer")
    await engine.start(flows.parent(), id="parent")
    await engine.start(flows.retries(), id="step-retry")
    await engine.start(flows.again(), id="second-attempt")
    await engine.start(flows.loop(9), id="loop")
    await engine.start(flows.branches(), id="branches")
    await engine.start(flows.saga(), id="saga")
    await engine.start(flows.undoing(), id="undoing")
    await engine.start(flows.renewed(1), id="renewed")
    await engine.start(flows.topic(), id="topic")
    asked = await engine.start(flows.question(), id="question")
    assert await asked.ask("how", "first", key="q-1") == "older: first"
    await engine.start(flows.changed(), id="changed")
    await engine.start(flows.later(), id="activity-retry")
    machine = await engine.start(flows.Approval.call(7), id="machine")
    # Its handlers see the end of the activity first.
    await is_(engine, "machine/leaf/older.leaf.v1", "completed")
    await machine.send(flows.go, "first")
    await engine.start(flows.single(1), id="single-1")
    await engine.start(flows.single(2), id="single-2")
    await engine.breakers.open("older-fragile")
    await engine.start(flows.fragile(), id="breaker")
    done = await engine.start(flows.plain(2), id="completed")
    await done.send(flows.go, "done", key="m-1")
    await done.result()
    failed = await engine.start(flows.fails(), id="failed")
    await is_(engine, "failed", "failed")
    await engine.start(flows.fails(), id="reopened")
    await is_(engine, "reopened", "failed")
    assert await (await engine.get("reopened")).retry() == 2
    await is_(engine, "reopened", "failed")
    await failed.fork(from_step="mend", id="forked")
    await is_(engine, "forked", "failed")
    gone = await engine.start(flows.plain(3), id="cancelled")
    await is_(engine, "cancelled", "waiting", "message")
    await gone.cancel("no longer")
    await is_(engine, "cancelled", "cancelled")
    hidden = await engine.start(flows.plain(4), id="deleted")
    await hidden.send(flows.go, "x")
    await hidden.result()
    await hidden.delete("not needed")
    paused = await engine.start(flows.plain(6), id="paused")
    await is_(engine, "paused", "waiting", "message")
    await paused.pause("for a moment")
    await paused.send(flows.go, "unread")
    await is_(engine, "paused", "waiting", "paused")
    async with perdure.Engine(engine.url, audit="full") as stranger:
        await stranger.start(perdure.Call.named("older.undecodable.v1", number="three"), id="undecodable")
    await is_(engine, "undecodable", "blocked", "undecodable")
    await _at_rest(engine)
    assert await plain.state("state") == ["older"] * 3


async def _at_rest(engine: Any) -> None:
    waiting = {
        "message": "message", "timer": "timer", "long-timer": "timer", "parent": "child", "parent-child": "message",
        "step-retry": "retry", "second-attempt": "message", "loop": "message", "branches": "message",
        "saga": "message", "undoing": "retry", "renewed": "message", "topic": "message", "question": "message",
        "changed": "message", "activity-retry": "retry", "machine": "message", "single-1": "message",
        "single-2": "limit", "breaker": "breaker",
    }  # fmt: skip
    for run_id, reason in waiting.items():
        await is_(engine, run_id, "waiting", reason)


async def change(engine: Any) -> None:
    """Go on with changed code, and die in the middle of steps and activities."""
    await (await engine.get("changed")).send(flows.go, "on")
    await is_(engine, "changed", "blocked", "diverged")
    await engine.start(flows.interrupted(), id="interrupted")
    for number in (1, 2, 3):
        await engine.start(flows.held(number), id=f"held-{number}")
        if number == 1:
            await is_(engine, "held-1", "running")
    await engine.start(flows.limited(True), id="limited-1")
    await is_(engine, "limited-1", "running")
    await engine.start(flows.limited(False), id="limited-2")
    for run_id in ("held-2", "held-3", "limited-2"):
        await is_(engine, run_id, "waiting", "limit")

    async def under_way() -> bool:
        run = await engine.get("interrupted")
        return len(await run.history()) == 1 and (await run.run()).status == "running"

    await until(under_way, "an interrupted step")
    await engine.schedules.create("yearly", flows.tick(), perdure.Cron("0 0 1 1 *"))
    soon = datetime.now(UTC) + timedelta(minutes=3)
    await engine.schedules.create("once", flows.tick(), perdure.At(soon))
    await engine.locks.acquire("printer", ttl="3000d", owner="older")
    await engine.watermarks.set(perdure.Watermark(high=500, low=100, queue="default"))
    await engine.limits.set("older-one", concurrency=1)
    await engine.pause(type="older.tick.v1", reason="later")
    await engine.start(flows.tick(), id="debounced", debounce=perdure.Debounce(flows.LONG, key="d"))
    await engine.start(flows.tick(), id="of-paused-type")
    await engine.start(flows.plain(8), id="pending-elsewhere", queue="elsewhere")


async def run(phase: str, url: str) -> None:
    """One process of the older version. It dies without a word when it is done."""
    only = [flows.poison] if phase == "poison" else flows.FLOWS
    async with perdure.Engine(url, only, audit="full") as engine:
        if phase == "poison":
            await engine.start(flows.poison(), id="poison")
        async with engine.worker(lease="2s", grace="1s", poison_after=2):
            if phase == "poison":
                await is_(engine, "poison", "blocked", "poison")
            else:
                await {"begin": begin, "changed": change}[phase](engine)
            os._exit(0)


def main(url: str, name: str) -> None:
    """Run all phases, then dump."""
    for phase in ("begin", "poison", "changed"):
        environment = {**os.environ, "PERDURE_AUTHOR": "older", "PERDURE_PHASE": phase}
        code = -1
        while code not in (0, 1):
            code = subprocess.run([*COMMAND, phase, url, "phase"], env=environment, check=False).returncode
        assert code == 0, phase
    dump.save(url, Path(__file__).parent / f"{name}-{dump.kind_of(url)}.json.gz")


if __name__ == "__main__":
    if sys.argv[3:]:
        asyncio.run(run(*sys.argv[1:3]))
    else:
        main(*sys.argv[1:])
