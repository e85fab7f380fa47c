"""What the runs that are told of something in one callback of the loop know about the time."""

from __future__ import annotations

from msgspec import Struct


class Moment(Struct, frozen=True, gc=False):
    """One look at the clocks."""

    #: The database's time.
    now: int
    #: Whether the lease is safe enough to begin something new.
    may_start: bool
