"""An empty database of each kind without workers; the invariants are checked at the end of each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.invariants import scan_store
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.store.plain_sql.places import KINDS, Plain


@pytest.fixture(params=KINDS)
async def plain(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Plain]:
    kind = request.param
    async with AsyncExitStack() as stack:
        if kind == "sqlite":
            url = f"sqlite:///{tmp_path}/runs.db?synchronous=NORMAL"
        else:
            url = await stack.enter_async_context((schemas if kind == "postgres" else databases).one())
        plain = KINDS[kind](url)
        await plain.store.open()
        stack.push_async_callback(plain.store.close)
        stack.push_async_callback(plain.close)
        yield plain
        assert await scan_store(plain.store.query) == []
