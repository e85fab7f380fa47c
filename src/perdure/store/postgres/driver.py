"""The driver, asyncpg, as far as Perdure uses it. It has no type annotations, so this module declares them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs] # it has none

from perdure.store.server.pool import Timeouts
from perdure.store.url import connecting, secrets_of, shown

#: Errors of the server, errors of the driver itself, and the error for a key that is taken.
ServerError: type[Exception] = asyncpg.PostgresError
# The second is raised by a connection that the server has closed while it was idle.
DriverErrors: tuple[type[Exception], ...] = (asyncpg.InterfaceError, asyncpg.InternalClientError)
AlreadyThere: type[Exception] = asyncpg.UniqueViolationError
#: The URL asks for something that does not work, such as a file with certificates that does not exist.
ConfigurationError: type[Exception] = asyncpg.exceptions.ClientConfigurationError

#: Seconds that closing a connection in order may take.
_CLOSE_SECONDS = 2.0
_CACHED_STATEMENTS = 200

#: Array types of parameters: the OID of the array and of its elements, which are the same on every server.
_ARRAYS = {
    "bool": (1000, 16), "bytea": (1001, 17), "int2": (1005, 21), "int4": (1007, 23), "text": (1009, 25),
    "int8": (1016, 20),
}  # fmt: skip


class _Named(Protocol):
    @property
    def name(self) -> str:
        """Name of the type."""


class _Prepared(Protocol):
    def get_parameters(self) -> Sequence[_Named]:
        """Return the types of its parameters."""


class _Version(Protocol):
    @property
    def major(self) -> int:
        """Major version number."""


class PostgresConnection(Protocol):
    """One session with the server, used by one event loop."""

    #: Number of the server at this address, counted up whenever another server takes its place.
    epoch: int
    #: True: a pooler may give the server's session to other clients between transactions.
    is_pooled: bool

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
        """Run a statement, or several without parameters; return its status, such as `UPDATE 3`."""

    async def fetch(self, query: str, *args: object) -> list[Any]:
        """Run a query; return its rows."""

    async def fetchval(self, query: str, *args: object) -> Any:
        """Run a query; return the first value of its first row."""

    async def prepare(self, query: str, *, name: str) -> _Prepared:
        """Prepare a statement; one without a name leaves nothing on the server."""

    def limit(self, seconds: float) -> None:
        """Wait for a statement no longer than that from now on. The server does not learn of it."""

    def is_closed(self) -> bool:
        """Tell whether the session is closed."""

    def is_in_transaction(self) -> bool:
        """Tell whether a transaction is open."""

    def get_server_pid(self) -> int:
        """Return the id of the server process; a pooler returns its own."""

    def get_server_version(self) -> _Version:
        """Return the version of the server."""

    async def close(self, *, timeout: float) -> None:
        """Close the session in order."""

    def add_query_logger(self, callback: Callable[[Any], object]) -> None:
        """Pass every statement, with its parameters and duration, to a callback."""

    async def add_listener(self, channel: str, callback: Callable[[Any, int, str, object], object]) -> None:
        """Listen to a channel; the callback gets this object, the sender's process id, the channel and the payload."""

    def add_termination_listener(self, callback: Callable[[Any], object]) -> None:
        """Call back when either side has closed the session."""

    def fileno(self) -> int:
        """Return the file descriptor of its socket."""

    def terminate(self) -> None:
        """Close the session at once."""


class _NamedSession(asyncpg.Connection):  # type: ignore[misc] # the driver comes without types
    """A session whose prepared statements have globally unique names.

    A pooler may give us a server session on which another process has prepared statements. The driver names statements
    by numbers, the same in each process, so that we would execute the other process's statement.
    """

    unique = ""
    epoch = 0
    is_pooled = False
    #: The driver's settings of the session.
    _config: Any

    def limit(self, seconds: float) -> None:
        """Wait for a statement no longer than that from now on. The server does not learn of it."""
        self._config = self._config._replace(command_timeout=seconds)

    def fileno(self) -> int:
        """Return the file descriptor of its socket."""
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    def _get_unique_id(self, prefix: str) -> str:
        return f"perdure_{prefix}_{self.unique}_{super()._get_unique_id('')}"


#: Removes what a function of the user has left on a session: the parts of DISCARD ALL, which cannot share a message
#: with a COMMIT. A pooler that prepares statements for its clients would lose them by DEALLOCATE.
_RESET = """;
SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; UNLISTEN *;
SELECT pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES"""
_DEALLOCATE = "; DEALLOCATE ALL"


