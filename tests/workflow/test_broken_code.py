"""Bugs in workflow code: they block the run, undo nothing, and it goes on with corrected code."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from perdure import Context, Handle, Limit, RunFailed, Singleton, SingletonBusy, Status, UsageError, workflow
from perdure.admin import Reason, RecordKind
from perdure.testing import Environment
from tests.helpers import eventually
from tests.stage import Stage, until, until_recorded

pytestmark = pytest.mark.usefixtures("_reset")

_NOTHING: dict[str, str] = {}
#: What steps did, and whether the code is corrected by now.
done: list[str] = []
corrected: list[bool] = []


@pytest.fixture
def _reset() -> None:
    done.clear()
    corrected.clear()


def charge() -> str:
    done.append("charge")
    return "receipt"


def refund(receipt: str) -> None:
    done.append(f"refund {receipt}")


def bug() -> None:
    if not corrected:
        undefined  # type: ignore[name-defined] # noqa: B018, F821 - the bug


@workflow("broken.order.v1")
async def order(ctx: Context) -> str:
    receipt = await ctx.options(undo=refund).step(charge)
    bug()
    ctx.publish("state", "charged")
    return receipt


async def test_a_bug_blocks_the_run_and_undoes_nothing(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    engine = stage.engine(order)
    with caplog.at_level(logging.ERROR, "perdure.worker"):
        async with engine.worker():
            run = await engine.start(order())
            await until(run, Status.BLOCKED)
    row = await run.info()
    assert row.reason is Reason.BROKEN
    assert row.error is not None
    assert "undefined" in row.error
    assert "in bug" in row.error, "the traceback is stored"
    assert done == ["charge"]
    assert [record.kind for record in await run.history()] == [RecordKind.STEP, RecordKind.BROKEN]
    assert "Its code is broken" in await run.why()
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    [told] = [record for record in errors if run.id in record.getMessage()]
    assert [record for record in errors if record.name == "asyncio"] == []
    assert "is blocked" in told.getMessage()
    assert "name 'undefined' is not defined" in told.getMessage()
    assert told.exc_text is not None
    assert told.exc_text.splitlines()[1].endswith("in order"), "the traceback begins with the user's frames"
    assert (await run.events())[-1].kind == "blocked"


async def test_it_goes_on_with_a_new_deploy_and_repeats_no_step(stage: Stage) -> None:
    engine = stage.engine(order)
    run = await engine.start(order())
    async with engine.worker():
        await until(run, Status.BLOCKED)
    async with engine.worker():
        await eventually(lambda: _events(run, "blocked", 2), saying="the run being blocked again")
    assert [record.kind for record in await run.history()] == [RecordKind.STEP, RecordKind.BROKEN]
    corrected.append(True)
    async with engine.worker():
        assert await run.result("20s") == "receipt"
    assert done == ["charge"]
    assert await run.state("state") == "charged", "what the corrected code does there for the first time is done"


async def _events(run: Handle[Any], kind: str, count: int) -> bool:
    return [event.kind for event in await run.events()].count(kind) >= count


async def test_it_goes_on_by_a_retry(stage: Stage) -> None:
    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order())
        await until(run, Status.BLOCKED)
        corrected.append(True)
        assert await run.retry() == 1
        assert await run.result("20s") == "receipt"
    assert done == ["charge"]


async def test_a_run_whose_deadline_passed_while_it_was_blocked_is_retried_with_another(stage: Stage) -> None:
    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order(), deadline="1d")
        await until(run, Status.BLOCKED)
        assert stage.store is not None
        await stage.store._write("unblock", "", lambda tx: tx.execute("UPDATE perdure_runs SET deadline = 1", {}))
        corrected.append(True)
        with pytest.raises(UsageError, match="has passed; retry it with another one"):
            await run.retry()
        with pytest.raises(UsageError, match="only a run that ended, or a dead letter"):
            await run.retry(deadline="1h", priority=1)
        assert await run.retry(deadline="1h") == 1
        assert await run.result("20s") == "receipt"
    assert done == ["charge"]


async def test_a_bug_in_the_first_lines_blocks_the_run_before_it_did_anything(stage: Stage) -> None:
    @workflow("broken.first.v1")
    async def first(ctx: Context) -> str:
        bug()
        return await ctx.step(charge)

    engine = stage.engine(first)
    run = await engine.start(first())
    async with engine.worker():
        await until(run, Status.BLOCKED)
    corrected.append(True)
    async with engine.worker():
        assert await run.result("20s") == "receipt"


async def test_corrected_code_may_pin_a_version_where_the_bug_was(stage: Stage) -> None:
    @workflow("broken.version.v1")
    async def versioned(ctx: Context) -> int:
        await ctx.step(charge)
        if corrected:
            return ctx.version("fix", 2)
        bug()
        return 0

    engine = stage.engine(versioned)
    run = await engine.start(versioned())
    async with engine.worker():
        await until(run, Status.BLOCKED)
    corrected.append(True)
    async with engine.worker():
        assert await run.result("20s") == 2


async def test_a_bug_after_messages_that_came_together_repeats_what_they_led_to_once(stage: Stage) -> None:
    @workflow("broken.listener.v1")
    async def listener(ctx: Context) -> None:
        await ctx.receive("word", str)
        await asyncio.Event().wait()

    @workflow("broken.batch.v1")
    async def batch(ctx: Context) -> list[int]:
        numbers = [await ctx.receive("number", int)]
        ctx.emit("numbers", numbers[0])
        numbers.append(await ctx.receive("number", int))
        bug()
        ctx.emit("numbers", numbers[1])
        return numbers

    engine = stage.engine(batch, listener)
    run = await engine.start(batch())
    await run.send("number", 1)
    await run.send("number", 2)
    async with engine.worker():
        await until(run, Status.BLOCKED)
    corrected.append(True)
    async with engine.worker():
        assert await run.result("20s") == [1, 2]
        assert [item.value async for item in run.stream("numbers")] == [1, 2]


async def test_a_bug_inside_of_a_saga_undoes_nothing(stage: Stage) -> None:
    @workflow("broken.saga.v1")
    async def saga(ctx: Context) -> str:
        try:
            async with ctx.saga():
                receipt = await ctx.options(undo=refund).step(charge)
                bug()
        except Exception:
            return "caught"
        return receipt

    engine = stage.engine(saga)
    run = await engine.start(saga())
    async with engine.worker():
        await until(run, Status.BLOCKED)
    assert done == ["charge"]
    corrected.append(True)
    async with engine.worker():
        assert await run.result("20s") == "receipt"
    assert done == ["charge"]


async def test_a_bug_in_a_branch_blocks_the_run(stage: Stage) -> None:
    @workflow("broken.branches.v1")
    async def branches(ctx: Context) -> str:
        async def broken() -> None:
            bug()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(_charged(ctx))
            group.create_task(broken())
        return task.result()

    engine = stage.engine(branches)
    run = await engine.start(branches())
    async with engine.worker():
        await until(run, Status.BLOCKED)
    corrected.append(True)
    async with engine.worker():
        assert await run.result("20s") == "receipt"


async def _charged(ctx: Context) -> str:
    return await ctx.step(charge)


async def test_an_error_that_a_step_raised_fails_the_run_and_undoes_it(stage: Stage) -> None:
    def broken() -> None:
        raise TypeError("of a step")

    @workflow("broken.step.v1")
    async def stepping(ctx: Context) -> None:
        await ctx.options(undo=refund).step(charge)
        try:
            await ctx.options(retry=1).step(broken)
        except TypeError:
            ctx.publish("state", "failing")
            raise

    engine = stage.engine(stepping)
    async with engine.worker():
        run = await engine.start(stepping())
        with pytest.raises(RunFailed, match="of a step"):
            await run.result("20s")
    assert done == ["charge", "refund receipt"]


async def test_a_member_of_a_group_that_a_step_raised_fails_the_run(stage: Stage) -> None:
    def broken() -> None:
        raise ExceptionGroup("two", [TypeError("of a step"), ExceptionGroup("inner", [NameError("within")])])

    @workflow("broken.group.v1")
    async def stepping(ctx: Context) -> None:
        try:
            await ctx.options(retry=1).step(broken)
        except* TypeError as group:
            raise group.exceptions[0] from None

    engine = stage.engine(stepping)
    async with engine.worker():
        run = await engine.start(stepping())
        with pytest.raises(RunFailed):
            await run.result("20s")


async def test_a_child_that_the_code_asked_for_before_its_bug_is_started(stage: Stage) -> None:
    @workflow("broken.child.v1")
    async def child(ctx: Context) -> str:
        return "of the child"

    @workflow("broken.parent.v1")
    async def parent(ctx: Context) -> str:
        await ctx.step(charge)
        begun = ctx.spawn(child(), id="kid")
        bug()
        return await begun

    engine = stage.engine(parent, child)
    run = await engine.start(parent())
    async with engine.worker():
        await until(run, Status.BLOCKED)
        assert await (await engine.get("kid")).result("20s") == "of the child"
    corrected.append(True)
    async with engine.worker():
        assert await run.result("20s") == "of the child"


async def test_an_error_class_of_the_users_own_fails_the_run(stage: Stage) -> None:
    class WrongCard(TypeError):
        pass

    @workflow("broken.own.v1")
    async def own(ctx: Context) -> None:
        raise WrongCard("expired")

    engine = stage.engine(own)
    async with engine.worker():
        with pytest.raises(RunFailed, match="WrongCard"):
            await (await engine.start(own())).result("20s")


async def test_the_classes_are_set_by_the_workflow_or_by_the_worker(stage: Stage) -> None:
    @workflow("broken.never.v1", block_on=[])
    async def never(ctx: Context) -> None:
        bug()

    @workflow("broken.lookup.v1", block_on=[LookupError, KeyError])
    async def lookup(ctx: Context) -> None:
        ctx.log.info("%s", _NOTHING["missing"])

    engine = stage.engine(never, lookup, order)
    async with engine.worker(block_on=[]):
        with pytest.raises(RunFailed, match="undefined"):
            await (await engine.start(never())).result("20s")
        with pytest.raises(RunFailed, match="undefined"):
            await (await engine.start(order())).result("20s")
        run = await engine.start(lookup())
        await until(run, Status.BLOCKED)
    assert done == ["charge", "refund receipt"]
    with pytest.raises(UsageError, match="block_on has classes of errors"):
        workflow("broken.wrong.v1", block_on=["NameError"])  # type: ignore[list-item] # the mistake
    with pytest.raises(UsageError, match="block_on has classes of errors, such as .*, not <int>"):
        workflow("broken.wrong.v1", block_on=[10**5000])  # type: ignore[list-item] # it cannot be printed


async def test_result_goes_on_waiting_for_a_blocked_run_and_says_why(stage: Stage) -> None:
    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order())
        await until(run, Status.BLOCKED)
        with pytest.raises(TimeoutError, match="its code is broken"):
            await run.result("0.2s")


async def test_the_parent_and_the_singleton_of_a_blocked_run_wait(stage: Stage) -> None:
    @workflow("broken.parent.v1")
    async def parent(ctx: Context) -> str:
        return await ctx.call(order(), id="child")

    engine = stage.engine(parent, order)
    async with engine.worker():
        run = await engine.start(parent())
        alone = await engine.start(order(), singleton=Singleton("one"))
        await until(alone, Status.BLOCKED)
        await eventually(lambda: _is_blocked(engine.get("child")), saying="the child being blocked")
        await until(run, Status.WAITING)
        with pytest.raises(SingletonBusy):
            await engine.start(order(), singleton=Singleton("one"))
        corrected.append(True)
        await engine.runs.retry("child")
        assert await run.result("20s") == "receipt"


@pytest.mark.parametrize("hold", ["run", "lease"])
async def test_a_blocked_run_keeps_only_permits_that_count_until_its_end(stage: Stage, hold: str) -> None:
    @workflow("broken.limited.v1", limit=Limit("broken.slot", concurrency=1, hold=hold))
    async def limited(ctx: Context) -> str:
        receipt = await ctx.step(charge)
        bug()
        return receipt

    engine = stage.engine(limited)
    async with engine.worker():
        first = await engine.start(limited())
        await until(first, Status.BLOCKED)
        second = await engine.start(limited())
        if hold == "run":
            await until(second, Status.WAITING)
            assert (await second.info()).reason is Reason.LIMIT
            assert done == ["charge"]
        else:
            await until(second, Status.BLOCKED)
            assert done == ["charge", "charge"]
    corrected.append(True)
    async with engine.worker():
        assert await first.result("20s") == "receipt"
        assert await second.result("20s") == "receipt"
    assert done == ["charge", "charge"]


async def _is_blocked(getting: Any) -> bool:
    try:
        return await (await getting).status() is Status.BLOCKED
    except LookupError:
        return False


async def test_a_bug_in_deployed_code_blocks_a_run_that_was_waiting(stage: Stage) -> None:
    @workflow("broken.waiting.v1")
    async def waiting(ctx: Context) -> str:
        receipt = await ctx.step(charge)
        if corrected == [False]:
            undefined  # type: ignore[name-defined] # noqa: B018, F821 - the bug
        await ctx.receive("go")
        return receipt

    engine = stage.engine(waiting)
    run = await engine.start(waiting())
    async with engine.worker():
        await until_recorded(run)
        await until(run, Status.WAITING)
    corrected.append(False)
    await run.send("go")
    async with engine.worker():
        await until(run, Status.BLOCKED)
    assert (await run.info()).reason is Reason.BROKEN
    corrected.clear()
    async with engine.worker():
        assert await run.result("20s") == "receipt"
    assert done == ["charge"]


async def test_the_test_environment_fails_a_run_with_a_bug() -> None:
    async with Environment([order]) as env:
        run = await env.start(order())
        with pytest.raises(RunFailed, match="undefined"):
            await run.result()
