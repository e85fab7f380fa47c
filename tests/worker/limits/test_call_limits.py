"""Per-call overrides of limits, breakers and fairness."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import (
    Breaker,
    Call,
    Context,
    Every,
    Fair,
    Handle,
    Limit,
    Retry,
    RunFailed,
    Status,
    UsageError,
    activity,
    workflow,
)
from perdure.errors import BreakerOpen, NotStarted
from perdure.push import ExecutionState
from tests.helpers import eventually
from tests.push.pushers import pusher_of
from tests.stage import Stage
from tests.worker.crowd import Crowd

ONE = Limit("one", concurrency=1)


async def waits_for(run: Handle[Any], reason: str) -> bool:
    return (await run.info()).reason == reason


async def test_a_limit_of_one_call_holds_for_those_that_were_given_it(stage: Stage) -> None:
    crowd = Crowd()

    @activity("given.visit.v1")
    async def visit(name: str) -> str:
        return await crowd.visit(name)

    engine = stage.engine(visit)
    limited = [await engine.start(visit(f"limited {number}").options(limit=ONE)) for number in range(4)]
    free = [await engine.start(visit(f"free {number}")) for number in range(3)]
    async with engine.worker(), engine.worker():
        await eventually(lambda: len(crowd.inside) == 4)
        await eventually(lambda: waits_for(limited[3], "limit"))
        [gate] = await engine.limits.list()
        assert (gate.name, gate.held) == ("one", 1)
        crowd.let_out()
        expected = [*(f"limited {n}" for n in range(4)), *(f"free {n}" for n in range(3))]
        assert [await run.result("20s") for run in [*limited, *free]] == expected
    assert sum("limited" in name for name in crowd.order) == 4
    assert [(await run.info()).attempt for run in limited] == [1] * 4
    assert await stage.rows("SELECT * FROM perdure_permits") == []
    assert await stage.rows("SELECT * FROM perdure_lines") == []


async def test_it_takes_the_place_of_what_the_code_says(on_disk: Stage) -> None:
    crowd = Crowd()

    @activity("given.both.v1", limit=Limit("usual", key=lambda name: name[0], concurrency=1))
    async def visit(name: str) -> str:
        return await crowd.visit(name)

    engine = on_disk.engine(visit)
    calls: list[Call[str]] = [
        visit("a1"),
        visit("a2"),
        visit("b1").options(limit=[]),
        visit("b2").options(limit=()),
        visit("c1").options(limit=Limit("own", key=lambda name: name[1:], concurrency=1)),
        visit("d1").options(limit=Limit("own", key=lambda name: name[1:], concurrency=1)),
        # The last value wins, and other options stay.
        visit("e1").options(limit=ONE).options(retry=Retry.never()),
        visit("f1").options(limit=ONE).options(limit=Limit("own", key=lambda name: name, concurrency=1)),
    ]
    runs = [await engine.start(call) for call in calls]
    async with engine.worker():
        inside = ["a1", "b1", "b2", "c1", "e1", "f1"]
        await eventually(lambda: sorted(crowd.inside) == inside)
        gates = {gate.name: (gate.held, gate.waiting) for gate in await engine.limits.list()}
        assert gates == {"usual/a": (1, 1), "own/1": (1, 1), "one": (1, 0), "own/f1": (1, 0)}
        crowd.let_out()
        for run in runs:
            await run.result("20s")


async def test_a_workflow_counts_until_its_end_and_a_child_is_given_limits_too(stage: Stage) -> None:
    crowd = Crowd()

    @activity("given.child.v1")
    async def child(name: str) -> str:
        return await crowd.visit(name)

    @workflow("given.parent.v1")
    async def parent(ctx: Context, name: str) -> str:
        await ctx.sleep(0.01)
        return await ctx.call(child(name).options(limit=Limit("children", concurrency=1)))

    engine = stage.engine(parent, child)
    one, two, free = [
        await engine.start(call)
        for call in (parent("1").options(limit=ONE), parent("2").options(limit=ONE), parent("3"))
    ]
    async with engine.worker():
        await eventually(lambda: len(crowd.inside) == 1)
        await eventually(lambda: waits_for(two, "limit"))
        crowd.let_out()
        assert [await run.result("20s") for run in (one, two, free)] == ["1", "2", "3"]
    assert crowd.most == 1
    assert await stage.rows("SELECT * FROM perdure_lines") == []


async def test_a_breaker_of_one_call_opens_for_those_that_were_given_it(stage: Stage) -> None:
    called: list[str] = []

    @activity("given.call.v1", retry=Retry.never())
    async def call(name: str) -> str:
        called.append(name)
        if name == "bad":
            raise ConnectionError("no answer")
        return name

    cautious = Breaker("given", failures=1, when_open="fail")
    engine = stage.engine(call)
    async with engine.worker():
        with pytest.raises(RunFailed, match="no answer"):
            await (await engine.start(call("bad").options(breaker=cautious))).result("20s")

        async def is_barred() -> bool:
            try:
                await (await engine.start(call("barred").options(breaker=cautious))).result("20s")
            except RunFailed as failed:
                assert isinstance(failed.__cause__, BreakerOpen)
                return True
            return False

        await eventually(is_barred)
        waiting = await engine.start(call("waits").options(breaker=Breaker("given", failures=1)))
        await eventually(lambda: waits_for(waiting, "breaker"))
        assert await (await engine.start(call("free"))).result("20s") == "free"
        await engine.breakers.reset("given")
        assert await waiting.result("20s") == "waits"


async def test_calls_take_turns_by_the_key_that_they_were_given(on_disk: Stage) -> None:
    order: list[str] = []

    @activity("given.turns.v1", limit=Limit(concurrency=1))
    async def turn(name: str) -> None:
        order.append(name)

    by_name = Fair(lambda name: name)
    engine = on_disk.engine(turn)
    await engine.start_many([turn("many").options(fair=by_name)] * 30)
    runs = await engine.start_many([turn("few").options(fair=by_name)] * 3)
    async with engine.worker():
        for run in runs:
            await run.result("20s")
    assert order.index("few") < 5
    # The worker goes on until the client has heard of the last of the few.
    last = max(place for place, name in enumerate(order) if name == "few")
    assert order[:last].count("many") < 20


async def test_what_is_pushed_stands_in_line_for_it(on_disk: Stage) -> None:
    crowd = Crowd()

    @activity("given.pushed.v1")
    async def visit(name: str) -> str:
        return await crowd.visit(name)

    engine = on_disk.engine(visit)
    runs = [await engine.start(visit(name).options(limit=ONE)) for name in "ab"]
    async with engine.worker():
        await eventually(lambda: len(crowd.inside) == 1)
        [late] = [run for run in runs if await run.status() is not Status.RUNNING]
        done = await pusher_of(engine).execute(late.id)
        assert (done.state, done.reason) == (ExecutionState.WAITING, "limit")
        crowd.let_out()
        for run in runs:
            await run.result("20s")


async def test_where_only_the_name_is_known_a_call_is_given_limits_all_the_same(on_disk: Stage) -> None:
    crowd = Crowd()

    @activity("given.named.v1")
    async def visit(name: str) -> str:
        return await crowd.visit(name)

    by_name = Limit("named", key=lambda name: name, concurrency=1)
    producer, engine = on_disk.engine(), on_disk.engine(visit)
    runs = [await producer.start(Call.named("given.named.v1", name=name).options(limit=by_name)) for name in "aabb"]
    async with engine.worker():
        await eventually(lambda: sorted(crowd.inside) == ["a", "b"])
        crowd.let_out()
        assert [await run.result("20s") for run in runs] == ["a", "a", "b", "b"]


def test_what_cannot_travel_with_a_run_is_refused() -> None:
    @activity("given.refused.v1")
    async def visit(name: str) -> str:
        return name

    @workflow("given.refuses.v1")
    async def flow(ctx: Context) -> None: ...

    with pytest.raises(UsageError, match="has no name"):
        visit("a").options(limit=Limit(concurrency=1))
    with pytest.raises(UsageError, match="cannot have `counts`"):
        visit("a").options(breaker=Breaker("b", counts=OSError))
    with pytest.raises(UsageError, match="is a workflow"):
        flow().options(breaker=Breaker("b"))
    given: Any = "many"
    for options in ({"limit": given}, {"fair": given}, {"breaker": given}):
        with pytest.raises(UsageError, match="give a"):
            visit("a").options(**options)
    with pytest.raises(ZeroDivisionError):
        visit("a").options(limit=Limit("k", key=lambda name: 1 // 0, concurrency=1))


async def test_who_waits_in_line_for_it_is_not_begun_in_time(stage: Stage) -> None:
    crowd = Crowd()

    @activity("given.now.v1")
    async def visit(name: str) -> str:
        return await crowd.visit(name)

    @activity("given.soon.v1", schedule_to_start="500ms")
    async def follow(name: str) -> str:
        return await crowd.visit(name)

    engine = stage.engine(visit, follow)
    # Half a lease later, a sweep finds what was not begun in time.
    async with engine.worker(lease="6s"):
        first = await engine.start(visit("a").options(limit=ONE, schedule_to_start="10s"))
        await eventually(lambda: crowd.inside == ["a"])
        # The first of its type: a claim takes it, and sends it to its gates.
        late = await engine.start(follow("b").options(limit=ONE, schedule_to_close="1h"))
        with pytest.raises(RunFailed) as failed:
            await late.result("60s")
        assert isinstance(failed.value.__cause__, NotStarted)
        crowd.let_out()
        # Once it has begun, it has all the time that it may take.
        assert await first.result("20s") == "a"
        assert (await first.info()).close_by == 0


async def test_what_a_schedule_starts_has_it_too(on_disk: Stage) -> None:
    @activity("given.nightly.v1")
    async def nightly(name: str) -> str:
        return name

    engine = on_disk.engine(nightly)
    await engine.schedules.create("nightly", nightly("a").options(limit=ONE), Every("1d"))
    async with engine.worker():
        run = await engine.schedules.trigger("nightly")
        assert await run.result("20s") == "a"
    assert [gate.name for gate in await engine.limits.list()] == ["one"]
