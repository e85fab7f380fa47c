"""The durable operations that a run has open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perdure.core.family import OnClose
from perdure.core.model import FAR, Kind
from perdure.replay.futures import Watched

if TYPE_CHECKING:
    from perdure.replay.loop import RunTimerHandle
    from perdure.workflow.definition import Call
    from perdure.workflow.runtime import ChildOptions, Mark, StepRequest


class Operation:
    """Something asked for at a location, and the future that the workflow has of it."""

    __slots__ = ("digest", "future", "location", "open")
    kind: Kind

    def __init__(self, location: str, future: Watched[Any] | None, digest: str = "") -> None:
        self.location = location
        self.future = future
        #: Of the arguments, where there are any.
        self.digest = digest
        #: Whether the workflow still waits for it.
        self.open = True


class StepOperation(Operation):
    """A step, with what its failed attempts left behind."""

    __slots__ = ("attempts", "ephemeral", "request", "retry_at")
    kind = Kind.STEP
    future: Watched[Any]

    def __init__(self, location: str, future: Watched[Any], request: StepRequest, digest: str) -> None:
        # Not by way of `Operation`: this is made for every step, and each level costs.
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


class TimerOperation(Operation):
    """A timer: of `ctx.sleep` (its future), of `receive` or of asyncio (its handle)."""

    __slots__ = ("asked_at", "due", "handle", "order")
    kind = Kind.TIMER

    def __init__(
        self,
        location: str,
        future: Watched[Any] | None,
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


class ChildOperation(Operation):
    """A child run whose result is awaited."""

    __slots__ = ("asked_at", "bound", "call", "child_id", "options", "siblings")
    kind = Kind.CHILD
    future: Watched[Any]

    def __init__(
        self,
        location: str,
        future: Watched[Any],
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


class ScopeOperation(Operation):
    """A scope that has got so far; done as soon as it is recorded."""

    __slots__ = ("drop", "mark", "type")
    kind = Kind.SCOPE

    def __init__(self, location: str, future: Watched[Any], mark: Mark, type: Any, drop: Sequence[str]) -> None:
        super().__init__(location, future)
        self.mark = mark
        #: What the mark's value is decoded to.
        self.type = type
        #: Paths of what is forgotten then.
        self.drop = drop


class RemovedOperation(Operation):
    """What the code no longer does at a place where the history has it."""

    __slots__ = ("was",)
    #: Nothing is completed by a record of this kind, so that it is not mistaken for what it stands in for.
    kind = Kind.ATTEMPT
    future: Watched[Any]

    def __init__(self, location: str, future: Watched[Any], was: Kind) -> None:
        super().__init__(location, future)
        self.was = was
