"""What a running step can ask about itself."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from perdure.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The attempt that is being made."""

    run_id: str
    #: The step's place in its workflow, such as `charge#2`. With the run id it makes a good idempotency key.
    location: str
    #: From 1.
    attempt: int
    #: When this attempt times out, or the run expires; None for never.
    deadline: datetime.datetime | None
    #: Whether the result is still wanted: not after a timeout, a cancellation or a lost lease.
    is_cancelled: Callable[[], bool]


current_step: ContextVar[StepInfo] = ContextVar("perdure_step")


def step_info() -> StepInfo:
    """The step that is calling this. Raises `UsageError` outside of a step."""
    try:
        return current_step.get()
    except LookupError:
        raise UsageError("step_info() was called outside of a step") from None
