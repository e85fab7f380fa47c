"""Items that a step emits while it is running."""

from __future__ import annotations

import asyncio
import threading
from itertools import groupby
from typing import Any

import pytest

from perdure import Context, Handle, Retry, RunFailed, StepInfo, StepTimeout, step, step_info, workflow
from perdure.core.model.outputs import Output, OutputKind
from perdure.errors import EncodeError, InvalidName, StreamFull
from perdure.worker.steps import emit
from tests.helpers import eventually
from tests.stage import Stage


async def items(stage: Stage, run: Handle[Any], name: str = "tokens") -> list[Output]:
    assert stage.store is not None
    found: list[Output] = []
    while more := await stage.store.outputs(run.id, OutputKind.STREAM, name, len(found) - 1, 1000):
        found += more
    return found


async def shown(stage: Stage, run: Handle[Any]) -> list[str]:
    return [item.payload for item in await items(stage, run)]


async def until_shown(stage: Stage, run: Handle[Any], expected: list[str]) -> None:
    async def there() -> bool:
        return await shown(stage, run) == expected

    await eventually(there, saying=f"{run!r} showing {expected}")


async def test_what_an_async_step_emits_is_seen_while_it_runs(stage: Stage) -> None:
    go_on = asyncio.Event()

    async def think() -> str:
        for token in "abc":
            step_info().emit("tokens", token)
        await go_on.wait()
        step_info().emit("tokens", "d")
        return "done"

    @workflow("emitting.async.v1")
    async def thinking(ctx: Context) -> str:
        ctx.emit("tokens", "before")
        answer = await ctx.step(think)
        ctx.emit("tokens", "after")
        return answer

    engine = stage.engine(thinking)
    async with engine.worker():
        run = await engine.start(thinking())
        await until_shown(stage, run, ['"before"', '"a"', '"b"', '"c"'])
        assert await run.history() == []
        go_on.set()
        assert await run.result("20s") == "done"
    found = await items(stage, run)
    assert [item.payload for item in found] == ['"before"', '"a"', '"b"', '"c"', '"d"', '"after"']
    assert [item.source.partition("@")[0] for item in found] == ["", *["think"] * 4, ""]
    assert len({item.source for item in found[1:-1]}) == 1


async def test_what_a_step_in_a_thread_emits_is_seen_while_it_runs(stage: Stage) -> None:
    go_on = threading.Event()

    def think() -> int:
        for number in range(3):
            step_info().emit("tokens", number)
        go_on.wait(60)
        step_info().emit("tokens", 3)
        return 4

    @workflow("emitting.thread.v1")
    async def thinking(ctx: Context) -> int:
        return await ctx.step(think)

    engine = stage.engine(thinking)
    async with engine.worker():
        run = await engine.start(thinking())
        await until_shown(stage, run, ["0", "1", "2"])
        go_on.set()
        assert await run.result("20s") == 4
    assert await shown(stage, run) == ["0", "1", "2", "3"]


async def test_an_attempt_that_is_made_again_emits_again_as_another_source(stage: Stage) -> None:
    @step(retry=Retry.fixed("1ms", attempts=3))
    async def think() -> int:
        info = step_info()
        for number in range(info.attempt + 1):
            info.emit("tokens", number)
        if info.attempt < 3:
            raise ConnectionError
        return info.attempt

    @workflow("emitting.again.v1")
    async def thinking(ctx: Context) -> int:
        return await ctx.step(think)

    engine = stage.engine(thinking)
    async with engine.worker():
        run = await engine.start(thinking())
        assert await run.result("20s") == 3
    by_source = [
        [item.payload for item in some] for _, some in groupby(await items(stage, run), lambda item: item.source)
    ]
    assert by_source == [["0", "1"], ["0", "1", "2"], ["0", "1", "2", "3"]]


async def test_what_comes_after_an_attempt_is_over_is_dropped(stage: Stage) -> None:
    go_on, late = threading.Event(), threading.Event()

    # Long enough for a thread to begin on a busy machine.
    @step(retry=Retry.never(), timeout="3s")
    def think() -> None:
        step_info().emit("tokens", "in time")
        go_on.wait(60)
        step_info().emit("tokens", "too late")
        late.set()

    @workflow("emitting.late.v1")
    async def thinking(ctx: Context) -> str:
        try:
            await ctx.step(think)
        except StepTimeout:
            await ctx.receive("go on")
            ctx.emit("tokens", "over")
        return "over"

    engine = stage.engine(thinking)
    async with engine.worker():
        run = await engine.start(thinking())
        await eventually(lambda: shown(stage, run))
        await eventually(run.history)
        go_on.set()
        await eventually(late.is_set)
        await run.send("go on")
        assert await run.result("20s") == "over"
    assert await shown(stage, run) == ['"in time"', '"over"']


