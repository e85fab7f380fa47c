"""Notifications between processes. Stores in these tests never poll, so that only a notification shows a change."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from perdure import Context, Engine, Workflow, workflow
from perdure.client.session import session_of
from perdure.core.system import Cancellable
from perdure.errors import UsageError
from perdure.host import Host
from perdure.store import Retrying
from perdure.store.contract import Change
from perdure.store.postgres import notify
from perdure.store.postgres.store import PostgresStore
from perdure.store.url import PostgresUrl, parse
from perdure.testing.conformance.harness import ACTOR, a_run
from tests.helpers import eventually
from tests.servers.pgbouncer import Pgbouncer
from tests.servers.schemas import PGBOUNCER, postgres_dsn


class Deaf(PostgresStore):
    """Return a store that does not poll for the writes of others."""

    async def poll_changes(self, *, watch: bool = True) -> bool:
        return False


def a_store(url: str) -> Deaf:
    where = parse(url)
    assert isinstance(where, PostgresUrl)
    return Deaf(where, Host())


def straight_host() -> str:
    return urlsplit(postgres_dsn()).netloc.rpartition("@")[2]


@pytest.fixture
def listening(url: str) -> str:
    return f"{url}&listen={straight_host()}" if PGBOUNCER in os.environ else url


@asynccontextmanager
async def two_engines(url: str, flow: Workflow[Any, Any]) -> AsyncIterator[Engine]:
    """Two stores, as of two processes: one has a worker, the other one is handed out."""
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(Engine(url, [flow], store=Retrying(a_store(url), Host()))) for _ in range(2)
        ]
        await stack.enter_async_context(engines[0].worker())
        yield engines[1]


@asynccontextmanager
async def overheard(url: str) -> AsyncIterator[list[str]]:
    """Collect the announcements of one schema, without proofs."""
    said: list[str] = []
    store = a_store(url)
    await store.open()
    await store.close()
    schema = url.partition("schema=")[2].partition("&")[0]
    connection = await asyncpg.connect(postgres_dsn())
    channel = await connection.fetchval(f"SELECT 'perdure_' || '{schema}.perdure_runs'::regclass::oid")
    await connection.add_listener(channel, lambda *arguments: said.append(arguments[3]))
    yield said
    said[:] = announcements(said)
    await connection.close()


def announcements(said: list[str]) -> list[str]:
    return [payload for payload in said if not payload.startswith("0 ")]


@workflow("notices.word.v1")
async def hearing(ctx: Context) -> str:
    return await ctx.receive("word", str)


async def test_a_worker_hears_what_others_start_and_send_and_a_client_how_it_ends(listening: str) -> None:
    async with two_engines(listening, hearing) as client:
        for number in range(3):
            run = await client.start(hearing())
            await run.send("word", f"hello {number}")
            assert await run.result("20s") == f"hello {number}"


async def test_a_run_that_is_running_hears_of_its_message(listening: str) -> None:
    begun, heard = asyncio.Event(), asyncio.Event()

    async def listen() -> None:
        begun.set()
        await heard.wait()

    @workflow("notices.busy.v1")
    async def busy(ctx: Context) -> str:
        step = ctx.step(listen)
        word = await ctx.receive("word", str)
        heard.set()
        await step
        return word

    async with two_engines(listening, busy) as client:
        run = await client.start(busy())
        await begun.wait()
        await run.send("word", "hello")
        assert await run.result("20s") == "hello"


async def test_through_a_pooler_hints_go_the_straight_way(pooler: Pgbouncer, url: str) -> None:
    schema = url.rpartition("schema=")[2]
    async with two_engines(f"{pooler.dsn}?schema={schema}&listen={straight_host()}", hearing) as client:
        run = await client.start(hearing())
        await run.send("word", "hello")
        assert await run.result("20s") == "hello"


async def test_a_commit_says_so_once_however_much_it_changes(listening: str) -> None:
    async with Engine(listening, [hearing], store=a_store(listening)) as engine, overheard(listening) as said:
        await engine.start_many([hearing() for _ in range(500)])
        await eventually(lambda: said, saying="the hint being heard")
        runs = await asyncio.gather(*(engine.start(hearing()) for _ in range(20)))
        await eventually(lambda: len(said) > 1, saying="a second hint being heard")
    assert all(payload.startswith(f"{int(Change.READY)} ") for payload in said)
    assert 2 <= len(said) <= 1 + len(runs)


async def test_what_is_said_in_one_moment_is_one_hint(listening: str) -> None:
    store = a_store(listening)
    await store.open()
    async with overheard(listening) as said:
        for _ in range(100):
            store.announce(Change.READY)
            store.announce(Change.FINISHED)
        await eventually(lambda: said, saying="the hint being heard")
        await store.close()
    assert [payload.partition(" ")[0] for payload in said] == [str(int(Change.READY | Change.FINISHED))]


async def test_a_process_that_leaves_at_once_has_said_so_before(listening: str) -> None:
    async with overheard(listening) as said:
        store = a_store(listening)
        await store.open()
        await store.create([a_run("r1")], ACTOR)
        await store.close()
        await eventually(lambda: said, saying="the hint being heard")


async def test_a_process_that_does_not_listen_announces_all_the_same(url: str) -> None:
    async with overheard(url) as said:
        store = a_store(f"{url}&notify=off")
        heard: list[Change] = []
        store.subscribe(heard.append)
        await store.open()
        await store.create([a_run("quiet")], ACTOR)
        await eventually(lambda: said, saying="the hint being heard")
        assert not store.is_notified
        await store.close()
    assert [payload.partition(" ")[0] for payload in said] == [str(int(Change.READY))]
    assert heard == [Change.READY]


async def test_a_process_that_waits_for_nothing_has_no_connection_to_listen_on(url: str) -> None:
    store = a_store(url)
    await store.open()
    await store.create([a_run("r1")], ACTOR)
    assert store._notifier._listening is None
    await store.close()


def is_anonymous(payload: str) -> bool:
    return not payload.partition(" ")[2]


async def test_plain_sql_and_transactions_of_the_user_are_announced_when_they_commit(listening: str) -> None:
    schema = listening.partition("schema=")[2].partition("&")[0]
    async with two_engines(listening, hearing) as client, overheard(listening) as said:
        connection = await asyncpg.connect(postgres_dsn())
        await connection.execute(f"SET search_path = {schema}")
        plain = "INSERT INTO perdure_runs (id, type) VALUES ($1, 'notices.word.v1')"
        async with connection.transaction():
            await connection.execute(plain, "plain")
            own = await client.start(hearing(), id="own", connection=connection)
            assert not announcements(said)
        for run_id in ("plain", own.id):
            run = await client.get(run_id)
            await run.send("word", run_id)
            assert await run.result("20s") == run_id
        said.clear()
        with suppress(ZeroDivisionError):
            async with connection.transaction():
                await connection.execute(plain, "undone")
                raise ZeroDivisionError
        # A claim that finds nothing announces nothing, however often a program in another language polls.
        await connection.execute("UPDATE perdure_runs SET status = 'running', worker = 'w' WHERE id = 'nothing'")
        await connection.execute(plain, "last")
        # An engine may still announce the end of its own run, with its name.
        await eventually(lambda: any(map(is_anonymous, said)), saying="the last one being announced")
        assert sum(map(is_anonymous, said)) == 1
        await connection.close()


async def test_through_a_pooler_that_shares_sessions_it_is_said_once_and_work_is_polled_for(
    pooler: Pgbouncer, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_PROOF", 1.0)
    monkeypatch.setattr(notify, "_DEAF", 0.1)
    caplog.set_level(logging.WARNING, "perdure")
    schema = url.rpartition("schema=")[2]
    engine = Engine(f"{pooler.dsn}?schema={schema}", [hearing])
    async with engine, engine.worker():
        store = await session_of(engine).connect()
        run = await engine.start(hearing())
        await run.send("word", "hello")
        assert await run.result("20s") == "hello"
        await eventually(lambda: "they do not arrive" in caplog.text, saying="a warning")
        connections = store._store._notifier  # type: ignore[attr-defined] # of the store below
        before = connections._proofs
        await eventually(lambda: connections._proofs > before + 1, saying="another try")
        assert not store.is_notified
    assert caplog.text.count("notifications are off") == 1


async def test_a_connection_that_hears_nothing_any_more_is_noticed_and_replaced(
    listening: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_PROOF", 1.0)
    monkeypatch.setattr(notify, "_DEAF", 0.1)
    monkeypatch.setattr(notify, "_SILENCE", 0.1)
    caplog.set_level(logging.CRITICAL, "perdure")
    store = a_store(listening)
    heard: list[Change] = []
    store.subscribe(heard.append)
    await store.open()
    await eventually(lambda: store.is_notified, saying="the first proof")
    first = store._notifier._connection
    assert first is not None
    heard.clear()
    await first.execute("UNLISTEN *")
    await eventually(lambda: Change.ALL in heard, saying="the loss")
    await eventually(lambda: store.is_notified and store._notifier._connection is not first, saying="another one")
    await store.close()


async def test_of_a_large_fleet_not_all_look_for_a_run_at_once(listening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = [a_store(listening) for _ in range(2)]
    heard: list[Change] = []
    stores[0].subscribe(heard.append)
    for store in stores:
        await store.open()
    await eventually(lambda: stores[0].is_notified, saying="the first proof")
    delays: list[float] = []
    real = stores[0]._notifier._system.call_later

    def late(seconds: float, callback: Callable[[], object]) -> Cancellable:
        delays.append(seconds)
        return real(seconds, callback)

    monkeypatch.setattr(stores[0]._notifier._system, "call_later", late, raising=False)
    stores[0]._notifier.workers = 40
    heard.clear()
    delays.clear()
    await stores[1].create([a_run("r1")], ACTOR)
    await stores[1].create([a_run("r2")], ACTOR)
    await eventually(lambda: Change.READY in heard, saying="the hint being heard")
    assert delays
    assert all(0 <= seconds <= 36 * 0.0025 for seconds in delays)
    for store in stores:
        await store.close()


async def test_no_process_is_told_twice_of_what_it_did_itself(listening: str) -> None:
    stores = [a_store(listening) for _ in range(2)]
    heard: list[Change] = []
    stores[0].subscribe(heard.append)
    for store in stores:
        await store.open()
    await eventually(lambda: Change.ALL in heard, saying="the store listening")
    heard.clear()
    for store in stores:
        await store.create([a_run(f"r{id(store)}")], ACTOR)
    await eventually(lambda: len(heard) >= 2, saying="the other's hint being heard")
    assert heard == [Change.READY, Change.READY]
    for store in stores:
        await store.close()


async def test_a_lost_connection_is_replaced_and_what_was_missed_is_made_up_for(
    listening: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "perdure")
    stores = [a_store(listening) for _ in range(2)]
    heard: list[Change] = []
    stores[0].subscribe(heard.append)
    for store in stores:
        await store.open()
    await eventually(lambda: Change.ALL in heard, saying="the store listening")
    admin = await asyncpg.connect(postgres_dsn())
    for _ in range(3):
        await eventually(lambda: stores[0].is_notified, saying="notifications arriving")
        heard.clear()
        listens = f'LISTEN "{await stores[0]._read_channel()}"'
        assert await admin.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = $1", listens)
        # At the loss, and when it listens again.
        await eventually(lambda: heard.count(Change.ALL) >= 2, saying="the store listening again")
    heard.clear()
    await stores[1].create([a_run("r1")], ACTOR)
    await eventually(lambda: heard, saying="the other's hint being heard")
    await admin.close()
    for store in stores:
        await store.close()


async def test_where_no_process_can_listen_it_is_said_once_and_work_goes_on(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perdure")
    engine = Engine(f"{url}&listen=127.0.0.1:1", [hearing])
    async with engine, engine.worker():
        for _ in range(2):
            run = await engine.start(hearing())
            await run.send("word", "hello")
            assert await run.result("20s") == "hello"
        await eventually(
            lambda: [r for r in caplog.records if "notifications are off" in r.message], saying="a warning"
        )
    assert len([record for record in caplog.records if "notifications are off" in record.message]) == 1


@pytest.mark.parametrize("option", ["notify=maybe", "listen=", "listen=a/b", "listen=me@host"])
def test_an_option_that_makes_no_sense_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match="option"):
        parse(f"postgresql://me@host/shop?{option}")


@pytest.mark.parametrize(
    ("url", "listen"),
    [
        ("postgresql://me:pw@host/shop", "postgresql://me:pw@host/shop"),
        ("postgresql://me:pw@host/shop?notify=off", None),
        ("postgresql://me:pw@host/shop?notify=on&schema=a", "postgresql://me:pw@host/shop"),
        ("postgresql://me:pw@host/shop?listen=other:5433", "postgresql://me:pw@other:5433/shop"),
        ("postgresql://host/shop?listen=a,b&sslmode=require", "postgresql://a,b/shop?sslmode=require"),
        ("postgresql://host/shop?listen=a&notify=off", None),
    ],
)
def test_where_to_listen_follows_from_the_url(url: str, listen: str | None) -> None:
    where = parse(url)
    assert isinstance(where, PostgresUrl)
    assert where.listen == listen
