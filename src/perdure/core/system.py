"""`System`: clocks, randomness, tasks, threads, crash points and telemetry, behind one interface.

Nothing else in Perdure reads a clock, draws a random number, spawns a task or starts a thread. With another `System`, a
whole worker runs on a virtual clock under a seed, or dies at a chosen line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from perdure.core.telemetry import Telemetry

T = TypeVar("T")

CrashPoint = Callable[[str], object]
#: Reads the CPU seconds of this process, and of one of its threads.
CpuClock = Callable[[], tuple[float, float]]


class Cancellable(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> object:
        """Cancel the call; harmless after it was made."""


class Background(Protocol):
    """An event loop on its own thread."""

    async def stop(self) -> None:
        """Cancel the loop's main coroutine and wait for its end."""


class FileWatch(Protocol):
    """Watches one file for writes of any process of this machine."""

    def arm(self) -> bool:
        """Call back once, after the next write to the file; False if it is not there. Raises `OSError`."""

    def close(self) -> None:
        """Watch no more. From any thread."""


#: Index of the byte in `LoopTrace.waiting` that tells whether a ticker waits: that of `revents` in C's `struct pollfd`.
DUE = 6
_NEVER_DUE = b"\1" * (DUE + 1)


#: The code that took longest, its seconds, and the longest time before code that was noted began: other code was
#: executed then, or none.
LongestCode = tuple[object, float, float]
NOTHING_NOTED: LongestCode = (None, 0.0, 0.0)


class LoopTrace:
    """Tells after the fact which code of an event loop has kept a ticker from its call.

    Code that keeps the interpreter lock keeps the ticker's thread waiting, too. But the operating system ends the wait
    by itself: it clears the byte `waiting[DUE]`. Code that calls a workflow or a step looks at the byte before and
    after, and calls `note` if it is cleared. A look is no call, so it may be a part of every step.
    """

    __slots__ = ("_longest", "_monotonic", "_since", "waiting")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.waiting: bytes | bytearray = _NEVER_DUE
        #: Monotonic time of the last note or sample.
        self._since = 0.0
        self._longest = NOTHING_NOTED

    def note(self, ended: object) -> None:
        """Note the code that has just ended; the trace itself stands for unknown code."""
        now = self._monotonic()
        seconds, self._since = now - self._since, now
        # No call of a Python function between the two uses of `_longest`: another thread may take it there.
        code, longest, unknown = self._longest
        if ended is self:
            self._longest = code, longest, max(unknown, seconds)
        elif seconds > longest:
            self._longest = ended, seconds, unknown

    def take(self) -> LongestCode:
        """Return the code that took longest since the last call of this method, and begin anew."""
        longest, self._longest = self._longest, NOTHING_NOTED
        self._since = self._monotonic()
        return longest

    def end(self) -> None:
        """End with the ticker."""
        self.waiting, self._longest = _NEVER_DUE, NOTHING_NOTED


#: The trace of a loop that has no ticker.
NO_TRACE = LoopTrace(lambda: 0.0)


class Ticker(Background, Protocol):
    """Calls a function again and again from a thread of its own. Endless seconds make it rest until `wake`."""

    def wake(self) -> None:
        """Go on after a rest. From the thread whose code leaves the trace."""


class NoTicker(Ticker):
    """A ticker that never calls."""

    async def stop(self) -> None:
        """Do nothing."""

    def wake(self) -> None:
        """Do nothing."""


class System(Protocol):
    """The engine's interface to the operating system."""

    #: The bus on which the engine tells listeners about its work.
    telemetry: Telemetry

    def now(self) -> int:
        """Wall-clock time in microseconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds on a clock that never steps back and goes on while the machine sleeps."""

    def entropy(self, size: int, /) -> bytes:
        """Random bytes, fit for ids and nonces."""

    def random(self) -> float:
        """A random number in [0, 1), for jitter."""

    async def sleep(self, seconds: float) -> None:
        """Wait, on this system's clock."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        """Call back on the current event loop after a delay."""

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine beside the caller. The caller keeps the task and awaits or cancels it."""

    def in_thread(self, function: Callable[[], T]) -> Awaitable[T]:
        """Run a blocking function (the database's) without blocking the event loop."""

    def end_idle_threads(self) -> None:
        """End threads that have no blocking function to execute, now or soon. A later function gets another."""

    def background(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Background:
        """Run a coroutine on its own thread and event loop, so that it continues while the main loop is blocked."""

    def ticker(self, tick: Callable[[CpuClock], float], name: str, trace: LoopTrace) -> Ticker:
        """Call a function again and again from a thread of its own, in real time.

        It gets a clock for this process and for the thread that has asked for the ticker, and returns the seconds until
        the next call. A system with a clock of its own never calls it.
        """

    def watch_file(self, path: str, written: Callable[[], object]) -> FileWatch | None:
        """Make a watch of a file that calls back on the current event loop; None if the system has none."""

    @property
    def crash_point(self) -> CrashPoint | None:
        """Called with the name of each point at which a test may end the process; None outside of tests."""
