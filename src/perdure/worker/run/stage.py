"""Where a run in a worker's hands stands."""

from __future__ import annotations

from enum import Enum, auto


class Stage(Enum):
    """Where a held run stands."""

    REPLAYING = auto()
    ACTIVE = auto()
    #: One of its transactions is about to commit, and nothing else happens to it meanwhile.
    SEALED = auto()
    PARKED = auto()
    OVER = auto()
