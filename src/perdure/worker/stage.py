"""Where a run in a worker's hands stands."""

from __future__ import annotations

from enum import Enum, auto


class Stage(Enum):
    """Where a held run stands."""

    REPLAYING = auto()
    ACTIVE = auto()
    PARKED = auto()
    OVER = auto()
