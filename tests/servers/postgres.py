"""A private PostgreSQL server."""

from __future__ import annotations

import shutil
import signal

from tests.servers.private import Missing as Missing
from tests.servers.private import PrivateServer, programs

PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/opt/homebrew/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/usr/local/bin",
)
#: What a test may do without and a benchmark may not.
CARELESS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "300",
    "shared_buffers": "128MB",
    "autovacuum_naptime": "5s",
    "log_min_messages": "fatal",
    "max_wal_size": "2GB",
}


class Postgres(PrivateServer):
    """One server."""

    name = "PostgreSQL"
    users = ("postgres",)
    deadly = signal.SIGQUIT

    def __init__(self, *, durable: bool) -> None:
        self._programs = programs(("initdb", "postgres"), PLACES, "postgresql")
        if not self._programs:
            raise Missing("no PostgreSQL server program was found; install PostgreSQL 14 or newer")
        super().__init__()
        self._settings = SETTINGS if durable else {**SETTINGS, **CARELESS}
        self.dsn = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def encrypt(self, certificate: bytes, key: bytes) -> None:
        """Offer TLS, from the next start on."""
        self._settings = {**self._settings, "ssl": "on"}
        for name, content in (("cert", certificate), ("key", key)):
            path = self._folder / name
            path.touch(mode=0o600)
            path.write_bytes(content)
            if self._as:
                shutil.chown(path, self._as["user"], self._as["group"])
            self._settings[f"ssl_{name}_file"] = str(path)

    def _making(self) -> list[str]:
        login = ["-U", "postgres", "-A", "trust"]
        return [self._programs["initdb"], "-D", str(self._data), *login, "-E", "UTF8", "--locale=C", "--no-sync"]

    def _starting(self) -> list[str]:
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        where = ["-D", str(self._data), "-p", str(self._port), "-k", str(self._folder)]
        return [self._programs["postgres"], *where, *options]

    def _ready(self) -> bool:
        try:
            return "ready" in (self._data / "postmaster.pid").read_text().split()
        except OSError:
            return False


class Standby(Postgres):
    """A copy of another server that follows it, takes no writes, and can take its place."""

    def __init__(self, primary: Postgres, *, source: str = "", durable: bool = True) -> None:
        #: `source`: the address to follow the primary at, if it is another than its own.
        self._source = source or primary.dsn
        self._copying = programs(("pg_basebackup", "pg_ctl"), PLACES, "postgresql")
        if not self._copying:
            raise Missing("no pg_basebackup was found; install the client programs of PostgreSQL")
        super().__init__(durable=durable)

    def promote(self) -> None:
        """Become a server of its own, and wait until it takes writes."""
        command = [self._copying["pg_ctl"], "promote", "-w", "-D", str(self._data)]
        self._call(command)

    def _making(self) -> list[str]:
        source = ["-d", self._source, "-R", "-X", "stream", "-c", "fast", "--no-sync"]
        return [self._copying["pg_basebackup"], "-D", str(self._data), *source]
