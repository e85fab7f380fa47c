"""A live database with a row of everything, in families that have nothing to do with each other, and damage to single
cells of it."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from typing import Any

from perdure import (
    Breaker,
    Context,
    Engine,
    Every,
    Fair,
    Handle,
    Limit,
    Singleton,
    Status,
    activity,
    workflow,
)
from perdure.core.time.duration import NEVER
from perdure.host import Host
from perdure.store import SqlStore, open_store
from tests.helpers import eventually
from tests.stage import Stage

#: What every row of a family has in one of its cells.
MARK = re.compile(r"m\d{4}")

#: Numbers that a database gives out by itself. MySQL goes on from the largest, and after the last there is none.
NUMBERED = (("events", "id"),)

#: Cells of these tables say nothing of a family; only everybody's neighbours are looked at.
SHARED = ("workers", "health", "registry", "migrations")


async def act(name: str) -> str:
    return name


@workflow("museum.child.v1")
async def child(ctx: Context, name: str) -> str:
    return await ctx.receive("go", str)


@workflow("museum.parent.v1", limit=Limit("crowd", concurrency=5, key=lambda name: name))
async def parent(ctx: Context, name: str) -> str:
    found = await ctx.step(act, name)
    ctx.publish("state", found)
    return await ctx.call(child(name))


@workflow("museum.told.v1")
async def told(ctx: Context, name: str) -> str:
    await ctx.step(act, name)
    await ctx.step(act, name)
    return await ctx.receive("go", str)


@activity("museum.kept.v1", fair=Fair(lambda name: name))
async def kept(name: str) -> str:
    return name


@workflow("museum.single.v1")
async def single(ctx: Context, name: str) -> str:
    await ctx.step(act, name)
    return await ctx.receive("go", str)


@workflow("museum.well.v1")
async def well(ctx: Context, name: str) -> str:
    return await ctx.step(act, name)


@activity("museum.gated.v1", limit=Limit("well", concurrency=3))
async def gated(name: str) -> str:
    return name


ALL = (child, parent, told, kept, single, well, gated)


class Museum:
    """Some families on one database."""

    def __init__(self, stage: Stage, engine: Engine, size: int) -> None:
        self.stage = stage
        self.engine = engine
        self.names = [f"m{number:04d}" for number in range(size)]
        self.touched: set[str] = set()

    async def fill(self) -> None:
        """Start a family for each name, and wait until each stands where it is to be damaged."""
        engine = self.engine
        for start in range(0, len(self.names), 8):
            await asyncio.gather(*(self._found(name) for name in self.names[start : start + 8]))
        async with engine.worker():
            await eventually(self._stand, saying="every family standing where it is to")
        for name in self.names:
            await (await engine.get(f"{name}-told")).send("other", name)
        await self._insert()

    async def _found(self, name: str) -> None:
        engine = self.engine
        await engine.breakers.open(name)
        await engine.schedules.create(f"{name}-schedule", well(f"{name}-slot"), Every("1h"))
        alone = Singleton(name, "queue")
        await engine.start(parent(name), id=f"{name}-parent")
        await engine.start(told(name), id=f"{name}-told")
        await engine.start(kept(name).options(breaker=Breaker(name)), id=f"{name}-kept")
        for place in ("first", "second"):
            await engine.start(single(name).options(singleton=alone), id=f"{name}-{place}")
        await engine.locks.acquire(f"{name}-lock", "1h")

    async def _stand(self) -> bool:
        rows = await self.stage.rows("SELECT COUNT(*) FROM perdure_runs WHERE status = 'waiting'")
        return bool(rows[0][0] >= 6 * len(self.names))

    async def _insert(self) -> None:
        for name in self.names:
            await self.execute("INSERT INTO perdure_topics (topic, run_id) VALUES (:t, :r)", t=name, r=f"{name}-told")
            await self.execute("INSERT INTO perdure_pauses (kind, name) VALUES ('type', :n)", n=f"{name}-type")
            row = "INSERT INTO perdure_watermarks (kind, name, high, low) VALUES ('queue', :n, 1000, 10)"
            await self.execute(row, n=f"{name}-queue")
            row = "INSERT INTO perdure_tokens (name, digest, role) VALUES (:n, :d, 'viewer')"
            await self.execute(row, n=f"{name}-token", d=f"digest of {name}")
        await self.execute("INSERT INTO perdure_workers (id, host, status) VALUES ('old', 'here', 'stopped')")
        await self.execute("INSERT INTO perdure_health (worker_id, errors) VALUES ('old', 1)")

    async def execute(self, sql: str, **params: object) -> int:
        """Change rows behind everybody's back; how many."""
        assert self.stage.store is not None
        return await self.stage.store._write("damage", "", lambda tx: tx.execute(sql, params))

    async def finish(self) -> dict[str, str]:
        """Let every family that was not touched go on to its end; what did not get there."""
        left: list[Handle[Any]] = []
        for name in self.names:
            if name in self.touched:
                continue
            await self.engine.breakers.close(name)
            runs = [await self.engine.get(f"{name}-{one}") for one in ("parent", "told", "kept", "first", "second")]
            [born] = (await self.engine.runs.list(parent=f"{name}-parent")).runs
            waiting = [await self.engine.get(born.id), *runs[1:2], *runs[3:]]
            for run in waiting:
                await run.send("go", name)
            left += runs

        async def over() -> bool:
            left[:] = [run for run in left if (await run.status()) is not Status.COMPLETED]
            return not left

        try:
            await eventually(over, within=60.0)
        except AssertionError:
            return {run.id: f"{await run.status()}: {await run.why()}" for run in left}
        return {}


