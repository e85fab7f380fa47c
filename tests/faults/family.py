"""The zygote and its children, as a test sees them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent

#: A child that lives longer than this many seconds shows its stacks and ends: whatever it waits for is not going to
#: come.
LONGEST_LIFE = 230.0


class Child:
    """A process that the zygote forked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pid = 0
        self.code: int | None = None
        self.told_to_stop = False
        self._started = asyncio.Event()
        self._stopped = asyncio.Event()
        self._ended = asyncio.Event()

    async def started(self) -> Child:
        await self._started.wait()
        return self

    async def stopped(self) -> bool:
        """Wait until it has been stopped (True) or has ended (False)."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (self._stopped, self._ended)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        return self._stopped.is_set() and self.code is None

    async def ended(self) -> int:
        """Wait for its end; its exit code, negative for a signal."""
        await self._ended.wait()
        assert self.code is not None
        return self.code

    def signal(self, number: signal.Signals) -> None:
        if self.code is None:
            if number is signal.SIGCONT:
                self._stopped.clear()
            self.told_to_stop |= number is signal.SIGTERM
            os.kill(self.pid, number)

    @property
    def caught(self) -> str | None:
        """The crash point at which its trap went off."""
        path = self.directory / f"caught-{self.pid}"
        return path.read_text() if path.exists() else None

    @property
    def passed(self) -> list[str]:
        """The crash points that it passed; known once it has ended in order."""
        passed: list[str] = json.loads((self.directory / f"passed-{self.pid}").read_text())
        return passed

    def answers(self) -> list[dict[str, Any]]:
        """What the store answered it, where it was watched."""
        path = self.directory / f"answers-{self.pid}"
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def noise(self) -> str:
        """What all processes of its directory wrote to their standard error."""
        path = self.directory / "noise.txt"
        return path.read_text() if path.exists() else ""

    def heard(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "started":
                self.pid = event["pid"]
                self._started.set()
            case "stopped":
                self._stopped.set()
            case _:
                self.code = event["code"]
                self._ended.set()


class Family:
    """Forks children through the zygote."""

    def __init__(self, events: asyncio.StreamReader, requests: asyncio.StreamWriter) -> None:
        self._requests = requests
        self._events = events
        self._new: dict[int, Child] = {}
        self._children: dict[int, Child] = {}
        self._count = 0

    async def fork(self, role: str, directory: Path, *, life: float = LONGEST_LIFE, **arguments: Any) -> Child:
        """A child that plays a role in a directory, for `life` seconds at the most."""
        directory.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - a test has nothing else to do
        self._count += 1
        child = self._new[self._count] = Child(directory)
        request = {
            "case": self._count, "role": role, "directory": str(directory), "life": life, "arguments": arguments,
        }  # fmt: skip
        self._requests.write(json.dumps(request).encode() + b"\n")
        return await child.started()

    async def listen(self) -> None:
        """Hear what becomes of the children."""
        while line := await self._events.readline():
            event = json.loads(line)
            if event["event"] == "started":
                self._children[event["pid"]] = self._new.pop(event["case"])
            self._children[event["pid"]].heard(event)


@contextmanager
def zygotes() -> Iterator[Path]:
    """Socket at which each connection gets a zygote, for as long as the block lasts."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as door:
        path = Path(folder) / "door"
        door.bind(str(path))
        door.listen()
        command = [sys.executable, "-m", "tests.faults.zygote", str(door.fileno())]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, pass_fds=[door.fileno()]):
            yield path


@asynccontextmanager
async def family(door: Path) -> AsyncIterator[Family]:
    """A zygote, for as long as the block lasts."""
    events, requests = await asyncio.open_unix_connection(door)
    family = Family(events, requests)
    listening = asyncio.ensure_future(family.listen())
    try:
        yield family
    finally:
        requests.write_eof()
        await listening
        requests.close()
        await requests.wait_closed()
