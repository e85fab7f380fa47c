"""The audit trail: events, levels, and which kinds of events each level writes.

Each writing process chooses its own level; processes with different levels may share a database. Nothing in Perdure
depends on events: neither replay, nor leases, nor repeated requests.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.printed_text import brief
from perdure.errors import UsageError

#: Kinds of events that repeat for one run without changing its story.
REPEATED = frozenset(
    {
        "claimed", "parked", "heartbeat", "lock_extended",
        "timer_started", "timer_fired", "timer_cancelled", "child_started", "child_completed", "child_failed",
    }
)  # fmt: skip
#: Longest error message or heartbeat details that an event keeps, in characters.
LONGEST_DETAIL = 500
#: A run is next in line, and there is room for it. Sent to listeners, written at no level.
NEXT = "next"


class Audit(StrEnum):
    """Level of the audit trail; each one includes the next."""

    #: Every event.
    FULL = "full"
    #: Events of a run's life cycle, without those that only repeat.
    LIFECYCLE = "lifecycle"
    OFF = "off"

    def writes(self, kind: str) -> bool:
        """Tell whether events of this kind are written."""
        return kind != NEXT and (self is _FULL or (self is _LIFECYCLE and kind not in REPEATED))

    @classmethod
    def of(cls, name: str) -> Audit:
        """Parse the name of a level. Raises `UsageError`."""
        if isinstance(name, str) and name in tuple(cls):
            return cls(name)
        raise UsageError(f"audit is one of {', '.join(cls)}, not {brief(name)}")


# Members of an enum are slow to find by their class, and these are compared for every event.
_FULL, _LIFECYCLE = Audit.FULL, Audit.LIFECYCLE


def error_summary(failure: str | None) -> dict[str, str]:
    """Type and message of an error, kept because a run stores only its latest one."""
    try:
        known = msgspec.json.decode(failure or "{}", type=dict[str, Any])
    except msgspec.MsgspecError as broken:
        # The trail is for people; what is wrong with an error must not keep its run from ending.
        known = {"message": f"its error cannot be read: {broken}"}
    text = str(known.get("message", ""))
    shown = text if len(text) <= LONGEST_DETAIL else f"{text[:LONGEST_DETAIL]}…"
    return {"error": str(known.get("type", "")), "message": shown}


class Event(Struct, frozen=True, kw_only=True):
    """An event of the audit trail, for people; replay never reads it."""

    id: int
    run_id: str
    at: int
    kind: str
    #: Worker or client that caused the event.
    actor: str
    #: Details, as a JSON object.
    data: str


class EventFilter(Struct, frozen=True, kw_only=True):
    """Filter of a listing of events. None means any."""

    run_id: str | None = None
    kinds: tuple[str, ...] | None = None
    #: Type of the run.
    type: str | None = None
    actor: str | None = None
    #: Bounds of the time, the first inclusive, in microseconds since the epoch.
    since: int | None = None
    until: int | None = None


class EventPage(Struct, frozen=True):
    """A page of events, newest first; pass `cursor` for the next page, None at the end."""

    events: tuple[Event, ...]
    cursor: int | None
