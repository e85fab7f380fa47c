"""Where a run comes from."""

from __future__ import annotations

from msgspec import Struct

from perdure.core.model.reopen import life, randomness


class Origin(Struct, frozen=True, kw_only=True):
    """What a run is known by, and where its time and randomness begin."""

    run_id: str
    type: str
    started_at: int
    seed: str
    generation: int
    attempt: int
    #: Whether an earlier holder ran it to its first wait in this attempt and let go of it in order, with or without a record.
    taken_up_before: bool = False

    @property
    def randomness(self) -> str:
        """What its random numbers grow from."""
        return randomness(self.seed, self.generation)

    @property
    def life(self) -> int:
        """The generation that began with nothing, of which this one is the continuation."""
        return life(self.seed, self.generation)
