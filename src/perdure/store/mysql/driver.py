"""The driver, as far as it is used here.

Statements are sent as packets of several, whose answers come back in order; the first that fails is the last that is executed.
The driver's cursors are passed over: they cost as much as the rest of a statement.
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

#: What the server or the driver says is wrong, with its number; the one thing that is asked for by its name.
DriverError: type[Exception] = asyncmy.errors.MySQLError
AlreadyThere: type[Exception] = asyncmy.errors.IntegrityError

#: Seconds that saying goodbye to a connection may take.
_GOODBYE = 2.0
#: What a server may say that does not know TLS.
_BAD_HANDSHAKE = frozenset({1043, 2013})
#: An UPDATE counts the rows that it found, whether or not they had the values already.
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
        """Whether a transaction is open."""

    async def query(self, sql: bytes) -> int:
        """Send statements; read the first answer."""

    async def next_result(self) -> int:
        """Read the next answer."""

    async def ensure_closed(self) -> None:
        """End it in order."""

    def close(self) -> None:
        """End it at once."""


class MysqlResult(Struct, frozen=True):
    """What a statement gave: its rows, or how many it found or made."""

    rows: tuple[Row, ...]
    count: int
    #: What it passed to LAST_INSERT_ID.
    last_insert_id: int = 0


class MysqlConnection:
    """One session with the server, of one event loop."""

    def __init__(self, driver: _Driver, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self._driver = driver
        #: Set by whoever begins a transaction, for whoever has to end it.
        self.in_transaction = False
        #: How large a packet the server takes, in bytes.
        self.packet = 1 << 20
        #: Which of the servers that were met at this address it leads to.
        self.epoch = 0
        #: Its server is one of several that take writes.
        self.clustered = False
        self.trace: Callable[[str], object] | None = None

    @property
    def server_version(self) -> str:
        """As the server says it."""
        return self._driver.server_version

    @property
    def driver(self) -> object:
        """The driver's own connection, for functions of the user's."""
        return self._driver

    def is_busy(self) -> bool:
        """Whether it is in the middle of a transaction, as the server last said."""
        return self._driver.get_transaction_status()

    async def send(self, statements: Sequence[str]) -> list[MysqlResult]:
        """Execute statements, in as few packets as their size allows."""
        if self.trace is not None:
            for statement in statements:
                self.trace(statement)
        answers: list[MysqlResult] = []
        async with asyncio.timeout(self.timeouts.statement):
            for packet in self._packets(statements):
                answers += await self._answers(packet)
        return answers

    def is_closed(self) -> bool:
        """Whether it is over."""
        return not self._driver.connected or self._driver._stream_broken

    def fileno(self) -> int:
        """The descriptor of its socket."""
        transport = self._driver._transport
        return -1 if transport is None else transport.get_extra_info("socket").fileno()

    def terminate(self) -> None:
        """End it at once."""
        transport = self._driver._transport
        if transport is not None:
            # Closing an encrypted one in order takes an answer of the server, for which nobody waits.
            transport.abort()
        self._driver.close()

    async def close_gracefully(self) -> None:
        """End it in order if that is possible, and anyway."""
        try:
            async with asyncio.timeout(_GOODBYE):
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

    async def _answers(self, packet: bytes) -> list[MysqlResult]:
        driver = self._driver
        await driver.query(packet)
        answers: list[MysqlResult] = []
        while True:
            result = driver._result
            answers.append(MysqlResult(result.rows or (), result.affected_rows, result.insert_id or 0))
            if not result.has_next:
                return answers
            await driver.next_result()


class MysqlConnector:
    """To a server: encrypted if the URL wants that or the server can do it, which is found out once."""

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
        """A new session."""
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
