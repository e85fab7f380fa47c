"""Messages under names that the code does not ask for."""

from __future__ import annotations

import logging

import pytest

from perdure import Channel, Context, Status, workflow
from tests.helpers import eventually
from tests.stage import Stage, until, until_recorded


@workflow("unread.approval.v1")
async def approval(ctx: Context) -> str:
    return await ctx.receive("approval", str)


async def test_a_misspelt_name_is_accepted_and_why_tells_it(stage: Stage) -> None:
    engine = stage.engine(approval)
    async with engine.worker():
        run = await engine.start(approval())
        await until(run, Status.WAITING)
        await run.send("aproval", "yes")
        await run.send("aproval", "yes!")
        await run.send("other", "yes")
        await until_recorded(run, 3)

        async def told() -> bool:
            return "has not asked for so far: 'aproval' (2), 'other'." in await run.why()

        await eventually(told, saying="the unread names being told")
        assert "Was 'approval' meant by 'aproval'?" in await run.why()
        waits = (await run.report()).waits
        assert waits is not None
        assert waits.unread == {"aproval": 2, "other": 1}
        await run.send("approval", "at last")
        assert await run.result("20s") == "at last"


async def test_a_send_under_a_misspelt_name_is_logged_and_others_are_not(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow("unread.several.v1")
    async def several(ctx: Context) -> str:
        return (await ctx.receive_any(Channel("approval", str), Channel("part1", str))).value

    engine = stage.engine(several)
    run = await engine.start(several())
    with caplog.at_level(logging.INFO, "perdure.client"):
        await run.send("aproval", "before the run has begun")
        async with engine.worker():
            await until(run, Status.WAITING)
            await until_recorded(run, 1)
        assert not [record for record in caplog.records if record.name == "perdure.client"]
        for number, name in enumerate(("other", "part2")):
            await run.send(name, "for later, perhaps")
            async with engine.worker():
                await until_recorded(run, number + 2)
                await until(run, Status.WAITING)
        assert not [record for record in caplog.records if record.name == "perdure.client"]
        await run.send("aproval", "yes", key="once")
        await run.send("aproval", "yes", key="once")
    told = [record.getMessage() for record in caplog.records if record.name == "perdure.client"]
    [warning] = told
    assert warning.startswith(f"message 'aproval' was sent to run {run.id}, which waits for 'approval'")
    await run.send("approval", "at last")
    async with engine.worker():
        assert await run.result("20s") == "at last"
