"""Places on MySQL and MariaDB are databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from perdure.store.sql import dialect
from perdure.store.url import MysqlUrl, parse
from tests.servers.places import Places, dsn_of

MYSQL = "PERDURE_TEST_MYSQL"


def mysql_dsn() -> str:
    """Where the test server is; skips the test where there is none."""
    return dsn_of(MYSQL)


async def execute(dsn: str, statements: Sequence[str]) -> list[tuple[Any, ...]]:
    """Run statements on a connection of their own; the rows of the last."""
    from perdure.store.mysql.driver import MysqlConnector
    from perdure.store.server.pool import Timeouts

    url = parse(dsn)
    assert isinstance(url, MysqlUrl)
    connection = await MysqlConnector(url).connect(Timeouts(statement=120.0, connect=60.0))
    try:
        answers = await connection.send(statements)
        return list(answers[-1].rows)
    finally:
        await connection.close_gracefully()


class Databases(Places):
    """Those that this process has made."""

    variable = MYSQL
    dialect = dialect.MYSQL
    still = "STATS_AUTO_RECALC = 0"

    def _url(self, dsn: str, name: str) -> str:
        return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))

    async def _make(self, dsn: str, name: str) -> None:
        await execute(dsn, [f"CREATE DATABASE {name}"])

    def _connected(self, dsn: str) -> Any:
        import pymysql
        from pymysql.constants import CLIENT

        url = parse(dsn)
        assert isinstance(url, MysqlUrl)
        return pymysql.connect(
            host=url.host,
            port=url.port,
            unix_socket=url.socket,
            user=url.user,
            password=url.password,
            autocommit=True,
            client_flag=CLIENT.MULTI_STATEMENTS,
            # To read the certificates of the system takes longer than a test does.
            ssl_disabled=True,
        )

    async def _drop(self, dsn: str, names: set[str]) -> None:
        await execute(dsn, [f"DROP DATABASE IF EXISTS {name}" for name in names])
