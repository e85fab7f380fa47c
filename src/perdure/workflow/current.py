"""What a running step can ask about itself."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextvars import ContextVar

from msgspec import Struct

from perdure.core.errors import UsageError
from perdure.core.model import FAR

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class StepInfo(Struct, frozen=True):
    """The attempt that is being made."""

    run_id: str
    #: The step's place in its workflow, such as `charge#2`. With the run id it makes a good idempotency key.
    location: str
    #: From 1.
    attempt: int
    #: When this attempt times out or the run expires, in microseconds; see `deadline`.
    due: int
    #: Whether the result is no longer wanted: after a timeout, a cancellation or a lost lease.
    is_cancelled: Callable[[], bool]

    @property
    def deadline(self) -> datetime.datetime | None:
        """When this attempt times out, or the run expires; None for never."""
        return None if self.due >= FAR else _EPOCH + datetime.timedelta(microseconds=self.due)


current_step: ContextVar[StepInfo] = ContextVar("perdure_step")


def step_info() -> StepInfo:
    """The step that is calling this. Raises `UsageError` outside of a step."""
    try:
        return current_step.get()
    except LookupError:
        raise UsageError("step_info() was called outside of a step") from None
