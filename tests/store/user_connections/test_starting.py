"""Start and send within a transaction of the user, with every supported library."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perdure import (
    Context,
    Debounce,
    Engine,
    RunExists,
    RunFinished,
    RunNotFound,
    Singleton,
    SingletonBusy,
    Status,
    workflow,
)
from tests.invariants import scan_store
from tests.stage import Stage, until
from tests.store.user_connections.libraries import ALL, LIBRARIES, AsyncCustomer, Customer

Place = tuple[Stage, Customer]

#: Libraries whose connections block and belong to no thread.
BLOCKING = [
    (database, library)
    for database, library in ALL
    if not issubclass(LIBRARIES[database][library], AsyncCustomer) and "django" not in library
]


@workflow("transactions.echo.v1")
async def echo(ctx: Context, text: str) -> str:
    return text


@workflow("transactions.listen.v1")
async def listen(ctx: Context) -> str:
    return await ctx.receive("word", str)


async def runs(stage: Stage) -> list[str]:
    assert stage.store is not None
    return [row[0] for row in await stage.rows("SELECT id FROM perdure_runs ORDER BY id")]


async def test_a_run_exists_once_its_starter_has_committed(place: Place) -> None:
    stage, someone = place
    engine = stage.engine(echo)
    await engine.open()
    await someone.begin()
    handle = await someone.call(engine, "start", echo("hello"), id="a")
    assert handle.id == "a"
    assert await runs(stage) == []
    await someone.commit()
    assert await runs(stage) == ["a"]
    async with engine.worker():
        assert await (await engine.get("a", echo)).result(timeout=20) == "hello"
    assert stage.store is not None
    assert await scan_store(stage.store.query) == []


@pytest.mark.parametrize("place", BLOCKING, ids=lambda pair: f"{pair[0]}-{pair[1]}".replace(" ", "-"), indirect=True)
async def test_an_engine_on_an_event_loop_takes_a_connection_that_blocks(place: Place) -> None:
    stage, someone = place
    engine = stage.engine(echo)
    await engine.open()
    # On this thread, which is that of the event loop.
    connection = someone.connect()
    run = await engine.start(echo("hello"), id="a", connection=connection)
    with pytest.raises(RunNotFound, match="once the transaction in which it was started has been committed"):
        await run.status()
    connection.commit()
    await engine.send("a", "word", "kept", connection=connection)
    connection.rollback()
    connection.close()
    assert [(await run.status()), await run.inbox()] == [Status.PENDING, []]


async def test_a_transaction_that_sqlite_began_as_a_reader_is_not_refused_as_a_writer(tmp_path: Path) -> None:
    """As Django begins all of its transactions: another commit after the first read would make every write fail."""
    path = tmp_path / "shop.db"
    async with Engine(f"sqlite:///{path}", [echo]) as engine:
        with closing(sqlite3.connect(path, timeout=0)) as other, closing(sqlite3.connect(path)) as mine:

            def commit_before_the_first_insert(statement: str) -> None:
                if statement.lstrip().startswith("INSERT"):
                    mine.set_trace_callback(None)
                    try:
                        other.execute("CREATE TABLE orders (number INTEGER)")
                    except sqlite3.OperationalError as error:
                        refused.append(str(error))

            refused: list[str] = []
            mine.isolation_level = None
            mine.execute("BEGIN")
            mine.set_trace_callback(commit_before_the_first_insert)
            await engine.start(echo("hello"), id="a", connection=mine)
            mine.execute("COMMIT")
            assert refused == ["database is locked"]
        assert await (await engine.get("a")).status() is Status.PENDING


async def test_a_run_whose_starter_rolls_back_never_was(place: Place) -> None:
    stage, someone = place
    engine = stage.engine(echo)
    await engine.open()
    await someone.begin()
    await someone.call(engine, "start", echo("hello"))
    await someone.call(engine, "start_many", [echo("1"), echo("2")])
    await someone.rollback()
    assert await stage.rows("SELECT id FROM perdure_runs") == []
    assert await stage.rows("SELECT id FROM perdure_events") == []


async def test_the_same_start_again_finds_the_run(place: Place) -> None:
    stage, someone = place
    engine = stage.engine(echo)
    await engine.start(echo("hello"), id="there")
    await someone.begin()
    assert (await someone.call(engine, "start", echo("hello"), id="there")).id == "there"
    first = await someone.call(engine, "start", echo("x"), idempotency_key="once")
    assert (await someone.call(engine, "start", echo("x"), idempotency_key="once")).id == first.id
    await someone.commit()
    assert len(await runs(stage)) == 2


async def test_a_clash_leaves_the_transaction_as_it_was(place: Place) -> None:
    stage, someone = place
    engine = stage.engine(echo)
    await engine.start(echo("hello"), id="taken")
    await someone.begin()
    await someone.call(engine, "start", echo("before"), id="before")
    with pytest.raises(RunExists, match="taken"):
        await someone.call(engine, "start", echo("other"), id="taken")
    with pytest.raises(RunExists, match="taken"):
        await someone.call(engine, "start_many", [echo("1"), echo("2")], ids=["free", "taken"])
    await someone.call(engine, "start", echo("after"), id="after")
    await someone.commit()
    assert await runs(stage) == ["after", "before", "taken"]


async def test_singletons_are_decided_in_the_transaction(place: Place) -> None:
    stage, someone = place
    engine = stage.engine(listen)
    await engine.start(listen(), id="first", singleton=Singleton("k"))
    await someone.begin()
    with pytest.raises(SingletonBusy):
        await someone.call(engine, "start", listen(), singleton=Singleton("k"))
    attached = await someone.call(engine, "start", listen(), singleton=Singleton("k", "attach"))
    assert attached.id == "first"
    await someone.call(engine, "start", listen(), id="second", singleton=Singleton("k", "queue"))
    put_off = await someone.call(engine, "start", listen(), debounce=Debounce("1h"))
    assert (await someone.call(engine, "start", listen(), debounce=Debounce("1h"))).id == put_off.id
    await someone.commit()
    assert await stage.rows("SELECT id, reason FROM perdure_runs WHERE id IN ('first', 'second') ORDER BY id") == [
        ("first", None),
        ("second", "limit"),
    ]
    await someone.begin()
    await someone.call(engine, "start", listen(), id="third", singleton=Singleton("k", "replace"))
    await someone.rollback()
    async with engine.worker():
        for run_id in ("first", "second"):
            await engine.send(run_id, "word", run_id)
            assert await (await engine.get(run_id)).result(timeout=20) == run_id
    assert await runs(stage) == sorted(["first", "second", put_off.id])


async def test_many_runs_are_started_together(place: Place) -> None:
    stage, someone = place
    engine = stage.engine(echo)
    await engine.open()
    await someone.begin()
    handles = await someone.call(engine, "start_many", [echo(str(number)) for number in range(300)], priority=7)
    assert await runs(stage) == []
    await someone.commit()
    assert await runs(stage) == sorted(handle.id for handle in handles)
    assert await stage.rows("SELECT COUNT(*) FROM perdure_events WHERE kind = 'created'") == [(300,)]
    assert await stage.rows("SELECT DISTINCT priority, status FROM perdure_runs") == [(7, "pending")]


async def test_a_message_is_sent_once_its_sender_has_committed(place: Place) -> None:
    stage, someone = place
    engine = stage.engine(listen)
    run = await engine.start(listen())
    await someone.begin()
    await someone.call(engine, "send", run.id, "word", "never")
    await someone.rollback()
    await someone.begin()
    await someone.call(engine, "send", run.id, "word", "yes", key="1")
    await someone.call(engine, "send", run.id, "word", "yes", key="1")
    assert await stage.rows("SELECT inbox_seq FROM perdure_runs") == [(0,)]
    await someone.commit()
    assert await stage.rows("SELECT inbox_seq FROM perdure_runs") == [(1,)]
    async with engine.worker():
        assert await run.result(timeout=20) == "yes"


async def test_a_message_wakes_a_run_that_waits(place: Place) -> None:
    stage, someone = place
    engine = stage.engine(listen)
    run = await engine.start(listen())
    async with engine.worker():
        await until(run, Status.WAITING)
        await someone.begin()
        await someone.call(engine, "send", run.id, "word", "up")
        await someone.commit()
        assert await run.result(timeout=20) == "up"
    assert stage.store is not None
    assert await scan_store(stage.store.query) == []


async def test_a_message_that_no_run_takes_leaves_the_transaction_as_it_was(place: Place) -> None:
    stage, someone = place
    engine = stage.engine(echo)
    done = await engine.start(echo("done"), id="done")
    async with engine.worker():
        await done.result()
    await someone.begin()
    with pytest.raises(RunNotFound, match="no-such-run"):
        await someone.call(engine, "send", "no-such-run", "word")
    with pytest.raises(RunFinished, match="done"):
        await someone.call(engine, "send", "done", "word")
    await someone.call(engine, "start", echo("after"), id="after")
    await someone.commit()
    assert await runs(stage) == ["after", "done"]
