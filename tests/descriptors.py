"""Open files and sockets of this process, and openings that are cancelled at every moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from perdure.host import Host
from perdure.store import SqlStore, open_store
from tests.helpers import eventually


def descriptors() -> dict[str, str]:
    """Return the open sockets and regular files of this process, by descriptor."""
    found: dict[str, str] = {}
    try:
        entries = list(Path("/proc/self/fd").iterdir())
    except OSError:
        pytest.skip("only Linux lists the open files of a process")
    for entry in entries:
        with suppress(OSError):
            target = str(entry.readlink())
            if target.startswith(("socket:", "/")) and not target.startswith(("/proc/", "/dev/")):
                found[entry.name] = target
    return found


async def cancel_everywhere(opening: Callable[[], Awaitable[object]], closing: Callable[[], Awaitable[object]]) -> int:
    """Cancel an opening after every number of turns of the event loop, until it ends first; return how often.

    `closing` ends whatever a finished opening has opened. Fails if a descriptor is left open.
    """
    before = descriptors()
    turns, cancelled, ended = 0, 0, 0
    while ended < 3:
        task = asyncio.ensure_future(opening())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            cancelled += 1
        else:
            task.result()
            ended += 1
        await closing()
        await eventually(
            lambda: descriptors().items() <= before.items(),
            saying=f"a descriptor is open that was not, after {turns} turns",
        )
        turns += 1 + turns // 15
    return cancelled


async def cancel_store_openings(url: str) -> None:
    """Cancel the opening of a store at every moment. The first opening, which creates the tables, is not cancelled."""
    first = open_store(url, Host())
    await first.open()
    await first.close()
    stores: list[SqlStore] = []

    async def opening() -> None:
        stores.append(open_store(url, Host()))
        await stores[-1].open()

    async def closing() -> None:
        while stores:
            await stores.pop().close()

    assert await cancel_everywhere(opening, closing) > 5
