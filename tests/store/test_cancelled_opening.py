"""No socket and no file stays open if opening it is cancelled, at whatever moment."""

from __future__ import annotations

import asyncio
import struct
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from perdure.host import Host
from perdure.store import open_store
from tests.descriptors import cancel_everywhere, cancel_store_openings
from tests.helpers import eventually
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas


@pytest.mark.parametrize("option", ["", "notify=on"])
async def test_opening_a_store_on_postgresql(schemas: Schemas, option: str) -> None:
    async with schemas.one() as url:
        await cancel_store_openings(f"{url}&{option}" if option else url)


async def test_opening_a_store_on_mysql(databases: Databases) -> None:
    async with databases.one() as url:
        await cancel_store_openings(url)


async def test_opening_a_store_on_sqlite(tmp_path: Path) -> None:
    await cancel_store_openings(f"sqlite:///{tmp_path}/app.db")


@pytest.mark.parametrize("database", ["postgres", "mysql"])
async def test_borrowing_a_connection(database: str, schemas: Schemas, databases: Databases) -> None:
    async with (schemas if database == "postgres" else databases).one() as url:
        store: Any = open_store(url, Host())
        await store.open()
        stacks: list[AsyncExitStack] = []

        async def opening() -> None:
            stacks.append(AsyncExitStack())
            await stacks[-1].enter_async_context(store.lend())

        async def closing() -> None:
            while stacks:
                await stacks.pop().aclose()
            # Only what is lent is closed, so that each time a new one is opened.
            await store._lent.close()
            await eventually(lambda: not len(store._lent))

        assert await cancel_everywhere(opening, closing) > 5
        await store.close()


def greeting(*, encrypts: bool) -> bytes:
    """Return the first packet of a MySQL server."""
    flags = 0x00FF_FFFF & ~0x800 | (0x800 if encrypts else 0)
    payload = b"\x0a8.0.36\0" + struct.pack("<I", 7) + b"12345678\0"
    payload += struct.pack("<HBHHB", flags & 0xFFFF, 0x2D, 2, flags >> 16, 21) + bytes(10)
    payload += b"abcdefghijkl\0mysql_native_password\0"
    return struct.pack("<I", len(payload))[:3] + b"\0" + payload


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://me:secret@{}/shop", b""),
        ("mysql://me:secret@{}/shop", greeting(encrypts=False)),
        ("mysql://me:secret@{}/shop?ssl=require", greeting(encrypts=True)),
        ("postgresql://me:secret@{}/shop?sslmode=disable", b""),
        ("postgresql://me:secret@{}/shop?sslmode=require", b""),
        ("postgresql://me:secret@{}/shop?sslmode=require", b"S"),
    ],
    ids=["mysql", "mysql greets", "mysql encrypts", "postgres", "postgres encrypts", "postgres greets"],
)
async def test_a_server_that_falls_silent(url: str, words: bytes) -> None:
    """No answer ends the opening, so that only the cancellation does."""
    connected = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        writer.write(words)
        with suppress(OSError):
            while await reader.read(1000):
                pass
        writer.close()
        connected -= 1

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for turns in range(40):
        store = open_store(url.format(f"127.0.0.1:{port}"), Host())
        opening = asyncio.create_task(store.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        await store.close()
        await eventually(lambda: not connected, saying=f"every connection ends, after {turns} turns")
    server.close()
