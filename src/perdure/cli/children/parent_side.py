"""The side of the parent: starts child processes, reads what they tell, and stops them in order.

`perdure dev` and `perdure worker --processes` are such parents. Children have sessions of their own, so that a signal
of the terminal is for the parent alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

#: Seconds between two signals to a child that is to end at once.
_HURRY = 0.2


class ChildProcess:
    """A child process."""

    def __init__(self, role: str, process: asyncio.subprocess.Process, began: float) -> None:
        self.role = role
        self.process = process
        #: When it was started, on the loop's clock.
        self.began = began
        self.ready = False
        #: True once it was told to end.
        self.leaving = False

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the child has ended."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def send(self, line: bytes) -> None:
        """Write a line to its standard input."""
        stdin = self.process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(line + b"\n")

    def close_input(self) -> None:
        """End its standard input, as the death of the parent would."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def kill(self) -> None:
        """Kill the child and the processes that it has started."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def hurry(self, patience: float) -> None:
        """End the child at once: repeat SIGTERM for so many seconds, then kill it.

        The first signal asks for an orderly end, each further one for an end at once.
        """
        if self.process.returncode is not None:
            return
        if patience <= 0:
            self.kill()
            return
        self.signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(_HURRY, self.hurry, patience - _HURRY)

    def how_it_ended(self) -> str:
        """Describe its end."""
        code = self.process.returncode or 0
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


class Children:
    """The children of this process."""

    def __init__(
        self, on_line: Callable[[ChildProcess, bytes], object], on_exit: Callable[[ChildProcess, int], object]
    ) -> None:
        """`on_line` and `on_exit` are called on the loop; the lines of a child come before its end."""
        self._on_line = on_line
        self._on_exit = on_exit
        self.alive: set[ChildProcess] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def spawn(
        self,
        role: str,
        module: str,
        settings: Callable[[int], Struct],
        *,
        files: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> ChildProcess:
        """Start a child. `settings` makes its argument from the file descriptor on which it tells the parent things."""
        loop = asyncio.get_running_loop()
        told, telling = os.pipe()
        os.set_blocking(told, False)
        try:
            process = await asyncio.create_subprocess_exec(
                # -P: modules of the working directory do not replace those of Python and of Perdure.
                *(sys.executable, "-P", "-m", module, msgspec.json.encode(settings(telling)).decode()),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(telling, *files),
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except BaseException:
            os.close(told)
            raise
        finally:
            os.close(telling)
        child = ChildProcess(role, process, loop.time())
        self.alive.add(child)
        lines = _Lines(told, lambda line: self._on_line(child, line))
        loop.add_reader(told, lines.read)
        self._keep(self._await_exit(child, lines))
        return child

    async def _await_exit(self, child: ChildProcess, lines: _Lines) -> None:
        code = await child.process.wait()
        lines.read()
        lines.close()
        self.alive.discard(child)
        self._on_exit(child, code)

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Lines:
    """Lines from a pipe that does not block."""

    def __init__(self, file: int, on_line: Callable[[bytes], object]) -> None:
        self._file = file
        self._on_line = on_line
        self._rest = b""

    def read(self) -> None:
        """Read what there is."""
        with suppress(BlockingIOError):
            while part := os.read(self._file, 65536):
                *lines, self._rest = (self._rest + part).split(b"\n")
                for line in lines:
                    self._on_line(line)
            asyncio.get_running_loop().remove_reader(self._file)

    def close(self) -> None:
        """Read no more."""
        asyncio.get_running_loop().remove_reader(self._file)
        os.close(self._file)


class RestartPauses:
    """Pauses before children are started again, which grow while they die young."""

    def __init__(self, *, stable: float, first: float, longest: float) -> None:
        """`stable`: seconds that a child has to live in order not to die young."""
        self._stable = stable
        self._first = first
        self._longest = longest
        #: Children in a row that died young.
        self.failures = 0

    def after(self, lived: float) -> float:
        """Count the end of a child that lived for so many seconds; return the pause that should follow."""
        self.failures = self.failures + 1 if lived < self._stable else 0
        return min(self._first * 2 ** min(self.failures - 1, 20), self._longest) if self.failures else 0.0
