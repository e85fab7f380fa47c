"""Notices what other processes of this machine write, without polling.

A `WriteWatch` watches a file that is written at every commit (`System.watch_file`): the write-ahead log of SQLite, or a
doorbell. SQLite writes its log a moment before the commit is visible, and a sync to the disk lies in between. So a
write begins a chase: cheap checks after growing pauses, until one of them sees a commit. Our own writes begin a chase,
too, which sees nothing.

A `Doorbell` is a file of one user, for a database server that cannot notify its clients. A process appends a byte to it
after a commit; the file's size tells the others that one of them has rung. Processes of other users and machines do not
hear it, and poll.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from perdure.core.system import FileWatch, System

_log = logging.getLogger("perdure.store")

#: Pauses between the checks of a chase: the first one while writes are rare and while they are not, and the last one,
#: in seconds.
_RARE = 0.0005
_FREQUENT = 0.05
_LAST = 1.0
_GROWTH = 2.0
#: Seconds without a write after which writes are rare.
_CALM = 0.25


class WriteWatch:
    """The watch of one file, on one event loop."""

    def __init__(self, path: str, system: System, check: Callable[[], bool]) -> None:
        """`check` tells whether another connection has committed, and tells the listeners so."""
        self._path = path
        self._system = system
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._watch: FileWatch | None = system.watch_file(path, self._written)
        self._timer: asyncio.TimerHandle | None = None
        self._pause = _RARE
        self._floor = _RARE
        self._written_at = 0.0
        self._armed = False

    @property
    def is_working(self) -> bool:
        """True while a commit of another process is certain to be seen."""
        return self._watch is not None and (self._armed or self._timer is not None) and not self._loop.is_closed()

    @property
    def is_lost(self) -> bool:
        """True if the event loop of the watch is closed."""
        return self._loop.is_closed()

    def arm(self) -> None:
        """See the next write, if this is the event loop of the watch. The last write may have been before."""
        if self._armed or self._watch is None or asyncio.get_running_loop() is not self._loop:
            return
        try:
            self._armed = self._watch.arm()
        except OSError as error:
            _log.warning("%s is polled, because it cannot be watched: %s", self._path, error)
            self.close()

    def close(self) -> None:
        """Stop watching. From any thread."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def _written(self) -> None:
        """Begin a chase, or begin it anew."""
        self._armed = False
        now = self._system.monotonic()
        # A process that writes all the time is checked as often as if it were polled.
        self._floor = _RARE if now - self._written_at > _CALM else min(_FREQUENT, _GROWTH * self._floor)
        self._written_at = now
        self._pause = self._floor
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._floor, self._chase)

    def _chase(self) -> None:
        self._timer = None
        if self._watch is None:
            return
        self.arm()
        if self._check() and self._armed:
            return
        self._pause *= _GROWTH
        # SQLite deletes its log with the last connection to it.
        if self._pause <= _LAST or not self._armed:
            self._timer = self._loop.call_later(min(self._pause, _LAST), self._chase)


#: Size from which a doorbell's file is replaced, in bytes.
_LARGEST = 1 << 20


class Doorbell:
    """A file that processes of one user write to after commits to one database."""

    def __init__(self, database: str, system: System, on_ring: Callable[[], object]) -> None:
        self._name = hashlib.sha256(database.encode()).hexdigest()[:32]
        self._system = system
        self._on_ring = on_ring
        self._file = -1
        #: Size of the file when it was last seen, with our own rings since.
        self._size = 0
        #: True: the file was replaced since the last check.
        self._is_new = False
        self._watch: WriteWatch | None = None

    def ring(self) -> None:
        """Tell other processes of a commit. Without the file they poll."""
        try:
            path = self._keep_open()
            os.write(self._file, b"\n")
            self._size += 1
            if self._size > _LARGEST:
                # The others notice, and open another file.
                Path(path).unlink(missing_ok=True)
        except OSError as error:
            _log.debug("the doorbell cannot be rung: %s", error)

    def hear(self) -> None:
        """Call back on the current event loop when another process rings. A second call does nothing."""
        if self._watch is not None and not self._watch.is_lost:
            return
        try:
            path = self._keep_open()
        except OSError as error:
            _log.debug("the doorbell cannot be heard: %s", error)
            return
        self._size = os.fstat(self._file).st_size
        self._watch = WriteWatch(path, self._system, self._check)
        self._watch.arm()

    def close(self) -> None:
        """Stop hearing."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _check(self) -> bool:
        try:
            self._keep_open()
            size = os.fstat(self._file).st_size
        except OSError:
            return False
        # What was rung on a file that is gone is not known.
        rung = size != self._size or self._is_new
        self._size, self._is_new = size, False
        if rung:
            self._on_ring()
        return rung

    def _keep_open(self) -> str:
        """Open the file, also if it was deleted meanwhile; return its path. Raises `OSError`."""
        path = os.path.join(_private_directory(), self._name)  # noqa: PTH118 - called at every commit
        if self._file >= 0 and os.fstat(self._file).st_nlink > 0:
            return path
        if self._file >= 0:
            os.close(self._file)
            self._file, self._is_new = -1, True
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        self._file = os.open(path, flags, 0o600)
        self._size = os.fstat(self._file).st_size
        return path


def _private_directory() -> str:
    """Directory that only this user can write to. Raises `OSError` if another user has made it."""
    path = os.path.join(tempfile.gettempdir(), f"perdure-{os.geteuid()}")  # noqa: PTH118 - as above
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        os.makedirs(path, mode=0o700, exist_ok=True)  # noqa: PTH103 - as above
        found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not a private directory of this user")
    return path
