from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Engine, Handle, Status, UsageError, Workflow, workflow
from perdure.admin import DeployProblem, DeployReport, Reason
from perdure.errors import EngineClosed, SchemaMismatch
from tests.client.changes import CHANGES, DISGUISES, child, disguised, other_child, work
from tests.helpers import eventually
from tests.stage import Stage, until


def deployed(stage: Stage, *, new: bool) -> Engine:
    flows = [disguised(name, disguise, new=new) for name in CHANGES for disguise in DISGUISES]
    return stage.engine(*flows, child, other_child)


async def settled(run: Handle[Any]) -> None:
    """Wait until a run waits for a message."""

    async def there() -> bool:
        return (await run.info()).reason is Reason.MESSAGE

    await eventually(there, saying=f"{run!r} waiting for a message")


async def test_every_planted_change_is_found_in_every_disguise_and_no_compatible_one_is_reported(
    on_disk: Stage,
) -> None:
    before = deployed(on_disk, new=False)
    async with before.worker():
        runs = [await before.start(flow()) for flow in before.workflows.values() if flow not in (child, other_child)]
        for run in runs:
            await run.send("word", "hello")
        for run in runs:
            await settled(run)
    report = await deployed(on_disk, new=True).check()
    assert (report.checked, report.more, report.ok) == (len(runs), False, False)
    found = {finding.type: finding.problem.value for finding in report.findings}
    wanted = {
        f"changes.{name}.{disguise}": expected
        for name, (expected, _) in CHANGES.items()
        for disguise in DISGUISES
        if expected
    }
    assert found == wanted
    assert all(finding.expected and finding.found and finding.fix for finding in report.findings)
    assert len([name for name, (expected, _) in CHANGES.items() if expected]) >= 25
    assert len([name for name, (expected, _) in CHANGES.items() if not expected]) >= 25
    assert (await before.check()).findings == ()


def order(number: int) -> Workflow[Any, Any]:
    """The code of an order, before and after a step was put in."""

    @workflow("check.order.v1")
    async def flow(ctx: Context) -> None:
        await ctx.options(name="quote").step(work, 1)
        if number == 2:
            await ctx.options(name="tax").step(work, 1)
        await ctx.options(name="charge").step(work, 1)
        await ctx.receive("go")

    return flow


@pytest.mark.shared
async def test_a_check_says_where_and_why_and_writes_nothing(stage: Stage) -> None:
    before = stage.engine(order(1))
    async with before.worker():
        runs = [await before.start(order(1)(), id=f"o-{number}") for number in range(3)]
        for run in runs:
            await settled(run)
        await runs[0].cancel()
        await until(runs[0], Status.CANCELLED)
    await before.start(order(1)(), id="later", at="1d")
    rows = await stage.dump()
    report = await stage.engine(order(2)).check(save=False)
    assert await stage.dump() == rows
    assert (report.checked, report.ok) == (3, False)
    assert {finding.run_id for finding in report.findings} == {"o-1", "o-2"}
    finding = report.findings[0]
    assert finding.problem is DeployProblem.DIVERGED
    assert finding.expected == "record 1: step 'charge'"
    assert finding.found == "the code waits for step 'tax'"
    assert "if ctx.patched(" in finding.fix
    assert 'ctx.removed("charge", "step")' in finding.fix


async def test_other_arguments_alone_are_a_warning_and_the_check_is_passed(on_disk: Stage) -> None:
    def priced(price: int) -> Workflow[Any, Any]:
        @workflow("check.priced.v1")
        async def flow(ctx: Context) -> None:
            await ctx.options(name="charge").step(work, price)
            await ctx.receive("go")

        return flow

    before = on_disk.engine(priced(1))
    async with before.worker():
        await settled(await before.start(priced(1)()))
    report = await on_disk.engine(priced(2)).check()
    [finding] = report.findings
    assert (finding.problem, finding.is_warning) == (DeployProblem.ARGUMENTS, True)
    assert (report.checked, report.ok) == (1, True)


async def test_runs_of_some_types_and_so_many_of_them_are_looked_at(on_disk: Stage) -> None:
    @workflow("check.other.v1")
    async def other(ctx: Context) -> None:
        await ctx.receive("go")

    engine = on_disk.engine(order(1), other)
    for number in range(120):
        await engine.start(other(), id=f"other-{number}")
    await engine.start(order(1)(), id="mine")
    assert (await engine.check()).checked == 121
    only = await engine.check(types=["check.order.v1"])
    assert (only.checked, only.more) == (1, False)
    some = await engine.check(limit=110)
    assert (some.checked, some.more) == (110, True)
    # As many as are read at a time.
    some = await engine.check(limit=100)
    assert (some.checked, some.more) == (100, True)
    assert (await engine.check(types=["check.other.v1"], limit=120)).more is False
    for wrong in ({"limit": 0}, {"types": "check.order.v1"}):
        with pytest.raises(UsageError):
            await engine.check(**wrong)


