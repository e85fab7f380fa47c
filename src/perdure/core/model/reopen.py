"""Second chances: what becomes of a finished run that is opened again, and of a copy that goes another way.

A run that is opened again is the same one: its randomness grows from what it grew from before, so that the arguments of what it
has done are what they were; and it lives the same life, from which the ids of its children and the keys of what it sends follow.
The seed is written so that a generation can say whose randomness it has.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.model.record import Record
from perdure.core.model.run import NewRun


class ReopenOutcome(StrEnum):
    """The answer to a request to open a finished run again."""

    #: It is open, by this request or by an earlier one.
    OPEN = "open"
    #: It has no outcome yet.
    UNFINISHED = "unfinished"
    COMPLETED = "completed"
    #: Its deadline has passed, and no other one was given.
    EXPIRED = "expired"
    #: It was deleted, and first has to be brought back.
    DELETED = "deleted"
    UNKNOWN = "unknown"


class Fork(Struct, frozen=True, kw_only=True):
    """A run to be created with a past: what another run had done before a certain step."""

    run: NewRun
    #: Whose past it is, and where that ends.
    source: str
    step: str
    #: Numbered from 0, of the first attempt; the last but one is of `Kind.FORK`. None: it begins at the beginning.
    records: tuple[Record, ...]
    started_at: int
    seed: str


def random_source(seed: str, generation: int) -> str:
    """What the random numbers of a generation grow from."""
    source, _, kept_by = seed.rpartition("@")
    return source if kept_by == str(generation) else f"{seed}:{generation}"


def root_generation(seed: str, generation: int) -> int:
    """The generation that began with nothing, of which this one is the continuation: what it did is not to be done again."""
    if generation == 1 and "@" not in seed:
        return 1
    return int(random_source(seed, generation).rpartition(":")[2])


def kept_seed(seed: str, generation: int, by: int) -> str:
    """The seed with which generation `by` has the randomness of `generation`; one that was never claimed has none to keep."""
    return f"{random_source(seed, generation)}@{by}" if seed else ""
