"""A fork begins its step as another run: with all that led to it, and without what its source did."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Call, Context, Handle, Retry, RunNotFound, Status, workflow
from perdure.admin import RecordKind
from tests.helpers import eventually
from tests.stage import Stage, until, until_recorded


async def sent_together(run: Handle[Any], values: range) -> None:
    """Send messages, while no worker reads them."""
    for value in values:
        await run.send("m", value)


async def is_recorded(run: Handle[Any], location: str) -> bool:
    return any(record.location == location for record in await run.history())


async def has_succeeded(run: Handle[Any], location: str) -> bool:
    return any(record.location == location and not record.failed for record in await run.history())


class Till:
    """Outside of every run: idempotency keys that were used, and arguments that were given."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.used: list[list[int]] = []
        self.fails = self.refused = 0

    def quote(self) -> int:
        return 7

    def charge(self, key: str) -> str:
        self.keys.append(key)
        return key

    def use(self, values: list[int]) -> list[int]:
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no")
        self.used.append(list(values))
        return values

    def refuse(self) -> None:
        self.refused += 1
        raise ConnectionError("no")

    async def on_connection(self, connection: object) -> int:
        return 7


async def test_a_fork_behind_messages_that_arrived_together_receives_them_together(stage: Stage) -> None:
    till = Till()

    @workflow("forks.batch.v1")
    async def many(ctx: Context) -> list[list[int]]:
        first = await ctx.step(till.use, await ctx.receive_many("m", int, limit=10))
        return [first, await ctx.step(till.use, await ctx.receive_many("m", int, limit=10))]

    engine = stage.engine(many)
    source = await engine.start(many(), id="source")
    await sent_together(source, range(3))
    async with engine.worker():
        await until_recorded(source, 4)
        copy = await source.fork(from_step="Till.use", id="copy")
        assert await eventually(lambda: till.used[1:]) == [[0, 1, 2]]
    await sent_together(copy, range(5, 7))
    async with engine.worker():
        assert await copy.result("20s") == [[0, 1, 2], [5, 6]]
    # The copied messages and its own are two batches for the fork of the fork, too.
    async with engine.worker():
        again = await copy.fork(from_step="Till.use#2")
        assert await again.result("20s") == [[0, 1, 2], [5, 6]]
        once_more = await again.fork(from_step="Till.use#2")
        assert await once_more.result("20s") == [[0, 1, 2], [5, 6]]


async def test_messages_of_a_fork_do_not_join_the_batch_that_was_copied_before_them(stage: Stage) -> None:
    till = Till()
    till.fails = 1

    @workflow("forks.joined.v1", retry=Retry.fixed("1ms", attempts=2))
    async def many(ctx: Context) -> list[list[int]]:
        first = await ctx.options(retry=1).step(till.use, await ctx.receive_many("m", int, limit=10))
        second: list[int] = await ctx.receive_many("m", int, limit=10)
        await ctx.receive("go")
        return [first, second]

    engine = stage.engine(many)
    source = await engine.start(many(), id="source")
    await sent_together(source, range(2))
    async with engine.worker():
        await until_recorded(source, 6)
    # The second attempt at the source repeats the batch behind three records, which the fork does not copy.
    [*_, before, _] = await source.history()
    assert before.digest == "3"
    copy = await source.fork(from_step=5, id="copy")
    await sent_together(copy, range(2, 4))
    async with engine.worker():
        await eventually(lambda: is_recorded(copy, "Till.use"))
    async with engine.worker():
        await copy.send("go")
        assert await copy.result("20s") == [[0, 1], [2, 3]]


async def test_the_arguments_of_the_step_are_drawn_anew_behind_a_version(stage: Stage) -> None:
    till = Till()

    @workflow("forks.version.v1")
    async def guarded(ctx: Context) -> str:
        await ctx.step(till.quote)
        ctx.patched("first")
        ctx.patched("second")
        return await ctx.step(till.charge, str(ctx.uuid()))

    engine = stage.engine(guarded)
    async with engine.worker():
        source = await engine.start(guarded())
        await source.result("20s")
        copy = await source.fork(from_step="Till.charge")
        await copy.result("20s")
        again = await copy.fork(from_step="Till.charge")
        await again.result("20s")
    assert len(set(till.keys)) == len(till.keys) == 3


