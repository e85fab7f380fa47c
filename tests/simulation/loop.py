"""An event loop on which several processes run at once, in an order that a seed decides, in virtual time.

Each thread of a simulated process is a lane: its callbacks run in the order in which they were queued, as on a real
event loop. Which lane goes next is drawn. Time stands still while anything is ready, then jumps to the next timer. A
process can be stalled (its lanes wait) or killed (whatever it had queued is never run).
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

#: Callbacks in one simulation, after which it is taken to spin without time passing.
MAX_STEPS = 2_000_000


class Crashed(BaseException):
    """The process that was executing is no more."""


class Violation(BaseException):
    """A promise was broken. Not an `Exception`, so that no handler of the engine hides it; recorded by the loop as
    well."""


class Process:
    """A simulated process and its state."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.main = Lane(f"{name}.main", self)
        self.lanes = [self.main]

    def context(self) -> Context:
        """A context whose callbacks run on the main lane."""
        context = Context()
        context.run(LANE.set, self.main)
        return context


class Lane:
    """A thread of a process: callbacks in order."""

    __slots__ = ("listed", "name", "priority", "process", "ready", "stalls")

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self.ready: deque[SimHandle] = deque()
        #: How many reasons there are for it not to run.
        self.stalls = 0
        self.priority = 0.0
        #: Whether the loop has it among those that may have something ready.
        self.listed = False


LANE: ContextVar[Lane] = ContextVar("lane")


class SimHandle:
    """A callback in the queue of a lane, or waiting for its time."""

    __slots__ = ("_order", "_when", "args", "callback", "context", "lane")

    def __init__(
        self,
        lane: Lane,
        order: int,
        when: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context,
    ) -> None:
        self.lane = lane
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self._order = order
        self._when = when

    def __lt__(self, other: SimHandle) -> bool:
        return (self._when, self._order) < (other._when, other._order)

    @property
    def order(self) -> int:
        """Its number among all callbacks."""
        return self._order

    @property
    def due(self) -> int:
        """When, in microseconds."""
        return self._when

    def when(self) -> float:
        """When, in seconds, as asyncio asks."""
        return self._when / 1e6

    def cancel(self) -> None:
        """Do not call it any more."""
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        """Whether it was called off, or has been called."""
        return self.callback is None


class SimFuture(asyncio.Future[T]):
    """A future with a hash that is the same in every process, since sets of futures are iterated."""

    __slots__ = ("_stable_hash",)

    def __init__(self, *, loop: SimLoop) -> None:
        super().__init__(loop=loop)
        self._stable_hash = loop.next_number()

    def __hash__(self) -> int:
        return self._stable_hash


