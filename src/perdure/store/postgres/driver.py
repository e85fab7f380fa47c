"""The driver, as far as it is used here. It comes without types, so they are said in this one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs] # it has none

from perdure.store.server.timeouts import Timeouts

#: What the server says is wrong; what the driver itself says; the one thing that is asked for by its name.
ServerError: type[Exception] = asyncpg.PostgresError
# The second is raised by a connection that the server has ended while nobody used it.
DriverErrors: tuple[type[Exception], ...] = (asyncpg.InterfaceError, asyncpg.InternalClientError)
AlreadyThere: type[Exception] = asyncpg.UniqueViolationError

#: Seconds that saying goodbye to a connection may take.
_GOODBYE = 2.0
_CACHED_STATEMENTS = 200

#: Array types that parameters have, by their number and that of their elements. Both are the same on every server.
_ARRAYS = {
    "bool": (1000, 16), "bytea": (1001, 17), "int2": (1005, 21), "int4": (1007, 23), "text": (1009, 25), "int8": (1016, 20),
}  # fmt: skip


class _Named(Protocol):
    @property
    def name(self) -> str:
        """Of a type."""


class _Prepared(Protocol):
    def get_parameters(self) -> Sequence[_Named]:
        """The types of its parameters."""


class _Version(Protocol):
    @property
    def major(self) -> int:
        """The first number."""


class PostgresConnection(Protocol):
    """One session with the server, of one event loop."""

    #: Which of the servers that were met at this address it leads to.
    epoch: int

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
        """Run a statement, or several without parameters; its status, such as `UPDATE 3`. A timeout replaces the usual one."""

    async def fetch(self, query: str, *args: object) -> list[Any]:
        """Run a query; its rows."""

    async def fetchval(self, query: str, *args: object) -> Any:
        """Run a query; the first value of its first row."""

    async def prepare(self, query: str, *, name: str) -> _Prepared:
        """Have a statement examined; without a name, nothing is left of it on the server."""

    def limit(self, seconds: float) -> None:
        """Wait for a statement no longer than that from now on. The server is not told."""

    def is_closed(self) -> bool:
        """Whether it is over."""

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""

    def get_server_pid(self) -> int:
        """Of the process that serves the session; a pooler says its own."""

    def get_server_version(self) -> _Version:
        """Of the server."""

    async def close(self, *, timeout: float) -> None:
        """End it in order."""

    def add_query_logger(self, callback: Callable[[Any], object]) -> None:
        """Show every statement, with its parameters and time, to a callback."""

    async def add_listener(self, channel: str, callback: Callable[[Any, int, str, object], object]) -> None:
        """Listen to a channel; the callback gets this, the sender's number, the channel and what was said."""

    def add_termination_listener(self, callback: Callable[[Any], object]) -> None:
        """Call back when it is over, whoever ended it."""

    def fileno(self) -> int:
        """The descriptor of its socket."""

    def terminate(self) -> None:
        """End it at once."""


class _NamedSession(asyncpg.Connection):  # type: ignore[misc] # the driver comes without types
    """A session whose prepared statements have names that occur nowhere else.

    A pooler may hand us a session of the server that somebody else has prepared statements on. The driver's own names are
    numbers, the same in each process, and we would execute whatever it is that has the name there.
    """

    unique = ""
    epoch = 0
    #: The driver's settings of the session.
    _config: Any

    def limit(self, seconds: float) -> None:
        """Wait for a statement no longer than that from now on. The server is not told."""
        self._config = self._config._replace(command_timeout=seconds)

    def fileno(self) -> int:
        """The descriptor of its socket."""
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    def _get_unique_id(self, prefix: str) -> str:
        return f"perdure_{prefix}_{self.unique}_{super()._get_unique_id('')}"


async def connect(
    dsn: str, unique: str, timeouts: Timeouts, *, called: str, prepares: bool, lent: bool = False
) -> PostgresConnection:
    """A new session, `called` so on the server. Statements that are not to be prepared are examined anew each time.

    So are those on one that is to be lent to the user's functions; they may take their time.
    """
    session = await asyncpg.connect(  # pyright: ignore[reportUnknownMemberType] # it is not typed
        dsn,
        connection_class=_NamedSession,
        timeout=timeouts.connect,  # pyright: ignore[reportArgumentType] # fractions are fine
        command_timeout=None if lent else timeouts.statement,
        statement_cache_size=_CACHED_STATEMENTS if prepares and not lent else 0,
        max_cached_statement_lifetime=0,
        max_cacheable_statement_size=0,
        server_settings={"application_name": called},
    )
    session.unique = unique
    if not lent:
        _describe_arrays(session)
    return cast("PostgresConnection", session)


def _describe_arrays(session: Any) -> None:
    """Tell the driver what it would otherwise ask each new session for.

    Its question takes three round trips and ten milliseconds of the server, more than all else that a new session costs.
    """
    session._protocol.get_settings().register_data_types([
        {
            "oid": oid, "name": f"_{name}", "ns": "pg_catalog", "kind": b"b", "elemtype": element, "elemdelim": b",",
            "elemtype_name": name, "basetype": None, "range_subtype": None, "attrtypoids": None,
        }
        for name, (oid, element) in _ARRAYS.items()
    ])  # fmt: skip


def is_busy(session: PostgresConnection) -> bool:
    """Whether a session is in the middle of a transaction."""
    return session.is_in_transaction()


async def close_gracefully(session: PostgresConnection) -> None:
    """End a session in order if that is possible, and anyway."""
    try:
        await session.close(timeout=_GOODBYE)
    except Exception:
        session.terminate()
