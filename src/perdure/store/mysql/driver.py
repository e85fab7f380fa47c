"""The driver, asyncmy, as far as Perdure uses it.

Several statements are sent in one packet and their results come back in order; execution stops at the first that fails.
The driver's cursors are not used, because they cost as much as the rest of a statement.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import asyncmy
import asyncmy.errors
from msgspec import Struct

from perdure.store.server.timeouts import DEFAULT_TIMEOUTS, Timeouts
from perdure.store.sql.dialect import Row
from perdure.store.url import MysqlUrl

#: Errors of the server and of the driver, with a number, and the error for a key that is taken.
DriverError: type[Exception] = asyncmy.errors.MySQLError
AlreadyThere: type[Exception] = asyncmy.errors.IntegrityError

#: Seconds that closing a connection in order may take.
_CLOSE_SECONDS = 2.0
#: Errors of a server that does not support TLS.
_BAD_HANDSHAKE = frozenset({1043, 2013})
#: Client flag: an UPDATE counts the rows that it found, also if their values did not change.
_FOUND_ROWS = 2


class _Result(Protocol):
    rows: tuple[Row, ...] | None
    affected_rows: int
    insert_id: int
    has_next: int


class _Driver(Protocol):
    connected: bool
    server_version: str
    _stream_broken: bool
    _result: _Result
    _transport: asyncio.Transport | None

    def get_transaction_status(self) -> bool:
        """Tell whether a transaction is open."""

    async def query(self, sql: bytes) -> int:
        """Send statements; read the first result."""

    async def next_result(self) -> int:
        """Read the next result."""

    async def ensure_closed(self) -> None:
        """Close the connection in order."""

    def close(self) -> None:
        """Close the connection at once."""


class MysqlResult(Struct, frozen=True):
    """Result of a statement: its rows, or how many rows it found or inserted."""

    rows: tuple[Row, ...]
    count: int
    #: The value that the statement passed to LAST_INSERT_ID.
    last_insert_id: int = 0


class MysqlConnection:
    """One session with the server, used by one event loop."""

    def __init__(self, driver: _Driver, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self._driver = driver
        #: Set when a transaction begins and reset when it ends, so that an error handler knows whether to roll back.
        self.in_transaction = False
        #: Maximum packet size of the server in bytes.
        self.packet = 1 << 20
        #: Number of the server at this address, counted up whenever another server takes its place.
        self.epoch = 0
        #: True: its server is one of several of a cluster that accept writes.
        self.clustered = False
        self.trace: Callable[[str], object] | None = None

    @property
    def server_version(self) -> str:
        """Version as the server reports it."""
        return self._driver.server_version

    @property
    def driver(self) -> object:
        """Connection of the driver, for functions of the user."""
        return self._driver

    def is_busy(self) -> bool:
        """Tell whether a transaction is open, as of the last result of the server."""
        return self._driver.get_transaction_status()

    async def send(self, statements: Sequence[str]) -> list[MysqlResult]:
        """Execute statements, in as few packets as their size allows."""
        if self.trace is not None:
            for statement in statements:
                self.trace(statement)
        results: list[MysqlResult] = []
        async with asyncio.timeout(self.timeouts.statement):
            for packet in self._packets(statements):
                results += await self._results(packet)
        return results

    def is_closed(self) -> bool:
        """Tell whether the connection is closed."""
        return not self._driver.connected or self._driver._stream_broken

    def fileno(self) -> int:
        """Return the file descriptor of its socket; -1 if it has none."""
        transport = self._driver._transport
        return -1 if transport is None else transport.get_extra_info("socket").fileno()

    def terminate(self) -> None:
        """Close the connection at once."""
        transport = self._driver._transport
        if transport is not None:
            # Closing an encrypted transport in order would wait for an answer of the server.
            transport.abort()
        self._driver.close()

    async def close_gracefully(self) -> None:
        """Close the connection in order, or at once if that fails."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._driver.ensure_closed()
        except Exception:
            self.terminate()

    def _packets(self, statements: Sequence[str]) -> list[bytes]:
        encoded = [statement.encode() for statement in statements]
        if sum(map(len, encoded)) + len(encoded) < self.packet:
            return [b";".join(encoded)]
        packets: list[bytes] = []
        packet: list[bytes] = []
        for statement in encoded:
            if packet and sum(map(len, packet)) + len(packet) + len(statement) >= self.packet:
                packets.append(b";".join(packet))
                packet = []
            packet.append(statement)
        return [*packets, b";".join(packet)]

    async def _results(self, packet: bytes) -> list[MysqlResult]:
        driver = self._driver
        await driver.query(packet)
        results: list[MysqlResult] = []
        while True:
            result = driver._result
            results.append(MysqlResult(result.rows or (), result.affected_rows, result.insert_id or 0))
            if not result.has_next:
                return results
            await driver.next_result()


class MysqlConnector:
    """Opens connections: encrypted if the URL requires it or the server supports it, which is tried once."""

    def __init__(self, url: MysqlUrl) -> None:
        self._url = url
        self._context: ssl.SSLContext | None = None
        if url.ssl == "verify":
            self._context = ssl.create_default_context()
        elif url.ssl != "off" and url.socket is None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE

    async def connect(self, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> MysqlConnection:
        """Open a connection."""
        if self._context is None or self._url.ssl != "preferred":
            return await _connect(self._url, self._context, timeouts)
        try:
            return await _connect(self._url, self._context, timeouts)
        except DriverError as error:
            if not isinstance(error.__cause__, ssl.SSLError) and error.args[0] not in _BAD_HANDSHAKE:
                raise
        connection = await _connect(self._url, None, timeouts)
        self._context = None
        return connection


async def _connect(url: MysqlUrl, context: ssl.SSLContext | None, timeouts: Timeouts) -> MysqlConnection:
    driver: Any = await asyncmy.connect(
        host=url.host,
        port=url.port,
        unix_socket=url.socket,
        user=url.user,
        password=url.password,
        database=url.database,
        charset="utf8mb4",
        connect_timeout=timeouts.connect,  # pyright: ignore[reportArgumentType] # fractions are fine
        client_flag=_FOUND_ROWS,
        autocommit=True,
        program_name="perdure",
        ssl=context,
    )
    return MysqlConnection(cast("_Driver", driver), timeouts)
