"""What the runs that are told of something in one callback of the loop share."""

from __future__ import annotations

from msgspec import Struct

from perdure.replay.drain_context import Around


class Moment(Struct, frozen=True):
    """One look at the clocks and at the loop."""

    #: The database's time.
    now: int
    #: Whether the lease is safe enough to begin something new.
    may_start: bool
    #: What runs are drained in, if it was entered for several of them.
    around: Around | None = None
