"""Schedules, as stored: timing, policies for missed and overlapping fire times, and the ids of their runs.

The id of a run contains the schedule and the fire time, so no fire time starts two runs. The jitter of a fire time
follows from both as well, so every process computes the same.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from enum import StrEnum

from msgspec import MsgspecError, Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.ids import check_id
from perdure.core.model.headers import Headers, readable_headers
from perdure.core.model.run import DEFAULT_PRIORITY, DEFAULT_QUEUE, Status
from perdure.core.printed_text import brief
from perdure.core.time.cron import Timing, Window, window_from_stored
from perdure.core.time.duration import NEVER, Duration, microseconds, moment_of
from perdure.errors import InvalidSchedule

#: Prefix of the audit trail's run id for events of a schedule itself.
TRAIL = "schedule:"
#: Most fire times that wait for an earlier run to end.
LONGEST_QUEUE = 100
#: Largest number of missed fire times that a policy may name, other than all.
MOST_MISSED = 10_000


class Overlap(StrEnum):
    """Policy for a fire time while the schedule's last run has not ended."""

    ALLOW = "allow"
    SKIP = "skip"
    #: It waits until that run has ended; at most a hundred wait, further ones are skipped.
    QUEUE = "queue"
    #: That run is cancelled, and the new one starts when it has ended.
    CANCEL = "cancel"


class Misfire(Struct, frozen=True):
    """Policy for fire times that were missed while no worker ran: the latest `limit` are caught up on; None for all."""

    limit: int | None = 1
    #: Seconds of lateness after which a fire time counts as missed.
    grace: float = 60.0
    #: Seconds after which a missed fire time is not caught up on; None: any age.
    within: float | None = None

    @classmethod
    def of(
        cls, policy: Misfire | str | int = "once", *, grace: Duration = 60.0, within: Duration | None = None
    ) -> Misfire:
        """Make a policy from `skip`, `once`, `all`, or a number. Raises `InvalidSchedule`."""
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
                    f"misfire={brief(policy)} is not a policy; give 'skip', 'once', 'all' or a number up to "
                    f"{MOST_MISSED}"
                )
        return cls(
            limit=limit,
            grace=microseconds(grace) / 1e6,
            within=None if within is None else microseconds(within) / 1e6,
        )


class Schedule(Struct, frozen=True, kw_only=True):
    """A schedule, as stored: starts runs at its fire times. The field names are the names of the columns.

    Times are microseconds since the epoch, UTC.
    """

    id: str
    #: JSON of the timing with its bounds and skipped dates; `timing` and `window` are the same as values.
    spec: str
    #: Type and input of its runs, and their settings.
    type: str
    input: str = "{}"
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    #: Longest duration of a run, in microseconds; 0: no limit.
    deadline: int = 0
    #: Longest wait for the start in microseconds, number of attempts, and JSON of other settings of the call.
    start_within: int = 0
    max_attempts: int = 0
    options: str = "{}"
    #: JSON of the attributes of its runs.
    attributes: str = "{}"
    #: Largest random delay of a fire time, in microseconds; always the same for the same fire time.
    jitter: int = 0
    misfire: Misfire = Misfire()
    overlap: Overlap = Overlap.SKIP
    paused: bool = False
    #: Reason of the pause, for people.
    reason: str = ""
    #: First fire time that has not been handled, and time when the schedule is planned next; `NEVER` for never.
    next_fire_time: int = NEVER
    due_at: int = NEVER
    #: Fire times that wait for the last run to end.
    waiting: tuple[int, ...] = ()
    #: Last fire time that started a run, and the last run, started by the schedule or by hand.
    last_fire_time: int = 0
    last_run: str = ""
    #: Error in planning the schedule; empty if there is none.
    error: str = ""
    created_at: int = 0
    changed_at: int = 0
    #: Raised by each write.
    version: int = 0

    @property
    def timing(self) -> Timing:
        """The timing as a value. Raises `InvalidSchedule` if this machine does not know its time zone."""
        return self.window.timing

    @property
    def window(self) -> Window:
        """The timing with `starts`, `ends` and the skipped dates. Raises `InvalidSchedule`, as `timing`."""
        return window_from_stored(self.spec)

    @property
    def headers(self) -> Headers:
        """Headers of its runs; none if they cannot be read."""
        return readable_headers(self.options)

    @property
    def trail(self) -> str:
        """Run id of its events in the audit trail."""
        return trail_of(self.id)

    def due(self, fire_time: int) -> int:
        """Time when a fire time is due, with its jitter."""
        if fire_time >= NEVER or self.jitter == 0:
            return fire_time
        drawn = hashlib.sha256(f"{self.id}\0{fire_time}".encode()).digest()[:8]
        return min(NEVER, fire_time + int.from_bytes(drawn, "big") % (self.jitter + 1))


