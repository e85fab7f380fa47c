"""Processes of example applications: servers and workers, on a database of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from tests.servers.schemas import postgres_dsn

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"


@contextmanager
def new_database() -> Iterator[str]:
    """URL of an empty database on the test server."""
    dsn, name = postgres_dsn(), f"frameworks_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


class Process:
    """A process that the zygote forked."""

    def __init__(self, zygote: Zygote, pid: int, log: Path) -> None:
        self._zygote = zygote
        self.pid = pid
        self.log = log
        self.code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process is there."""
        if self.code is None:
            self.code = self._zygote.ask(poll=self.pid)
        return self.code

    def wait(self) -> int:
        """Wait for the exit code."""
        while (code := self.poll()) is None:
            pause()
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def stop(self) -> int:
        """Ask the process to end, and return its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()


class Zygote:
    """Forks processes in the folder of an example."""

    def __init__(self, process: subprocess.Popen[str], logs: Path) -> None:
        self._process = process
        self._logs = logs
        self._children: list[Process] = []

    def ask(self, **request: Any) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer: int | None = json.loads(self._process.stdout.readline())
        return answer

    def start(self, *argv: str, until: str = "") -> tuple[Process, re.Match[str]]:
        """Start `python argv`, and wait until its output matches."""
        log = self._logs / f"{len(self._children)}.txt"
        log.touch()
        process = Process(self, self.ask(start=argv, log=str(log)) or 0, log)
        self._children.append(process)
        while (found := re.search(until, log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            pause()
        return process, found

    def run(self, *argv: str) -> str:
        """Run `python argv` to its end, and return its output."""
        process, _ = self.start(*argv)
        assert process.wait() == 0, process.log.read_text()
        return process.log.read_text()

    def noise(self) -> str:
        """Everything that the processes wrote."""
        return "\n".join(path.read_text() for path in sorted(self._logs.glob("*.txt")))

    def close(self) -> None:
        for child in self._children:
            child.kill()


def pause() -> None:
    time.sleep(0.02)


@contextmanager
def processes(folder: Path, logs: Path, *modules: str, **environment: str) -> Iterator[Zygote]:
    """A zygote that has imported some modules; processes that are left at the end are killed."""
    given = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "error",
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT)]).strip(os.pathsep),
        **environment,
    }
    command = [sys.executable, "-m", "tests.frameworks.zygote", *modules]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=given, text=True, stdin=pipe, stdout=pipe) as process:
        zygote = Zygote(process, logs)
        try:
            yield zygote
        except BaseException:
            print(zygote.noise())
            raise
        finally:
            zygote.close()
