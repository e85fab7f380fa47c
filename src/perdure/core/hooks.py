"""Hooks: users' functions that a worker calls for errors, dead letters and events.

Hooks are called after the commit, as best effort: a call is lost if the process dies in between or the queue of calls
is full. The audit trail is complete.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from perdure.core.audit import Event
from perdure.core.model.run import Run
from perdure.core.printed_text import brief
from perdure.errors import UsageError


class ErrorNotice(Struct, frozen=True, kw_only=True):
    """A failed attempt at a step, an activity or a whole run."""

    run_id: str
    #: Type of the run.
    type: str
    #: `step`, `activity` or `run`.
    scope: str
    #: Location of the step; empty otherwise.
    location: str
    #: Number of the attempt.
    attempt: int
    #: Name of the error's class, and its message.
    error: str
    message: str
    #: Another attempt follows, at `retry_at` in microseconds since the epoch; 0 if none does.
    will_retry: bool
    retry_at: int
    at: int


class DeadLetterNotice(Struct, frozen=True, kw_only=True):
    """A run that has failed for good, or was set aside."""

    #: The run as it is in the database; its `error` has the failure.
    run: Run
    #: `failed`, `expired`, `poison` or `undecodable`.
    reason: str
    at: int


Hook = Callable[[Any], Awaitable[object] | object]


class Hooks(Struct, frozen=True, kw_only=True):
    """The hooks of a worker: sync or async functions of the user."""

    on_error: Callable[[ErrorNotice], Awaitable[object] | object] | None = None
    on_dead_letter: Callable[[DeadLetterNotice], Awaitable[object] | object] | None = None
    #: Gets every event that this process wrote. The event's `id` is 0, because only the database knows it.
    on_event: Callable[[Event], Awaitable[object] | object] | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise UsageError(f"{name}={brief(hook)} is not a function; give one that takes the notice or event")

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in self.__struct_fields__)