class SimTask(asyncio.Task[T]):
    """A task with a hash that is the same in every process."""

    def __init__(self, coroutine: Any, *, loop: SimLoop, name: str | None, context: Context | None) -> None:
        self._stable_hash = loop.next_number()
        super().__init__(coroutine, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._stable_hash


class SimLoop(asyncio.AbstractEventLoop):
    """See the module."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._mode = rng.choices(("fifo", "uniform", "priority"), (2, 5, 3))[0]
        self._changes = sorted((rng.randrange(4000) for _ in range(3)), reverse=True)
        self._now = 0
        self._numbers = 0
        self._steps = 0
        self._active: list[Lane] = []
        self._timers: list[SimHandle] = []
        self.tasks: list[SimTask[Any]] = []
        self.violations: list[str] = []

    # running

    def run(self, main: Coroutine[Any, Any, T], process: Process) -> T:
        """Run everything until `main` has ended."""
        with _running(self):
            task: SimTask[T] = self.create_task(main, name="main", context=process.context())
            while not task.done():
                self._step()
            return task.result()

    def _step(self) -> None:
        lane = self._choose()
        if lane is None:
            self._jump()
            return
        handle = lane.ready.popleft()
        callback, args = handle.callback, handle.args
        if callback is None:
            return
        handle.callback = None
        self._steps += 1
        try:
            handle.context.run(callback, *args)
        except Crashed:
            pass
        except Exception as error:
            self.violations.append(f"a callback of {lane.name} raised {type(error).__name__}: {error}")
            raise Violation(self.violations[0]) from error
        if self.violations:
            raise Violation(self.violations[0])
        if self._steps > MAX_STEPS:
            raise Violation(f"the simulation goes on without end at {self._now / 1e6:.3f} s")

    def _choose(self) -> Lane | None:
        able = [lane for lane in self._active if lane.ready and not lane.stalls]
        if len(able) <= 1:
            return able[0] if able else None
        if self._mode == "uniform":
            return able[int(self._rng.random() * len(able))]
        if self._mode == "fifo":
            return min(able, key=lambda lane: lane.ready[0].order)
        chosen = max(able, key=lambda lane: lane.priority)
        if self._changes and self._steps >= self._changes[-1]:
            self._changes.pop()
            chosen.priority -= 1.0
        return chosen

    def _jump(self) -> None:
        timers = self._timers
        while timers and (timers[0].callback is None or timers[0].lane.process.dead):
            heapq.heappop(timers)
        for lane in self._active:
            lane.listed = bool(lane.ready)
        self._active = [lane for lane in self._active if lane.listed]
        if not timers:
            raise Violation(f"deadlock at {self._now / 1e6:.3f} s: nothing is ready, and nothing ever will be")
        self._now = max(self._now, timers[0].due)
        while timers and timers[0].due <= self._now:
            self._enqueue(heapq.heappop(timers))

    def _enqueue(self, handle: SimHandle) -> None:
        lane = handle.lane
        if lane.process.dead or handle.callback is None:
            return
        if not lane.listed:
            lane.listed = True
            self._active.append(lane)
        lane.ready.append(handle)

    # processes

    def new_lane(self, name: str, process: Process) -> Lane:
        """Another thread of a process."""
        lane = Lane(name, process)
        lane.priority = self._rng.random()
        process.lanes.append(lane)
        return lane

    def kill(self, process: Process) -> None:
        """End a process: nothing of it runs any more."""
        process.dead = True
        for lane in process.lanes:
            lane.ready.clear()

    # what asyncio asks a loop

    def next_number(self) -> int:
        """A number that is not used for anything else."""
        self._numbers += 1
        return self._numbers

    def now(self) -> int:
        """Microseconds since the simulation began."""
        return self._now

    def time(self) -> float:
        """Seconds since the simulation began."""
        return self._now / 1e6

    # The parameters of these are those of `AbstractEventLoop`, which types them with a variadic type variable.

    def call_soon(  # type: ignore[override] # see above
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """Queue a callback on the lane of its context."""
        if context is None:
            context = copy_context()
        handle = SimHandle(context[LANE], self.next_number(), self._now, callback, args, context)
        self._enqueue(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override] # see above
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """Queue a callback on the main lane of the process."""
        context = copy_context() if context is None else context.copy()
        context.run(LANE.set, context[LANE].process.main)
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override] # see above
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """Queue a callback after a while."""
        return self._call_at(self._now + (max(1, round(delay * 1e6)) if delay > 0 else 0), callback, args, context)

    def call_at(  # type: ignore[override] # see above
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """Queue a callback at a time."""
        return self._call_at(round(when * 1e6), callback, args, context)

    def _call_at(
        self, when: int, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> SimHandle:
        if context is None:
            context = copy_context()
        handle = SimHandle(context[LANE], self.next_number(), when, callback, args, context)
        if when <= self._now:
            self._enqueue(handle)
        else:
            heapq.heappush(self._timers, handle)
        return handle

    def create_future(self) -> SimFuture[Any]:
        """Make a future."""
        return SimFuture(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **options: Any
    ) -> SimTask[Any]:
        """Make a task; kept, so that the garbage collector decides nothing."""
        task: SimTask[Any] = SimTask(coro, loop=self, name=name or "task", context=context)
        self.tasks.append(task)
        return task

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """Whenever anyone can ask."""
        return True

    def is_closed(self) -> bool:
        """Never while anyone can ask."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep errors that are never retrieved; they are looked for at the end."""

    default_exception_handler = call_exception_handler

    def close(self) -> None:
        """Let go of all tasks, in order, without a word."""
        with _running(self):
            for task in self.tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # dropped on purpose
                    coroutine = task.get_coro()
                    with suppress(BaseException):
                        if coroutine is not None:
                            coroutine.close()
                elif not task.cancelled():
                    task.exception()
        self._active.clear()
        self._timers.clear()


@contextmanager
def _running(loop: SimLoop) -> Generator[None]:
    previous = events._get_running_loop()
    events._set_running_loop(loop)
    try:
        yield
    finally:
        events._set_running_loop(previous)
