"""A schedule as the database has it, what becomes of slots that were missed or that overlap, and the names of its runs.

A slot's run has the schedule and the slot in its id, so that the same slot can never have two. The jitter of a slot follows from both as
well: whoever computes it comes to the same.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from perdure.core.model.run import DEFAULT_PRIORITY, DEFAULT_QUEUE
from perdure.core.time.cron import Timing, from_stored
from perdure.core.time.duration import FAR, Duration, microseconds, moment_of
from perdure.errors import InvalidSchedule

#: Lines of the audit trail about a schedule, and not about a run of it, are kept under this and its id.
TRAIL = "schedule:"
#: Slots that wait for an earlier run to end, at most.
LONGEST_QUEUE = 100
#: The most missed slots that may be asked for, other than all.
MOST_MISSED = 10_000


class Overlap(StrEnum):
    """What becomes of a slot while the schedule's last run has not ended."""

    ALLOW = "allow"
    SKIP = "skip"
    #: It waits until that run has ended; a hundred slots at most, further ones are skipped.
    QUEUE = "queue"
    #: That run is cancelled, and the slot's begins when it has ended.
    CANCEL = "cancel"


class Misfire(Struct, frozen=True):
    """What becomes of slots that nobody was there for: how many of them are made up for, the latest ones; None for all."""

    limit: int | None = 1
    #: A slot counts as missed when it is later than this, in seconds.
    grace: float = 60.0
    #: What is older than this, in seconds, is not made up for; None for any age.
    within: float | None = None

    @classmethod
    def of(
        cls, policy: Misfire | str | int = "once", *, grace: Duration = 60.0, within: Duration | None = None
    ) -> Misfire:
        """From what a user writes: `skip`, `once`, `all`, or how many. Raises `InvalidSchedule`."""
        if isinstance(policy, Misfire):
            return policy
        limit: int | None
        match policy:
            case "skip" | "once" | "all":
                limit = {"skip": 0, "once": 1, "all": None}[policy]
            case int() if not isinstance(policy, bool) and 0 <= policy <= MOST_MISSED:
                limit = policy
            case _:
                raise InvalidSchedule(
                    f"misfire={policy!r} is no policy; say 'skip', 'once', 'all' or a number up to {MOST_MISSED}"
                )
        return cls(
            limit=limit,
            grace=microseconds(grace) / 1e6,
            within=None if within is None else microseconds(within) / 1e6,
        )


class Schedule(Struct, frozen=True, kw_only=True):
    """Something that is run again and again, or once, by the clock. Times are microseconds since the epoch, UTC."""

    id: str
    #: When, as JSON; `timing` is the same as a value.
    spec: str
    #: What is run: a workflow's type and the JSON of its arguments, and how.
    type: str
    input: str = "{}"
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    #: How long a run may take from its start, in microseconds; 0 for ever.
    deadline: int = 0
    #: How soon it has to be begun, in microseconds, how often it may be tried, and what else differs from what its code says.
    start_within: int = 0
    max_attempts: int = 0
    options: str = "{}"
    #: Each slot is late by up to this, in microseconds, always by the same for the same slot.
    jitter: int = 0
    misfire: Misfire = Misfire()
    overlap: Overlap = Overlap.SKIP
    paused: bool = False
    #: Why it is paused, for people.
    reason: str = ""
    #: The first slot that has not been dealt with, and when it is to be looked at next; `FAR` for never.
    next_slot: int = FAR
    due_at: int = FAR
    #: Slots that wait for the last run to end.
    waiting: tuple[int, ...] = ()
    #: The slot that last became a run, and the run that was last started by it or by hand.
    last_slot: int = 0
    last_run: str = ""
    #: What keeps it from being computed; empty if nothing does.
    error: str = ""
    created_at: int = 0
    changed_at: int = 0
    #: Raised by every write to it.
    version: int = 0

    @property
    def timing(self) -> Timing:
        """When it runs. Raises `InvalidSchedule` where this machine does not know its time zone."""
        return from_stored(self.spec)

    @property
    def trail(self) -> str:
        """Where its lines of the audit trail are kept."""
        return trail_of(self.id)

    def due(self, slot: int) -> int:
        """When a slot is to be run, with its jitter."""
        if slot >= FAR or self.jitter == 0:
            return slot
        drawn = hashlib.sha256(f"{self.id}\0{slot}".encode()).digest()[:8]
        return min(FAR, slot + int.from_bytes(drawn, "big") % (self.jitter + 1))


class SaveOutcome(StrEnum):
    """The answer to writing a schedule."""

    DONE = "done"
    #: It is not as it was when it was looked at, or not there, or there already; nothing was written.
    CONFLICT = "conflict"


class FiringResult(Struct, frozen=True, kw_only=True):
    """What looking after schedules came to."""

    #: The runs that were started.
    runs: tuple[str, ...]
    #: When a schedule is due next; `FAR` if none is.
    next_due: int


def trail_of(schedule_id: str) -> str:
    """Where the lines of the audit trail about a schedule are kept."""
    return f"{TRAIL}{schedule_id}"


def run_id_of(schedule_id: str, slot: int) -> str:
    """The id of the run of a slot."""
    return f"{schedule_id}@{moment_of(slot).isoformat().replace('+00:00', 'Z')}"


def fire_time_of(run_id: str) -> datetime | None:
    """The slot of a run that a schedule started, by the run's id; None if it was started by hand or by somebody else."""
    _, found, moment = run_id.rpartition("@")
    try:
        slot = datetime.fromisoformat(moment) if found else None
    except ValueError:
        return None
    return slot if slot is not None and slot.utcoffset() is not None else None
