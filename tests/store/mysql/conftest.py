"""A store on the test server, which uses the server's clock."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from perdure.host import Host
from perdure.store import open_store
from perdure.store.mysql.store import MysqlStore
from tests.servers.databases import Databases


@pytest.fixture
async def url(databases: Databases) -> AsyncIterator[str]:
    async with databases.one() as url:
        yield url


@pytest.fixture
async def store(url: str, databases: Databases) -> AsyncIterator[MysqlStore]:
    store = open_store(url, Host())
    assert isinstance(store, MysqlStore)
    await store.open()
    yield store
    assert databases.broken(url) == []
    await store.close()