async def test_the_arguments_of_the_first_step_are_drawn_anew_behind_a_version(stage: Stage) -> None:
    till = Till()

    @workflow("forks.first-version.v1")
    async def guarded(ctx: Context) -> tuple[bool, str]:
        patched = ctx.patched("first")
        return patched, await ctx.step(till.charge, str(ctx.uuid()))

    engine = stage.engine(guarded)
    async with engine.worker():
        source = await engine.start(guarded())
        await source.result("20s")
        copy = await source.fork(from_step="Till.charge")
        assert (await copy.result("20s"))[0] is True
        again = await copy.fork(from_step="Till.charge")
        assert (await again.result("20s"))[0] is True
    assert len(set(till.keys)) == len(till.keys) == 3


async def test_the_arguments_of_the_step_are_drawn_anew_behind_a_failed_attempt_at_another(stage: Stage) -> None:
    till, failed = Till(), asyncio.Event()

    async def flaky() -> None:
        if not failed.is_set():
            failed.set()
            raise ConnectionError("no")

    async def charge(key: str) -> None:
        await failed.wait()
        till.charge(key)

    @workflow("forks.attempt.v1")
    async def both(ctx: Context) -> None:
        await ctx.step(till.quote)
        patient = ctx.options(retry=Retry.fixed("1ms", attempts=2))
        await asyncio.gather(patient.step(flaky), ctx.step(charge, str(ctx.uuid())))

    engine = stage.engine(both)
    async with engine.worker():
        source = await engine.start(both())
        await source.result("20s")
        kinds = [record.kind for record in await source.history()][:3]
        assert kinds == [RecordKind.STEP, RecordKind.ATTEMPT, RecordKind.STEP]
        copy = await source.fork(from_step="charge")
        await copy.result("20s")
    assert len(set(till.keys)) == len(till.keys) == 2


@pytest.mark.parametrize("first", [False, True])
async def test_the_arguments_of_the_step_are_drawn_anew_behind_a_message_that_came_while_it_went_on(
    stage: Stage, first: bool
) -> None:
    till, began, arrived = Till(), asyncio.Event(), asyncio.Event()

    async def charge(key: str) -> None:
        began.set()
        await arrived.wait()
        till.charge(key)

    @workflow("forks.meanwhile.v1")
    async def meanwhile(ctx: Context) -> int:
        if not first:
            await ctx.step(till.quote)
        await ctx.step(charge, str(ctx.uuid()))
        return await ctx.receive("note", int)

    engine = stage.engine(meanwhile)
    async with engine.worker():
        source = await engine.start(meanwhile())
        await began.wait()
        await source.send("note", 1)
        await until_recorded(source, 1 if first else 2)
        arrived.set()
        await source.result("20s")
        assert [record.kind for record in await source.history()][-2:] == [RecordKind.MESSAGE, RecordKind.STEP]
        copy = await source.fork(from_step="charge")
        assert await copy.result("20s") == 1
    assert len(set(till.keys)) == len(till.keys) == 2


async def test_arguments_of_copied_steps_stay_as_they_are(stage: Stage) -> None:
    till, done = Till(), asyncio.Event()

    async def charge(key: str) -> None:
        await done.wait()
        till.charge(key)

    @workflow("forks.beside.v1")
    async def beside(ctx: Context) -> None:
        async def other() -> None:
            await ctx.step(till.quote)
            await ctx.options(name="second").step(till.charge, str(ctx.uuid()))

        await asyncio.gather(ctx.step(charge, "key"), other())
        await ctx.step(till.use, [1])

    engine = stage.engine(beside)
    async with engine.worker():
        source = await engine.start(beside())
        await eventually(lambda: is_recorded(source, "second"))
        done.set()
        await source.result("20s")
        copy = await source.fork(from_step="charge")
        await copy.result("20s")
        # The branch beside the step has drawn its key as in the source, so the mark is not before the step is called.
        places = ["Till.quote", "", "second", "charge", "Till.use"]
        assert [record.location for record in await copy.history()] == places
    assert till.keys[1:] == ["key", "key"]


