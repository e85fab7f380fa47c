"""Background loops go on after unforeseen errors; a worker that cannot claim drains."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import Context, Engine, Every, Retention, activity, workflow
from perdure.core.model.worker_info import WorkerStatus
from perdure.worker import sweeper
from tests.helpers import eventually
from tests.stage import Stage

pytestmark = pytest.mark.every_database


async def act(number: int) -> int:
    return number


@workflow("background.well.v1")
async def well(ctx: Context, number: int = 1) -> int:
    return await ctx.step(act, number)


@workflow("background.told.v1")
async def told(ctx: Context) -> str:
    await ctx.sleep("20ms")
    return await ctx.receive("go", str)


def sabotage(engine: Engine, verb: str, times: int) -> Callable[[], int]:
    """Have a verb of the engine's store raise an undocumented error a number of times; return the count of calls."""
    calls = 0
    original: Callable[..., Awaitable[Any]] = getattr(engine._session.store, verb)

    async def broken(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise ValueError(f"sabotage of {verb}")
        return await original(*args, **options)

    setattr(engine._session.store, verb, broken)
    return lambda: calls


@pytest.mark.parametrize(
    "verb",
    [
        "claim",
        "poll_changes",
        "leases",
        "waitlisted_types",
        "sweep",
        "heartbeat",
        "load",
        "commit",
        "inbox",
        "get_many",
    ],
)
async def test_whatever_a_loop_meets_it_goes_on(stage: Stage, verb: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = stage.engine(well, told)
    calls = sabotage(engine, verb, 2)
    async with engine.worker(lease=1.5) as worker:
        waits = await engine.start(told())
        assert await (await engine.start(well(3))).result("60s") == 3
        await waits.send("go", "went")
        if verb not in ("load", "commit", "inbox"):
            assert await waits.result("60s") == "went"
        if verb in ("sweep", "heartbeat", "poll_changes"):
            await eventually(lambda: calls() > 2, saying="the loop going on")
        if calls() and verb not in ("load", "inbox", "commit", "get_many"):
            assert "Traceback" in caplog.text
            if verb == "poll_changes" and not worker.errors:
                # The engine's own wait for results asks, too, and met both errors.
                assert caplog.text.count("waiting for results failed") == 2
                return
            assert sum(worker.errors.values()) >= 1

            async def shown() -> bool:
                return any(one.errors and f"sabotage of {verb}" in one.problem for one in await engine.workers.list())

            await eventually(shown, saying="the worker's row saying so")


async def test_schedules_fire_after_an_error(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    engine = stage.engine(well)
    calls = sabotage(engine, "fire_schedules", 2)
    await engine.schedules.create("often", well(), Every("100ms"))
    async with engine.worker(lease=1.5) as worker:

        async def fired() -> bool:
            return bool((await engine.runs.list()).runs)

        await eventually(fired, saying="a slot becoming a run")
        assert worker.errors["scheduler"] == 2
    assert calls() > 2
    assert "sabotage of fire_schedules" in caplog.text


async def test_retention_goes_on_after_an_error(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "RETENTION_INTERVAL", 0.1)
    engine = stage.engine(well, retention=Retention(completed="1us"))
    sabotage(engine, "prune", 2)
    async with engine.worker() as worker:
        run = await engine.start(well())
        await run.result("60s")

        async def gone() -> bool:
            return not (await engine.runs.list()).runs

        await eventually(gone, saying="the run being deleted")
        assert worker.errors["retention"] == 2


async def test_a_run_whose_turn_cannot_be_written_is_set_aside_alone(stage: Stage) -> None:
    engine = stage.engine(well)
    original = engine._session.store.commit

    async def broken(turns: Any, actor: str) -> Any:
        if any(turn.lease.run_id == "victim" and turn.records for turn in turns):
            raise ValueError("cannot be written")
        return await original(turns, actor)

    engine._session.store.commit = broken  # type: ignore[method-assign] # a store that breaks
    async with engine.worker():
        victim = await engine.start(well(), id="victim")
        others = await engine.start_many([well(number) for number in range(5)])
        assert [await one.result("60s") for one in others] == list(range(5))

        async def blocked() -> bool:
            return (await victim.status()).value == "blocked"

        await eventually(blocked, saying="the victim being blocked")
        assert "cannot be written" in ((await victim.info()).error or "")


class Release:
    given = False


@activity("background.long.v1")
async def long() -> str:
    while not Release.given:  # noqa: ASYNC110 - an event would belong to the loop of one test
        await asyncio.sleep(0.01)
    return "finished"


async def test_a_worker_that_cannot_claim_drains_says_so_and_comes_back(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    Release.given = False
    engine = stage.engine(well, long)
    caplog.set_level(logging.WARNING)
    # A worker that is declared dead meanwhile, because the machine has stopped, could not claim the run again.
    async with engine.worker(lease=5.0, grace=60.0) as worker:
        held = await engine.start(long())

        async def running() -> bool:
            return (await held.status()).value == "running"

        await eventually(running, saying="the activity running")
        first, calls = worker.id, sabotage(engine, "claim", 10**9)

        async def claim_fails() -> bool:
            # A claim that was under way may still take a run.
            await engine.start(well(6))
            return calls() > 0

        await eventually(claim_fails, saying="a claim that fails")
        other = await engine.start(well(7))

        async def says_so() -> bool:
            return any(one.problem.startswith("draining: no claim") for one in await engine.workers.list())

        await eventually(says_so, saying="the row saying that the worker drains")
        assert "is draining: no claim has succeeded" in caplog.text
        [row] = [one for one in await engine.workers.list() if one.id == first]
        assert row.status is WorkerStatus.ALIVE
        # Held runs are finished, not lost.
        Release.given = True
        assert await held.result("60s") == "finished"

        async def signed_off() -> bool:
            return any(one.status is WorkerStatus.STOPPED and one.id == first for one in await engine.workers.list())

        await eventually(signed_off, saying="the empty worker signing off")
        at = next(one.heartbeat_at for one in await engine.workers.list() if one.id == first)
        made = calls()
        # A person mends what was wrong.
        del engine._session.store.claim
        assert await other.result("60s") == 7
        assert worker.id != first
        assert worker.problem == ""
        [old] = [one for one in await engine.workers.list() if one.id == first]
        assert old.heartbeat_at == at
        assert old.problem.startswith("drained: no claim")
        assert made < 100
