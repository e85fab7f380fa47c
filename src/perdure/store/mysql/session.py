"""Settings of a session, and the identity of its server."""

from __future__ import annotations

import re

from perdure.errors import StoreError
from perdure.store.mysql.driver import MysqlConnection
from perdure.store.mysql.transaction import Sql
from perdure.store.server.identity import ServerIdentity
from perdure.store.server.pool import Timeouts
from perdure.store.sql.dialect import Row

#: Minimum packet size in bytes: a payload of the usual limit, escaped, with other statements.
_SMALLEST_PACKET = 4 << 20

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
#: Older MySQL could not compare text byte by byte including trailing blanks.
_OLDEST = {"MariaDB": (10, 6, 0), "MySQL": (8, 0, 17)}

#: The collation that compares byte by byte, including trailing blanks; the tables use the same.
_COLLATION = {"MariaDB": "utf8mb4_nopad_bin", "MySQL": "utf8mb4_0900_bin"}
#: Values are stored exactly: nothing is truncated, padded or converted.
_SETTINGS = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    (
        "SET NAMES utf8mb4 COLLATE {collation}, autocommit = 1, time_zone = '+00:00', group_concat_max_len = 16777216, "
        "sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'"
    ),
)
#: Minimum seconds that the server keeps an idle session, because opening one takes time.
_SHORTEST_IDLE = 5

#: Sets the limits to the defaults of the server.
_DEFAULT_LIMITS = "SET SESSION innodb_lock_wait_timeout = DEFAULT, net_write_timeout = DEFAULT, {} = DEFAULT"

#: A reset changes neither back.
_ROLE_AND_DATABASE = "SELECT CURRENT_ROLE(), DATABASE()"

_SERVER_LIMITS = "SELECT @@max_allowed_packet, @@sql_mode"

#: The server's name, and the position of its binary log if it keeps one. Not every version of MariaDB has a unique
#: name; servers that replicate have different ids, and copies of a server mostly a different host or port.
_NAME = {"MariaDB": "CONCAT(@@server_id, ' ', @@hostname, ':', @@port)", "MySQL": "@@server_uuid"}
_WHO = {
    "MariaDB": f"SELECT {_NAME['MariaDB']}, @@gtid_binlog_pos",
    "MySQL": f"SELECT {_NAME['MySQL']}, @@gtid_executed",
}
#: Detects Galera and Group Replication. SHOW does not fail for variables that the server lacks.
_CLUSTER = (
    "SHOW GLOBAL VARIABLES WHERE (Variable_name = 'wsrep_on' AND Value = 'ON') "
    "OR (Variable_name = 'group_replication_group_name' AND Value <> '')"
)
_NUMBER = re.compile(r"\d+")


def server_name(connection: MysqlConnection) -> Sql:
    """Return the SQL expression for the server's name."""
    return Sql(_NAME[_kind_of(connection)])


def identity_query(connection: MysqlConnection) -> str:
    """Return the statement that reads the server's identity."""
    return _WHO[_kind_of(connection)]


def parse_identity(row: Row) -> ServerIdentity:
    """Return the identity in a row of the statement of `identity_query`."""
    name, written = row
    return ServerIdentity(name, _position(written))


def _position(written: str) -> dict[str, int]:
    """Return the last transaction of each stream of the log.

    MariaDB writes `domain-server-number`, MySQL `server:1-number:…`.
    """
    position: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in written.split(","))):
        stream, separator, rest = part.partition(":")
        if not separator:
            stream, _, rest = part.partition("-")
            rest = rest.rpartition("-")[2]
        position[stream] = max(position.get(stream, 0), *map(int, _NUMBER.findall(rest)), 0)
    return position


def _kind_of(connection: MysqlConnection) -> str:
    return "MariaDB" if "mariadb" in connection.server_version.lower() else "MySQL"


async def set_up_session(connection: MysqlConnection, where: str) -> ServerIdentity:
    """Set up a session; return the server's identity. Raises `StoreError` if the server is unsuitable."""
    text, kind = connection.server_version, _kind_of(connection)
    # MariaDB prefixes its version with 5.5.5 for old replicas.
    version = _VERSION.search(text.removeprefix("5.5.5-"))
    if version is None or tuple(map(int, version.groups())) < _OLDEST[kind]:
        oldest = ".".join(map(str, _OLDEST[kind]))
        raise StoreError(f"{where} is {kind} {text}; Perdure needs {kind} {oldest} or newer")
    results = await connection.send(
        [*_settings(kind), *_limits(kind, connection.timeouts), _CLUSTER, _SERVER_LIMITS, _WHO[kind]]
    )
    [(packet, mode)], [who] = results[-2].rows, results[-1].rows
    connection.clustered = bool(results[-3].rows)
    if packet < _SMALLEST_PACKET:
        raise StoreError(
            f"{where} takes packets of at most {packet:,} bytes, which is too little; set max_allowed_packet to 16M or "
            "more on the server"
        )
    modes = mode.split(",")
    if "STRICT_ALL_TABLES" not in modes or "NO_BACKSLASH_ESCAPES" in modes:
        # Values go into statements as literals, with backslashes as escapes.
        raise StoreError(
            f"{where} does not keep the sql_mode that Perdure sets, without which values would be cut off or read as "
            "SQL; check the proxy between this process and the server"
        )
    connection.packet = packet
    # No server of a cluster lacks what another one has acknowledged, and a proxy may lead to any of them.
    return ServerIdentity(None) if connection.clustered else parse_identity(who)


async def prepare_lending(connection: MysqlConnection) -> None:
    """Remove the time limits of a session, for statements of the user, and note its role and database."""
    limit = "max_statement_time" if _kind_of(connection) == "MariaDB" else "max_execution_time"
    results = await connection.send([_DEFAULT_LIMITS.format(limit), _ROLE_AND_DATABASE])
    [connection.lent_as] = results[-1].rows


async def clean_session(connection: MysqlConnection, database: str) -> bool:
    """Remove what a function of the user has left on a session; tell whether nothing is left.

    Every transaction step pays for these statements, so they are few.
    """
    # The reset has removed the time limits too.
    await connection.reset()
    results = await connection.send([*_settings(_kind_of(connection)), _ROLE_AND_DATABASE])
    [(role, chosen)] = results[-1].rows
    if chosen != connection.lent_as[1]:
        name = database.replace("`", "``")
        await connection.send([f"USE `{name}`"])
    return bool(role == connection.lent_as[0])


def _settings(kind: str) -> list[str]:
    return [setting.format(collation=_COLLATION[kind]) for setting in _SETTINGS]


def _limits(kind: str, timeouts: Timeouts) -> list[str]:
    """Return statements that set time limits.

    Waits are short, so that a worker learns of trouble while its lease lasts and locks of a dead client end soon.
    """
    # MySQL cannot end an idle transaction, only an idle session.
    if kind == "MySQL":
        idle = max(_SHORTEST_IDLE, int(1.7 * timeouts.statement))
        limits = f"max_execution_time = {int(1000 * timeouts.server_statement)}, wait_timeout = {idle}"
    else:
        idle = max(1, int(1.25 * timeouts.statement))
        limits = f"max_statement_time = {timeouts.server_statement}, idle_transaction_timeout = {idle}"
    # Seconds that the server waits for a client that does not read its results.
    writing = max(1, int(timeouts.statement))
    return [
        f"SET SESSION innodb_lock_wait_timeout = {max(1, int(timeouts.lock))}, net_write_timeout = {writing}, {limits}"
    ]
