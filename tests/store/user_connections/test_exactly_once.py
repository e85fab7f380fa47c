"""`ctx.transaction` commits the writes of its function and the record of its result together."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from typing import Any

import pytest

from perdure import Context, Retry, RunFailed, Status, step, step_info, workflow
from tests.invariants import scan_store
from tests.stage import Stage, until, until_recorded
from tests.store.user_connections.tables import execute, prepare, put, written


@step(retry=Retry.never())
async def put_and_raise(connection: Any, table: str) -> None:
    await put(connection, table, 13)
    raise ValueError("no")


@step(retry=Retry(attempts=3, initial=0.01))
async def put_in_the_end(connection: Any, table: str) -> int:
    attempt = step_info().attempt
    await put(connection, table, attempt)
    if attempt < 3:
        raise ValueError("not yet")
    return attempt


@workflow("transactions.simple.v1")
async def simple(ctx: Context, table: str) -> int:
    return await ctx.transaction(put, table, 7)


@workflow("transactions.failing.v1")
async def failing(ctx: Context, table: str) -> str:
    try:
        await ctx.transaction(put_and_raise, table)
    except ValueError as error:
        return f"raised {error}, then {await ctx.transaction(put_in_the_end, table)}"
    return "nothing was raised"


async def test_what_is_written_and_what_is_recorded_are_there_together(stage: Stage) -> None:
    engine = stage.engine(simple)
    mine = await prepare(stage)
    async with engine.worker():
        run = await engine.start(simple(mine))
        assert await run.result(timeout=20) == 7
    assert await written(stage) == [7]
    assert [(record.location, record.payload) for record in await run.history()] == [("put", "7")]
    assert stage.store is not None
    assert await scan_store(stage.store.query) == []


async def test_what_an_attempt_that_raised_has_written_is_rolled_back(stage: Stage) -> None:
    engine = stage.engine(failing)
    mine = await prepare(stage)
    async with engine.worker():
        run = await engine.start(failing(mine))
        assert await run.result(timeout=20) == "raised no, then 3"
    assert await written(stage) == [3]
    kinds = [(record.kind.value, record.location, record.attempts) for record in await run.history()]
    assert kinds == [
        ("step", "put_and_raise", 1),
        ("attempt", "put_in_the_end", 1),
        ("attempt", "put_in_the_end", 2),
        ("step", "put_in_the_end", 3),
    ]


@workflow("transactions.mixed.v1")
async def mixed(ctx: Context, table: str, count: int) -> list[int]:
    operations = [
        ctx.transaction(put, table, number) if number % 3 else ctx.step(double, number) for number in range(count)
    ]
    return await asyncio.gather(*operations)


async def double(number: int) -> int:
    return 2 * number


async def test_transactions_side_by_side_with_steps(stage: Stage) -> None:
    engine = stage.engine(mixed)
    mine = await prepare(stage)
    async with engine.worker():
        run = await engine.start(mixed(mine, 30))
        assert await run.result(timeout=30) == [number if number % 3 else 2 * number for number in range(30)]
    assert await written(stage) == [number for number in range(30) if number % 3]
    assert stage.store is not None
    assert await scan_store(stage.store.query) == []


@workflow("transactions.remembered.v1")
async def remembered(ctx: Context, table: str) -> list[int]:
    one = await ctx.transaction(put, table, 1)
    await ctx.receive("go")
    return [one, await ctx.transaction(put, table, 2)]


async def test_a_replay_gets_the_result_and_does_not_call_the_function(stage: Stage) -> None:
    engine = stage.engine(remembered)
    mine = await prepare(stage)
    async with engine.worker(resident=0):
        run = await engine.start(remembered(mine))
        await until(run, Status.WAITING)
        await run.send("go")
        assert await run.result(timeout=20) == [1, 2]
    assert await written(stage) == [1, 2]


class Odd:
    """A value that cannot be stored."""


@step(retry=Retry(initial=0.01))
async def returns_something_odd(connection: Any, table: str) -> Any:
    await put(connection, table, 1)
    return Odd()


@step(retry=Retry(initial=0.01))
async def commits_by_itself(connection: Any, table: str) -> None:
    await execute(connection, "COMMIT")


@workflow("transactions.wrong.v1")
async def wrong(ctx: Context, table: str, which: str) -> None:
    await ctx.transaction({"odd": returns_something_odd, "commits": commits_by_itself}[which], table)


@pytest.mark.parametrize(("which", "message"), [("odd", "Odd"), ("commits", "has committed or rolled back")])
async def test_a_function_that_is_wrong_fails_at_once(stage: Stage, which: str, message: str) -> None:
    engine = stage.engine(wrong)
    mine = await prepare(stage)
    async with engine.worker():
        run = await engine.start(wrong(mine, which))
        with pytest.raises(RunFailed, match=message):
            await run.result(timeout=20)
    assert await written(stage) == []
    assert [record.attempts for record in await run.history()] == [1]


async def starts_another(connection: Any, table: str) -> str:
    await put(connection, table, 1)
    handle = await ENGINES[table].start(simple(table), id="other", at="1h", connection=connection)
    return str(handle.id)


ENGINES: dict[str, Any] = {}


@workflow("transactions.starting.v1")
async def starting(ctx: Context, table: str) -> str:
    return await ctx.transaction(starts_another, table)


async def test_a_run_can_be_started_in_it(on_disk: Stage, on_server: Stage) -> None:
    for stage in (on_disk, on_server):
        engine = stage.engine(starting, simple)
        mine = await prepare(stage)
        ENGINES[mine] = engine
        async with engine.worker():
            run = await engine.start(starting(mine))
            assert await run.result(timeout=20) == "other"
        assert await (await engine.get("other")).status() is Status.WAITING
        assert await written(stage) == [1]


def in_a_thread(connection: sqlite3.Connection, table: str) -> str:
    connection.execute(f"INSERT INTO {table} VALUES (5)")
    return threading.current_thread().name


@workflow("transactions.sync.v1")
async def sync(ctx: Context, table: str) -> str:
    return await ctx.transaction(in_a_thread, table)


async def test_a_function_that_is_not_async_runs_in_a_thread(on_disk: Stage) -> None:
    engine = on_disk.engine(sync)
    mine = await prepare(on_disk)
    async with engine.worker():
        run = await engine.start(sync(mine))
        assert await run.result(timeout=20) == "perdure step"
    assert await written(on_disk) == [5]


async def test_a_server_has_no_connection_for_a_function_that_is_not_async(on_server: Stage) -> None:
    engine = on_server.engine(sync)
    mine = await prepare(on_server)
    async with engine.worker():
        run = await engine.start(sync(mine))
        with pytest.raises(RunFailed, match="has to be async"):
            await run.result(timeout=20)


async def waits(connection: Any, table: str) -> None:
    await asyncio.sleep(0.01)


@workflow("transactions.waiting.v1")
async def waiting(ctx: Context, table: str) -> None:
    await ctx.transaction(waits, table)


async def test_a_function_must_not_wait_while_the_whole_database_waits_for_it(on_disk: Stage) -> None:
    engine = on_disk.engine(waiting)
    mine = await prepare(on_disk)
    async with engine.worker():
        run = await engine.start(waiting(mine))
        with pytest.raises(RunFailed, match="kept the database to itself"):
            await run.result(timeout=20)


@step(timeout=0.1, retry=Retry.never())
async def too_slow(connection: Any, table: str) -> None:
    await put(connection, table, 1)
    await asyncio.sleep(60)


@step(timeout=0.1, retry=Retry.never())
def too_slow_in_a_thread(connection: sqlite3.Connection, table: str) -> None:
    connection.execute(f"INSERT INTO {table} VALUES (1)")
    while not step_info().is_cancelled():
        time.sleep(0.01)


@workflow("transactions.slow.v1")
async def slow(ctx: Context, table: str, *, in_a_thread: bool) -> str:
    try:
        await ctx.transaction(too_slow_in_a_thread if in_a_thread else too_slow, table)
    except TimeoutError:
        return "timed out"
    return "in time"


async def test_what_takes_too_long_is_rolled_back(on_disk: Stage, on_server: Stage) -> None:
    for stage in (on_server, on_disk):
        engine = stage.engine(slow)
        mine = await prepare(stage)
        async with engine.worker():
            run = await engine.start(slow(mine, in_a_thread=stage is on_disk))
            assert await run.result(timeout=20) == "timed out"
        assert await written(stage) == []


async def lingers(connection: Any, table: str) -> None:
    await put(connection, table, 1)
    await asyncio.sleep(60)


@workflow("transactions.limited.v1")
async def limited(ctx: Context, table: str) -> str:
    try:
        async with asyncio.timeout(0.1):
            await ctx.transaction(lingers, table)
    except TimeoutError:
        return "gave up"
    return "done"


async def test_a_workflow_that_gives_it_up_has_it_rolled_back(on_server: Stage) -> None:
    engine = on_server.engine(limited)
    mine = await prepare(on_server)
    async with engine.worker():
        run = await engine.start(limited(mine))
        assert await run.result(timeout=20) == "gave up"
    assert await written(on_server) == []


async def test_a_lease_that_is_lost_rolls_it_back(on_server: Stage) -> None:
    engine = on_server.engine(lingering)
    mine = await prepare(on_server)
    GATES.update(begun=asyncio.Event(), ended=asyncio.Event())
    async with engine.worker(lease=1.0) as worker:
        run = await engine.start(lingering(mine))
        await GATES["begun"].wait()
        assert on_server.store is not None
        await on_server.store.retire(worker.id)
        GATES["ended"].set()
        assert await run.result(timeout=30) == "done"
    assert await written(on_server) == [1]
    assert [record.location for record in await run.history()] == ["lingers_until_told"]


async def lingers_until_told(connection: Any, table: str) -> None:
    await put(connection, table, 1)
    GATES["begun"].set()
    await GATES["ended"].wait()


#: Events between a test and its function.
GATES: dict[str, asyncio.Event] = {}


@workflow("transactions.lingering.v1")
async def lingering(ctx: Context, table: str) -> str:
    await ctx.transaction(lingers_until_told, table)
    return "done"


async def test_what_happens_meanwhile_happens_too(on_server: Stage) -> None:
    """A slow function delays nothing on a server; its record comes after earlier results."""
    engine = on_server.engine(interrupted)
    mine = await prepare(on_server)
    GATES.update(begun=asyncio.Event(), ended=asyncio.Event())
    async with engine.worker():
        run = await engine.start(interrupted(mine))
        await GATES["begun"].wait()
        await run.send("word", "hello")
        await until_recorded(run, 2)
        GATES["ended"].set()
        assert await run.result(timeout=20) == ["hello", "done"]
    assert [record.location for record in await run.history()] == ["word", "double", "lingers_until_told"]
    assert await written(on_server) == [1]


@workflow("transactions.interrupted.v1")
async def interrupted(ctx: Context, table: str) -> list[str]:

    async def listening() -> str:
        word = await ctx.receive("word", str)
        await ctx.step(double, 1)
        return word

    async def writing() -> str:
        await ctx.transaction(lingers_until_told, table)
        return "done"

    return list(await asyncio.gather(listening(), writing()))
