"""Rows that a stopped worker has locked are free again soon, because the server ends its session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from perdure.store.mysql.driver import DriverError, MysqlConnection, MysqlConnector
from perdure.store.mysql.session import set_up_session
from perdure.store.mysql.store import MysqlStore
from perdure.store.server.pool import DEFAULT_TIMEOUTS
from perdure.store.url import MysqlUrl, parse
from perdure.testing.conformance.harness import ACTOR, a_run
from tests.helpers import eventually

#: Seconds until the locks have to be gone. The server's default limit for unread results is a minute.
LEASE = 4.0
SOON = 20.0

MANY = "SELECT REPEAT('x', 1000000) FROM (SELECT 1 UNION ALL SELECT 2) a, (SELECT 1 UNION ALL SELECT 2) b" + "".join(
    f", (SELECT 1 UNION ALL SELECT 2) c{number}" for number in range(5)
)


async def say_nothing(session: MysqlConnection) -> None:
    """Stop between two statements."""


async def say_half(session: MysqlConnection) -> None:
    """Stop in the middle of a statement."""
    transport = session._driver._transport
    assert transport is not None
    transport.write(b"\x80\x00\x00\x00\x03SELECT")


async def take_nothing(session: MysqlConnection) -> None:
    """Stop in the middle of a result."""
    transport = session._driver._transport
    assert transport is not None
    transport.pause_reading()
    statement = b"\x03" + MANY.encode()
    transport.write(len(statement).to_bytes(3, "little") + b"\x00" + statement)


@pytest.mark.parametrize("stand", [say_nothing, say_half, take_nothing])
async def test_the_server_ends_the_session_of_a_client_that_stands_still(
    store: MysqlStore, url: str, stand: Callable[[MysqlConnection], Awaitable[None]]
) -> None:
    await store.create([a_run("r1")], ACTOR)
    where = parse(url)
    assert isinstance(where, MysqlUrl)
    session = await MysqlConnector(where).connect(DEFAULT_TIMEOUTS.within(LEASE))
    await set_up_session(session, url)
    other = await MysqlConnector(where).connect()
    await session.send(["BEGIN", "SELECT 1 FROM perdure_runs WHERE id = 'r1' FOR UPDATE"])
    await stand(session)

    async def is_free() -> bool:
        try:
            await other.send(["SELECT 1 FROM perdure_runs WHERE id = 'r1' FOR UPDATE NOWAIT"])
        except DriverError:
            return False
        return True

    try:
        assert not await is_free()
        await eventually(is_free, within=SOON)
    finally:
        session.terminate()
        await other.close_gracefully()
