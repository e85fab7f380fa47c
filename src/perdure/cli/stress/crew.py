"""Worker processes, of which one may be killed now and then; none outlives the test."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys

import msgspec

from perdure.cli.stress.load import ENVIRONMENT, Load
from perdure.errors import PerdureError

#: How long workers may take to stop, in seconds.
_PATIENCE = 15.0


class WorkerGone(PerdureError):
    """A worker ended that nobody had killed."""


class Workers:
    """See the module."""

    def __init__(self, load: Load, count: int, slots: int, lease: str) -> None:
        self._load = load
        self.count = count
        self._options = ["--slots", str(slots), "--lease", lease]
        self._processes: list[subprocess.Popen[bytes]] = []
        self.kills = 0

    def start(self) -> None:
        """Start as many as are wanted."""
        while len(self._processes) < self.count:
            self._processes.append(self._hire())

    def _hire(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "perdure.cli", "worker", "perdure.cli.stress.labour:engine", *self._options]
        command += ["--log-level", "error", "--stop-at-eof"]
        told = {**os.environ, ENVIRONMENT: msgspec.json.encode(self._load).decode()}
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, env=told, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )

    def check(self) -> None:
        """Raise `WorkerGone` if one has ended by itself."""
        for process in self._processes:
            code = process.poll()
            if code is not None:
                raise WorkerGone(f"worker process {process.pid} ended with {code}; what it said is above")

    async def kill_every(self, seconds: float) -> None:
        """Kill one, and start another, again and again."""
        while True:
            await asyncio.sleep(seconds)
            victim = self._processes.pop(random.randrange(len(self._processes)))  # noqa: S311 - any will do
            victim.send_signal(signal.SIGKILL)
            _bury(victim)
            self.kills += 1
            self.start()

    def stop(self) -> None:
        """End all of them, in order if they let us."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
            _bury(process)
        self._processes.clear()


def _bury(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