async def test_a_fork_of_a_fork_from_the_record_behind_its_mark_draws_its_arguments_anew(stage: Stage) -> None:
    till = Till()

    @workflow("forks.twice.v1")
    async def twice(ctx: Context) -> None:
        await ctx.step(till.quote)
        await ctx.step(till.charge, str(ctx.uuid()))
        await ctx.step(till.use, [1])

    engine = stage.engine(twice)
    async with engine.worker():
        source = await engine.start(twice())
        await source.result("20s")
        copy = await source.fork(from_step="Till.use")
        await copy.result("20s")
        again = await copy.fork(from_step="Till.charge")
        await again.result("20s")
        first = await copy.fork(from_step="Till.quote")
        await first.result("20s")
    assert len(set(till.keys)) == len(till.keys) == 3


@pytest.mark.parametrize("transaction", [False, True])
async def test_a_fork_sends_nothing_that_its_source_has_sent(stage: Stage, transaction: bool) -> None:
    till = Till()

    @workflow("forks.inbox.v1")
    async def inbox(ctx: Context) -> list[str]:
        got: list[str] = []
        while not got or got[-1] != "end":
            got.append(await ctx.receive("note", str))
        return got

    @workflow("forks.sends.v1")
    async def sends(ctx: Context) -> bool:
        await (ctx.transaction(till.on_connection) if transaction else ctx.step(till.quote))
        ctx.send("target", "note", "hello")
        ctx.start(inbox(), id=f"started-by-{ctx.run_id}")
        changed = ctx.patched("change") if ctx.run_id == "copy" else False
        await ctx.step(till.charge, "key")
        return changed

    engine = stage.engine(inbox, sends)
    async with engine.worker():
        target = await engine.start(inbox(), id="target")
        source = await engine.start(sends(), id="source")
        await source.result("20s")
        copy = await source.fork(from_step="Till.charge", id="copy")
        # Its source has not asked for the version.
        assert await copy.result("20s") is False
        await target.send("note", "end")
        assert await target.result("20s") == ["hello", "end"]
        assert await (await engine.get("started-by-source")).status() is not Status.COMPLETED
        with pytest.raises(RunNotFound):
            await engine.get("started-by-copy")


async def test_a_fork_behind_broken_code_draws_its_arguments_anew_and_sends_nothing_again(stage: Stage) -> None:
    till, corrected = Till(), asyncio.Event()

    @workflow("forks.broken.v1")
    async def broken(ctx: Context) -> None:
        await ctx.step(till.quote)
        ctx.send("target", "note", "hello")
        if not corrected.is_set():
            raise NameError("a bug")
        await ctx.step(till.charge, str(ctx.uuid()))

    engine = stage.engine(broken)
    receiver = await engine.start(Call.named("forks.elsewhere.v1"), id="target")
    async with engine.worker():
        source = await engine.start(broken())
        await until(source, Status.BLOCKED)
        corrected.set()
        await source.retry()
        await source.result("20s")
        sent = len(await receiver.inbox())
        copy = await source.fork(from_step="Till.charge")
        await copy.result("20s")
        assert RecordKind.BROKEN not in [record.kind for record in await copy.history()]
    assert len(await receiver.inbox()) == sent
    assert len(set(till.keys)) == len(till.keys) == 2


