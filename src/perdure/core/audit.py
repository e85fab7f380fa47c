"""How much the audit trail is told: the one place that knows which kinds of events belong to which level.

The level is the choice of whoever writes; several may share a database. Nothing in Perdure depends on events: not replay, not a
lease, not a repeated request.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.errors import UsageError

#: What repeats for one run without changing what a person would ask about.
REPEATED = frozenset({"claimed", "parked", "heartbeat", "lock_extended"})
#: A run is next in line, and there is room for it. Only for those who listen, at no level written.
NEXT = "next"


class Audit(StrEnum):
    """A level of the audit trail; each holds what the next one does."""

    #: Everything.
    FULL = "full"
    #: What happens to a run, but for what only repeats.
    LIFECYCLE = "lifecycle"
    OFF = "off"

    def writes(self, kind: str) -> bool:
        """Whether events of this kind are written."""
        return kind != NEXT and (self is _FULL or (self is _LIFECYCLE and kind not in REPEATED))

    @classmethod
    def of(cls, name: str) -> Audit:
        """The level of that name. Raises `UsageError`."""
        try:
            return cls(name)
        except ValueError:
            raise UsageError(f"audit is one of {', '.join(cls)}, not {name!r}") from None


# A member of an enum is slow to find by its class; these are looked at for every event.
_FULL, _LIFECYCLE = Audit.FULL, Audit.LIFECYCLE


class Event(Struct, frozen=True, kw_only=True):
    """A line of the audit trail, for people; never read by replay."""

    id: int
    run_id: str
    at: int
    kind: str
    #: The worker or client that caused it.
    actor: str
    #: JSON object.
    data: str


class EventFilter(Struct, frozen=True, kw_only=True):
    """Which events to list. None means any."""

    run_id: str | None = None
    kinds: tuple[str, ...] | None = None
    #: Of runs of this type.
    type: str | None = None
    actor: str | None = None
    #: Not before, and before, in microseconds since the epoch.
    since: int | None = None
    until: int | None = None


class EventPage(Struct, frozen=True):
    """Some events, the newest first, and where to go on; None at the end."""

    events: tuple[Event, ...]
    cursor: int | None
