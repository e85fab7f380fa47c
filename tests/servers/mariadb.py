"""A private MariaDB server."""

from __future__ import annotations

import shutil
import socket

from tests.servers.private import Missing, PrivateServer, programs

PLACES = ("/usr/sbin", "/usr/libexec", "/opt/homebrew/bin", "/usr/local/bin", "/usr/local/mysql/bin")
#: The first cannot do without the last, which Debian counts among the client's and does not install for it.
PROGRAMS = ("mariadb-install-db", "mariadbd", "my_print_defaults")
PACKAGES = ("mariadb-server-core", "mariadb-client-core")
#: What a test may do without and a benchmark may not.
CARELESS = {"innodb-flush-log-at-trx-commit": "0", "innodb-doublewrite": "0", "sync-binlog": "0"}
SETTINGS = {
    "bind-address": "127.0.0.1",
    "max-connections": "300",
    "innodb-buffer-pool-size": "256M",
    "innodb-log-file-size": "256M",
    "innodb-flush-log-at-trx-commit": "1",
    "innodb-buffer-pool-dump-at-shutdown": "0",
    "innodb-stats-persistent": "0",
    "performance-schema": "0",
    "log-warnings": "0",
    "skip-name-resolve": "1",
    "skip-log-bin": "1",
}
USER = "perdure"
#: Read at every start. The user may do everything, so that tests can make databases and users of their own.
INIT = f"""
CREATE DATABASE IF NOT EXISTS perdure;
CREATE USER IF NOT EXISTS '{USER}'@'127.0.0.1' IDENTIFIED BY '{USER}';
GRANT ALL ON *.* TO '{USER}'@'127.0.0.1' WITH GRANT OPTION;
"""


class Mariadb(PrivateServer):
    """One server."""

    name = "MariaDB"
    users = ("mysql",)

    def __init__(self, *, durable: bool) -> None:
        self._programs = programs(PROGRAMS, PLACES, *PACKAGES)
        if not self._programs:
            raise Missing("no MariaDB server program was found; install MariaDB 10.6 or newer")
        super().__init__()
        self._settings = SETTINGS if durable else {**SETTINGS, **CARELESS}
        self.dsn = f"mysql://{USER}:{USER}@127.0.0.1:{self._port}/perdure"

    def encrypt(self, certificate: bytes, key: bytes) -> None:
        """Offer TLS, from the next start on."""
        self._settings = {
            **self._settings,
            "ssl-cert": str(self._folder / "cert"),
            "ssl-key": str(self._folder / "key"),
        }
        (self._folder / "cert").write_bytes(certificate)
        (self._folder / "key").write_bytes(key)

    def resemble(self, other: Mariadb) -> None:
        """Have a copy of the files of another one, which has to be stopped."""
        shutil.copytree(other._data, self._data)
        (self._folder / "init.sql").write_text(INIT)
        if self._as:
            for path in (self._folder, *self._folder.rglob("*")):
                shutil.chown(path, self._as["user"], self._as["group"])

    def _making(self) -> list[str]:
        (self._folder / "init.sql").write_text(INIT)
        quick = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        return [self._programs["mariadb-install-db"], "--no-defaults", f"--datadir={self._data}", *quick]

    def _starting(self) -> list[str]:
        files = {
            "datadir": self._data,
            "socket": self._folder / "socket",
            "pid-file": self._folder / "pid",
            "init-file": self._folder / "init.sql",
            "port": self._port,
            # A server that starts deletes the temporary tables that it finds there, those of others too.
            "tmpdir": self._folder,
        }
        options = [f"--{name}={value}" for name, value in {**files, **self._settings}.items()]
        return [self._programs["mariadbd"], "--no-defaults", *options]

    def _ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as probe:
                # A server that is up speaks first.
                return len(probe.recv(5)) > 0
        except OSError:
            return False