@pytest.mark.parametrize("by_hand", [False, True])
async def test_another_attempt_at_a_fork_draws_the_numbers_of_the_fork_and_sends_nothing_of_its_source(
    stage: Stage, by_hand: bool
) -> None:
    till = Till()

    async def charge(key: str) -> None:
        till.keys.append(key)
        if till.fails:
            till.fails -= 1
            raise ConnectionError("no")

    async def branch(key: str) -> str:
        return key

    @workflow("forks.attempts.v1", retry=None if by_hand else Retry.fixed("1ms", attempts=4))
    async def sends(ctx: Context) -> list[int]:
        once = ctx.options(retry=1)
        notes: list[int] = []

        async def other() -> None:
            # The source executes this beside the rest; another attempt has the messages from its beginning.
            notes.append(await ctx.receive("note", int))
            await ctx.options(name="branch").step(branch, str(ctx.uuid()))

        async def first() -> None:
            await ctx.step(till.quote)
            ctx.send("target", "hello", 1)
            ctx.start(Call.named("forks.elsewhere.v1"), id=f"started-by-{ctx.run_id}")
            await ctx.options(name="second").step(branch, str(ctx.uuid()))

        await asyncio.gather(other(), first())
        await once.step(charge, str(ctx.uuid()))
        notes.append(await ctx.receive("note", int))
        await once.step(till.use, notes)
        return notes

    engine = stage.engine(sends)
    receiver = await engine.start(Call.named("forks.elsewhere.v1"), id="target")
    async with engine.worker():
        source = await engine.start(sends())
        await eventually(lambda: is_recorded(source, "second"))
        await source.send("note", 1)
        await eventually(lambda: is_recorded(source, "charge"))
        await source.send("note", 2)
        await source.result("20s")
        steps = {one.location: one.payload for one in await source.history()}
        sent = len(await receiver.inbox())
        till.fails = 2
        copy = await source.fork(from_step="charge", id="copy")
        for _ in range(2 if by_hand else 0):
            await until(copy, Status.FAILED)
            await copy.retry()
        await eventually(lambda: has_succeeded(copy, "charge"))
        await copy.send("note", 3)
        assert await copy.result("20s") == [1, 3]
        assert len(await receiver.inbox()) == sent
        with pytest.raises(RunNotFound):
            await engine.get("started-by-copy")
        history = await copy.history()
        assert {one.run_attempt for one in history if one.location == "branch"} == {1, 2, 3}
        assert {one.payload for one in history if one.location == "branch"} == {steps["branch"]}
        assert {one.payload for one in history if one.location == "second"} == {steps["second"]}
        # A fork of a later attempt has the same past.
        again = await copy.fork(from_step="charge")
        await again.send("note", 4)
        assert await again.result("20s") == [1, 4]
    assert till.keys[1:4] == [till.keys[1]] * 3
    assert len(set(till.keys)) == 3


async def test_another_attempt_at_a_fork_goes_on_behind_its_past_when_another_worker_takes_it_up(stage: Stage) -> None:
    till = Till()
    till.fails = 1

    @workflow("forks.taken-up.v1", retry=Retry.fixed("1ms", attempts=2))
    async def waits(ctx: Context) -> list[Any]:
        first: list[int] = await ctx.receive_many("m", int, limit=10)
        try:
            await ctx.options(retry=1, name="fails").step(till.refuse)
        except ConnectionError:
            first.append(0)
        key = str(ctx.uuid())
        await ctx.options(retry=1).step(till.charge, key)
        await ctx.receive("go")
        if ctx.run_id == "copy":
            await ctx.options(retry=1).step(till.use, first)
        await ctx.receive("go")
        return [*first, key]

    engine = stage.engine(waits)
    source = await engine.start(waits(), id="source")
    await sent_together(source, range(2))
    async with engine.worker():
        await until_recorded(source, 4)
        copy = await source.fork(from_step="Till.charge", id="copy")
        await copy.send("go")
        await eventually(lambda: is_recorded(copy, "Till.use"))
        await eventually(lambda: till.used)
    await copy.send("go")
    async with engine.worker():
        assert await copy.result("20s") == [0, 1, 0, till.keys[1]]
    assert till.refused == 1
    assert len(till.keys) == len(set(till.keys)) == 2


async def test_another_attempt_at_a_fork_by_other_code_recalls_results(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    till, corrected = Till(), asyncio.Event()
    till.fails = 1

    @workflow("forks.corrected.v1")
    async def changed(ctx: Context) -> list[int]:
        if not corrected.is_set():
            await ctx.options(name="needless").step(till.quote)
        price: int = await ctx.step(till.quote)
        if corrected.is_set():
            price += await ctx.options(name="more").step(till.quote)
        return await ctx.options(retry=1).step(till.use, [price] if ctx.run_id == "copy" else [])

    engine = stage.engine(changed)
    async with engine.worker():
        source = await engine.start(changed())
        await until(source, Status.FAILED)
        till.fails = 1
        copy = await source.fork(from_step="Till.use", id="copy")
        await until(copy, Status.FAILED)
        corrected.set()
        await copy.retry()
        assert await copy.result("20s") == [14]
    assert "does not follow the history that was copied" in caplog.text
