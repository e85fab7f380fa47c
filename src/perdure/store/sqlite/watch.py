"""Notices the commits of other processes to an SQLite file without polling it.

Every commit writes to the write-ahead log, so a watch of that file (`System.watch_file`) sees the commits of all
processes, plain SQL included. The log is written a moment before the commit is visible, and a sync to the disk lies in
between. So a write to the log begins a chase: cheap checks after growing pauses, until one of them sees a commit. Our
own writes begin a chase, too, which sees nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from perdure.core.system import Cancellable, FileWatch, System

_log = logging.getLogger("perdure.store")

#: Pauses between the checks of a chase: the first one while writes are rare and while they are not, and the last one,
#: in seconds.
_RARE = 0.0005
_FREQUENT = 0.05
_LAST = 1.0
_GROWTH = 2.0
#: Seconds without a write after which writes are rare.
_CALM = 0.25


class LogWatch:
    """The watch of one write-ahead log, on one event loop."""

    def __init__(self, path: str, system: System, check: Callable[[], bool]) -> None:
        """`check` tells whether another connection has committed, and tells the listeners so."""
        self._path = path
        self._system = system
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._watch: FileWatch | None = system.watch_file(path, self._written)
        self._timer: Cancellable | None = None
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
        """Watch no more. From any thread."""
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
        self._chase_after(self._floor)

    def _chase_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._system.call_later(seconds, self._chase)

    def _chase(self) -> None:
        self._timer = None
        if self._watch is None:
            return
        self.arm()
        if self._check():
            return
        self._pause *= _GROWTH
        # The log is not there for a moment while the last connection to it is closed.
        if self._pause <= _LAST or not self._armed:
            self._chase_after(min(self._pause, _LAST))
