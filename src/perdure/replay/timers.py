"""The timers that a run has set, the first due on top."""

from __future__ import annotations

import heapq

from msgspec import Struct

from perdure.replay.futures import Watched
from perdure.replay.loop import RunTimerHandle
from perdure.replay.operations import TimerOperation


class Timers(Struct):
    """A heap; those that were cancelled are passed over when they come to the top."""

    #: Empty when there is nothing to wait for.
    heap: list[TimerOperation] = []
    _count: int = 0
    _room: int = 64

    def set(
        self,
        location: str,
        now: int,
        due: int,
        future: Watched[None] | None = None,
        handle: RunTimerHandle | None = None,
    ) -> TimerOperation:
        """A new timer, set at the workflow's time `now`."""
        self._count += 1
        if len(self.heap) > self._room:
            # Most timers bound something that ends well before; those would stay until they are due.
            self.heap = [timer for timer in self.heap if timer.open]
            heapq.heapify(self.heap)
            self._room = 2 * len(self.heap) + 64  # equivalent: constant: only how often the heap is cleaned
        operation = TimerOperation(location, future, now, due, self._count, handle)
        heapq.heappush(self.heap, operation)
        return operation

    def first(self) -> TimerOperation | None:
        """The open timer that is due first."""
        while self.heap and not self.heap[0].open:
            heapq.heappop(self.heap)
        return self.heap[0] if self.heap else None

    def first_of(self, name: str) -> TimerOperation | None:
        """The open timer of that name that is due first."""
        return min((timer for timer in self.heap if timer.open and timer.name == name), default=None)

    def move(self, timer: TimerOperation, due: int) -> None:
        """Let it be due at another time."""
        timer.due = due
        heapq.heapify(self.heap)

    def clear(self) -> None:
        """Forget all."""
        self.heap.clear()
