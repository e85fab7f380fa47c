"""Connections and privileges: prefixes, users, event loops, encryption, unsuitable settings, servers that are down."""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

import pytest

from perdure.errors import SchemaMismatch, StoreDenied, StoreError, StoreUnavailable
from perdure.host import Host
from perdure.store import migration_script, migration_status, open_store
from perdure.store.migrations import known
from perdure.store.mysql import session
from perdure.store.mysql.driver import MysqlConnection, MysqlConnector
from perdure.store.mysql.store import MysqlStore
from perdure.store.mysql.transaction import literal, sql_list, sql_texts
from perdure.store.sql.dialect import MYSQL
from perdure.store.url import MysqlUrl, parse
from perdure.testing.conformance.harness import ACTOR, a_record, a_run, a_worker, claim, claim_ids, commit, held
from tests.helpers import eventually
from tests.servers.databases import Databases, execute, mysql_dsn
from tests.servers.places import TABLES

VERSIONS = [(one.version,) for one in known(MYSQL)]


@pytest.fixture
async def fresh(databases: Databases) -> AsyncIterator[str]:
    async with databases.one(fresh=True) as url:
        yield url


async def opened(url: str, *, migrate: bool = True) -> MysqlStore:
    store = open_store(url, Host(), migrate=migrate)
    assert isinstance(store, MysqlStore)
    await store.open()
    return store


def with_login(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.netloc.rpartition('@')[2]}"))


def name_of(url: str) -> str:
    return urlsplit(url).path[1:]


async def test_two_prefixes_share_a_database_and_see_nothing_of_each_other(fresh: str) -> None:
    stores = [await opened(f"{fresh}?prefix={prefix}") for prefix in ("a_", "b_")]
    await stores[0].create([a_run("r1", input='{"table":"perdure_runs"}')], ACTOR)
    assert [await store.get("r1") is not None for store in stores] == [True, False]
    run = await stores[0].get("r1")
    assert run is not None
    assert run.input == '{"table":"perdure_runs"}'
    for store in stores:
        await held(store, "r2", f"w-{id(store)}")
        await store.close()


async def test_many_that_start_at_once_migrate_once(fresh: str) -> None:
    stores = await asyncio.gather(*(opened(fresh) for _ in range(6)))
    assert await stores[0].query("SELECT version FROM perdure_migrations ORDER BY version") == VERSIONS
    for store in stores:
        await store.close()
    assert all(one.applied_at > 0 for one in await migration_status(fresh, Host()))


async def test_a_migration_that_was_ended_half_way_is_finished_by_the_next(fresh: str) -> None:
    statements = migration_script(fresh).split(";\n")
    await execute(fresh, statements[:2])
    store = await opened(fresh)
    await held(store, "r1")
    await store.close()


async def test_a_process_that_was_ended_while_migrating_keeps_others_out_for_a_while_only(fresh: str) -> None:
    store = await opened(fresh)
    now = await store.now()
    await store.close()
    await execute(
        fresh,
        [
            "DELETE FROM perdure_migrations",
            f"INSERT INTO perdure_migrations VALUES (0, 'in progress', 'gone', {now + 500_000})",
        ],
    )
    store = await opened(fresh)
    assert await store.now() > now + 500_000
    assert await store.query("SELECT version FROM perdure_migrations ORDER BY version") == VERSIONS
    await store.close()


async def test_the_script_can_be_run_by_hand(fresh: str) -> None:
    await execute(fresh, [part for part in migration_script(fresh).split(";\n") if part.strip()])
    tables = (
        f"SELECT 1 FROM information_schema.tables WHERE table_schema = '{name_of(fresh)}' AND table_type = 'BASE TABLE'"
    )
    assert len(await execute(fresh, [tables])) == len(TABLES) + 1


async def test_the_script_can_be_run_twice_on_mysql_which_adds_no_column_only_where_it_is_missing(fresh: str) -> None:
    """Read migrations as MySQL does, for which the comments that MariaDB executes are comments."""
    script = migration_script(fresh).replace("/*M! IF NOT EXISTS */", "")
    for _ in range(2):
        await execute(fresh, [part for part in script.split(";\n") if part.strip()])
    store = await opened(fresh, migrate=False)
    await held(store, "r1")
    await store.close()


