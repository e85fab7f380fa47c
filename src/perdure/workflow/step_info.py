"""`step_info()` and `activity_info()`: a running step or activity asks about its own attempt."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol

from msgspec import Struct

from perdure.core.time.duration import FAR, moment_of
from perdure.errors import UsageError


class AttemptControl(Protocol):
    """The worker's side of an attempt at a step."""

    def is_over(self) -> bool:
        """Tell whether the result is no longer wanted."""

    def emit(self, stream: str, value: object) -> None:
        """Append to a stream of the run."""

    def credentials(self) -> Mapping[str, Any]:
        """Credentials that were handed over with the run."""


class StepInfo(Struct, frozen=True):
    """The current attempt at a step."""

    run_id: str
    #: Location of the step in its workflow, such as `charge#2`. With the run id it makes a good idempotency key.
    location: str
    #: Number of the attempt, from 1. Interrupted attempts count.
    attempt: int
    #: Time when this attempt times out or the run expires, in microseconds; see `deadline`.
    due: int
    _made_by: AttemptControl

    def is_cancelled(self) -> bool:
        """Tell whether the result is no longer wanted: after a timeout, a cancellation or a lost lease."""
        return self._made_by.is_over()

    def emit(self, stream: str, value: object) -> None:
        """Append to a stream of the run while the step is running; others follow it with `handle.stream(name)`.

        May be called from any thread; items keep their order. They are written with the run's next turn and stay, even
        if the step fails: another attempt emits again, and readers tell the two apart by the `source` of an item. If
        too much is unwritten, a step in a thread waits, and an async step gets `StreamFull`.
        """
        self._made_by.emit(stream, value)

    def credentials(self) -> Mapping[str, Any]:
        """Credentials that a queue handler gave for the run, like `perdure.credentials`."""
        return self._made_by.credentials()

    @property
    def deadline(self) -> datetime.datetime | None:
        """Time when this attempt times out or the run expires; None for never."""
        return None if self.due >= FAR else moment_of(self.due)


class ActivityControl(AttemptControl, Protocol):
    """The worker's side of an attempt at an activity."""

    def beat(self, details: object) -> None:
        """Record a heartbeat."""

    def is_cancelled(self) -> bool:
        """Tell whether the result is no longer wanted."""

    async def cancelled(self) -> None:
        """Wait until the result is no longer wanted."""


class ActivityInfo(StepInfo, frozen=True):
    """The current attempt at an activity. Its `location` is the activity's type."""

    type: str
    #: Number of attempts allowed in all; None: no limit. It grows with each interrupted attempt, so that the last
    #: attempt is the one with this number.
    max_attempts: int | None
    #: Id of the run that awaits it, if there is one.
    parent_id: str | None
    #: Different for each execution, also of the same attempt after a crash.
    attempt_id: str
    #: Time since when it was ready, in microseconds since the epoch, by the database's clock. After a wait for a limit,
    #: the time of admission, which is the time that a rate counts.
    ready_at: int
    #: Details of the last heartbeat before this attempt; None if there was none.
    last_heartbeat: Any
    _by: ActivityControl

    def heartbeat(self, details: object = None) -> None:
        """Record a heartbeat, with details of the progress for the next attempt (`last_heartbeat`) and for inspection.

        May be called from any thread. An activity with a `heartbeat` timeout has to send heartbeats more often than
        that. Details are written with the next commit, at most a few times a second. Raises `EncodeError`.
        """
        self._by.beat(details)

    def is_cancelled(self) -> bool:
        """Tell whether to stop: the run was cancelled, timed out, or was lost to another worker.

        An activity that calls this gets the worker's `grace` to stop by itself; one that never does is interrupted at
        once.
        """
        return self._by.is_cancelled()

    async def cancelled(self) -> None:
        """Wait until there is a reason to stop. Like `is_cancelled`, this gives the activity the worker's `grace`."""
        await self._by.cancelled()


current_step: ContextVar[StepInfo] = ContextVar("perdure_step")


def step_info() -> StepInfo:
    """The attempt of the calling step. Raises `UsageError` outside of a step."""
    try:
        return current_step.get()
    except LookupError:
        raise UsageError("step_info() was called outside of a step") from None


def activity_info() -> ActivityInfo:
    """The attempt of the calling activity. Raises `UsageError` outside of an activity."""
    info = current_step.get(None)
    if not isinstance(info, ActivityInfo):
        raise UsageError("activity_info() was called outside of an activity")
    return info


def credentials() -> Mapping[str, Any]:
    """Credentials that the `credentials` hook of a queue handler gave for the calling step's run; empty without one.

    They stay in memory, and only while a worker holds the run. Raises `UsageError` outside of a step.
    """
    try:
        return current_step.get().credentials()
    except LookupError:
        raise UsageError("credentials() was called outside of a step") from None
