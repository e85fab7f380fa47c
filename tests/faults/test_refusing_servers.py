"""Servers that are away when a worker starts, and servers that do not let it in; each test has a private server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import pytest

from perdure import Context, Engine, StoreUnavailable, workflow
from perdure.client import workers
from perdure.errors import StoreRefused
from tests.helpers import eventually
from tests.servers.databases import MYSQL, execute
from tests.servers.mariadb import Mariadb
from tests.servers.postgres import Postgres
from tests.servers.private import PrivateServer
from tests.servers.schemas import POSTGRES

CLERK = "clerk"
PASSWORD = "the-right-one"
OTHER = "another-one"


@workflow("refusing.v1")
async def greeting(ctx: Context, name: str) -> str:
    return await ctx.step(greet, name)


def greet(name: str) -> str:
    return f"hello {name}"


class Door(Protocol):
    """A private server, and a user on it whose password may change."""

    @property
    def server(self) -> PrivateServer:
        """The server."""

    @property
    def url(self) -> str:
        """The URL of the user."""

    async def admit(self) -> None:
        """Make the user and its password."""

    async def rotate(self, password: str) -> None:
        """Give the user another password, and end all its sessions."""


def with_login(dsn: str, login: str) -> str:
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}"))


class PostgresDoor:
    """A server that asks this one role for a password."""

    def __init__(self) -> None:
        self.server = self._server = Postgres(durable=False)

    @property
    def url(self) -> str:
        return with_login(self._server.dsn, f"{CLERK}:{PASSWORD}")

    async def admit(self) -> None:
        rules = self._server._data / "pg_hba.conf"
        rules.write_text(f"host all {CLERK} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        await self._execute(
            f"CREATE ROLE {CLERK} LOGIN SUPERUSER PASSWORD '{PASSWORD}'",
            "SELECT pg_reload_conf()",
        )

        async def asked_for_its_password() -> bool:
            try:
                await self._execute("SELECT 1", dsn=with_login(self._server.dsn, f"{CLERK}:{OTHER}"))
            except Exception as error:
                return getattr(error, "sqlstate", "") == "28P01"
            return False

        await eventually(asked_for_its_password)

    async def rotate(self, password: str) -> None:
        await self._execute(
            f"ALTER ROLE {CLERK} PASSWORD '{password}'",
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{CLERK}'",
        )

    async def _execute(self, *statements: str, dsn: str = "") -> None:
        import asyncpg  # pyright: ignore[reportMissingTypeStubs] # it has none

        connection: Any = await asyncpg.connect(dsn or self._server.dsn)  # pyright: ignore[reportUnknownMemberType] # asyncpg is untyped
        for statement in statements:
            await connection.execute(statement)
        await connection.close()


class MariadbDoor:
    """A server with one more user."""

    def __init__(self) -> None:
        self.server = self._server = Mariadb(durable=False)

    @property
    def url(self) -> str:
        return with_login(self._server.dsn, f"{CLERK}:{PASSWORD}")

    async def admit(self) -> None:
        user = f"'{CLERK}'@'127.0.0.1'"
        statements = [f"CREATE USER {user} IDENTIFIED BY '{PASSWORD}'", f"GRANT ALL ON *.* TO {user}"]
        await execute(self._server.dsn, statements)

    async def rotate(self, password: str) -> None:
        statements = [f"ALTER USER '{CLERK}'@'127.0.0.1' IDENTIFIED BY '{password}'", f"KILL HARD USER {CLERK}"]
        await execute(self._server.dsn, statements)


@pytest.fixture(params=[POSTGRES, MYSQL], ids=["postgres", "mariadb"])
async def door(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    """A server with its files made, which runs and knows the user."""
    if request.param not in os.environ:
        pytest.skip(f"{request.param} is not set; `make test` starts a server by itself")
    monkeypatch.setattr(workers, "FIRST_PAUSE", 0.01)
    door: Door = PostgresDoor() if request.param == POSTGRES else MariadbDoor()
    try:
        await asyncio.to_thread(door.server.create)
        await door.admit()
        yield door
    finally:
        await asyncio.to_thread(door.server.remove)


async def test_a_worker_that_starts_before_its_server_waits_loudly_and_then_works(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(door.server.kill)
    engine = Engine(door.url, [greeting])
    worker = engine.worker()
    starting = asyncio.ensure_future(worker.start())
    await eventually(lambda: caplog.text.count("waits for its database") >= 3)
    assert not starting.done()
    await asyncio.to_thread(door.server.start)
    await starting
    run = await engine.start(greeting("you"))
    assert await run.result("60s") == "hello you"
    await engine.close()
    assert PASSWORD not in caplog.text


async def test_a_worker_and_a_client_that_are_not_let_in_are_told_so_at_once(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {
        door.url.replace(PASSWORD, OTHER): CLERK,
        door.url.replace(CLERK, "stranger").replace(PASSWORD, OTHER): "stranger",
        f"{door.url.rpartition('/')[0]}/no_such_database": "no_such_database",
    }
    for url, cause in wrong.items():
        engine = Engine(url, [greeting])
        with pytest.raises(StoreRefused, match=cause) as of_worker:
            await engine.worker(wait_for_database="20s").start()
        with pytest.raises(StoreRefused, match=cause) as of_client:
            await engine.start(greeting("you"))
        await engine.close()
        for caught in (of_worker, of_client):
            assert isinstance(caught.value, StoreUnavailable)
            assert "check the user, password and database of the URL" in str(caught.value)
            assert not any(password in str(caught.value) for password in (PASSWORD, OTHER))
    assert "waits for its database" not in caplog.text


async def test_a_worker_survives_that_its_password_is_another_for_a_while(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    async with Engine(door.url, [greeting], database_timeout="60s") as engine, engine.worker(lease="5s"):
        assert await (await engine.start(greeting("you"))).result("60s") == "hello you"
        await door.rotate(OTHER)
        starting = asyncio.ensure_future(engine.start(greeting("them")))
        await eventually(lambda: "heartbeat of worker" in caplog.text, saying="a worker that is not let in")
        assert not starting.done()
        await door.rotate(PASSWORD)
        assert await (await starting).result("60s") == "hello them"
    assert PASSWORD not in caplog.text