async def test_without_leave_to_migrate_the_missing_tables_are_named(fresh: str) -> None:
    with pytest.raises(SchemaMismatch, match="perdure migrate"):
        await opened(fresh, migrate=False)


async def test_a_user_that_may_not_create_tables_can_do_all_the_work(fresh: str) -> None:
    owner = await opened(fresh)
    database, user = name_of(fresh), f"clerk_{uuid.uuid4().hex[:16]}"
    await execute(fresh, [f"CREATE USER {user} IDENTIFIED BY 'secret'", f"GRANT SELECT ON {database}.* TO {user}"])
    clerk_url = with_login(fresh, user, "secret")
    try:
        looking = await opened(clerk_url)
        with pytest.raises(StoreDenied, match="grant"):
            await looking.create([a_run("r1")], ACTOR)
        await looking.close()
        await execute(fresh, [f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO {user}"])
        clerk = await opened(clerk_url)
        lease = await held(clerk, "r1")
        await commit(clerk, lease, a_record(0))
        assert len(await owner.history("r1")) == 1
        await clerk.close()
    finally:
        await owner.close()
        await execute(fresh, [f"DROP USER {user}"])


@pytest.mark.parametrize("server", ["127.0.0.1:1", "unused"])
async def test_a_server_that_does_not_let_us_in_is_unavailable_and_no_password_is_told(server: str) -> None:
    where = urlsplit(mysql_dsn()).netloc.rpartition("@")[2] if server == "unused" else server
    store = open_store(f"mysql://me:secret@{where}/shop", Host())
    with pytest.raises(StoreUnavailable, match=f"{where}/shop") as caught:
        await store.open()
    assert "secret" not in str(caught.value)
    await store.close()


async def test_a_server_without_encryption_is_refused_if_it_is_required(url: str) -> None:
    if await execute(url, ["SHOW VARIABLES LIKE 'have_ssl'"]) != [("have_ssl", "DISABLED")]:
        pytest.skip("this server can encrypt")
    store = open_store(f"{url}?ssl=required", Host())
    with pytest.raises(StoreUnavailable):
        await store.open()
    await store.close()


class Pretender(MysqlConnection):
    """Open a session with a server that reports other properties."""

    def __init__(self, connection: MysqlConnection, version: str) -> None:
        super().__init__(connection._driver, connection.timeouts)
        self._version = version

    @property
    def server_version(self) -> str:
        return self._version


@pytest.mark.parametrize(
    "version",
    ["5.5.5-10.5.29-MariaDB", "10.5.29-MariaDB", "5.7.44", "8.unknown", "8.0.16", "5.5.5-10.6.0-MariaDB", "8.0.17"],
)
async def test_servers_that_are_too_old_are_refused(url: str, version: str) -> None:
    where = parse(url)
    assert isinstance(where, MysqlUrl)
    connection = await MysqlConnector(where).connect()
    pretender = Pretender(connection, version)
    if "10.6.0" not in version and version != "8.0.17":
        with pytest.raises(StoreError, match="or newer"):
            await session.set_up_session(pretender, "here")
    elif ("MariaDB" in version) == ("MariaDB" in connection.server_version):
        await session.set_up_session(pretender, "here")
    await connection.close_gracefully()


async def test_packets_that_are_too_small_are_refused_when_opening(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_SMALLEST_PACKET", 1 << 40)
    with pytest.raises(StoreError, match="max_allowed_packet"):
        await opened(url)


async def test_a_batch_that_is_larger_than_a_packet_lands_as_a_whole(store: MysqlStore) -> None:
    await store.create([a_run(f"r{number}") for number in range(40)], ACTOR)
    payload = '"' + "x" * 900_000 + '"'
    got = await claim(store, limit=100)
    turns = [commit(store, one.lease, a_record(0, payload=payload)) for one in got.runs[:2]]
    await asyncio.gather(*turns)
    loaded = await store.load([one.run.id for one in got.runs[:2]])
    assert [one.records[0].payload for one in loaded] == [payload, payload]


async def test_any_text_comes_back_as_it_was(store: MysqlStore) -> None:
    everything = "".join(map(chr, range(0x300))) + "\u2028\ufffd\U0001f600' -- \\' :now {for_update} perdure_runs %s ?"
    [row] = await store.query("SELECT ?, ?", [everything, None])
    assert row == (everything, None)
    assert literal("it's \\") == "'it\\'s \\\\'"
    for several in (["a", "b"], [], ["a", "it's"], ["a','b"], ["a\\", "b"], ["'", "'"]):
        assert sql_texts(several).replace(", ", ",") == sql_list(several).replace(", ", ",")
    assert literal(1.5) == "1.5e0"
    with pytest.raises(TypeError):
        literal(b"x")


async def test_another_loop_has_connections_of_its_own_and_leaves_none_behind(store: MysqlStore) -> None:
    await store.register(a_worker())
    answers: list[bool] = []

    async def beat() -> None:
        answers.extend([bool(await store.heartbeat("w1")), bool(await store.heartbeat("unknown"))])

    thread = threading.Thread(target=lambda: asyncio.run(beat()))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert answers == [True, False]
    assert len(store._pools) == 1


async def test_a_verb_that_is_given_up_is_given_up_whatever_it_was_doing(url: str) -> None:
    dice = random.Random(1)
    for _ in range(150):
        store = open_store(url, Host())
        opening = asyncio.ensure_future(store.open())
        for _ in range(dice.randrange(40)):
            await asyncio.sleep(0)
        if opening.done():
            await opening
        elif opening.cancel():
            with pytest.raises(asyncio.CancelledError):
                await opening
        await store.close()


@pytest.mark.parametrize("during", ["GET_LOCK", "CREATE TABLE", "DELETE FROM", "RELEASE_LOCK"])
async def test_a_migration_that_is_given_up_is_not_begun_again(fresh: str, during: str) -> None:
    store = open_store(fresh, Host())
    assert isinstance(store, MysqlStore)
    seen: list[str] = []

    def give_up(sql: str) -> None:
        seen.append(sql)
        if during in sql:
            opening.cancel()

    store._trace = give_up
    opening = asyncio.ensure_future(store.open())
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert sum("GET_LOCK" in sql for sql in seen) == 1
    store._trace = None
    await store.open()
    assert (await claim(store)).runs == ()
    await store.close()


async def test_a_verb_that_is_given_up_leaves_nothing_locked(store: MysqlStore, url: str) -> None:
    await store.create([a_run("r1")], ACTOR)
    where = parse(url)
    assert isinstance(where, MysqlUrl)
    other = await MysqlConnector(where).connect()
    await other.send(["BEGIN", "SELECT 1 FROM perdure_runs FOR UPDATE"])
    waiting = asyncio.create_task(store.cancel("r1", "enough", "c1", ACTOR))

    # A session that executes such a statement is waiting. InnoDB does not refresh its own lock tables while they are
    # polled.
    asking = """
        SELECT 1 FROM information_schema.processlist
        WHERE db = DATABASE() AND info LIKE '%FOR UPDATE%' AND id <> CONNECTION_ID()
    """

    async def waits() -> bool:
        return bool(await execute(url, [asking]))

    await eventually(waits, saying="the cancellation waiting for the lock")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await other.send(["ROLLBACK"])
    await other.close_gracefully()
    # The session of the verb may still get the lock, and ends then. The server ends a session that stays, but later.
    await eventually(lambda: claim_ids(store), within=10, saying="the run being free")


async def test_a_connection_that_the_server_ends_is_replaced(store: MysqlStore, url: str) -> None:
    await store.create([a_run("r1")], ACTOR)
    [(connection,)] = await store.query("SELECT CONNECTION_ID()")
    await execute(url, [f"KILL {connection}"])
    run = await store.get("r1")
    assert run is not None
    assert run.id == "r1"
    [(replacement,)] = await store.query("SELECT CONNECTION_ID()")
    assert replacement != connection
