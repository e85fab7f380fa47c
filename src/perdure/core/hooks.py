"""What a worker tells code of the user's about: errors, dead letters, events.

Hooks are called after the commit, best effort: a process that dies in between, or a queue that is full, loses a call. The audit
trail is the truth.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from perdure.core.audit import Event
from perdure.core.model.run import Run
from perdure.errors import UsageError


class ErrorNotice(Struct, frozen=True, kw_only=True):
    """An attempt at a step, at an activity or at a whole run has failed."""

    run_id: str
    #: Of the run.
    type: str
    #: `step`, `activity` or `run`.
    scope: str
    #: The step's place in the workflow; empty otherwise.
    location: str
    #: Which attempt it was.
    attempt: int
    #: The name of the error's type, and its message.
    error: str
    message: str
    #: Whether another attempt follows, and when, in microseconds since the epoch; else 0.
    will_retry: bool
    retry_at: int
    at: int


class DeadLetterNotice(Struct, frozen=True, kw_only=True):
    """A run has failed for good, or was set aside."""

    #: As it is in the database by now; its `error` says what went wrong.
    run: Run
    #: `failed`, `expired`, `poison` or `undecodable`.
    reason: str
    at: int


Hook = Callable[[Any], Awaitable[object] | object]


class Hooks(Struct, frozen=True, kw_only=True):
    """Functions of the user's, plain or async."""

    on_error: Callable[[ErrorNotice], Awaitable[object] | object] | None = None
    on_dead_letter: Callable[[DeadLetterNotice], Awaitable[object] | object] | None = None
    #: Gets every event that this process wrote; its `id` is 0, for only the database knows it.
    on_event: Callable[[Event], Awaitable[object] | object] | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise UsageError(f"{name}={hook!r} is no function; give one that takes what happened")

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in self.__struct_fields__)
