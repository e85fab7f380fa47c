"""A store on the test server, which uses the server's clock, and a pooler before it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from perdure.host import Host
from perdure.store import open_store
from perdure.store.postgres.store import PostgresStore
from tests.servers.pgbouncer import Pgbouncer
from tests.servers.private import Missing, skip_without
from tests.servers.schemas import PGBOUNCER, Schemas, postgres_dsn


@pytest.fixture
async def url(request: pytest.FixtureRequest, schemas: Schemas) -> AsyncIterator[str]:
    async with schemas.one(still=request.node.get_closest_marker("plans") is not None) as url:
        yield url


@pytest.fixture
def straight() -> None:
    """For tests that count statements: through a pooler they are not prepared, and there are more of them."""
    if PGBOUNCER in os.environ:
        pytest.skip("statements are counted where no pooler stands in between")


@pytest.fixture
async def store(url: str, schemas: Schemas) -> AsyncIterator[PostgresStore]:
    store = open_store(url, Host())
    assert isinstance(store, PostgresStore)
    await store.open()
    yield store
    assert schemas.broken(url) == []
    await store.close()


@pytest.fixture
def pooler() -> Iterator[Pgbouncer]:
    dsn = postgres_dsn()
    try:
        pooler = Pgbouncer(dsn)
    except Missing as missing:
        skip_without("a pooler is needed", missing)
    try:
        pooler.create()
        yield pooler
    finally:
        pooler.remove()
