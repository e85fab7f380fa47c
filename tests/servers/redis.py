"""A private Redis server whose append-only file is written before it answers."""

from __future__ import annotations

import socket

from tests.servers.private import Missing, PrivateServer, found

PLACES = ("/usr/bin", "/opt/homebrew/bin", "/usr/local/bin")


class Redis(PrivateServer):
    """One server."""

    name = "Redis"
    users = ("redis",)

    def __init__(self) -> None:
        # `python -m tests.servers` installs it: several tests that do so at once would be in each other's way.
        known = found(("redis-server",), PLACES)
        if not known:
            raise Missing("no redis-server was found; `make test` as root on Debian installs it")
        super().__init__()
        self._program = known["redis-server"]
        self.dsn = f"redis://127.0.0.1:{self._port}"

    def _making(self) -> list[str]:
        return [self._program, "--version"]

    def _starting(self) -> list[str]:
        durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        return [self._program, "--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(self._folder), *durable]

    def _ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False
