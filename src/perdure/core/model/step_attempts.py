"""How far a step got before it failed for good; travels on the exception that the workflow gets."""

from __future__ import annotations

from msgspec import Struct

# Not part of what is stored of an error: names with two underscores are left out there.
_KEY = "__perdure_trial__"


class Trial(Struct, frozen=True):
    """The attempts at a step that failed."""

    #: How many there were.
    attempts: int
    #: Why no other followed: `exhausted` or `fatal`; empty where that is not known.
    given_up: str


def remember(error: BaseException, trial: Trial) -> None:
    """Put it on an exception."""
    vars(error)[_KEY] = trial


def trial_of(error: BaseException) -> Trial | None:
    """What was put on an exception; None if no step raised it."""
    found = vars(error).get(_KEY)
    return found if isinstance(found, Trial) else None
