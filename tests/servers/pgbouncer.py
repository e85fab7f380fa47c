"""A private pgbouncer in transaction mode before a PostgreSQL server: each transaction may get another session of the
server."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit, urlunsplit

from tests.servers.private import Missing, PrivateServer, programs

PLACES = ("/usr/sbin", "/opt/homebrew/bin", "/usr/local/bin")
#: Every user of the server may log in, as tests make users of their own. Few sessions for many connections, so that
#: they change.
CONFIGURATION = """
[databases]
* = host={host} port={server} auth_user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 12
max_client_conn = 1000
server_login_retry = 0.2
ignore_startup_parameters = extra_float_digits
log_connections = 0
log_disconnections = 0
"""


class Pgbouncer(PrivateServer):
    """One pooler."""

    name = "pgbouncer"
    users = ("postgres",)

    def __init__(self, dsn: str) -> None:
        found = programs(("pgbouncer",), PLACES, "pgbouncer")
        if not found:
            raise Missing("no pgbouncer was found; install it")
        super().__init__()
        self._program = found["pgbouncer"]
        self._server = urlsplit(dsn)
        user = f"{self._server.username}@"
        self.dsn = urlunsplit(self._server._replace(netloc=f"{user}127.0.0.1:{self._port}"))

    def _making(self) -> list[str]:
        user = self._server.username
        (self._folder / "users").write_text(f'"{user}" "{self._server.password or ""}"\n')
        (self._folder / "configuration").write_text(
            CONFIGURATION.format(
                host=self._server.hostname, server=self._server.port, user=user, port=self._port, folder=self._folder
            )
        )
        return [self._program, "--version"]

    def _starting(self) -> list[str]:
        return [self._program, str(self._folder / "configuration")]

    def _ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return True
        except OSError:
            return False
