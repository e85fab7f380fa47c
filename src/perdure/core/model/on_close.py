"""What ties a child run to its parent."""

from __future__ import annotations

from enum import StrEnum

#: How the write id of a child begins that its parent does not take along when it ends.
ABANDONED = "abandon:"


class OnClose(StrEnum):
    """What becomes of a child that is still under way when its parent ends."""

    #: It is cancelled.
    CANCEL = "cancel"
    #: It goes on, and nobody is told how it ends.
    ABANDON = "abandon"
    #: The parent does not end before it; the parent's outcome stays what it is.
    WAIT = "wait"
