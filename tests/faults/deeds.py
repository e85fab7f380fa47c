"""A workflow whose functions write rows of the user's, each with a value that no other call of it writes."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from perdure import Context, workflow
from tests.store.user_connections.tables import execute


async def deed(connection: Any, table: str, number: int) -> str:
    value = f"{number}:{os.getpid()}:{os.urandom(4).hex()}"
    await execute(connection, f"INSERT INTO {table} VALUES ('{value}')")
    return value


async def nothing() -> None:
    return None


@workflow("faults.echo.v1")
async def echo(ctx: Context, value: str) -> str:
    return value


@workflow("faults.deeds.v1")
async def deeds(ctx: Context, table: str) -> list[str]:
    first = await ctx.call(echo(await ctx.transaction(deed, table, 1)))
    _, *others = await asyncio.gather(
        ctx.step(nothing), ctx.transaction(deed, table, 2), ctx.transaction(deed, table, 3)
    )
    return [first, *others]
