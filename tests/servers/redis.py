"""A private Redis server whose append-only file is written before it answers."""

from __future__ import annotations

import os
import socket

from tests.servers.private import Missing, PrivateServer, found, programs

PLACES = ("/usr/bin", "/opt/homebrew/bin", "/usr/local/bin")


class Redis(PrivateServer):
    """One server."""

    name = "Redis"
    users = ("redis",)

    def __init__(self) -> None:
        # Installed by `make prove` alone: `make test` makes do with what is there.
        if os.environ.get("PERDURE_PROVE"):
            known = programs(("redis-server",), PLACES, "redis-server")
        else:
            known = found(("redis-server",), PLACES)
        if not known:
            raise Missing("no redis-server was found; install it, or run `make prove` as root on Debian, which does")
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
