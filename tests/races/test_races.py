"""Whichever of two things comes first, there is one outcome, nothing is lost, and nothing is left waiting."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure import Context, Engine, Handle, RunCancelled, RunFinished, Singleton, Status, workflow
from perdure.core.model.record import RecordKind
from tests.helpers import eventually
from tests.races.arena import Arena, Moment
from tests.stage import Stage

#: How long nothing that goes well takes.
LONG = "60s"


async def work(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "worked"


@workflow("races.timeout.v1")
async def bounded(ctx: Context, seconds: float) -> list[Any]:
    try:
        return ["in time", await ctx.receive("word", int, timeout=seconds)]
    except TimeoutError:
        return ["late", await ctx.receive("word", int)]


async def test_a_message_against_the_timeout_of_its_wait(stage: Stage) -> None:
    # One timeout is sat out in memory, the other parked in the database.
    moments = {0.03: Moment(0.03), 0.15: Moment(0.15)}

    async def one(engine: Engine, number: int) -> str:
        seconds = 0.15 if number % 4 else 0.03
        run = await engine.start(bounded(seconds))
        await asyncio.sleep(moments[seconds].draw())
        await run.send("word", number)
        order, value = await run.result(LONG)
        assert value == number
        kinds = [record.kind for record in await run.history()]
        assert kinds == ([RecordKind.MESSAGE] if order == "in time" else [RecordKind.TIMER, RecordKind.MESSAGE])
        moments[seconds].was(early=order == "in time")
        return str(order)

    arena = Arena(stage, bounded)
    await arena.race(one)
    assert set(arena.orders) == {"in time", "late"}


@workflow("races.working.v1")
async def working(ctx: Context, seconds: float) -> str:
    return await ctx.step(work, seconds)


async def outcome_of(run: Handle[Any]) -> Status:
    try:
        await run.result(LONG)
    except RunCancelled:
        return Status.CANCELLED
    return Status.COMPLETED


async def test_a_cancellation_against_completion(stage: Stage) -> None:
    moment = Moment(0.2)

    async def one(engine: Engine, number: int) -> str:
        run = await engine.start(working(0.3))
        seen = [asyncio.ensure_future(outcome_of(await each.get(run.id))) for each in arena.engines]
        await asyncio.sleep(moment.draw())
        asked = await run.cancel("enough")
        outcomes = set(await asyncio.gather(*seen))
        assert outcomes == {await run.status()}
        outcome = outcomes.pop()
        if not asked:
            assert outcome is Status.COMPLETED
        ends = [event.kind for event in await run.events() if event.kind in ("completed", "cancelled", "failed")]
        assert ends == [outcome.value]
        assert await run.cancel() is False
        moment.was(early=outcome is Status.CANCELLED)
        return str(outcome)

    arena = Arena(stage, working)
    await arena.race(one)
    assert set(arena.orders) == {Status.COMPLETED, Status.CANCELLED}


@workflow("races.parent.v1")
async def parent(ctx: Context, own: float, of_child: float) -> list[str]:
    return list(await asyncio.gather(ctx.step(work, own), ctx.call(working(of_child))))


async def test_a_child_that_finishes_against_its_parent_that_parks(stage: Stage) -> None:
    moment = Moment(0.03)

    async def one(engine: Engine, number: int) -> str:
        run = await engine.start(parent(moment.draw(), 0.01))
        assert await run.result(LONG) == ["worked", "worked"]
        first = (await run.history())[0].kind
        # The parent parks when its own step has ended; early is before it was told of its child.
        moment.was(early=first is RecordKind.STEP)
        return str(first)

    arena = Arena(stage, parent, working)
    await arena.race(one)
    assert set(arena.orders) == {RecordKind.STEP, RecordKind.CHILD}


@workflow("races.parking.v1")
async def parking(ctx: Context, seconds: float) -> int:
    await ctx.step(work, seconds)
    return await ctx.receive("word", int)


async def test_a_message_against_a_run_that_parks(stage: Stage) -> None:
    moment = Moment(0.05)

    async def one(engine: Engine, number: int) -> str:
        run = await engine.start(parking(0.04))
        await asyncio.sleep(moment.draw())
        await run.send("word", number)
        assert await run.result(LONG) == number
        first = (await run.history())[0].kind
        moment.was(early=first is RecordKind.MESSAGE)
        return str(first)

    arena = Arena(stage, parking)
    await arena.race(one)
    assert set(arena.orders) == {RecordKind.STEP, RecordKind.MESSAGE}


async def test_a_message_against_the_end_of_its_run(stage: Stage) -> None:
    moment = Moment(0.03)

    async def one(engine: Engine, number: int) -> str:
        run = await engine.start(working(0.01))
        await asyncio.sleep(moment.draw())
        try:
            await run.send("word", number)
        except RunFinished:
            order = "refused"
        else:
            order = "accepted"
        assert await run.result(LONG) == "worked"
        moment.was(early=order == "accepted")
        return order

    arena = Arena(stage, working)
    await arena.race(one)
    assert set(arena.orders) == {"accepted", "refused"}


async def test_a_pause_against_a_message(stage: Stage) -> None:
    moment = Moment(0.03)

    async def one(engine: Engine, number: int) -> str:
        run = await engine.start(parking(0.01))
        sending = asyncio.ensure_future(run.send("word", number))
        await asyncio.sleep(moment.draw())
        paused = await run.pause()
        await sending
        if paused:
            await run.resume()
        assert await run.result(LONG) == number
        moment.was(early=paused)
        return "paused" if paused else "finished"

    arena = Arena(stage, parking)
    await arena.race(one)
    assert set(arena.orders) == {"paused", "finished"}


@workflow("races.listening.v1")
async def listening(ctx: Context, correlation: str) -> int:
    return await ctx.receive("news", int, correlation=correlation)


async def test_a_broadcast_against_a_run_that_begins_to_listen(stage: Stage) -> None:
    moment = Moment(0.02)

    async def one(engine: Engine, number: int) -> str:
        correlation = f"topic-{number}"
        run = await engine.start(listening(correlation))
        await asyncio.sleep(moment.draw())
        reached = await engine.runs.broadcast("news", 1, correlation=correlation)
        if not reached:

            async def reached_now() -> bool:
                return await engine.runs.broadcast("news", 2, correlation=correlation) == 1

            await eventually(reached_now, saying=f"{run!r} listening")
        assert await run.result(LONG) == (1 if reached else 2)
        moment.was(early=not reached)
        return "heard" if reached else "missed"

    arena = Arena(stage, listening)
    await arena.race(one)
    assert set(arena.orders) == {"heard", "missed"}


async def test_a_start_that_queues_against_the_end_of_the_run_before_it(stage: Stage) -> None:
    moment = Moment(0.03)

    async def one(engine: Engine, number: int) -> str:
        single = Singleton(f"key {number}", "queue")
        first = await engine.start(working(0.01), singleton=single)
        await asyncio.sleep(moment.draw())
        second = await engine.start(working(0), singleton=single)
        assert [await first.result(LONG), await second.result(LONG)] == ["worked", "worked"]
        assert (await first.info()).finished_at <= (await second.info()).finished_at
        admitted = any(event.kind == "admitted" for event in await second.events())
        moment.was(early=admitted)
        return "waited" if admitted else "went ahead"

    arena = Arena(stage, working)
    # With such a lease, workers sweep when they start and not again: a run that is left behind stays behind.
    await arena.race(one, lease=600)
    assert set(arena.orders) == {"waited", "went ahead"}
