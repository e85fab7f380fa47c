"""No asyncio in sight: a script that blocks, and goes on where it stopped when it is run again.

Run it: python examples/script.py backup.db
"""

from __future__ import annotations

import sys

from perdure import Context, Engine, workflow


def copy(table: str) -> int:
    print(f"copying {table}")
    return len(table) * 100


def verify(table: str, rows: int) -> bool:
    print(f"verifying {rows} rows of {table}")
    return True


@workflow("backup.v1")
async def backup(ctx: Context, tables: list[str]) -> int:
    total = 0
    for table in tables:
        rows = await ctx.step(copy, table)
        await ctx.step(verify, table, rows)
        total += rows
    return total


def main(path: str) -> None:
    with Engine(f"sqlite:///{path}", [backup]).blocking() as engine, engine.worker():
        run = engine.start(backup(["users", "orders"]), id="nightly")
        print(f"{run.result()} rows are safe")


if __name__ == "__main__":
    main(sys.argv[1])
