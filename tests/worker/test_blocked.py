from __future__ import annotations

from dataclasses import dataclass

import pytest

from perdure import Call, Context, RunCancelled, Status, Workflow, workflow
from perdure.admin import Reason
from perdure.errors import UsageError
from tests.stage import Stage, until, until_recorded

CALLS: dict[str, int] = {}


async def first(run_id: str) -> str:
    CALLS[run_id] = CALLS.get(run_id, 0) + 1
    return "first"


async def second(word: str) -> str:
    return word + " second"


async def stranger() -> str:
    raise AssertionError("code that does not fit must not run a step")


@workflow("blocked.flow.v1")
async def original(ctx: Context) -> str:
    word = await ctx.step(first, ctx.run_id)
    await ctx.receive("go")
    return await ctx.step(second, word)


@workflow("blocked.flow.v1")
async def renamed(ctx: Context) -> str:
    await ctx.step(stranger)
    await ctx.receive("go")
    return "renamed"


@workflow("blocked.flow.v1")
async def shortened(ctx: Context) -> str:
    return "shortened"


@workflow("blocked.flow.v1")
async def extended(ctx: Context) -> str:
    word = await ctx.step(first, ctx.run_id)
    await ctx.receive("go")
    word = await ctx.step(second, word)
    return await ctx.step(second, word)


async def _half_done(stage: Stage) -> str:
    engine = stage.engine(original)
    async with engine.worker():
        run = await engine.start(original())
        await until_recorded(run)
        await until(run, Status.WAITING)
    await run.send("go")
    return run.id


