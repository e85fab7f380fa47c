"""The durable operations that a run has open."""

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
    """Something asked for at a location, and the future that the workflow has of it."""

    __slots__ = ("digest", "future", "location", "open")
    kind: RecordKind

    def __init__(self, location: str, future: OperationFuture[Any] | None, digest: str = "") -> None:
        self.location = location
        self.future = future
        #: Of the arguments, where there are any.
        self.digest = digest
        #: Whether the workflow still waits for it.
        self.open = True


class StepOperation(OpenOperation):
    """A step, with what its failed attempts left behind."""

    __slots__ = ("attempts", "ephemeral", "request", "retry_at")
    kind = RecordKind.STEP
    future: OperationFuture[Any]

    def __init__(self, location: str, future: OperationFuture[Any], request: StepRequest, digest: str) -> None:
        # Not by way of `OpenOperation`: this is made for every step, and each level costs.
        self.location = location
        self.future = future
        self.digest = digest
        self.open = True
        self.request = request
        #: Whether the workflow goes on before the result is durable.
        self.ephemeral = request.options.ephemeral is True
        #: Attempts used up so far.
        self.attempts = 0
        #: When the next attempt is due.
        self.retry_at = 0


class TimerOperation(OpenOperation):
    """A timer: of `ctx.sleep` (its future), of `receive` or of asyncio (its handle)."""

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
        #: The workflow's time when it was set.
        self.asked_at = asked_at
        self.due = min(due, FAR)
        #: Timers due at the same time fire in the order in which they were set.
        self.order = order
        self.handle = handle

    @property
    def name(self) -> str:
        """What it is called, wherever and however often."""
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
        #: The workflow's time when it was asked for.
        self.asked_at = asked_at
        self.call = call
        self.child_id = child_id
        self.options = options
        #: Whether it does not outlive its parent.
        self.bound = options.on_close is not OnClose.ABANDON
        #: Children of the run that were under way when it was asked for.
        self.siblings = 0  # equivalent: constant: set by the caller, which counts them


class ScopeOperation(OpenOperation):
    """A scope that has got so far; done as soon as it is recorded."""

    __slots__ = ("drop", "mark", "type")
    kind = RecordKind.SCOPE

    def __init__(
        self, location: str, future: OperationFuture[Any], mark: Checkpoint, type: Any, drop: Sequence[str]
    ) -> None:
        super().__init__(location, future)
        self.mark = mark
        #: What the mark's value is decoded to.
        self.type = type
        #: Paths of what is forgotten then.
        self.drop = drop


class RemovedOperation(OpenOperation):
    """What the code no longer does at a place where the history has it."""

    __slots__ = ("was",)
    #: Nothing is completed by a record of this kind, so that it is not mistaken for what it stands in for.
    kind = RecordKind.ATTEMPT
    future: OperationFuture[Any]

    def __init__(self, location: str, future: OperationFuture[Any], was: RecordKind) -> None:
        super().__init__(location, future)
        self.was = was


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
        future: OperationFuture[None] | None = None,
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
