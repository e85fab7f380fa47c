"""Messages under names that the code does not ask for."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from perdure import Channel, Context, Status, workflow
from perdure.machine import Actions, StateMachine
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


def warnings_of_sends(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The client also logs waits that take long, as on a busy machine."""
    texts = [record.getMessage() for record in caplog.records if record.name == "perdure.client"]
    return [text for text in texts if text.startswith("message ")]


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
        assert not warnings_of_sends(caplog)
        for number, name in enumerate(("other", "part2")):
            await run.send(name, "for later, perhaps")
            async with engine.worker():
                await until_recorded(run, number + 2)
                await until(run, Status.WAITING)
        assert not warnings_of_sends(caplog)
        await run.send("aproval", "yes", key="once")
        await run.send("aproval", "yes", key="once")
    [warning] = warnings_of_sends(caplog)
    assert warning.startswith(f"message 'aproval' was sent to run {run.id}, which waits for 'approval'")
    await run.send("approval", "at last")
    async with engine.worker():
        assert await run.result("20s") == "at last"


class Approval(StateMachine[str, str], type="unread.machine.v1"):
    messages = (Channel("approve", str), Channel("reject", str))

    def on_start(self, input: str) -> Actions:
        return self.timer("late", "1h") if input else None

    def on_message(self, name: str, value: Any) -> Actions:
        return self.complete(name)


class Deaf(StateMachine[str, str], type="unread.deaf.v1"):
    def on_start(self, input: str) -> Actions:
        return self.timer("late", "1h")


async def test_a_send_to_a_machine_under_a_name_that_it_does_not_declare_is_logged(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    engine = stage.engine(Approval, Deaf)
    one, other = await engine.start(Approval.call("x")), await engine.start(Deaf.call("x"))
    async with engine.worker():
        await until(one, Status.WAITING)
        await until(other, Status.WAITING)
    with caplog.at_level(logging.INFO, "perdure.client"):
        await one.send("quit", "it is not close to any name")
        await other.send("quit", "it takes none")
    kept = "it stays in the inbox, and no handler gets it"
    assert warnings_of_sends(caplog) == [
        f"message 'quit' was sent to run {one.id}, which takes only 'approve', 'reject': {kept}",
        f"message 'quit' was sent to run {other.id}, which takes no messages: {kept}",
    ]
    caplog.clear()
    async with engine.worker():
        await until_recorded(one, 1)
        await until(one, Status.WAITING)
        await one.send("reject", "no")
        assert await one.result("20s") == "reject"
    assert not warnings_of_sends(caplog)
