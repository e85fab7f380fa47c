"""Durable operations that a run has open, and its timers."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from perdure.core.model.record import RecordKind
from perdure.core.model.run import OnClose
from perdure.core.time.duration import FAR
from perdure.replay.futures import OperationFuture
from perdure.replay.run_loop import RunTimerHandle

if TYPE_CHECKING:
    from perdure.replay.run_loop import RunTimerHandle
    from perdure.workflow.definition import Call
    from perdure.workflow.runtime import Checkpoint, ChildOptions, StepRequest


class OpenOperation:
    """An operation at a location, with the workflow's future of it."""

    __slots__ = ("digest", "future", "location", "open")
    kind: RecordKind

    def __init__(self, location: str, future: OperationFuture[Any] | None, digest: str = "") -> None:
        self.location = location
        self.future = future
        #: Digest of the arguments, if there are any.
        self.digest = digest
        #: Whether the workflow still waits for it.
        self.open = True


class StepOperation(OpenOperation):
    """A step, with the state that failed attempts have left."""

    __slots__ = ("attempts", "ephemeral", "request", "retry_at")
    kind = RecordKind.STEP
    future: OperationFuture[Any]

    def __init__(self, location: str, future: OperationFuture[Any], request: StepRequest, digest: str) -> None:
        # Not through `OpenOperation`: one is made for every step, and each call costs.
        self.location = location
        self.future = future
        self.digest = digest
        self.open = True
        self.request = request
        #: Whether the workflow goes on before the result is durable.
        self.ephemeral = request.options.ephemeral is True
        #: Attempts used up so far.
        self.attempts = 0
        #: Time of the next attempt.
        self.retry_at = 0


class TimerOperation(OpenOperation):
    """A timer of `ctx.sleep` or `receive` (with a future), or of asyncio (with a handle)."""

    __slots__ = ("asked_at", "due", "handle", "order")
    kind = RecordKind.TIMER

    def __init__(
        self,
        location: str,
        future: OperationFuture[Any] | None,
        asked_at: int,
        due: int,
        order: int,
        handle: RunTimerHandle | None = None,
    ) -> None:
        super().__init__(location, future)
        #: Workflow time at which the timer was set.
        self.asked_at = asked_at
        self.due = min(due, FAR)
        #: Timers that are due at the same time fire in the order in which they were set.
        self.order = order
        self.handle = handle

    @property
    def name(self) -> str:
        """Name of the timer: its location without scope and number."""
        return self.location.rpartition("/")[2].partition("#")[0]

    def __lt__(self, other: TimerOperation) -> bool:
        return (self.due, self.order) < (other.due, other.order)


class ChildOperation(OpenOperation):
    """A child run whose result is awaited."""

    __slots__ = ("asked_at", "bound", "call", "child_id", "options", "siblings")
    kind = RecordKind.CHILD
    future: OperationFuture[Any]

    def __init__(
        self,
        location: str,
        future: OperationFuture[Any],
        asked_at: int,
        call: Call[Any],
        child_id: str,
        options: ChildOptions,
        digest: str,
    ) -> None:
        super().__init__(location, future, digest)
        #: Workflow time at which the child was asked for.
        self.asked_at = asked_at
        self.call = call
        self.child_id = child_id
        self.options = options
        #: Whether the child ends with its parent.
        self.bound = options.on_close is not OnClose.ABANDON
        #: Children of the run that were under way at that time.
        self.siblings = 0  # equivalent: constant: set by the caller, which counts them


class ScopeOperation(OpenOperation):
    """A checkpoint of a scope; complete as soon as it is recorded."""

    __slots__ = ("checkpoint", "drop", "type")
    kind = RecordKind.SCOPE

    def __init__(
        self, location: str, future: OperationFuture[Any], checkpoint: Checkpoint, type: Any, drop: Sequence[str]
    ) -> None:
        super().__init__(location, future)
        self.checkpoint = checkpoint
        #: Type that the checkpoint's value is decoded to.
        self.type = type
        #: Paths whose records are trimmed then.
        self.drop = drop


class RemovedOperation(OpenOperation):
    """An operation that the history has and the code no longer asks for."""

    __slots__ = ("was",)
    #: A kind that completes nothing, so that the operation is not mistaken for the one that it stands in for.
    kind = RecordKind.ATTEMPT
    future: OperationFuture[Any]

    def __init__(self, location: str, future: OperationFuture[Any], was: RecordKind) -> None:
        super().__init__(location, future)
        self.was = was


class Timers(Struct):
    """Heap of a run's timers, the first due on top. Cancelled ones are skipped there."""

    #: Empty if there is nothing to wait for.
    heap: list[TimerOperation] = []
    _count: int = 0
    _room: int = 64

    def set(
        self,
        location: str,
        now: int,
        due: int,
        future: OperationFuture[None] | None = None,
        handle: RunTimerHandle | None = None,
    ) -> TimerOperation:
        """Set a timer at the workflow time `now`."""
        self._count += 1
        if len(self.heap) > self._room:
            # Most timers bound something that ends well before; their remains would stay until they are due.
            self.heap = [timer for timer in self.heap if timer.open]
            heapq.heapify(self.heap)
            self._room = 2 * len(self.heap) + 64  # equivalent: constant: only how often the heap is cleaned
        operation = TimerOperation(location, future, now, due, self._count, handle)
        heapq.heappush(self.heap, operation)
        return operation

    def first(self) -> TimerOperation | None:
        """Return the open timer that is due first."""
        while self.heap and not self.heap[0].open:
            heapq.heappop(self.heap)
        return self.heap[0] if self.heap else None

    def first_of(self, name: str) -> TimerOperation | None:
        """Return the open timer of that name that is due first."""
        return min((timer for timer in self.heap if timer.open and timer.name == name), default=None)

    def move(self, timer: TimerOperation, due: int) -> None:
        """Change the time at which a timer is due."""
        timer.due = due
        heapq.heapify(self.heap)

    def clear(self) -> None:
        """Remove all timers."""
        self.heap.clear()
