"""How long runs are kept, and what is deleted."""

from __future__ import annotations

from msgspec import Struct

from perdure.core.model.run import Status
from perdure.core.time.duration import Duration, microseconds
from perdure.errors import UsageError


class PruneRequest(Struct, frozen=True, kw_only=True):
    """Which finished runs are to be deleted for good."""

    #: Finished before this time; with `deleted`, those that were deleted before it.
    before: int
    statuses: tuple[Status, ...] | None = None
    #: Exact, or the beginning of one with a `%` behind it.
    types: tuple[str, ...] | None = None
    #: Only those that were deleted, by when they were.
    deleted: bool = False
    #: Only these; none of them goes on to a next batch.
    ids: tuple[str, ...] | None = None


class PruneResult(Struct, frozen=True, kw_only=True):
    """What one batch came to."""

    #: How many runs were deleted, their families included.
    runs: int
    #: How many were left because somebody may still need them.
    spared: int
    #: Where to go on; None: everything was looked at.
    cursor: str | None


class Retention(Struct, frozen=True, kw_only=True):
    """How long runs are kept after their end, by their outcome, or after they were deleted, and events; None: for ever.

    A family goes together: children stay for as long as their parent does, and go with it.
    """

    completed: Duration | None = None
    failed: Duration | None = None
    cancelled: Duration | None = None
    deleted: Duration | None = None
    #: Lines of the audit trail, also of runs that stay.
    events: Duration | None = None

    @classmethod
    def of(cls, value: Retention | Duration | None) -> Retention | None:
        """From what a user writes; one duration is for all. Raises `UsageError` and `InvalidDuration`."""
        if value is None:
            return None
        if not isinstance(value, Retention):
            value = cls(completed=value, failed=value, cancelled=value, deleted=value)
        for name in value.__struct_fields__:
            limit = getattr(value, name)
            if limit is not None and microseconds(limit) <= 0:
                raise UsageError(f"retention: {name}={limit!r} keeps nothing at all; give a time such as '30d'")
        return value

    def oldest_event(self, now: int) -> int | None:
        """Which events stay at a time; None: all."""
        return None if self.events is None else now - microseconds(self.events)

    def rules(self, now: int) -> list[PruneRequest]:
        """What is to go at a time, each rule by itself."""
        kept = ((Status.COMPLETED, self.completed), (Status.FAILED, self.failed), (Status.CANCELLED, self.cancelled))
        rules = [
            PruneRequest(before=now - microseconds(limit), statuses=(status,))
            for status, limit in kept
            if limit is not None
        ]
        if self.deleted is not None:
            rules.append(PruneRequest(before=now - microseconds(self.deleted), deleted=True))
        return rules
