"""Runs of which only one goes on at a time, as programs use them."""

from __future__ import annotations

import asyncio

import pytest

from perdure import (
    Context,
    Debounce,
    Every,
    Limit,
    RunCancelled,
    Singleton,
    SingletonBusy,
    Status,
    UsageError,
    activity,
    workflow,
)
from perdure.errors import InvalidId
from perdure.testing import Environment
from tests.helpers import eventually
from tests.stage import Stage, until

pytestmark = pytest.mark.every_database


@workflow("single.listen.v1")
async def listening(ctx: Context, word: str = "") -> str:
    return word + await ctx.receive("go", str)


@workflow("single.import.v1", singleton=Singleton(by=lambda tenant, size: tenant, policy="queue"))
async def importing(ctx: Context, tenant: str, size: int) -> str:
    return f"{tenant} {size} {await ctx.receive('go', str)}"


@activity("single.mail.v1", singleton=Singleton(policy="attach"))
async def mailing(to: str) -> str:
    return to


@workflow("single.parent.v1")
async def parent(ctx: Context, policy: str) -> str:
    try:
        return await ctx.call(listening("child ").options(singleton=Singleton("k", policy)))
    except SingletonBusy:
        return "busy"


@workflow("single.starter.v1")
async def starter(ctx: Context) -> str:
    return ctx.start(listening("started ").options(singleton=Singleton("k", "queue")), id="started")


async def test_a_second_is_rejected_and_told_which_one_is_in_the_way(stage: Stage) -> None:
    engine = stage.engine(listening)
    first = await engine.start(listening(), singleton=Singleton("k"))
    with pytest.raises(SingletonBusy, match="not over yet") as busy:
        await engine.start(listening(), singleton=Singleton("k"))
    assert busy.value.run_id == first.id
    await engine.start(listening(), singleton=Singleton("another"))
    async with engine.worker():
        await first.send("go", "on")
        assert await first.result("20s") == "on"
        await engine.start(listening(), singleton=Singleton("k"))


async def test_a_second_gets_the_first(stage: Stage) -> None:
    engine = stage.engine(listening, mailing)
    first = await engine.start(listening("one"), singleton=Singleton("k", "attach"))
    second = await engine.start(listening("two"), singleton=Singleton("k", "attach"))
    assert second.id == first.id
    [one, two] = await engine.start_many([mailing("a"), mailing("b")])
    assert one.id == two.id
    async with engine.worker():
        assert await two.result("20s") == "a"


async def test_those_who_queue_go_on_one_after_the_other(stage: Stage) -> None:
    engine = stage.engine(importing)
    runs = [await engine.start(importing("acme", size)) for size in range(3)]
    other = await engine.start(importing("zeta", 0))
    assert "waits for its turn" in await runs[1].why()
    async with engine.worker():
        for size, run in enumerate(runs):
            await until(run, Status.WAITING)
            for later in runs[size + 1 :]:
                assert (await later.info()).started_at == 0
            await run.send("go", "on")
            assert await run.result("20s") == f"acme {size} on"
        await other.send("go", "on")
        assert await other.result("20s") == "zeta 0 on"


async def test_the_last_replaces_the_others_and_begins_when_they_have_ended(stage: Stage) -> None:
    engine = stage.engine(listening)
    single = Singleton("k", "replace")
    async with engine.worker():
        first = await engine.start(listening("one"), singleton=single)
        await until(first, Status.WAITING)
        [second, third] = [await engine.start(listening(word), singleton=single) for word in ("two ", "three ")]
        await third.send("go", "on")
        assert await third.result("20s") == "three on"
        for replaced in (first, second):
            with pytest.raises(RunCancelled, match="replaced by"):
                await replaced.result("20s")
    ended = [(await run.info()).finished_at for run in (first, second)]
    assert max(ended) <= (await third.info()).started_at


async def test_children_are_singletons_too(stage: Stage) -> None:
    engine = stage.engine(listening, parent, starter)
    async with engine.worker():
        first = await engine.start(listening("first "), singleton=Singleton("k", "queue"))
        busy = await engine.start(parent("reject"))
        assert await busy.result("20s") == "busy"
        waiting = await engine.start(parent("queue"), id="waiting")
        await until(waiting, Status.WAITING)
        await engine.start(starter(), id="starter")

        async def started() -> bool:
            return len((await engine.runs.list(type=listening.type)).runs) == 4

        await eventually(started, saying="all of them being there")
        await first.send("go", "on")
        assert await first.result("20s") == "first on"
        child = await engine.get("waiting/single.listen.v1")
        await child.send("go", "on")
        assert await waiting.result("20s") == "child on"
        last = await engine.get("started")
        await last.send("go", "on")
        assert await last.result("20s") == "started on"


async def test_a_run_that_is_cancelled_in_the_line_delays_no_other(stage: Stage) -> None:
    engine = stage.engine(listening)
    runs = [await engine.start(listening(), singleton=Singleton("k", "queue")) for _ in range(3)]
    assert await runs[1].cancel()
    async with engine.worker():
        for run in (runs[0], runs[2]):
            await run.send("go", "on")
            assert await run.result("20s") == "on"


