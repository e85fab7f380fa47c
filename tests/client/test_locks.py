"""Named locks, as programs use them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Context, Locked, UsageError, step, workflow
from perdure.client import locks
from perdure.errors import InvalidDuration, InvalidId, LockLost
from tests.helpers import eventually
from tests.stage import Stage

pytestmark = pytest.mark.every_database


async def test_one_has_a_lock_and_the_other_is_told_who_and_until_when(stage: Stage) -> None:
    engine = stage.engine()
    mine = await engine.locks.acquire("import", "1m", owner="the first")
    with pytest.raises(Locked, match="held by the first until") as refused:
        await engine.locks.acquire("import", "1m")
    assert (refused.value.name, refused.value.owner, refused.value.until) == ("import", "the first", mine.expires_at)
    assert [lock.name for lock in await engine.locks.list()] == ["import"]
    await mine.extend("2m")
    assert (mine.lost, await mine.release(), mine.lost) == (False, True, True)
    assert not await mine.release()
    with pytest.raises(LockLost):
        await mine.extend()
    assert await engine.locks.list() == []
    async with await engine.locks.acquire("import", "1m") as next_one:
        assert next_one.token > mine.token
    assert await engine.locks.get("import") is None


async def test_a_waiter_gets_it_when_it_is_free(stage: Stage) -> None:
    engine = stage.engine()
    first = await engine.locks.acquire("import")
    waiting = asyncio.ensure_future(engine.locks.acquire("import", wait="20s"))
    with pytest.raises(Locked):
        await engine.locks.acquire("import", wait="30ms")
    await first.release()
    second = await waiting
    assert second.token > first.token


async def test_a_lock_whose_holder_is_gone_is_stolen_when_its_time_is_over(stage: Stage) -> None:
    engine = stage.engine()
    gone = await engine.locks.acquire("import", "200ms")
    after = await engine.locks.acquire("import", wait=None)
    assert after.token > gone.token
    assert gone.lost
    with pytest.raises(LockLost):
        await gone.extend()
    assert not await gone.release()
    assert not after.lost


@pytest.fixture
def soon_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend locks every few hundredths of a second, though they last for a minute, which no busy machine exceeds."""
    monkeypatch.setattr(locks, "RENEWED_AFTER", 1 / 2000)


@pytest.mark.usefixtures("soon_extended")
async def test_a_block_keeps_its_lock_for_as_long_as_it_lasts(stage: Stage) -> None:
    engine = stage.engine()
    async with engine.locks.hold("import", "1m") as lock:
        seen = {lock.expires_at}

        async def extended_twice() -> bool:
            seen.add(lock.expires_at)
            return len(seen) >= 3

        await eventually(extended_twice, saying="the lock being extended")
        assert lock.expires_at == max(seen)
        with pytest.raises(Locked):
            await engine.locks.acquire("import")
    assert await engine.locks.get("import") is None


@pytest.mark.usefixtures("soon_extended")
async def test_a_block_that_loses_its_lock_is_cancelled_and_says_so(stage: Stage) -> None:
    engine = stage.engine()
    reached = False
    with pytest.raises(LockLost, match="'import'"):
        async with engine.locks.hold("import", "1m"):
            assert await engine.locks.force_release("import")
            await asyncio.Event().wait()
            reached = True
    assert not reached
    assert not await engine.locks.force_release("import")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_lock_granted_after_its_waiter_was_cancelled_is_released(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = stage.engine()
    store = await engine._session.connect()
    acquire, granted = store.acquire_lock, asyncio.Event()

    async def acquire_and_answer_late(*arguments: Any) -> Any:
        grant = await acquire(*arguments)
        if not granted.is_set():
            granted.set()
            await asyncio.Event().wait()
        return grant

    monkeypatch.setattr(store, "acquire_lock", acquire_and_answer_late)
    asking = asyncio.ensure_future(engine.locks.acquire("import"))
    await granted.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await engine.locks.get("import") is None


async def test_what_goes_wrong_in_a_block_frees_its_lock(stage: Stage) -> None:
    engine = stage.engine()
    with pytest.raises(ZeroDivisionError):
        async with engine.locks.hold("import"):
            _ = 1 / 0
    assert await engine.locks.get("import") is None

    async def hold() -> None:
        async with engine.locks.hold("import"):
            await asyncio.Event().wait()

    holding = asyncio.ensure_future(hold())

    async def held() -> bool:
        return await engine.locks.get("import") is not None

    await eventually(held, saying="the lock being held")
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert await engine.locks.get("import") is None


async def test_a_block_ends_in_order_although_its_engine_was_closed(
    on_disk: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    engine = on_disk.engine()
    async with engine.locks.hold("import"):
        await engine.close()
    assert "cannot be released" in caplog.text


async def test_steps_lock_each_other_out(stage: Stage) -> None:
    inside = most = 0

    @step(name="guarded")
    async def guarded() -> int:
        nonlocal inside, most
        async with engine.locks.hold("guard", wait="20s") as lock:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)  # lets another one in, if the lock does
            inside -= 1
            return lock.token

    @workflow("locks.guarded.v1")
    async def guarding(ctx: Context) -> int:
        return await ctx.step(guarded)

    engine = stage.engine(guarding)
    async with engine.worker():
        runs = await engine.start_many([guarding() for _ in range(8)])
        tokens = [await run.result("30s") for run in runs]
    assert most == 1
    assert len(set(tokens)) == 8


@pytest.mark.usefixtures("soon_extended")
def test_locks_for_code_that_is_not_async(tmp_path: object) -> None:
    from perdure import Engine

    with Engine(f"sqlite:///{tmp_path}/locks.db").blocking() as engine:
        mine = engine.locks.acquire("import", "1m", owner="me")
        assert (mine.name, mine.owner, mine.lost) == ("import", "me", False)
        assert [lock.token for lock in engine.locks.list()] == [mine.token]
        mine.extend("2m")
        assert mine.expires_at > mine.expires_at.fromtimestamp(0, mine.expires_at.tzinfo)
        with pytest.raises(Locked), engine.locks.hold("import", wait=0):
            pass
        assert mine.release()
        with engine.locks.hold("import", "1m") as lock:
            assert engine.locks.get("import") is not None
            assert not lock.lost
        with pytest.raises(ZeroDivisionError), engine.locks.hold("import"):
            _ = 1 / 0
        with pytest.raises(LockLost), engine.locks.hold("import", "1m") as lost:
            assert engine.locks.force_release("import")
            engine.locks.acquire("import", wait="20s")
            while not lost.lost:
                engine.locks.list()


async def test_bad_names_and_times_are_refused(stage: Stage) -> None:
    engine = stage.engine()
    with pytest.raises(InvalidId):
        await engine.locks.acquire("")
    with pytest.raises(InvalidId, match="201 bytes"):
        await engine.locks.acquire("x" * 201)
    with pytest.raises(UsageError, match="millisecond"):
        await engine.locks.acquire("x", 0)
    with pytest.raises(InvalidDuration):
        await engine.locks.acquire("x", "soon")
    with pytest.raises(UsageError, match="limit"):
        await engine.locks.list(limit=0)