class SaveOutcome(StrEnum):
    """Answer to a write of a schedule."""

    DONE = "done"
    #: The schedule has changed since it was read, is gone, or exists already; nothing was written.
    CONFLICT = "conflict"


class FiringResult(Struct, frozen=True, kw_only=True):
    """Result of firing the schedules that are due."""

    #: Ids of the runs that were started.
    runs: tuple[str, ...]
    #: Time when the next schedule is due; `NEVER` if there is none.
    next_due: int


class Fire(Struct, frozen=True, kw_only=True):
    """A fire time of a schedule in the past: its run, or why it was skipped."""

    #: The fire time, in microseconds since the epoch; of a range that was skipped, its last.
    at: int
    #: First fire time of a range that was skipped; 0: one fire time.
    since: int = 0
    #: Its run; empty if it was skipped.
    run_id: str = ""
    status: Status | None = None
    #: Time of the run's outcome; 0 before that.
    finished_at: int = 0
    #: Reason why it was skipped, such as `overlap` or `missed`.
    skipped: str = ""


class ScheduledRun(Struct, frozen=True, kw_only=True):
    """A run of a schedule, with times in the time zone of the schedule."""

    run_id: str
    status: Status
    #: None if it was started by hand.
    fire_time: datetime | None
    created_at: datetime
    #: None before that.
    started_at: datetime | None
    finished_at: datetime | None


class BackfillPreview(Struct, frozen=True, kw_only=True):
    """Fire times that a backfill would start runs for."""

    #: Number of fire times in the range, and of those that have no run yet.
    fire_times: int
    missing: int
    #: The first ten of the latter.
    first: tuple[datetime, ...]


class _SkippedData(Struct, frozen=True, rename={"first": "from", "last": "to"}):
    """Data of an event of the kind `schedule_passed`."""

    first: int
    last: int
    reason: str = ""


_skipped_decoder = decoder_for(_SkippedData)


def skipped_fire(data: str) -> list[Fire]:
    """Decode the data of an event of the kind `schedule_passed`; nothing if it cannot be read."""
    try:
        found = _skipped_decoder.decode(data)
    except MsgspecError:
        return []
    since = found.first if found.first < found.last else 0
    return [Fire(at=found.last, since=since, skipped=found.reason)]


def trail_of(schedule_id: str) -> str:
    """Run id of a schedule's events in the audit trail."""
    return f"{TRAIL}{schedule_id}"


def run_id_of(schedule_id: str, fire_time: int) -> str:
    """Id of the run of a fire time."""
    return f"{schedule_id}@{moment_of(fire_time).isoformat().replace('+00:00', 'Z')}"


def fire_time_of(run_id: str) -> datetime | None:
    """Fire time of a run that a schedule started, from the run's id; None for any other run."""
    _, found, moment = check_id(run_id).rpartition("@")
    try:
        fire_time = datetime.fromisoformat(moment) if found else None
    except ValueError:
        return None
    return fire_time if fire_time is not None and fire_time.utcoffset() is not None else None
