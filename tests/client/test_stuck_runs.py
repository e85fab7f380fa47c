"""Runs that do not go on for want of a permit or of a worker: what `why` says of them, and how a listing finds them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from perdure import Call, Context, Engine, Handle, Limit, Retry, Status, activity, step, workflow
from perdure.admin import Reason, Run
from perdure.core.model.worker_info import WorkerInfo
from perdure.core.routing import TypeInfo
from tests.helpers import eventually
from tests.stage import Stage, until

pytestmark = pytest.mark.every_database


@workflow("stuck.keeper.v1", limit=Limit("slots", concurrency=5))
async def keeper(ctx: Context) -> str:
    return await ctx.receive("go", str)


async def limited(engine: Engine, type: str, count: int = 1) -> list[Handle[Any]]:
    """Runs of a type, once so many of them wait for a limit."""

    async def find() -> list[Run]:
        page = await engine.runs.list(type=type, order="oldest")
        found = [run for run in page.runs if run.reason is Reason.LIMIT]
        return found if len(found) == count else []

    runs = await eventually(find, saying=f"{count} runs of {type} waiting for a limit")
    return [await engine.get(run.id) for run in runs]


async def test_why_names_a_few_holders_of_the_permits_and_counts_the_others(stage: Stage) -> None:
    engine = stage.engine(keeper)
    async with engine.worker():
        for number in range(5):
            run = await engine.start(keeper(), id=f"holder-{number}")
            await until(run, Status.WAITING)
        await engine.start(keeper(), id="last")
        [last] = await limited(engine, keeper.type)
        why = await last.why()
    holders = ", ".join(f"'holder-{number}' (stuck.keeper.v1, waiting: message)" for number in range(3))
    assert f"Its permits are held by {holders} and 2 more." in why
    assert "never" not in why


@activity("stuck.export.v1", limit=Limit("one", concurrency=1))
async def export() -> str:
    return "exported"


@workflow("stuck.parent.v1", limit=Limit("one", concurrency=1))
async def parent(ctx: Context) -> str:
    return await ctx.call(export())


async def test_why_tells_that_a_child_waits_for_ever_for_the_permit_of_its_parent(stage: Stage) -> None:
    engine = stage.engine(parent, export)
    async with engine.worker():
        run = await engine.start(parent(), id="it's mine")
        [child] = await limited(engine, export.type)
        await until(run, Status.WAITING)
        why = await child.why()
        assert """Its permit is held by its parent "it's mine" (stuck.parent.v1, waiting: child).""" in why
        assert f"""This never ends: "it's mine", which holds a permit of 'one', waits for {child.id!r}, and""" in why
        assert f"{child.id!r} waits for the limit 'one'." in why
        assert "`perdure limits set URL one --concurrency 2`" in why
        assert "This never ends" in await run.why()
        await engine.limits.set("one", concurrency=2)
        assert await run.result("20s") == "exported"


async def test_a_run_behind_a_deadlock_waits_for_ever_too(stage: Stage) -> None:
    engine = stage.engine(parent, export)
    async with engine.worker():
        first = await engine.start(parent(), id="first")
        [child] = await limited(engine, export.type)
        await until(first, Status.WAITING)
        await engine.start(parent(), id="second")
        [second] = await limited(engine, parent.type)
        why = await second.why()
    assert f"This never ends: 'first', which holds a permit of 'one', waits for {child.id!r}" in why
    assert "--concurrency 3`" in why


async def test_a_deadlock_is_found_through_several_levels_and_several_limits(stage: Stage) -> None:
    @workflow("stuck.leaf.v1", limit=Limit("outer", concurrency=2))
    async def leaf(ctx: Context) -> None: ...

    @workflow("stuck.inner.v1", limit=Limit("inner", concurrency=1))
    async def inner(ctx: Context) -> None:
        await ctx.call(leaf())

    @workflow("stuck.between.v1")
    async def between(ctx: Context) -> None:
        await ctx.call(inner())

    @workflow("stuck.outer.v1", limit=Limit("outer", concurrency=2))
    async def outer(ctx: Context) -> None:
        await ctx.call(between())

    engine = stage.engine(outer, between, inner, leaf)
    async with engine.worker():
        first = await engine.start(outer(), id="first")
        second = await engine.start(outer(), id="second")
        [innermost], [other] = await limited(engine, leaf.type), await limited(engine, inner.type)
        for run in (first, second):
            await until(run, Status.WAITING)
        for run in (innermost, other, first, second):
            assert "This never ends" in await run.why()
        why = await innermost.why()
        # The permits of the outer limit are held by both, and one of them waits for the inner limit.
        assert "which holds a permit of 'outer', waits for" in why
        assert f"{innermost.id!r} waits for the limit 'outer'." in why


async def test_a_deadlock_by_a_limit_of_a_workflow_and_its_own_step_is_found(stage: Stage) -> None:
    @step(limit=Limit("self", concurrency=1))
    def limited_step() -> str:
        return "done"

    @workflow("stuck.self.v1", limit=Limit("self", concurrency=1))
    async def selfish(ctx: Context) -> str:
        return await ctx.step(limited_step)

    engine = stage.engine(selfish)
    async with engine.worker():
        run = await engine.start(selfish(), id="selfish")
        await limited(engine, selfish.type)
        why = await run.why()
    assert "This never ends: 'selfish', which holds a permit of 'self', waits for the limit 'self'." in why


@workflow("stuck.patient.v1", limit=Limit("one", concurrency=1))
async def patient(ctx: Context) -> bool:
    """Holds the permit, and may go on without its child."""
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(one) for one in (ctx.call(export()), ctx.receive("go"))]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    return waits[1].done()


async def test_a_parent_that_may_go_on_without_its_child_is_no_deadlock(stage: Stage) -> None:
    engine = stage.engine(patient, export)
    async with engine.worker():
        run = await engine.start(patient())
        [child] = await limited(engine, export.type)
        await until(run, Status.WAITING)
        why = await child.why()
        assert f"Its permit is held by its parent {run.id!r}" in why
        assert "never" not in why
        await run.send("go", True)
        assert await run.result("20s") is True


async def test_one_holder_that_may_go_on_is_enough_for_a_limit_to_have_room(stage: Stage) -> None:
    @activity("stuck.pair.child.v1", limit=Limit("pair", concurrency=2))
    async def child() -> None: ...

    @workflow("stuck.pair.parent.v1", limit=Limit("pair", concurrency=2))
    async def caller(ctx: Context) -> None:
        await ctx.call(child())

    @workflow("stuck.pair.other.v1", limit=Limit("pair", concurrency=2))
    async def other(ctx: Context) -> None:
        await ctx.receive("go", bool)

    engine = stage.engine(child, caller, other)
    async with engine.worker():
        free = await engine.start(other())
        await until(free, Status.WAITING)
        run = await engine.start(caller())
        [waiting] = await limited(engine, child.type)
        await until(run, Status.WAITING)
        why = await waiting.why()
        assert "its parent" in why
        assert "never" not in why
        await free.send("go", True)
        await run.result("20s")


async def test_a_deadline_ends_a_wait_that_would_be_a_deadlock(stage: Stage) -> None:
    engine = stage.engine(parent, export)
    async with engine.worker():
        run = await engine.start(parent(), deadline="1h")
        [child] = await limited(engine, export.type)
        await until(run, Status.WAITING)
        assert "never" not in await child.why()


async def test_a_rate_has_no_holders(stage: Stage) -> None:
    @activity("stuck.rated.v1", limit=Limit("rated", rate="1/h"))
    async def rated() -> None: ...

    engine = stage.engine(rated)
    async with engine.worker():
        await (await engine.start(rated())).result("20s")
        await engine.start(rated())
        [second] = await limited(engine, rated.type)
        assert "held by" not in await second.why()


@workflow("stuck.here.v1")
async def here(ctx: Context) -> str:
    return await ctx.receive("go", str)


@workflow("stuck.forgotten.v1")
async def forgotten(ctx: Context) -> None: ...


async def test_a_listing_finds_the_runs_that_no_live_worker_serves(stage: Stage) -> None:
    engine = stage.engine(here, forgotten)
    assert (await engine.runs.count(unserved=True)).count == 0
    for number in range(3):
        await engine.start(forgotten(), id=f"forgotten-{number}")
    await engine.start(here(), id="elsewhere", queue="elsewhere")
    await engine.start(here(), id="paused")
    assert (await engine.runs.count(unserved=True)).count == 5
    async with engine.worker(types=[here.type]), engine.worker(types=[forgotten.type], queues=["elsewhere"]):
        await until(await engine.get("paused"), Status.WAITING)
        found = await engine.runs.list(unserved=True, order="oldest")
        assert [run.id for run in found.runs] == ["forgotten-0", "forgotten-1", "forgotten-2", "elsewhere"]
        assert await engine.runs.unserved(found.runs) == {run.id for run in found.runs}
        assert [one.count for one in await engine.runs.count_by("type", unserved=True)] == [3, 1]
        assert (await engine.runs.count(unserved=True)).count == 4
        assert not (await engine.runs.list(unserved=True, status=Status.WAITING)).runs
        first = await engine.runs.list(unserved=True, type=forgotten.type, limit=2)
        second = await engine.runs.list(unserved=True, type=forgotten.type, limit=2, cursor=first.cursor)
        assert [run.id for run in (*first.runs, *second.runs)] == ["forgotten-2", "forgotten-1", "forgotten-0"]


async def test_runs_of_workers_in_other_languages_count_as_served(stage: Stage) -> None:
    engine = stage.engine(here)
    await engine.start(Call.named("stuck.js.v1"), id="js")
    assert [run.id for run in (await engine.runs.list(unserved=True)).runs] == ["js"]
    assert stage.store is not None
    await stage.store.register(
        WorkerInfo(id="js", host="h", pid=1, queues=("default",), types=(), slots=1, lease=15_000_000),
        [TypeInfo(type="stuck.js.v1", runtime="node")],
    )
    assert not (await engine.runs.list(unserved=True)).runs


async def test_why_names_the_step_that_holds_a_permit(stage: Stage) -> None:
    going, go = asyncio.Event(), asyncio.Event()

    @step(limit=Limit("narrow", concurrency=1))
    async def slow() -> str:
        going.set()
        await go.wait()
        return "done"

    @workflow("stuck.narrow.v1")
    async def narrow(ctx: Context) -> str:
        return await ctx.step(slow)

    engine = stage.engine(narrow)
    async with engine.worker():
        first = await engine.start(narrow(), id="first")
        await going.wait()
        second = await engine.start(narrow(), id="second")
        await limited(engine, narrow.type)
        assert "Its permit is held by step 'slow' of 'first' (stuck.narrow.v1, running)." in await second.why()
        go.set()
        assert await first.result("20s") == await second.result("20s") == "done"


async def test_why_suggests_the_served_type_that_a_misspelt_one_resembles(stage: Stage) -> None:
    engine = stage.engine(here, forgotten)
    misspelt = await engine.start(Call.named("stuck.heere.v1"))
    assert "Did you mean" not in await misspelt.why()
    async with engine.worker(types=[here.type]):
        assert "Did you mean 'stuck.here.v1'? Then cancel this run and start one of that type." in await misspelt.why()
        for type in ("stuck.here.v2", "somewhere.else", forgotten.type):
            other = await engine.start(Call.named(type))
            assert f"serves the type '{type}'" in await other.why()
            assert "Did you mean" not in await other.why()
    # Without a live worker, by the types that have been served before.
    why = await misspelt.why()
    assert "no worker is alive" in why
    assert "Did you mean 'stuck.here.v1'?" in why


async def test_why_tells_a_dead_fleet_from_workers_of_other_types_and_queues(stage: Stage) -> None:
    engine = stage.engine(here, forgotten)
    run = await engine.start(here(), queue="mails")
    assert "no worker is alive" in await run.why()
    async with engine.worker(types=[here.type], queues=["mail"]):
        assert (
            "no live worker takes the queue 'mails'; add it to a worker's queues. Did you mean the queue 'mail'?"
            in await run.why()
        )
        async with engine.worker(types=[forgotten.type], queues=["mails"]):
            assert "no live worker serves both the type 'stuck.here.v1' and the queue 'mails'" in await run.why()
    async with engine.worker(types=[forgotten.type]):
        assert "none of the 1 live worker(s) serves the type 'stuck.here.v1'" in await run.why()


async def test_why_of_a_run_that_waits_for_a_limit_tells_that_no_worker_lets_it_pass(stage: Stage) -> None:
    engine = stage.engine(parent, export, forgotten)
    async with engine.worker():
        await engine.start(parent())
        [child] = await limited(engine, export.type)
        assert "Nothing lets it go on" not in await child.why()
    assert "Nothing lets it go on: no worker is alive" in await child.why()
    async with engine.worker(types=[forgotten.type]):
        assert "Nothing lets it go on: none of the 1 live worker(s) serves the type" in await child.why()


async def test_why_of_a_run_past_its_time_tells_that_no_worker_wakes_it(stage: Stage) -> None:
    @workflow("stuck.nap.v1")
    async def nap(ctx: Context) -> None:
        # Long enough for the run to park although the machine is busy.
        await ctx.sleep("2s")

    engine = stage.engine(nap)
    async with engine.worker():
        run = await engine.start(nap())
        await until(run, Status.WAITING)

    async def tells() -> bool:
        return "Nothing lets it go on: no worker is alive" in await run.why()

    await eventually(tells)


async def test_a_pause_hides_no_other_reason(stage: Stage) -> None:
    @workflow("stuck.flaky.v1", retry=Retry.fixed("0.2s", attempts=100))
    async def flaky(ctx: Context) -> None:
        raise OSError("the bank is closed")

    @step(retry=Retry.fixed("0.2s", attempts=100))
    async def charge() -> None:
        raise OSError("no card")

    @workflow("stuck.charge.v1")
    async def charging(ctx: Context) -> None:
        await ctx.step(charge)

    @workflow("stuck.either.v1")
    async def either(ctx: Context) -> None:
        await asyncio.gather(ctx.call(here()), ctx.receive("go", str))

    engine = stage.engine(here, flaky, charging, either)
    async with engine.worker():
        waiting = await engine.start(here())
        parent = await engine.start(either())
        for run in (waiting, parent):
            await until(run, Status.WAITING)
        tried = [await engine.start(flaky()), await engine.start(charging())]

        async def has_failed(run: Handle[Any]) -> bool:
            return "last attempt failed" in await run.why()

        for run in tried:
            await eventually(partial(has_failed, run))
        misspelt = await engine.start(Call.named("stuck.heere.v1"))
        await engine.queues.pause(queue="default", reason="stocktaking")

        async def says(run: Handle[Any], *parts: str) -> bool:
            why = await run.why()
            return "the queue 'default' was paused" in why and all(part in why for part in parts)

        for run in (waiting, parent):
            await run.send("goo", "x")
        for run, error in zip(tried, ("OSError: the bank is closed", "OSError: no card"), strict=True):
            await eventually(partial(says, run, f"stocktaking. Its last attempt failed: {error}."))
        assert await says(misspelt, "stocktaking. It is also not served: none of", "Did you mean 'stuck.here.v1'?")
        await eventually(lambda: says(waiting, "It last waited for message 'go'", "Was 'go' meant by 'goo'?"))
        await eventually(lambda: says(parent, "; child '", "(stuck.here.v1) since", "Was 'go' meant by 'goo'?"))


async def test_why_of_a_failed_run_tells_how_to_retry_it(stage: Stage) -> None:
    @workflow("stuck.failing.v1")
    async def failing(ctx: Context) -> None:
        raise OSError("closed")

    engine = stage.engine(failing)
    async with engine.worker():
        run = await engine.start(failing(), id="o 1")
        await until(run, Status.FAILED)
    assert (await run.why()).endswith(": OSError: closed. Once the cause is gone, retry it: `perdure retry URL 'o 1'`.")
