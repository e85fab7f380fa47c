"""SQL within a transaction of the engine's database: a step of its own kind."""

import time
from typing import Any

from perdure import Context, workflow
from perdure.testing import Environment


def create_table(connection: Any) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, cents INTEGER, at REAL)")
    connection.execute("INSERT OR IGNORE INTO accounts VALUES ('ann', 500, ?)", (time.time(),))


def move(connection: Any, name: str, cents: int) -> int:
    connection.execute("UPDATE accounts SET cents = cents + ?, at = ? WHERE name = ?", (cents, time.time(), name))
    row = connection.execute("SELECT cents FROM accounts WHERE name = ?", (name,)).fetchone()
    return int(row[0])


@workflow("samples.right.account.v1")
async def deposit(ctx: Context, name: str, amounts: list[int]) -> int:
    await ctx.transaction(create_table)
    balance = 0
    for cents in amounts:
        balance = await ctx.options(timeout="5s").transaction(move, name, cents)
        await ctx.sleep("1s")
    return balance


WORKFLOWS = [deposit]


async def drive(env: Environment) -> object:
    run = await env.start(deposit("ann", [100, 200]))
    await env.advance("5s")
    return await run.result()