class _LentSession(_NamedSession):
    """A session that is lent to functions of the user, and is reset together with the end of each transaction.

    The reset is part of the message that commits or rolls back, so it costs no round trip, and no other client of a
    pooler gets the session in between.
    """

    #: True: nothing of the last function is left.
    is_reset = False
    #: True: the function has changed settings of the driver itself.
    is_altered = False

    def lend(self) -> None:
        """Begin to watch the next function."""
        self.is_reset = self.is_altered = False

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
        """Run statements; the driver's own COMMIT and ROLLBACK reset the session."""
        ends = query in ("COMMIT;", "ROLLBACK;")
        if ends:
            query = query.rstrip(";") + _RESET + ("" if self.is_pooled else _DEALLOCATE)
        self.is_reset = False
        status: str = await super().execute(query, *args, timeout=timeout)
        self.is_reset = ends
        return status

    async def add_listener(self, channel: str, callback: Any) -> None:
        """Listen to a channel; the session is not used again."""
        self.is_altered = True
        await super().add_listener(channel, callback)

    def add_log_listener(self, callback: Any) -> None:
        """Call back for messages of the server; the session is not used again."""
        self.is_altered = True
        super().add_log_listener(callback)

    def add_query_logger(self, callback: Any) -> None:
        """Call back for statements; the session is not used again."""
        self.is_altered = True
        super().add_query_logger(callback)

    def add_termination_listener(self, callback: Any) -> None:
        """Call back when the session is closed; the session is not used again."""
        self.is_altered = True
        super().add_termination_listener(callback)

    async def set_type_codec(self, *args: Any, **options: Any) -> None:
        """Encode and decode a type differently; the session is not used again."""
        self.is_altered = True
        await super().set_type_codec(*args, **options)

    async def set_builtin_type_codec(self, *args: Any, **options: Any) -> None:
        """Encode and decode a type differently; the session is not used again."""
        self.is_altered = True
        await super().set_builtin_type_codec(*args, **options)


async def connect(
    dsn: str, unique: str, timeouts: Timeouts, *, called: str, prepares: bool, lent: bool = False
) -> PostgresConnection:
    """Open a session; `called` is its name on the server.

    Without `prepares`, the server parses every statement anew. So it does on a session that is `lent` to functions of
    the user, which has no time limit either.
    """
    opening = asyncpg.connect(  # pyright: ignore[reportUnknownMemberType] # the driver is not typed
        dsn,
        connection_class=_LentSession if lent else _NamedSession,
        timeout=timeouts.connect,  # pyright: ignore[reportArgumentType] # fractions are fine
        command_timeout=None if lent else timeouts.statement,
        statement_cache_size=_CACHED_STATEMENTS if prepares and not lent else 0,
        max_cached_statement_lifetime=0,
        max_cacheable_statement_size=0,
        server_settings={"application_name": called},
    )
    session: Any = await connecting(opening, f"the database {shown(dsn)}", lambda: secrets_of(dsn))
    session.unique = unique
    if not lent:
        _describe_arrays(session)
    return cast("PostgresConnection", session)


def _describe_arrays(session: Any) -> None:
    """Register array types with the driver, which would otherwise query them for each new session.

    The query takes three round trips and ten milliseconds on the server, more than the rest of a new session.
    """
    session._protocol.get_settings().register_data_types([
        {
            "oid": oid, "name": f"_{name}", "ns": "pg_catalog", "kind": b"b", "elemtype": element, "elemdelim": b",",
            "elemtype_name": name, "basetype": None, "range_subtype": None, "attrtypoids": None,
        }
        for name, (oid, element) in _ARRAYS.items()
    ])  # fmt: skip


def start_lending(session: PostgresConnection) -> None:
    """Watch what the next function of the user leaves on a session."""
    assert isinstance(session, _LentSession)
    session.lend()


def is_left_clean(session: PostgresConnection) -> bool:
    """Tell whether nothing of a function of the user is left on a session."""
    assert isinstance(session, _LentSession)
    return session.is_reset and not session.is_altered and not session.is_in_transaction()


async def close_gracefully(session: PostgresConnection) -> None:
    """Close a session in order, or at once if that fails."""
    try:
        await session.close(timeout=_CLOSE_SECONDS)
    except Exception:
        session.terminate()
