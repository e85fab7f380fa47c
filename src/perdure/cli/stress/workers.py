"""Worker processes of a stress test, which may be killed at intervals; none outlives the test."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys

import msgspec

from perdure.cli.stress.workload import ENVIRONMENT, Workload
from perdure.errors import PerdureError

#: Seconds that workers may take to stop.
_STOP_TIMEOUT = 15.0


class WorkerExited(PerdureError):
    """A worker process ended that the test had not killed."""


class WorkerProcesses:
    """Worker processes, as many as `count` at a time."""

    def __init__(self, load: Workload, count: int, slots: int, lease: str) -> None:
        self._load = load
        self.count = count
        self._options = ["--slots", str(slots), "--lease", lease]
        self._processes: list[subprocess.Popen[bytes]] = []
        self.kills = 0

    def start(self) -> None:
        """Start processes until there are `count`."""
        while len(self._processes) < self.count:
            self._processes.append(self._spawn())

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "perdure.cli", "worker", "perdure.cli.stress.workload:engine", *self._options]
        # Runs that are to fail are no news.
        command += ["--log-level", "critical", "--stop-at-eof"]
        environment = {**os.environ, ENVIRONMENT: msgspec.json.encode(self._load).decode()}
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )

    def check(self) -> None:
        """Raise `WorkerExited` if a process has ended by itself."""
        for process in self._processes:
            code = process.poll()
            if code is not None:
                raise WorkerExited(f"worker process {process.pid} ended with {code}; its log is above")

    async def kill_every(self, seconds: float) -> None:
        """Kill a random process at intervals, and start another one."""
        while True:
            await asyncio.sleep(seconds)
            victim = self._processes.pop(random.randrange(len(self._processes)))  # noqa: S311 - not a secret
            victim.send_signal(signal.SIGKILL)
            _reap(victim)
            self.kills += 1
            self.start()

    def stop(self) -> None:
        """Stop all processes; kill those that do not stop in time."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
            _reap(process)
        self._processes.clear()


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
