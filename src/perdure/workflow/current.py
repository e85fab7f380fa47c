"""What a running step can ask about itself."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol

from msgspec import Struct

from perdure.core.errors import UsageError
from perdure.core.model import FAR

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Attempting(Protocol):
    """Whatever is calling the step's function."""

    def is_over(self) -> bool:
        """Whether its result is no longer wanted."""

    def emit(self, stream: str, value: object) -> None:
        """Append to a stream of the run."""

    def credentials(self) -> Mapping[str, Any]:
        """What was given for the run, by the one who asked for it to be worked on."""


class StepInfo(Struct, frozen=True):
    """The attempt that is being made."""

    run_id: str
    #: The step's place in its workflow, such as `charge#2`. With the run id it makes a good idempotency key.
    location: str
    #: From 1. Attempts that their worker did not survive are counted.
    attempt: int
    #: When this attempt times out or the run expires, in microseconds; see `deadline`.
    due: int
    _made_by: Attempting

    def is_cancelled(self) -> bool:
        """Whether the result is no longer wanted: after a timeout, a cancellation or a lost lease."""
        return self._made_by.is_over()

    def emit(self, stream: str, value: object) -> None:
        """Append to a stream of the run while the step is still running; others follow it by `handle.stream(name)`.

        From any thread, in order. It is written with the run's next turn and stays, whatever becomes of the step: an attempt that is
        made again emits again, and readers tell the two apart by the `source` of an item. In a thread, waits while very much is
        unwritten; in an async step, which cannot wait, that raises `StreamFull`.
        """
        self._made_by.emit(stream, value)

    def credentials(self) -> Mapping[str, Any]:
        """See `perdure.credentials`."""
        return self._made_by.credentials()

    @property
    def deadline(self) -> datetime.datetime | None:
        """When this attempt times out, or the run expires; None for never."""
        return None if self.due >= FAR else _EPOCH + datetime.timedelta(microseconds=self.due)


class Performing(Attempting, Protocol):
    """Whatever is calling an activity's function."""

    def beat(self, details: object) -> None:
        """Note a sign of life."""

    def is_cancelled(self) -> bool:
        """Whether the result is no longer wanted."""

    async def cancelled(self) -> None:
        """Wait until it is not."""


class ActivityInfo(StepInfo, frozen=True):
    """The attempt at an activity that is being made. Its `location` is the activity's type."""

    type: str
    #: How often it may be tried in all; None: without a limit. Grows by one with each attempt that was interrupted, so that the last
    #: attempt is the one whose number this is.
    max_attempts: int | None
    #: The run that awaits it, if one does.
    parent_id: str | None
    #: Different for each execution, also of the same attempt after a crash.
    attempt_id: str
    #: Since when it was ready to be worked on, in microseconds since the epoch, by the database's clock. One that had to wait for a
    #: limit is ready when that lets it pass: this is the time that a rate counts.
    ready_at: int
    #: What the last heartbeat before this attempt said; None if there was none.
    last_heartbeat: Any
    _by: Performing

    def heartbeat(self, details: object = None) -> None:
        """Give a sign of life, and say how far it has got, for the next attempt (`last_heartbeat`) and for whoever looks.

        From any thread. An activity with a `heartbeat` timeout has to give them more often than that. Details are written with the next
        commit, a few times a second at the most. Raises `EncodeError`.
        """
        self._by.beat(details)

    def is_cancelled(self) -> bool:
        """Whether to stop: the run was cancelled, timed out, or belongs to another worker by now.

        Who asks is given the worker's `grace` to end in order after a cancellation; who never does is interrupted at once.
        """
        return self._by.is_cancelled()

    async def cancelled(self) -> None:
        """Wait until there is a reason to stop. As with `is_cancelled`, whoever does is not interrupted at once."""
        await self._by.cancelled()


current_step: ContextVar[StepInfo] = ContextVar("perdure_step")


def step_info() -> StepInfo:
    """The step that is calling this. Raises `UsageError` outside of a step."""
    try:
        return current_step.get()
    except LookupError:
        raise UsageError("step_info() was called outside of a step") from None


def activity_info() -> ActivityInfo:
    """The activity that is calling this. Raises `UsageError` outside of one."""
    info = current_step.get(None)
    if not isinstance(info, ActivityInfo):
        raise UsageError("activity_info() was called outside of an activity")
    return info


def credentials() -> Mapping[str, Any]:
    """What the `credentials` hook of a queue handler gave for the run whose step or activity is calling this; empty if there is none.

    They are in memory only, for as long as the run is worked on. Raises `UsageError` outside of a step.
    """
    try:
        return current_step.get().credentials()
    except LookupError:
        raise UsageError("credentials() was called outside of a step") from None
