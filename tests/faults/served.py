"""The servers on which the way to a database can be broken: places on them, and what is spoken there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec import Struct

from perdure.core.system import System
from perdure.store.mysql.store import MysqlStore
from perdure.store.postgres.store import PostgresStore
from perdure.store.url import MysqlUrl, PostgresUrl, parse
from tests.faults.proxy import Proxy, proxy_to
from tests.faults.wire import MysqlWire, PostgresWire, Wire
from tests.servers.places import Places

#: The fixture that has the places of a server, and its wire.
SERVERS: dict[str, tuple[str, Callable[[], Wire]]] = {
    "postgres": ("schemas", PostgresWire),
    "mysql": ("databases", MysqlWire),
}


class Served(Struct, frozen=True):
    """One server."""

    places: Places
    wire: Callable[[], Wire]

    @classmethod
    def asked_for(cls, request: pytest.FixtureRequest) -> Served:
        fixture, wire = SERVERS[request.param]
        return cls(request.getfixturevalue(fixture), wire)

    @asynccontextmanager
    async def place(self, *, fresh: bool = False) -> AsyncIterator[tuple[str, Proxy]]:
        """The URL of a place, and a proxy that stands before it."""
        async with self.places.one(fresh=fresh) as url, proxy_to(url, self.wire) as proxy:
            yield url, proxy


def store_at(url: str, system: System) -> PostgresStore | MysqlStore:
    """A store that goes by the system's clock and not by the server's."""
    where = parse(url)
    if isinstance(where, MysqlUrl):
        return MysqlStore(where, system, time=system.now)
    assert isinstance(where, PostgresUrl)
    return PostgresStore(where, system, time=system.now)