@pytest.mark.parametrize("changed", [renamed, shortened])
async def test_code_that_does_not_follow_the_history_blocks_the_run_and_writes_nothing(
    on_disk: Stage, changed: Workflow[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    run_id = await _half_done(on_disk)
    before = await on_disk.dump()
    engine = on_disk.engine(changed)
    run = await engine.get(run_id)
    async with engine.worker():
        await until(run, Status.BLOCKED)
        found = await run.info()
        assert found.reason is Reason.DIVERGED
        why = await run.why()
    assert "no longer follows its history" in why
    assert "- record 0: step 'first'" in why
    after = await on_disk.dump()
    assert after["history"] == before["history"]
    assert after["messages"] == before["messages"]
    assert "is blocked" in caplog.text


async def test_a_blocked_run_goes_on_when_a_worker_with_matching_code_starts(on_disk: Stage) -> None:
    run_id = await _half_done(on_disk)
    engine = on_disk.engine(renamed)
    async with engine.worker():
        await until(await engine.get(run_id), Status.BLOCKED)
    fixed = on_disk.engine(original)
    async with fixed.worker():
        run = await fixed.get(run_id)
        assert await run.result("20s") == "first second"
    assert CALLS[run_id] == 1
    assert "unblocked" in [event.kind for event in await run.events()]


async def test_code_that_only_adds_after_the_recorded_part_does_not_block(on_disk: Stage) -> None:
    run_id = await _half_done(on_disk)
    engine = on_disk.engine(extended)
    async with engine.worker():
        assert await (await engine.get(run_id)).result("20s") == "first second second"


async def test_a_blocked_run_is_let_go_by_hand_and_blocked_again_if_nothing_changed(on_disk: Stage) -> None:
    run_id = await _half_done(on_disk)
    engine = on_disk.engine(renamed)
    run = await engine.get(run_id)
    with pytest.raises(UsageError, match="nothing to retry"):
        await run.retry()
    async with engine.worker():
        await until(run, Status.BLOCKED)
        assert await run.retry()
        await until(run, Status.BLOCKED)
        assert [event.kind for event in await run.events()].count("blocked") == 2


async def test_a_blocked_run_can_be_cancelled(on_disk: Stage) -> None:
    run_id = await _half_done(on_disk)
    engine = on_disk.engine(renamed)
    async with engine.worker():
        run = await engine.get(run_id)
        await until(run, Status.BLOCKED)
        assert await run.cancel("hopeless")
        with pytest.raises(RunCancelled, match="hopeless"):
            await run.result("20s")


async def test_a_blocked_run_keeps_the_messages_that_come_meanwhile(on_disk: Stage) -> None:
    engine = on_disk.engine(original)
    async with engine.worker():
        run = await engine.start(original())
        await until(run, Status.WAITING)
    other = on_disk.engine(renamed)
    await other.send(run.id, "unrelated")
    async with other.worker():
        await until(run, Status.BLOCKED)
        await other.send(run.id, "go")
    async with on_disk.engine(original).worker():
        assert await run.result("20s") == "first second"


@dataclass
class New:
    name: str
    size: int


async def test_input_that_the_code_cannot_read_blocks_the_run_until_it_can(on_disk: Stage) -> None:
    @workflow("blocked.input.v1")
    async def strict(ctx: Context, item: New) -> int:
        return item.size

    @workflow("blocked.input.v1")
    async def lenient(ctx: Context, item: dict[str, str]) -> int:
        return len(item)

    client = on_disk.engine()
    run = await client.start(Call.named("blocked.input.v1", item={"name": "socks"}))
    engine = on_disk.engine(strict)
    async with engine.worker():
        await until(run, Status.BLOCKED)
        assert (await run.info()).reason is Reason.UNDECODABLE
        why = await run.why()
    assert "size" in why
    async with on_disk.engine(lenient).worker():
        assert await run.result("20s") == 1


async def test_a_recorded_result_that_the_code_cannot_read_blocks_the_run(on_disk: Stage) -> None:
    async def as_text() -> str:
        return "seven"

    async def as_number() -> int:
        return 7

    @workflow("blocked.result.v1")
    async def old(ctx: Context) -> None:
        await ctx.options(name="produce").step(as_text)
        await ctx.receive("go")

    @workflow("blocked.result.v1")
    async def new(ctx: Context) -> None:
        await ctx.options(name="produce").step(as_number)
        await ctx.receive("go")

    engine = on_disk.engine(old)
    async with engine.worker():
        run = await engine.start(old())
        await until(run, Status.WAITING)
    await run.send("go")
    async with on_disk.engine(new).worker():
        await until(run, Status.BLOCKED)
        assert (await run.info()).reason is Reason.UNDECODABLE
        assert "'produce'" in await run.why()
    async with on_disk.engine(old).worker():
        await run.result("20s")


async def test_calls_that_changed_places_are_found_though_their_names_fit(on_disk: Stage) -> None:
    async def fetch(page: int) -> int:
        return page

    @workflow("blocked.order.v1")
    async def forward(ctx: Context) -> None:
        for page in (1, 2):
            await ctx.step(fetch, page)
        await ctx.receive("go")

    @workflow("blocked.order.v1")
    async def backward(ctx: Context) -> None:
        for page in (2, 1):
            await ctx.step(fetch, page)
        await ctx.receive("go")

    engine = on_disk.engine(forward)
    async with engine.worker():
        run = await engine.start(forward())
        await until(run, Status.WAITING)
    await run.send("go")
    async with on_disk.engine(backward).worker():
        await until(run, Status.BLOCKED)
        assert "arguments of another recorded call" in await run.why()


async def test_other_arguments_alone_are_a_warning(on_disk: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def fetch(page: int) -> int:
        return page

    @workflow("blocked.warn.v1")
    async def old(ctx: Context) -> int:
        page = await ctx.step(fetch, 1)
        await ctx.receive("go")
        return page

    @workflow("blocked.warn.v1")
    async def new(ctx: Context) -> int:
        page = await ctx.step(fetch, 99)
        await ctx.receive("go")
        return page

    engine = on_disk.engine(old)
    async with engine.worker():
        run = await engine.start(old())
        await until(run, Status.WAITING)
    await run.send("go")
    async with on_disk.engine(new).worker():
        assert await run.result("20s") == 1
    assert "'fetch' was recorded with other arguments" in caplog.text