async def test_a_type_that_is_gone_is_found_unless_only_others_are_asked_for(on_disk: Stage) -> None:
    @workflow("check.kept.v1")
    async def kept(ctx: Context) -> None: ...

    await on_disk.engine(order(1)).start(order(1)())
    engine = on_disk.engine(kept)
    [finding] = (await engine.check()).findings
    assert (finding.problem, finding.found) == (DeployProblem.UNSERVED, "only check.kept.v1")
    assert (await engine.check(types=["check.kept.v1"])).ok


async def test_an_input_that_the_code_no_longer_takes_is_found(on_disk: Stage) -> None:
    @workflow("check.input.v1")
    async def before(ctx: Context, item: str) -> None:
        await ctx.receive("go")

    @workflow("check.input.v1")
    async def wider(ctx: Context, item: str, count: int = 1) -> None:
        await ctx.receive("go")

    @workflow("check.input.v1")
    async def narrower(ctx: Context, item: str, count: int) -> None:
        await ctx.receive("go")

    await on_disk.engine(before).start(before("pen"))
    assert (await on_disk.engine(wider).check()).findings == ()
    [finding] = (await on_disk.engine(narrower).check()).findings
    assert finding.problem is DeployProblem.UNDECODABLE
    assert "lacks the arguments ['count']" in finding.found


async def test_a_child_under_way_that_the_code_no_longer_calls_is_found(on_disk: Stage) -> None:
    @workflow("check.slow.v1")
    async def slow(ctx: Context) -> None:
        await ctx.receive("go")

    def parent(number: int) -> Workflow[Any, Any]:
        @workflow("check.parent.v1")
        async def flow(ctx: Context) -> None:
            await ctx.options(name="a").step(work, 1)
            if number == 1:
                await ctx.call(slow())
            elif number == 2:
                await ctx.removed("check.slow.v1", "child")
            await ctx.receive("go")

        return flow

    before = on_disk.engine(parent(1), slow)
    async with before.worker():
        run = await before.start(parent(1)())
        await until(run, Status.WAITING)
    assert (await before.check()).ok
    [finding] = (await on_disk.engine(parent(3), slow).check()).findings
    assert finding.expected == "a child at 'check.slow.v1', started and not yet heard of"
    assert 'ctx.removed("check.slow.v1", "child")' in finding.fix
    assert (await on_disk.engine(parent(2), slow).check()).ok


async def test_code_that_ends_where_the_last_one_waited_fits(on_disk: Stage) -> None:
    def ending(*, waits: bool) -> Workflow[Any, Any]:
        @workflow("check.ending.v1")
        async def flow(ctx: Context) -> None:
            await ctx.options(name="charge").step(work, 1)
            if waits:
                await ctx.receive("go")

        return flow

    before = on_disk.engine(ending(waits=True))
    async with before.worker():
        await settled(await before.start(ending(waits=True)()))
    report = await on_disk.engine(ending(waits=False)).check()
    assert (report.checked, report.findings) == (1, ())


async def test_a_run_that_is_blocked_is_looked_at_too_and_fits_once_the_code_does(on_disk: Stage) -> None:
    before = on_disk.engine(order(1))
    async with before.worker():
        run = await before.start(order(1)())
        await settled(run)
    changed = on_disk.engine(order(2))
    async with changed.worker():
        await run.send("go")
        await until(run, Status.BLOCKED)
        assert not (await changed.check()).ok
        assert (await before.check()).ok


async def test_a_check_of_an_engine_that_is_not_open_neither_opens_nor_migrates(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    engine = Engine(f"sqlite:///{path}", [order(1)])
    with pytest.raises(SchemaMismatch):
        await engine.check()
    await engine.open()
    assert (await engine.check()).checked == 0
    await engine.close()
    with pytest.raises(EngineClosed):
        await engine.check()


async def test_a_check_from_code_that_is_not_async(on_disk: Stage) -> None:
    await on_disk.engine(order(1)).start(order(1)())

    def act() -> DeployReport:
        with on_disk.engine(order(2)).blocking() as engine:
            return engine.check()

    assert (await asyncio.to_thread(act)).checked == 1


async def test_a_check_leaves_out_bulk_actions_and_sticky_events_that_are_not_over(on_disk: Stage) -> None:
    @workflow("check.listener.v1")
    async def listener(ctx: Context) -> str:
        return await ctx.event("rates", str)

    engine = on_disk.engine(listener)
    async with engine.worker():
        run = await engine.start(listener())
        await until(run, Status.WAITING)
    await engine.runs.start_bulk("cancel", [run.id])
    report = await engine.check()
    assert (report.ok, report.findings) == (True, ())
