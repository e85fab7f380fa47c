"""Run a command with private database servers: `python -m tests.servers pytest -n 2`.

A server whose DSN is in the environment already is used as it is. Otherwise one is started for the time of the command,
and its DSN is put into the command's environment. Where that is impossible a line says so, and the tests that need the
server are skipped; with CI=true it is a failure. The same holds for other programs that tests use.

Temporary files are kept in memory where it has room, unless TMPDIR says otherwise.

`--durable` starts servers that wait for the disk, as benchmarks must. `--pgbouncer` puts a pooler in transaction mode
before PostgreSQL; only the tests' own reads and preparations go past it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from pathlib import Path
from types import FrameType

from tests.servers.mariadb import Mariadb
from tests.servers.pgbouncer import Pgbouncer
from tests.servers.postgres import Postgres
from tests.servers.private import Missing, PrivateServer, programs

POSTGRES = "PERDURE_TEST_POSTGRES"
PGBOUNCER = "PERDURE_TEST_PGBOUNCER"
SERVERS: dict[str, type[Postgres] | type[Mariadb]] = {
    POSTGRES: Postgres,
    "PERDURE_TEST_MYSQL": Mariadb,
}
#: Programs that tests use, and their packages: command-line clients, the server that a test of Redis starts, a browser.
PROGRAMS = {
    "sqlite3": "sqlite3",
    "psql": "postgresql-client",
    "mariadb": "mariadb-client-core",
    "redis-server": "redis-server",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
}

#: A file system in memory, and how many bytes it must have to spare.
_MEMORY = "/dev/shm"
_ROOM = 8 << 30


def main(arguments: list[str]) -> int:
    """Start, run, stop; the command's exit code."""
    options = list(takewhile(lambda argument: argument in ("--durable", "--pgbouncer"), arguments))
    command = arguments[len(options) :]
    if not command:
        print(__doc__)
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    # A terminal that is closed leaves no servers behind either; under `nohup` it is meant to be of no concern.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)
    with _files_in_memory() if "--durable" not in options else nullcontext():
        return _serve(options, command)


def _serve(options: list[str], command: list[str]) -> int:
    environment = dict(os.environ)
    servers: list[PrivateServer] = []
    try:
        for variable, kind in SERVERS.items():
            if variable in environment:
                continue
            try:
                server = kind(durable="--durable" in options)
                servers.append(server)
                server.create()
                environment[variable] = server.dsn
            except Missing as missing:
                print(f"*** Nothing will be tested on {kind.name}: {missing}. ***", file=sys.stderr)
                if environment.get("CI") == "true":
                    return 1
        for program, package in PROGRAMS.items():
            if not programs((program,), (), package):
                print(f"*** Nothing will be tested with {program}: it is not installed. ***", file=sys.stderr)
                if environment.get("CI") == "true":
                    return 1
        if "--pgbouncer" in options:
            servers.insert(0, pooler := Pgbouncer(environment[POSTGRES]))
            pooler.create()
            environment[PGBOUNCER] = pooler.dsn
        return _run(command, environment)
    except KeyboardInterrupt:
        return 130
    finally:
        for one in servers:
            one.remove()


@contextmanager
def _files_in_memory() -> Iterator[None]:
    """Keep temporary files in memory, where there is room. Tests cut no power, and the disk would slow them down."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _ROOM:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="perdure-tests-", dir=_MEMORY, ignore_cleanup_errors=True) as folder:
        # Servers run as another user, who has to pass.
        Path(folder).chmod(0o711)
        os.environ["TMPDIR"] = folder
        tempfile.tempdir = None
        yield


def _run(command: list[str], environment: dict[str, str]) -> int:
    with subprocess.Popen(command, env=environment) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # A terminal has told the command as well; a plain kill has not.
            process.send_signal(signal.SIGINT)
            return process.wait()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
