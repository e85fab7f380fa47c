"""Context variables: values that workflow code sets reach the steps that it calls, and no other code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any

import pytest

from perdure import Context, Status, activity, activity_info, blocking, step, step_info, workflow
from perdure.worker.batched_calls import StepResults
from perdure.worker.run.activity_run import ActivityRun
from perdure.worker.run.commit_lock import CommitLock
from perdure.worker.run.workflow_run import WorkflowRun
from tests.stage import Stage, until

tenant: ContextVar[str] = ContextVar("tenant", default="none")
ambient: ContextVar[str] = ContextVar("ambient", default="none")


async def read(note: str = "") -> str:
    return tenant.get()


def read_in_thread(note: str = "") -> str:
    return tenant.get()


def read_late() -> Awaitable[str]:
    async def later() -> str:
        await asyncio.sleep(0)
        return tenant.get()

    return later()


@workflow
async def sets_and_reads(ctx: Context) -> list[str]:
    tenant.set("acme")
    found = [await ctx.step(read), await ctx.step(read_in_thread), await ctx.step(read_late)]
    first = ctx.step(read, "before")
    tenant.set("globex")
    return [*found, await ctx.step(read, "after"), await first]


async def test_steps_see_the_values_at_the_time_of_the_call(stage: Stage) -> None:
    async with stage.engine(sets_and_reads) as engine, engine.worker():
        handle = await engine.start(sets_and_reads())
        assert await handle.result() == ["acme", "acme", "acme", "globex", "acme"]


@workflow
def sets_and_reads_blocking(ctx: blocking.Context) -> list[str]:
    tenant.set("acme")
    return [ctx.step(read), ctx.step(read_in_thread)]


async def test_a_def_workflow_passes_its_values_on(stage: Stage) -> None:
    pytest.importorskip("greenlet")
    async with stage.engine(sets_and_reads_blocking) as engine, engine.worker():
        handle = await engine.start(sets_and_reads_blocking())
        assert await handle.result() == ["acme", "acme"]


@workflow
async def in_branches(ctx: Context) -> list[str]:
    async def branch(name: str) -> str:
        tenant.set(name)
        return await ctx.step(read, name)

    return [*await asyncio.gather(branch("a"), branch("b")), await ctx.step(read, "outside")]


async def test_each_task_of_a_workflow_has_its_own_values(stage: Stage) -> None:
    async with stage.engine(in_branches) as engine, engine.worker():
        assert await (await engine.start(in_branches())).result() == ["a", "b", "none"]


@workflow
async def waits_between(ctx: Context) -> str:
    tenant.set("acme")
    await ctx.receive("go")
    return await ctx.step(read)


async def test_replay_restores_the_values(on_disk: Stage) -> None:
    async with on_disk.engine(waits_between) as engine:
        handle = await engine.start(waits_between(), id="one")
        async with engine.worker():
            await until(handle, Status.WAITING)
        await handle.send("go")
        async with engine.worker():
            assert await handle.result() == "acme"


# Leaks


async def sets_async(name: str) -> None:
    tenant.set(name)
    step_info().emit("items", name)
    await asyncio.sleep(0)


def sets_in_thread(name: str) -> None:
    tenant.set(name)
    step_info().emit("items", name)


async def sets_and_fails(name: str) -> None:
    tenant.set(name)
    raise ValueError(name)


@activity
async def sets_as_activity(name: str) -> None:
    tenant.set(name)
    activity_info().heartbeat({"at": name})
    await asyncio.sleep(0.01)


@activity
async def read_as_activity() -> str:
    return tenant.get()


@workflow
async def leaks(ctx: Context) -> list[str]:
    found = []
    for sets in (sets_async, sets_in_thread):
        await ctx.step(sets, "acme")
        found += [await ctx.step(read), await ctx.step(read_in_thread)]
    try:
        await ctx.options(retry=1).step(sets_and_fails, "acme")
    except Exception:
        found.append(await ctx.step(read))
    await ctx.call(sets_as_activity("acme"))
    return [*found, await ctx.step(read), await ctx.call(read_as_activity())]


async def test_a_value_that_a_step_sets_reaches_no_other_step(stage: Stage) -> None:
    async with stage.engine(leaks, sets_as_activity, read_as_activity) as engine, engine.worker():
        found = await (await engine.start(leaks())).result()
        assert found == ["none"] * len(found)


async def commits(connection: Any) -> None:
    tenant.set("acme")


@workflow
async def leaks_from_transactions(ctx: Context) -> list[str]:
    found = []
    for _ in range(2):
        await ctx.transaction(commits)
        found.append(await ctx.step(read))
    return found


async def test_a_value_that_a_transaction_sets_reaches_no_other_step(stage: Stage) -> None:
    async with stage.engine(leaks_from_transactions) as engine, engine.worker():
        assert await (await engine.start(leaks_from_transactions())).result() == ["none", "none"]


@workflow
async def calls_back(ctx: Context) -> None:
    await ctx.step(sets_async, "acme")
    await ctx.step(sets_in_thread, "acme")
    await ctx.transaction(commits)
    await ctx.call(sets_as_activity("acme"))


async def test_code_of_the_worker_never_runs_in_the_context_of_a_step(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []

    def watch(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def watched(self: Any, *args: Any) -> Any:
            seen.append((name, tenant.get()))
            return method(self, *args)

        monkeypatch.setattr(owner, name, watched)

    watch(StepResults, "_hand_over")
    watch(WorkflowRun, "emitted")
    watch(ActivityRun, "heartbeat_received")
    watch(CommitLock, "_settle")
    async with stage.engine(calls_back, sets_as_activity) as engine, engine.worker():
        await (await engine.start(calls_back())).result()
    assert {value for _, value in seen} == {"none"}
    assert {name for name, _ in seen} >= {"_hand_over", "emitted", "heartbeat_received"}


async def read_in_transaction(connection: Any) -> str:
    return tenant.get()


@step(at_most_once=True)
async def read_once() -> str:
    return tenant.get()


@workflow
async def other_kinds(ctx: Context) -> list[str]:
    tenant.set("acme")
    return [
        await ctx.transaction(read_in_transaction),
        await ctx.step(read_once),
        await ctx.options(ephemeral=True).step(read),
        await ctx.call(read_as_activity()),
    ]


async def test_transactions_and_other_kinds_of_steps_see_the_values_and_activities_do_not(stage: Stage) -> None:
    async with stage.engine(other_kinds, read_as_activity) as engine, engine.worker():
        assert await (await engine.start(other_kinds())).result() == ["acme", "acme", "acme", "none"]


async def read_both() -> tuple[str, str]:
    return tenant.get(), ambient.get()


def read_both_in_thread() -> tuple[str, str]:
    return tenant.get(), ambient.get()


@workflow
async def reads_both(ctx: Context, name: str) -> list[tuple[str, str]]:
    found = [await ctx.step(read_both), await ctx.step(read_both_in_thread), await ctx.step(read_both)]
    tenant.set(name)
    return [*found, await ctx.step(read_both), await ctx.step(read_both_in_thread)]


async def test_steps_keep_the_values_of_the_program_that_started_the_worker(stage: Stage) -> None:
    async with stage.engine(reads_both) as engine:
        ambient.set("program")
        async with engine.worker():
            found = await (await engine.start(reads_both("acme"))).result()
    assert found == [("none", "program")] * 3 + [("acme", "program")] * 2
