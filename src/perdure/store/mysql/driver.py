"""The driver, asyncmy, as far as Perdure uses it.

Several statements are sent in one packet and their results come back in order; execution stops at the first that fails.
The driver's cursors are not used, because they cost as much as the rest of a statement.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import asyncmy.connection
import asyncmy.errors
from msgspec import Struct

from perdure.errors import UsageError
from perdure.store.server.pool import DEFAULT_TIMEOUTS, Timeouts
from perdure.store.sql.dialect import Row
from perdure.store.url import MysqlUrl, connecting, secrets_in

#: Errors of the server and of the driver, with a number, and the error for a key that is taken.
DriverError: type[Exception] = asyncmy.errors.MySQLError
AlreadyThere: type[Exception] = asyncmy.errors.IntegrityError

#: Seconds that closing a connection in order may take.
_CLOSE_SECONDS = 2.0
#: Client flag: an UPDATE counts the rows that it found, also if their values did not change.
_FOUND_ROWS = 2
#: Command that removes everything that statements have set on a session.
_RESET_CONNECTION = 0x1F
#: Capability flag: TLS.
_SSL = 1 << 11
#: Ways to log in that do not show the password, or ask `_Login._secure` first.
_HIDING = frozenset({b"mysql_native_password", b"client_ed25519", b"caching_sha2_password", b"sha256_password"})


class ServerNotTrusted(asyncmy.errors.OperationalError):
    """The server has not proved its identity, or does not encrypt."""


class _Result(Protocol):
    rows: tuple[Row, ...] | None
    affected_rows: int
    insert_id: int
    has_next: int


class _Driver(Protocol):
    connected: bool
    server_version: str
    _stream_broken: bool
    _charset: str
    _encoding: str
    _result: _Result
    _transport: asyncio.Transport | None

    def get_transaction_status(self) -> bool:
        """Tell whether a transaction is open."""

    async def query(self, sql: bytes) -> int:
        """Send statements; read the first result."""

    async def _execute_command(self, command: int, sql: bytes) -> None:
        """Send a command."""

    async def _read_ok_packet(self) -> object:
        """Read the answer to a command without a result."""

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
        #: Role and database of a session that is lent to functions of the user, as it logged in.
        self.lent_as: Row = (None, None)
        self._text_settings = self._text_settings_now()

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

    def _text_settings_now(self) -> tuple[object, object]:
        return self._driver._charset, self._driver._encoding

    def is_left_clean(self) -> bool:
        """Tell whether a function of the user has left nothing that `reset` does not remove."""
        return not self.is_busy() and self._text_settings == self._text_settings_now()

    async def reset(self) -> None:
        """Give the session the state that it had after it logged in, but for its database and role."""
        async with asyncio.timeout(self.timeouts.statement):
            await self._driver._execute_command(_RESET_CONNECTION, b"")
            await self._driver._read_ok_packet()

    def is_closed(self) -> bool:
        """Tell whether the connection is closed."""
        return not self._driver.connected or self._driver._stream_broken

    def _transport(self) -> Any:
        return self._driver._transport

    def fileno(self) -> int:
        """Return the file descriptor of its socket; -1 if it has none."""
        transport = self._transport()
        return -1 if transport is None else transport.get_extra_info("socket").fileno()

    def terminate(self) -> None:
        """Close the connection at once."""
        transport = self._transport()
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


#: The driver declares no types for the methods that are overridden here.
_DriverBase: Any = asyncmy.connection.Connection


class _Login(_DriverBase):  # type: ignore[misc] # it has no type
    """A connection of the driver that tells the password only to a server that may know it.

    The server chooses how a user logs in. Some ways show the password to the server itself, in clear text or encrypted
    with a key that the server names, so that any program between us and the server would learn it.
    """

    #: True: the server has proved its identity, or is reached by a Unix socket.
    is_verified = False
    #: True: nothing that is sent leaves this machine.
    is_local = False
    #: True: without TLS if the server does not support it.
    may_fall_back = False
    #: Attributes of the driver.
    _auth_plugin_name: str
    _client_flag: int
    _password: bytes
    _ssl_context: ssl.SSLContext | None
    server_capabilities: int

    @property
    def _secure(self) -> bool:
        """True if the connection is encrypted or local.

        The driver reads it right before it passes a password to the server with sha256_password, or with
        caching_sha2_password if the server has not cached the password's hash.
        """
        if self._password and not self.is_verified and not self.is_local:
            raise self._withheld(self._auth_plugin_name or "its way to log in")
        return self._is_encrypted

    @_secure.setter
    def _secure(self, value: bool) -> None:
        self._is_encrypted = value

    async def _request_authentication(self) -> object:
        if self._ssl_context is not None and not self.server_capabilities & _SSL:
            if not self.may_fall_back:
                raise ServerNotTrusted(
                    2026,
                    "the server does not support TLS, or a program in between hides that it does; check the server, or "
                    "add ssl=off to the URL if the network can be trusted",
                )
            self._ssl_context = None
            self._client_flag &= ~_SSL
        if self._auth_plugin_name == "sha256_password":
            # Read for its refusal: this password would be in the first message.
            _ = self._secure
        return await super()._request_authentication()

    async def _process_auth(self, plugin_name: bytes, auth_packet: object) -> object:
        if self._password and not self.is_verified and plugin_name not in _HIDING:
            raise self._withheld(plugin_name.decode(errors="replace"))
        self._auth_plugin_name = plugin_name.decode(errors="replace")
        return await super()._process_auth(plugin_name, auth_packet)

    def _withheld(self, plugin: str) -> ServerNotTrusted:
        return ServerNotTrusted(
            2061,
            f"the server asks for the password ({plugin}) and has not proved its identity, so the password was not "
            "sent; use ssl=verify, with ssl_ca=FILE if its certificate was issued by an authority of your own",
        )


class MysqlConnector:
    """Opens connections, encrypted as the URL requires."""

    def __init__(self, url: MysqlUrl) -> None:
        self._url = url
        self._context: ssl.SSLContext | None = None
        if url.ssl == "verify":
            self._context = _verifying_context(url.ssl_ca)
        elif url.ssl != "off" and url.socket is None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE

    async def connect(self, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> MysqlConnection:
        """Open a connection."""
        url = self._url
        driver = _Login(
            host=url.host,
            port=url.port,
            unix_socket=url.socket,
            user=url.user,
            # As bytes: the driver would encode text in Latin-1.
            password=url.password.encode(errors="surrogateescape"),
            database=url.database,
            charset="utf8mb4",
            connect_timeout=timeouts.connect,  # pyright: ignore[reportArgumentType] # fractions are fine
            client_flag=_FOUND_ROWS,
            autocommit=True,
            program_name="perdure",
            ssl=self._context,
        )
        # The driver verifies while it encrypts, before it logs in.
        driver.is_verified = url.ssl == "verify" or url.socket is not None
        driver.is_local = url.is_local
        driver.may_fall_back = url.ssl == "prefer"
        try:
            await connecting(driver.connect(), url.where, lambda: secrets_in(url.password))
        except DriverError as error:
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                raise ServerNotTrusted(
                    2026,
                    f"its certificate cannot be verified: {error.__cause__.verify_message}; add ssl_ca=FILE to the URL "
                    "if it was issued by an authority of your own, and use a host name that is in the certificate",
                ) from error
            raise
        return MysqlConnection(cast("_Driver", driver), timeouts)


def _verifying_context(file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise UsageError(f"ssl_ca of the database URL names {file}, which cannot be used: {error}") from error
