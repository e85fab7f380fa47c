"""Branches and loops on a real worker and every database."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure import Branch, Break, Context, Continue, Retry, RunFailed, Status, step, workflow
from perdure.core.model.record import RecordKind
from perdure.errors import JoinError
from perdure.workflow.scopes import read_checkpoint
from tests.helpers import eventually
from tests.stage import Stage, until, until_recorded

calls: list[str] = []


@step(retry=Retry.never())
async def work(key: str) -> str:
    calls.append(key)
    if key.startswith("bad"):
        raise ValueError(key)
    return key.upper()


async def wait_for_word(ctx: Context, key: str) -> str:
    try:
        return f"{await ctx.step(work, key)}:{await ctx.receive(key, str)}"
    finally:
        await ctx.step(work, f"cleanup-{key}")


@workflow("branches.join.v1")
async def joined(ctx: Context, keys: list[str]) -> dict[str, str]:
    return await ctx.join({key: ctx.step(work, key) for key in keys})


@workflow("branches.race.v1")
async def raced(ctx: Context) -> list[str]:
    branches: dict[str, Branch[str]] = {key: wait_for_word(ctx, key) for key in ("left", "right")}
    won = await ctx.race(branches)
    return [won.winner, won.value, await ctx.receive("after", str)]


@workflow("branches.map.v1")
async def mapped(ctx: Context, count: int) -> list[str]:
    return await ctx.map(work, [f"item-{number}" for number in range(count)], limit=7)


async def count_messages(ctx: Context, total: int) -> Continue[int] | Break[int]:
    number = await ctx.receive("number", int)
    await ctx.step(work, f"number-{number}")
    return Continue(total + number) if number else Break(total)


@workflow("branches.loop.v1")
async def looping(ctx: Context) -> int:
    return await ctx.loop(0, count_messages, commit_every=5)


async def add_messages(ctx: Context, total: int) -> Continue[int] | Break[int]:
    number = await ctx.receive("number", int)
    return Continue(total + number) if number else Break(total)


@workflow("branches.loop-without-steps.v1")
async def looping_without_steps(ctx: Context) -> int:
    return await ctx.loop(0, add_messages, commit_every=5)


@workflow("branches.anew.v1")
async def anew(ctx: Context, rest: int, total: int) -> int:
    total += await ctx.receive("number", int)
    await ctx.call(joined([f"child-{rest}"]))
    if rest:
        ctx.continue_as_new(anew(rest - 1, total))
    return total


async def test_a_join_gives_what_its_branches_gave(stage: Stage) -> None:
    engine = stage.engine(joined)
    async with engine.worker():
        run = await engine.start(joined(["a", "b"]))
        assert await run.result("20s") == {"a": "A", "b": "B"}


async def test_the_error_of_a_join_is_known_outside_of_the_run(stage: Stage) -> None:
    engine = stage.engine(joined)
    async with engine.worker():
        run = await engine.start(joined(["bad1", "b", "bad2"]))
        try:
            await run.result("20s")
        except RunFailed as error:
            assert isinstance(error.__cause__, JoinError)
            assert [str(one) for one in error.__cause__.exceptions] == ["bad1", "bad2"]
        else:
            raise AssertionError("it did not fail")


async def test_the_winner_of_a_race_is_recorded_and_the_losers_history_is_deleted(stage: Stage) -> None:
    calls.clear()
    engine = stage.engine(raced)
    async with engine.worker():
        run = await engine.start(raced())
        await until_recorded(run, 2)
        await run.send("right", "won")
        await until(run, Status.WAITING)

        async def only_the_winner_is_left() -> bool:
            left = {record.location for record in await run.history() if record.location.startswith("race/")}
            return left == {"race/right/work", "race/right/work#2"}

        await eventually(only_the_winner_is_left, saying="the history of the losers being deleted")
    calls.clear()
    # Another worker replays it from what is left.
    async with engine.worker():
        await run.send("after", "z")
        assert await run.result("20s") == ["right", "RIGHT:won", "z"]
    assert calls == []


async def test_a_map_over_many_items_never_has_more_than_its_limit_under_way(stage: Stage) -> None:
    engine = stage.engine(mapped)
    async with engine.worker():
        run = await engine.start(mapped(60))
        assert await run.result("30s") == [f"ITEM-{number}" for number in range(60)]


async def test_a_loop_leaves_few_rows_however_many_messages_it_took(stage: Stage) -> None:
    engine = stage.engine(looping)
    async with engine.worker():
        run = await engine.start(looping())
        for number in range(1, 41):
            await run.send("number", number)
        await run.send("number", 0)
        assert await run.result("60s") == sum(range(41))
    assert [record.kind.value for record in await run.history()] == ["scope"]


async def test_a_loop_goes_on_from_its_last_state_in_another_worker(stage: Stage) -> None:
    engine = stage.engine(looping)
    run = await engine.start(looping())
    calls.clear()
    for part in range(4):
        async with engine.worker():
            for number in range(3):
                await run.send("number", part * 3 + number + 1)
            await until_parked_after(run, (part + 1) * 3)
    async with engine.worker():
        await run.send("number", 0)
        assert await run.result("20s") == sum(range(13))
    assert calls == [f"number-{number}" for number in [*range(1, 13), 0]]


async def until_parked_after(run: Any, taken: int) -> None:
    async def there() -> bool:
        found = await run.info()
        return found.status is Status.WAITING and found.inbox_read == taken

    await eventually(there, saying=f"{run!r} having taken in {taken} messages")


async def test_a_run_that_begins_anew_keeps_its_id_and_its_unread_messages(stage: Stage) -> None:
    engine = stage.engine(anew, joined)
    run = await engine.start(anew(3, 0))
    for number in (1, 2, 3, 4):
        await run.send("number", number)
    async with engine.worker():
        assert await run.result("30s") == 10
    found = await run.info()
    assert (found.generation, found.attempt) == (4, 1)
    assert [event.kind for event in await run.events()].count("continued") == 3
    children = await engine.runs.list(parent=run.id)
    assert len(children.runs) == 4


async def test_messages_that_a_loop_let_go_before_they_were_recorded_are_read_all_the_same(stage: Stage) -> None:
    engine = stage.engine(looping_without_steps)
    run = await engine.start(looping_without_steps())
    for number in range(1, 11):
        await run.send("number", number)
    async with engine.worker():
        await until_parked_after(run, 10)
    async with engine.worker():
        await run.send("number", 0)
        assert await run.result("20s") == sum(range(11))


async def test_a_loop_that_lets_go_of_messages_within_one_turn_deletes_them_too(on_disk: Stage) -> None:
    engine = on_disk.engine(looping_without_steps)
    run = await engine.start(looping_without_steps())
    for number in range(1, 401):
        await run.send("number", number)
    async with engine.worker():
        await until_parked_after(run, 400)
    assert (await on_disk.rows("SELECT COUNT(*), MAX(seq) FROM perdure_messages")) == [(300, 400)]
    assert (await on_disk.rows("SELECT COUNT(*) FROM perdure_events"))[0][0] < 305


async def test_the_state_of_a_loop_of_ephemeral_steps_becomes_durable_too(stage: Stage) -> None:
    go_on = asyncio.Event()

    @step(ephemeral=True)
    async def look(number: int) -> int:
        if number == 25:
            await go_on.wait()
        return number + 1

    async def look_again(ctx: Context, number: int) -> Continue[int] | Break[int]:
        number = await ctx.step(look, number)
        return Continue(number) if number < 30 else Break(number)

    @workflow("branches.ephemeral.v1")
    async def looking(ctx: Context) -> int:
        return await ctx.loop(0, look_again, name="look", commit_every=10)

    engine = stage.engine(looking)
    async with engine.worker():
        run = await engine.start(looking())

        async def there() -> bool:
            return any(
                record.kind is RecordKind.SCOPE and read_checkpoint(record).upto == 20 for record in await run.history()
            )

        await eventually(there, saying="the loop having recorded its state")
        go_on.set()
        assert await run.result("20s") == 30
