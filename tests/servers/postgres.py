"""A private PostgreSQL server: a folder of its own, a free port, nobody else's data, gone when it is over.

Binaries are taken from the PATH or from where Debian, Ubuntu and Homebrew put them; as root on Debian they are installed. The
server refuses to run as root, so it is started as another user then.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


class Missing(Exception):
    """There is no such server on this machine."""


class Postgres:
    """One server."""

    def __init__(self, *, durable: bool) -> None:
        self._settings = SETTINGS if durable else {**SETTINGS, **CARELESS}
        self._bin = _binaries()
        self._folder = Path(tempfile.mkdtemp(prefix="perdure-postgres-"))
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._as = _somebody_else()
        self.dsn = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def create(self) -> None:
        """Make the cluster and start it."""
        if self._as:
            shutil.chown(self._folder, self._as["user"], self._as["group"])
        initdb = [
            str(self._bin / "initdb"),
            "-D",
            str(self._data),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
        ]
        subprocess.run([*initdb, "--no-sync"], check=True, capture_output=True, cwd=self._folder, **self._as)
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self._port), "-k", str(self._folder)]
        with (self._folder / "log").open("ab") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                [*command, *options], stdout=log, stderr=log, cwd=self._folder, start_new_session=True, **self._as
            )
        self._process = process
        for _ in range(600):
            if process.poll() is not None:
                break
            if self._ready():
                return
            time.sleep(0.05)
        raise RuntimeError(f"PostgreSQL did not start:\n{(self._folder / 'log').read_text()[-3000:]}")

    def kill(self) -> None:
        """End it as a crash would: at once, with everything that it was doing."""
        self._end(signal.SIGQUIT)

    def remove(self) -> None:
        """End it and leave nothing behind."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _ready(self) -> bool:
        try:
            return "ready" in (self._data / "postmaster.pid").read_text().split()
        except OSError:
            return False

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _binaries() -> Path:
    found = [Path(path).parent for path in [shutil.which("postgres")] if path is not None]
    found = [place for place in found if (place / "initdb").exists()] or _in_usual_places()
    if not found and _may_install():
        command = ["apt-get", "install", "-y", "--no-install-recommends", "postgresql"]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update"], check=False, capture_output=True)
        subprocess.run(command, check=False, capture_output=True, env=environment)
        found = _in_usual_places()
    if not found:
        raise Missing("no PostgreSQL server program was found; install PostgreSQL 14 or newer")
    return found[0]


def _in_usual_places() -> list[Path]:
    places = [path for pattern in PLACES for path in sorted(Path("/").glob(pattern[1:]), reverse=True)]
    return [path for path in places if (path / "initdb").exists() and (path / "postgres").exists()]


def _may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def _somebody_else() -> Mapping[str, Any]:
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise Missing("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
