"""The roles of the guide on security can do their work, and nothing beyond it."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from perdure import Context, Engine, activity, workflow
from perdure.errors import StoreError, StoreReadOnly
from perdure.host import Host
from perdure.store import open_store
from perdure.store.mysql.driver import DriverError
from perdure.store.plain_sql import statement
from perdure.store.sql.dialect import MYSQL, POSTGRES
from tests.servers.databases import execute, mysql_dsn
from tests.servers.schemas import postgres_dsn

GUIDE = Path(__file__).parents[2] / "docs/guides/security.md"
ROLES = ("migrator", "worker", "reader", "producer")
REFUSED = (asyncpg.InsufficientPrivilegeError, DriverError)


class Place:
    """The roles of the guide, under other names, on one server."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.unique = uuid.uuid4().hex[:12]
        self.administrator = postgres_dsn() if kind == "postgres" else mysql_dsn()
        #: Where the roles have no rights.
        self.elsewhere = f"else_{self.unique}"

    def url(self, role: str) -> str:
        """Return the URL that a role uses."""
        parts = urlsplit(self.administrator)
        where = parts.netloc.rpartition("@")[2]
        if self.kind == "postgres":
            return urlunsplit(parts._replace(netloc=f"{role}_{self.unique}@{where}", query=f"schema=p_{self.unique}"))
        return urlunsplit(parts._replace(netloc=f"{role}_{self.unique}:secret@{where}", path=f"/p_{self.unique}"))

    async def run(self, role: str, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements as a role, or as the administrator; return the rows of the last."""
        if self.kind == "mysql":
            return await execute(self.url(role) if role else self.administrator, statements)
        connection = await asyncpg.connect(self.url(role).partition("?")[0] if role else self.administrator)
        try:
            await connection.execute(f"SET search_path = p_{self.unique}")
            return [[tuple(row) for row in await connection.fetch(one)] for one in statements][-1]
        finally:
            await connection.close()

    def granted(self, part: int) -> list[str]:
        """Return the statements of the guide: those before the migration (0) or after it (1)."""
        heading = "PostgreSQL" if self.kind == "postgres" else "MySQL and MariaDB"
        section = GUIDE.read_text().partition(f"## Roles on {heading}\n")[2].partition("\n## ")[0]
        text = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)[part]
        text = re.sub(rf"\bperdure_({'|'.join(ROLES)})\b", rf"\1_{self.unique}", text)
        text = re.sub(r"\bperdure\b(?!_)", f"p_{self.unique}", text)
        return [one.strip() for one in text.split(";\n") if one.strip()]

    async def remove(self) -> None:
        """Drop everything."""
        roles = [f"{role}_{self.unique}" for role in ROLES]
        if self.kind == "mysql":
            users = [f"DROP USER IF EXISTS {role}" for role in roles]
            places = [f"DROP DATABASE IF EXISTS {name}" for name in (f"p_{self.unique}", self.elsewhere)]
            await self.run("", *places, *users)
            return
        await self.run("", f"DROP SCHEMA IF EXISTS p_{self.unique} CASCADE", f"DROP SCHEMA {self.elsewhere} CASCADE")
        for role in roles:
            await self.run("", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.fixture(params=["postgres", "mysql"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    place = Place(request.param)
    make = "CREATE SCHEMA" if place.kind == "postgres" else "CREATE DATABASE"
    await place.run("", f"{make} {place.elsewhere}", f"CREATE TABLE {place.elsewhere}.private (a INTEGER)")
    try:
        await place.run("", *place.granted(0))
        store = open_store(place.url("migrator"), Host())
        await store.open()
        await store.close()
        await place.run("", *place.granted(1))
        yield place
    finally:
        await place.remove()


async def refuses(place: Place, role: str, sql: str) -> None:
    with pytest.raises(REFUSED) as caught:
        await place.run(role, sql)
    if isinstance(caught.value, DriverError):
        # Refusals of a command, a table, a column and a database; never a mistake in the statement.
        assert caught.value.args[0] in (1142, 1143, 1044, 1227, 1370), caught.value


@activity("roles.child.v1")
def child(number: int) -> int:
    return number + 1


async def write(connection: Any) -> int:
    return 1


async def add(number: int) -> int:
    return number + 1


@workflow("roles.usual.v1")
async def usual(ctx: Context) -> int:
    number = await ctx.step(add, await ctx.transaction(write))
    number = await ctx.call(child(number))
    await ctx.sleep(0.01)
    return number + await ctx.receive("more", int)


async def test_a_worker_does_the_usual_work_and_changes_no_table(place: Place) -> None:
    async with Engine(place.url("worker"), [usual, child]) as engine, engine.worker():
        run = await engine.start(usual())
        await run.send("more", 4)
        assert await run.result(timeout=60) == 7
        assert (await engine.runs.list(limit=5)).runs
    for sql in (
        "CREATE TABLE mine (a INTEGER)",
        "DROP TABLE perdure_runs",
        "ALTER TABLE perdure_runs ADD COLUMN mine INTEGER",
        f"SELECT * FROM {place.elsewhere}.private",
        *(["DELETE FROM perdure_migrations"] if place.kind == "postgres" else []),
    ):
        await refuses(place, "worker", sql)


async def test_a_reader_inspects_and_writes_nothing(place: Place) -> None:
    async with Engine(place.url("worker"), [usual, child]) as engine, engine.worker():
        run = await engine.start(usual(), id="seen")
        await run.send("more", 4)
        await run.result(timeout=60)
    async with Engine(place.url("reader"), [usual, child]) as engine:
        seen = await engine.get("seen")
        assert await seen.result(timeout=60) == 7
        assert await seen.history()
        with pytest.raises(StoreReadOnly):
            await engine.start(usual())
    assert await place.run("reader", "SELECT id FROM perdure_runs_view WHERE id = 'seen'") == [("seen",)]
    for sql in (
        "DELETE FROM perdure_runs",
        "UPDATE perdure_runs SET status = 'failed'",
        "INSERT INTO perdure_events (run_id, at, kind, actor, data) VALUES ('seen', 1, 'created', 'me', '{}')",
        "CREATE TABLE mine (a INTEGER)",
    ):
        await refuses(place, "reader", sql)


async def insert(place: Place, key: str) -> tuple[str, bool]:
    """Start a run by the documented statement, as a producer."""
    values = ("roles.child.v1", '{"number": 1}', key, None, None, None, None)
    if place.kind == "postgres":
        connection = await asyncpg.connect(place.url("producer").partition("?")[0])
        [part] = statement(POSTGRES, "insert").parts
        run_id, created = await connection.fetchrow(part, *values)
        await connection.close()
        return run_id, created
    names = ("type", "input", "idempotency_key", "queue", "priority", "run_at", "max_attempts")
    setting = [
        f"SET @{name} = " + ("NULL" if value is None else f"'{value}'")
        for name, value in zip(names, values, strict=True)
    ]
    [(run_id, created)] = await place.run("producer", *setting, *statement(MYSQL, "insert").parts)
    return run_id, bool(created)


async def test_a_producer_starts_runs_by_plain_sql_and_sees_their_outcome_alone(place: Place) -> None:
    if place.kind == "mysql":
        simple = "INSERT INTO perdure_runs (type, input, idempotency_key) VALUES ('roles.child.v1', '[1]', 'hello:42')"
        await place.run("producer", simple)
        with pytest.raises(DriverError, match="Duplicate"):
            await place.run("producer", simple)
        await refuses(place, "producer", "UPDATE perdure_runs SET status = 'failed'")
        # The documented statement needs more.
        await place.run("", *place.granted(2))
    run_id, created = await insert(place, "welcome:42")
    assert created
    assert await insert(place, "welcome:42") == (run_id, False)
    async with Engine(place.url("worker"), [child]) as engine, engine.worker():
        assert await (await engine.get(run_id)).result(timeout=60) == 2
    columns = "status, reason, attempt, output, error, created_at, started_at, finished_at"
    [(status, *_)] = await place.run(
        "producer", f"SELECT {columns} FROM perdure_runs WHERE id = '{run_id}' AND deleted_at = 0"
    )
    assert status == "completed"
    for sql in (
        "SELECT input FROM perdure_runs",
        "SELECT * FROM perdure_history",
        "SELECT * FROM perdure_events",
        *(["UPDATE perdure_runs SET status = 'failed'"] if place.kind == "postgres" else []),
        "UPDATE perdure_runs SET worker = 'me'",
        "DELETE FROM perdure_runs",
        "INSERT INTO perdure_runs (id, type, worker) VALUES ('x', 'roles.child.v1', 'me')",
        "CREATE TABLE mine (a INTEGER)",
    ):
        await refuses(place, "producer", sql)


async def test_a_migrator_keeps_to_its_schema_and_a_worker_does_not_migrate(place: Place) -> None:
    store = open_store(f"{place.url('migrator')}{'&' if place.kind == 'postgres' else '?'}prefix=other_", Host())
    await store.open()
    await store.close()
    beginner = open_store(f"{place.url('worker')}{'&' if place.kind == 'postgres' else '?'}prefix=third_", Host())
    with pytest.raises(StoreError, match="perdure migrate"):
        await beginner.open()
    await beginner.close()
    for sql in (
        f"SELECT * FROM {place.elsewhere}.private",
        f"DROP TABLE {place.elsewhere}.private",
        f"CREATE TABLE {place.elsewhere}.mine (a INTEGER)",
    ):
        await refuses(place, "migrator", sql)