async def test_what_several_threads_of_a_step_emit_is_there_once(on_disk: Stage) -> None:
    def talk(info: StepInfo, who: int) -> None:
        for number in range(200):
            info.emit("tokens", [who, number])

    def think() -> None:
        threads = [threading.Thread(target=talk, args=(step_info(), who)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @workflow("emitting.threads.v1")
    async def thinking(ctx: Context) -> None:
        await ctx.step(think)

    engine = on_disk.engine(thinking)
    async with engine.worker():
        run = await engine.start(thinking())
        await run.result("20s")
    found = await shown(on_disk, run)
    for who in range(4):
        assert [item for item in found if item.startswith(f"[{who},")] == [f"[{who},{number}]" for number in range(200)]


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(emit, "ROOM_ITEMS", 20)
    return 20


async def test_a_thread_that_emits_faster_than_can_be_written_waits(on_disk: Stage, little_room: int) -> None:
    most: list[int] = []

    def think() -> None:
        info = step_info()
        for number in range(1000):
            info.emit("tokens", number)
            attempt: Any = info._made_by
            most.append(attempt.emission.items)

    @workflow("emitting.fast.v1")
    async def thinking(ctx: Context) -> None:
        await ctx.step(think)

    engine = on_disk.engine(thinking)
    async with engine.worker():
        run = await engine.start(thinking())
        await run.result("20s")
    assert await shown(on_disk, run) == [str(number) for number in range(1000)]
    assert max(most) <= little_room


async def test_an_async_step_that_never_lets_anything_be_written_is_told(on_disk: Stage, little_room: int) -> None:
    @step(retry=Retry.never())
    async def think() -> None:
        for number in range(little_room + 1):
            step_info().emit("tokens", number)

    @workflow("emitting.greedy.v1")
    async def thinking(ctx: Context) -> None:
        await ctx.step(think)

    engine = on_disk.engine(thinking)
    async with engine.worker():
        run = await engine.start(thinking())
        with pytest.raises(RunFailed, match="emitted 20 items") as caught:
            await run.result("20s")
    assert isinstance(caught.value.__cause__, StreamFull)
    assert len(await shown(on_disk, run)) == little_room


async def test_large_items_fill_the_room_too_but_one_is_always_taken(
    on_disk: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emit, "ROOM_BYTES", 1000)

    async def think() -> None:
        step_info().emit("tokens", "x" * 2000)
        with pytest.raises(StreamFull):
            step_info().emit("tokens", "y")

    @workflow("emitting.large.v1")
    async def thinking(ctx: Context) -> None:
        await ctx.step(think)

    engine = on_disk.engine(thinking)
    async with engine.worker():
        run = await engine.start(thinking())
        await run.result("20s")
    assert len(await shown(on_disk, run)) == 1


async def test_what_cannot_be_emitted_fails_the_step_and_leaves_nothing(on_disk: Stage) -> None:
    async def think(stream: str, good: bool) -> None:
        step_info().emit(stream, 1 if good else object())

    @workflow("emitting.bad.v1")
    async def thinking(ctx: Context, stream: str, good: bool) -> None:
        await ctx.step(think, stream, good)

    engine = on_disk.engine(thinking)
    async with engine.worker():
        for stream, good, error in (("tokens", False, EncodeError), ("a/b", True, InvalidName)):
            run = await engine.start(thinking(stream, good))
            with pytest.raises(RunFailed) as caught:
                await run.result("20s")
            assert isinstance(caught.value.__cause__, error)
    assert await on_disk.rows("SELECT COUNT(*) FROM perdure_outputs") == [(0,)]


async def test_a_transaction_may_emit_although_that_is_not_part_of_it(stage: Stage) -> None:
    go_wrong = [True, False]

    @step(retry=Retry.fixed("1ms", attempts=3))
    async def think(connection: Any) -> str:
        step_info().emit("tokens", step_info().attempt)
        if go_wrong.pop(0):
            raise ConnectionError
        return "done"

    @workflow("emitting.transaction.v1")
    async def thinking(ctx: Context) -> str:
        return await ctx.transaction(think)

    engine = stage.engine(thinking)
    async with engine.worker():
        run = await engine.start(thinking())
        assert await run.result("20s") == "done"
    assert await shown(stage, run) == ["1", "2"]


async def test_places_deep_inside_a_workflow_still_make_keys(stage: Stage) -> None:
    name = "n" * 200

    async def think() -> None:
        step_info().emit("tokens", 1)

    async def branch(ctx: Context, depth: int) -> None:
        if depth:
            await ctx.join({name: lambda ctx: branch(ctx, depth - 1)})
            return
        await ctx.step(think)
        ctx.emit("tokens", 2)
        ctx.send(ctx.run_id, "hello", 3)

    @workflow("emitting.deep.v1")
    async def thinking(ctx: Context) -> int:
        await branch(ctx, 4)
        return await ctx.receive("hello", int)

    engine = stage.engine(thinking)
    async with engine.worker():
        run = await engine.start(thinking(), id="r" * 255)
        assert await run.result("20s") == 3
    assert await shown(stage, run) == ["1", "2"]
