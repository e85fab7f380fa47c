"""The side of a child process: what it tells its parent, and how it notices that the parent has gone.

The standard input of a child is a pipe that only its parent holds. It ends when the parent closes it or dies, however
it dies. A second pipe carries lines from the child to the parent.
"""

from __future__ import annotations

import os
import signal
import threading

#: Exit codes: the code cannot be loaded or used until it changes; the target is not an engine.
BROKEN = 3
NO_TARGET = 4

#: The line of a child that has loaded the code and works.
READY = b"ready"


class ParentPipe:
    """The pipe on which a child tells its parent something, a line at a time."""

    def __init__(self, file: int) -> None:
        self._file: int | None = file

    def write(self, line: bytes, *, last: bool = False) -> bool:
        """Write a line; False after the last one. A parent that has gone reads nothing more."""
        if self._file is None:
            return False
        try:
            os.write(self._file, line + b"\n")
        except BrokenPipeError:
            last = True
        if last:
            os.close(self._file)
            self._file = None
        return True


def stop_with_parent() -> None:
    """Start a thread that stops this process when its standard input ends, as it does when the parent dies."""
    threading.Thread(target=_await_eof, name="perdure stdin", daemon=True).start()


def _await_eof() -> None:
    # Unbuffered: a thread inside a buffered read would abort the interpreter when it ends.
    while os.read(0, 4096):
        continue
    os.kill(os.getpid(), signal.SIGTERM)