async def test_of_sixteen_who_start_at_once_one_is_started(stage: Stage) -> None:
    engine = stage.engine(listening)
    answers = await asyncio.gather(
        *(engine.start(listening(), singleton=Singleton("k")) for _ in range(16)), return_exceptions=True
    )
    assert [type(answer) for answer in answers].count(SingletonBusy) == 15
    assert len((await engine.runs.list()).runs) == 1


async def test_a_schedule_passes_over_slots_while_its_run_goes_on() -> None:
    async with Environment([listening]) as env:
        call = listening().options(singleton=Singleton("k"))
        await env.engine.schedules.create("s", call, Every("1m"), overlap="allow")
        await env.advance("3m10s")
        assert len((await env.engine.runs.list()).runs) == 1
        assert [event.kind for event in await env.engine.schedules.events("s")].count("schedule_passed") == 2
        with pytest.raises(SingletonBusy):
            await env.engine.schedules.trigger("s")


async def test_a_key_may_be_shared_among_types(stage: Stage) -> None:
    engine = stage.engine(listening, importing)
    await engine.start(listening(), singleton=Singleton("k", shared=True))
    with pytest.raises(SingletonBusy):
        await engine.start(importing("acme", 1), singleton=Singleton("k", shared=True))


async def test_several_starts_are_one_run_with_the_last_input() -> None:
    async with Environment([mailing]) as env:
        debounce = Debounce("5s", "k", at_most="12s")
        first = await env.engine.start(mailing("a"), debounce=debounce)
        assert "put off until" in await first.why()
        for to in ("b", "c"):
            await env.advance("4s")
            assert (await env.engine.start(mailing(to), debounce=debounce)).id == first.id
        assert await first.status() is Status.WAITING
        await env.advance("4s")
        assert await first.result() == "c"
        again = await env.engine.start(mailing("d"), debounce=debounce)
        assert again.id != first.id


async def test_many_who_debounce_at_once_start_one_run(stage: Stage) -> None:
    engine = stage.engine(listening)
    calls = (engine.start(listening(f"{n}"), debounce=Debounce("1h")) for n in range(16))
    runs = await asyncio.gather(*calls)
    assert len({run.id for run in runs}) == 1


async def test_one_that_is_opened_again_waits_for_the_one_that_goes_on(stage: Stage) -> None:
    engine = stage.engine(listening)
    first = await engine.start(listening(), singleton=Singleton("k", "replace"))
    second = await engine.start(listening("second "), singleton=Singleton("k", "replace"))
    await first.retry()
    assert "waits for its turn" in await first.why()
    async with engine.worker():
        await second.send("go", "on")
        assert await second.result("20s") == "second on"
        await first.send("go", "again")
        assert await first.result("20s") == "again"


async def test_what_makes_no_sense_is_refused(stage: Stage) -> None:
    engine = stage.engine(listening, importing)
    with pytest.raises(UsageError, match="policy"):
        Singleton("k", "sometimes")
    with pytest.raises(UsageError, match="not both"):
        Singleton("k", by=str)
    with pytest.raises(InvalidId):
        await engine.start(importing("", 1))
    with pytest.raises(UsageError, match="no less than the delay"):
        await engine.start(listening(), debounce=Debounce("5s", at_most="1s"))
    with pytest.raises(UsageError, match="debounce decides when"):
        await engine.start(listening(), debounce=Debounce("5s"), singleton=Singleton())
    with pytest.raises(UsageError, match="give a Singleton"):
        await engine.start(listening(), singleton="k")  # type: ignore[arg-type] # the mistake that is made here


async def test_a_run_that_ended_in_a_waitlist_and_is_retried_waits_for_its_singleton() -> None:
    gates = {name: asyncio.Event() for name in ("first", "second", "retried", "holder")}
    under_way: set[str] = set()
    met: list[set[str]] = []

    @activity("single.limited.v1", limit=Limit("single:two", concurrency=2))
    async def work(name: str) -> str:
        under_way.add(name)
        met.append(set(under_way))
        await gates[name].wait()
        under_way.discard(name)
        return name

    only = Singleton("only", policy="queue")
    async with Environment([work], patience=0.05) as env:
        for name in ("first", "second"):
            await env.start(work(name), id=name)
        await env.settle()
        retried = await env.start(work("retried").options(singleton=only), id="retried")
        await env.settle()
        await retried.terminate("enough")
        holder = await env.start(work("holder").options(singleton=only), id="holder")
        await env.settle()
        await retried.retry()
        for name in ("first", "second"):
            gates[name].set()
        await env.settle()
        await env.advance("20s")
        assert under_way == {"holder"}
        gates["holder"].set()
        assert await holder.result() == "holder"
        gates["retried"].set()
        assert await retried.result() == "retried"
    assert not any({"holder", "retried"} <= one for one in met)
