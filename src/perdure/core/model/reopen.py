"""Reopened runs and forks: the answer to a reopen, the request for a fork, and the random seeds of generations.

A reopened run is the same run. It keeps its random numbers, so that the arguments of recorded operations are the same,
and it keeps its root generation, from which the ids of its children and the keys of its messages follow. The seed is
stored as `source@generation`, which names the generation that uses the source.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.model.record import Record
from perdure.core.model.run import NewRun


class ReopenOutcome(StrEnum):
    """Answer to a request to reopen a finished run."""

    #: The run is open, by this request or by an earlier one.
    OPEN = "open"
    #: The run has no outcome yet.
    UNFINISHED = "unfinished"
    COMPLETED = "completed"
    #: Its deadline has passed, and no new one was given.
    EXPIRED = "expired"
    #: It was deleted, and has to be restored first.
    DELETED = "deleted"
    UNKNOWN = "unknown"


class Fork(Struct, frozen=True, kw_only=True):
    """Request to create a run with the history of another run before a certain step."""

    run: NewRun
    #: Id of the other run, and the step where its history is cut.
    source: str
    step: str
    #: Numbered from 0, of the first attempt; the last but one is a `RecordKind.FORK`. Empty: it begins at the
    #: beginning.
    records: tuple[Record, ...]
    started_at: int
    seed: str


def random_source(seed: str, generation: int) -> str:
    """Seed of the random numbers of a generation."""
    source, _, kept_by = seed.rpartition("@")
    return source if kept_by == str(generation) else f"{seed}:{generation}"


def root_generation(seed: str, generation: int) -> int:
    """The generation with an empty history that this one continues, by being reopened any number of times."""
    if generation == 1 and "@" not in seed:
        return 1
    return int(random_source(seed, generation).rpartition(":")[2])


def kept_seed(seed: str, generation: int, by: int) -> str:
    """Seed that gives generation `by` the random numbers of `generation`; empty for a run that was never claimed."""
    return f"{random_source(seed, generation)}@{by}" if seed else ""
