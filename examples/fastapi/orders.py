"""Workflows of the shop, for its web application and for its workers: `perdure worker orders:engine`."""

import asyncio
import os

from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from perdure import Context, Engine, workflow

DATABASE = os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///shop.db")
database = create_async_engine(DATABASE)
sessions = async_sessionmaker(database)
if DATABASE.startswith("sqlite"):  # before SQLite 3.51.3: Perdure alone writes checkpoints
    event.listen(
        database.sync_engine, "connect", lambda connection, _: connection.execute("PRAGMA wal_autocheckpoint = 0")
    )


async def reserve(session: AsyncSession, number: int) -> None:
    await session.execute(text("INSERT INTO reserved (number) VALUES (:number)"), {"number": number})


async def pack(article: str) -> str:
    await asyncio.sleep(1)
    return f"parcel with {article}"


@workflow("shop.order.v1")
async def order(ctx: Context, number: int, article: str) -> str:
    await ctx.options(using=sessions).transaction(reserve, number)  # exactly once
    ctx.emit("progress", "packing")
    parcel = await ctx.step(pack, article)
    ctx.emit("progress", "packed; waiting for the payment")
    cents = await ctx.receive("paid", int)
    return f"{parcel} for {cents} cents"


engine = Engine(DATABASE, [order])
