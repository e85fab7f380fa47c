"""A session as the store needs it: what is set on it, and what is asked of the server."""

from __future__ import annotations

import re

from perdure.errors import StoreError
from perdure.store.mysql.driver import MysqlConnection
from perdure.store.mysql.transaction import Sql
from perdure.store.server.identity import ServerIdentity
from perdure.store.server.timeouts import Timeouts
from perdure.store.sql.dialect import Row

#: Bytes that a packet may have at the least; a payload of the usual limit, escaped, and its neighbours.
_SMALLEST_PACKET = 4 << 20

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
#: MySQL before could not compare text byte by byte with blanks at its end.
_OLDEST = {"MariaDB": (10, 6, 0), "MySQL": (8, 0, 17)}

#: Comparing byte by byte, blanks at the end included, is called differently; the tables are made with the same.
_PER_KIND = {
    "MariaDB": "SET NAMES utf8mb4 COLLATE utf8mb4_nopad_bin",
    "MySQL": "SET NAMES utf8mb4 COLLATE utf8mb4_0900_bin",
}
#: Values are exactly what they are: nothing is cut off, padded or translated.
_SETTINGS = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00'",
    "SET SESSION group_concat_max_len = 16777216",
)
#: Seconds for which a session is kept that nobody uses, at the least: making one takes time as well.
_SHORTEST_IDLE = 5

#: As the server has them for everybody.
_RELAXED = "SET SESSION innodb_lock_wait_timeout = DEFAULT, net_write_timeout = DEFAULT, {} = DEFAULT"

_ASKED = "SELECT @@max_allowed_packet, @@sql_mode"

#: The identity of the server, and how far it has written its log of changes, if it keeps one. MariaDB has no name of its own that every version
#: knows; servers that replicate have different numbers, and copies of one mostly another host or port.
_NAME = {"MariaDB": "CONCAT(@@server_id, ' ', @@hostname, ':', @@port)", "MySQL": "@@server_uuid"}
_WHO = {
    "MariaDB": f"SELECT {_NAME['MariaDB']}, @@gtid_binlog_pos",
    "MySQL": f"SELECT {_NAME['MySQL']}, @@gtid_executed",
}
#: Asked for in a way that takes no offence at variables which the server does not have: Galera's, and those of Group Replication.
_CLUSTER = (
    "SHOW GLOBAL VARIABLES WHERE (Variable_name = 'wsrep_on' AND Value = 'ON') "
    "OR (Variable_name = 'group_replication_group_name' AND Value <> '')"
)
_NUMBER = re.compile(r"\d+")


def name_of(connection: MysqlConnection) -> Sql:
    """An expression for the server's name."""
    return Sql(_NAME[_kind_of(connection)])


def who_asks(connection: MysqlConnection) -> str:
    """The statement that asks a server who it is."""
    return _WHO[_kind_of(connection)]


def who_is(row: Row) -> ServerIdentity:
    """Its answer."""
    name, written = row
    return ServerIdentity(name, _position(written))


def _position(written: str) -> dict[str, int]:
    """The last transaction of each stream: `domain-server-number` of MariaDB, `server:1-number:…` of MySQL."""
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


async def prepare(connection: MysqlConnection, where: str) -> ServerIdentity:
    """Set up a session; who the server is. Raises `StoreError` where the server does not fit."""
    text, kind = connection.server_version, _kind_of(connection)
    # MariaDB pretends to be 5.5.5 first, for old replicas.
    version = _VERSION.search(text.removeprefix("5.5.5-"))
    if version is None or tuple(map(int, version.groups())) < _OLDEST[kind]:
        oldest = ".".join(map(str, _OLDEST[kind]))
        raise StoreError(f"{where} is {kind} {text}; Perdure needs {kind} {oldest} or newer.")
    answers = await connection.send(
        [_PER_KIND[kind], *_SETTINGS, *_limits(kind, connection.timeouts), _CLUSTER, _ASKED, _WHO[kind]]
    )
    [(packet, mode)], [who] = answers[-2].rows, answers[-1].rows
    connection.clustered = bool(answers[-3].rows)
    if packet < _SMALLEST_PACKET:
        raise StoreError(
            f"{where} takes packets of {packet:,} bytes at the most, which is too little. Set max_allowed_packet to 16M or "
            "more on the server."
        )
    if "STRICT_ALL_TABLES" not in mode.split(","):
        raise StoreError(
            f"{where} does not keep the sql_mode that Perdure sets; without a strict one, values would be cut off silently. "
            "Look at what stands between here and the server."
        )
    connection.packet = packet
    # Nothing that one of several has acknowledged is missing on the others, and a proxy may lead to any of them.
    return ServerIdentity(None) if connection.clustered else who_is(who)


async def relax(connection: MysqlConnection) -> None:
    """Let a session take its time, for statements of the user's."""
    limit = "max_statement_time" if "mariadb" in connection.server_version.lower() else "max_execution_time"
    await connection.send([_RELAXED.format(limit)])


def _limits(kind: str, timeouts: Timeouts) -> list[str]:
    """Waits are short, so that whoever holds a lease hears of trouble in time; locks of somebody who is gone are gone soon."""
    # MySQL cannot end a transaction that nobody goes on with, only a session.
    if kind == "MySQL":
        idle = max(_SHORTEST_IDLE, int(1.7 * timeouts.statement))
        limits = f"max_execution_time = {int(1000 * timeouts.server_statement)}, wait_timeout = {idle}"
    else:
        idle = max(1, int(1.25 * timeouts.statement))
        limits = f"max_statement_time = {timeouts.server_statement}, idle_transaction_timeout = {idle}"
    # For how long the server waits for somebody who does not take what it sends.
    writing = max(1, int(timeouts.statement))
    return [
        f"SET SESSION innodb_lock_wait_timeout = {max(1, int(timeouts.lock))}, net_write_timeout = {writing}, {limits}"
    ]
