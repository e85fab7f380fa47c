"""Where a run comes from."""

from __future__ import annotations

from msgspec import Struct


class Origin(Struct, frozen=True, kw_only=True):
    """What a run is known by, and where its time and randomness begin."""

    run_id: str
    type: str
    started_at: int
    seed: str
    generation: int
    attempt: int