class Columns:
    """Names and keys of all tables, which are the same on every database."""

    def __init__(self) -> None:
        self.columns: dict[str, list[str]] = {}
        self.keys: dict[str, list[str]] = {}

    async def learn(self) -> None:
        """Ask a database in memory."""
        system = Host()
        store: SqlStore = open_store("sqlite://", system)
        await store.open()
        for (table,) in await store.query(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'perdure%'"
        ):
            rows = await store.query(f"SELECT name, pk FROM pragma_table_info('{table}')")
            name = table.removeprefix("perdure_")
            self.columns[name] = [row[0] for row in rows]
            self.keys[name] = [row[0] for row in rows if row[1]]
        await store.close()


#: Bytes that are no text, which only SQLite stores as such.
NO_TEXT = "CAST(x'ff7b22fe' AS TEXT)"
NUMBERS = (-1, -(10**15), 0, 1, 3, 2**31, NEVER - 1, NEVER, NEVER + 1, 2**62, 2**63 - 1, -(2**63))
TEXTS = (
    "",
    "{",
    "[]",
    "{}",
    "null",
    "7",
    '"x"',
    "nonsense",
    '{"x": 1}',
    '"\\ud800"',
    "a\0b",
    "x" * 180,
    "x" * 300,
    "NaN",
    "[[[",
    NO_TEXT,
)


class Vandal:
    """Damages one cell at a time, from a seed."""

    def __init__(self, museum: Museum, columns: Columns, seed: int) -> None:
        self._museum = museum
        self._columns = columns
        self._random = random.Random(seed)

    async def strike(self) -> str:
        """Damage a cell; which one, and how."""
        while True:
            table = self._random.choice(sorted(self._columns.columns))
            column = self._random.choice(self._columns.columns[table])
            if (table, column) in NUMBERED:
                continue
            struck = await self._strike(table, column)
            if struck:
                return struck

    async def _strike(self, table: str, column: str) -> str:
        museum, keys = self._museum, self._columns.keys[table]
        names = self._columns.columns[table]
        rows = await museum.stage.rows(f"SELECT {', '.join(names)} FROM perdure_{table} ORDER BY {', '.join(keys)}")
        living = [row for row in rows if self._is_prey(table, dict(zip(names, row, strict=True)))]
        if not living:
            return ""
        row = dict(zip(names, self._random.choice(living), strict=True))
        family = _family(row)
        value, literal = self._garbage(row[column]), ":damaged"
        if value == NO_TEXT:
            if not museum.stage.url.startswith("sqlite"):
                return ""
            value, literal = None, NO_TEXT
        where = " AND ".join(f"{key} = :{key}_" for key in keys)
        marks = {f"{key}_": row[key] for key in keys}
        try:
            changed = await museum.execute(
                f"UPDATE perdure_{table} SET {column} = COALESCE(:damaged, {literal}) WHERE {where}",
                damaged=value,
                **marks,
            )
        except Exception:
            return ""
        if not changed:
            return ""
        museum.touched |= family
        return f"{table}.{column} of {marks}: {row[column]!r} -> {value if literal != NO_TEXT else NO_TEXT!r}"

    def _is_prey(self, table: str, row: dict[str, Any]) -> bool:
        if table in SHARED:
            # The worker that works is everybody's; that it is declared dead is another test's.
            return table not in ("workers", "health") or "old" in row.values()
        return bool(_family(row)) and not _family(row) & self._museum.touched

    def _garbage(self, before: object) -> object:
        choices: Sequence[object] = NUMBERS if isinstance(before, int) else TEXTS
        if self._random.random() < 0.1:
            choices = (None,)
        return self._random.choice(choices)


def _family(row: dict[str, Any]) -> set[str]:
    return {mark for value in row.values() if isinstance(value, str) for mark in MARK.findall(value)}
