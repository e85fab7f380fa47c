"""Runs that go again, and forks: the requests, their answers, and the random seeds of generations.

A reopened run is the same run. It keeps its random numbers, so that the arguments of recorded operations are the same,
and it keeps its root generation, from which the ids of its children and the keys of its messages follow. The seed is
stored as `source@generation`, which names the generation that uses the source.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.model.record import Record
from perdure.core.model.run import NewRun


class RetryRequest(Struct, frozen=True, kw_only=True):
    """Request to let a run go again, with changes; None leaves a value as it is."""

    run_id: str
    #: Token that the run was read with; identifies a repeated request.
    token: int
    #: True for an activity, which begins anew; None: unknown, its history decides.
    is_activity: bool | None = None
    input: str | None = None
    options: str | None = None
    max_attempts: int | None = None
    deadline: int | None = None
    #: Like `Run.close_by`; used with `deadline`.
    close_by: int = 0
    queue: str | None = None
    priority: int | None = None

    @property
    def changes(self) -> bool:
        """True if the run is to be changed."""
        values = (self.input, self.options, self.max_attempts, self.deadline, self.queue, self.priority)
        return any(value is not None for value in values)


class RetryCause(StrEnum):
    """State from which a run goes again; it decides what follows."""

    #: Failed or cancelled: it goes on as its next generation.
    ENDED = "ended"
    #: Blocked: it is claimed again where it was.
    BLOCKED = "blocked"
    #: Waiting or pending after a failed attempt: it gets all attempts anew, at once.
    FAILING = "failing"


class RetryOutcome(StrEnum):
    """Answer to a `RetryRequest`."""

    #: The run is open, by this request or by an earlier equal one.
    OPEN = "open"
    #: Another request has let it go meanwhile, with another input or other options.
    OTHERWISE = "otherwise"
    COMPLETED = "completed"
    #: It goes on by itself, or it is to be changed and is neither ended nor a dead letter.
    ALIVE = "alive"
    #: Its deadline has passed, and no new one was given.
    EXPIRED = "expired"
    #: It has a history, which a new input would not fit.
    BEGUN = "begun"
    #: It was deleted, and has to be restored first.
    DELETED = "deleted"
    UNKNOWN = "unknown"


class RetryResult(Struct, frozen=True):
    """Outcome of a `RetryRequest`, and the generation of the run."""

    outcome: RetryOutcome
    generation: int = 0


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
