"""Limits hold for what is pushed as they do for what workers look for."""

from __future__ import annotations

import asyncio

from perdure import Context, Engine, Limit, Singleton, Status, activity, step, workflow
from perdure.admin import Reason
from perdure.push import ExecutionState, MessageOutcome, QueueHandler, QueueMessage
from tests.helpers import eventually
from tests.push.pushers import pusher_of
from tests.stage import Stage


class Crowd:
    """Counts who is inside."""

    def __init__(self) -> None:
        self.inside = self.most = self.done = 0
        self.go_on = asyncio.Event()

    async def visit(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.go_on.wait()
        self.inside -= 1
        self.done += 1


async def test_what_is_pushed_passes_its_gates_or_stands_in_line(stage: Stage) -> None:
    crowd = Crowd()

    @activity("push.limited.v1", limit=Limit("external:push", concurrency=2))
    async def limited() -> None:
        await crowd.visit()

    engine = stage.engine(limited)
    runs = [await engine.start(limited()) for _ in range(4)]
    executing = [asyncio.ensure_future(pusher_of(engine).execute(run.id)) for run in runs[:2]]
    await eventually(lambda: crowd.inside == 2)
    refused = await pusher_of(engine).execute(runs[2].id)
    assert (refused.state, refused.status, refused.reason) == (ExecutionState.WAITING, Status.WAITING, Reason.LIMIT)
    assert refused.worked is False
    assert refused.again_in is not None
    assert 0 < refused.again_in <= 16
    again = await pusher_of(engine).execute(runs[2].id)
    assert (again.reason, again.worked) == (Reason.LIMIT, False)
    crowd.go_on.set()
    assert {done.state for done in await asyncio.gather(*executing)} == {ExecutionState.FINISHED}
    # There is room now, and what stands in line is found by looking.
    await eventually(lambda: _is_due(engine, runs[2].id))
    for run in runs[2:]:
        assert (await pusher_of(engine).execute(run.id)).state is ExecutionState.FINISHED
    assert (crowd.most, crowd.done) == (2, 4)
    assert await stage.rows("SELECT * FROM perdure_lines") == []


async def _is_due(engine: Engine, run_id: str) -> bool:
    return run_id in await pusher_of(engine).due()


async def test_a_limit_that_is_set_at_run_time_holds_too(on_disk: Stage) -> None:
    crowd = Crowd()

    @workflow("push.open.v1")
    async def open_(ctx: Context) -> None:
        await ctx.step(crowd.visit)

    engine = on_disk.engine(open_)
    await engine.limits.set("type:push.open.v1", concurrency=1)
    one, two = await engine.start(open_()), await engine.start(open_())
    first = asyncio.ensure_future(pusher_of(engine).execute(one.id))
    await eventually(lambda: crowd.inside == 1)
    assert (await pusher_of(engine).execute(two.id)).reason is Reason.LIMIT
    crowd.go_on.set()
    await first
    assert (await pusher_of(engine).execute(two.id)).state is ExecutionState.FINISHED
    assert crowd.most == 1


async def test_a_rate_says_when_to_come_again_and_is_not_counted_against_the_message(on_disk: Stage) -> None:
    @activity("push.slowly.v1", limit=Limit(rate="1/m"))
    async def slowly() -> None:
        return None

    engine = on_disk.engine(slowly)
    runs = [await engine.start(slowly()) for _ in range(3)]
    async with QueueHandler(engine) as handler:
        answers = [await handler.answer(handler.message(run.id).encode()) for run in runs]
    assert [answer.ack for answer in answers] == [True, False, False]
    assert 50 < answers[1].delay <= 60
    assert 110 < answers[2].delay <= 120
    assert b'"retry_count":0' in answers[2].body


async def test_a_singleton_that_waits_for_its_turn_is_not_pushed_past_the_others(stage: Stage) -> None:
    @workflow("push.single.v1")
    async def single(ctx: Context) -> str:
        return await ctx.receive("go", str)

    engine = stage.engine(single)
    first, second = [await engine.start(single(), singleton=Singleton("one", "queue")) for _ in range(2)]
    assert (await pusher_of(engine).execute(first.id)).state is ExecutionState.WAITING
    waits = await pusher_of(engine).execute(second.id)
    assert (waits.state, waits.reason, waits.worked) == (ExecutionState.WAITING, Reason.LIMIT, False)
    assert await pusher_of(engine).due() == []
    await first.send("go", "now")
    assert (await pusher_of(engine).execute(first.id)).state is ExecutionState.FINISHED

    async def begun() -> bool:
        return (await pusher_of(engine).execute(second.id)).worked

    await eventually(begun)


async def test_a_step_that_waits_for_a_limit_has_its_run_asked_for_again(on_disk: Stage) -> None:
    crowd = Crowd()

    @step(limit=Limit("external:step", concurrency=1))
    async def visit() -> None:
        await crowd.visit()

    @workflow("push.stepping.v1")
    async def stepping(ctx: Context) -> None:
        await ctx.step(visit)

    engine = on_disk.engine(stepping)
    one, two = await engine.start(stepping()), await engine.start(stepping())
    first = asyncio.ensure_future(pusher_of(engine).execute(one.id))
    await eventually(lambda: crowd.inside == 1)
    waits = await pusher_of(engine).execute(two.id)
    assert (waits.state, waits.reason) == (ExecutionState.WAITING, Reason.LIMIT)
    assert waits.again_in is not None
    crowd.go_on.set()
    await first

    async def done() -> bool:
        return (await pusher_of(engine).execute(two.id)).state is ExecutionState.FINISHED

    await eventually(done)
    assert (crowd.most, crowd.done) == (1, 2)


class Queue:
    """Remembers what was enqueued, and for when."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, float]] = []

    async def enqueue(self, message: QueueMessage, delay: float) -> None:
        self.messages.append((message.run_id, delay))

    def at_once(self) -> list[str]:
        return [run_id for run_id, delay in self.messages if delay == 0]


async def test_who_is_next_in_line_is_enqueued_when_a_place_is_free(stage: Stage) -> None:
    crowd, queue = Crowd(), Queue()

    @activity("push.next.v1", limit=Limit("external:next", concurrency=1))
    async def limited() -> None:
        await crowd.visit()

    engine = stage.engine(limited)
    runs = [await engine.start(limited()) for _ in range(3)]
    async with QueueHandler(engine, enqueue=queue.enqueue) as handler:
        first = asyncio.ensure_future(handler.answer(handler.message(runs[0].id).encode()))
        await eventually(lambda: crowd.inside == 1)
        for run in runs[1:]:
            assert (await handler.answer(handler.message(run.id).encode())).outcome is MessageOutcome.WAITING
        assert queue.at_once() == []
        crowd.go_on.set()
        assert (await first).outcome is MessageOutcome.FINISHED
        await eventually(queue.at_once)
        # One place, one message: the others come when it is their turn.
        assert queue.at_once() == [runs[1].id]
        assert (await handler.answer(handler.message(runs[1].id).encode())).outcome is MessageOutcome.FINISHED
        await eventually(lambda: queue.at_once() == [runs[1].id, runs[2].id])
        assert (await handler.answer(handler.message(runs[2].id).encode())).outcome is MessageOutcome.FINISHED
    assert queue.at_once() == [runs[1].id, runs[2].id]
    assert crowd.most == 1


async def test_the_run_of_a_step_that_is_next_is_enqueued_too(on_disk: Stage) -> None:
    crowd, queue = Crowd(), Queue()

    @step(limit=Limit("external:next-step", concurrency=1))
    async def visit() -> None:
        await crowd.visit()

    @workflow("push.next.step.v1")
    async def stepping(ctx: Context) -> None:
        await ctx.step(visit)

    engine = on_disk.engine(stepping)
    one, two = await engine.start(stepping()), await engine.start(stepping())
    async with QueueHandler(engine, enqueue=queue.enqueue) as handler:
        first = asyncio.ensure_future(handler.answer(handler.message(one.id).encode()))
        await eventually(lambda: crowd.inside == 1)
        assert (await handler.answer(handler.message(two.id).encode())).outcome is MessageOutcome.WAITING
        crowd.go_on.set()
        await first
        await eventually(lambda: queue.at_once() == [two.id])
        assert (await handler.answer(handler.message(two.id).encode())).outcome is MessageOutcome.FINISHED
