"""Retention of finished runs and events, and requests to prune them."""

from __future__ import annotations

from msgspec import Struct

from perdure.core.model.run import Status
from perdure.core.printed_text import brief
from perdure.core.time.duration import Duration, microseconds
from perdure.errors import UsageError


class PruneRequest(Struct, frozen=True, kw_only=True):
    """Request to delete finished runs for good."""

    #: Runs that finished before this time; with `deleted`, that were deleted before it.
    before: int
    statuses: tuple[Status, ...] | None = None
    #: Exact types, or beginnings of types followed by `%`.
    types: tuple[str, ...] | None = None
    #: Only deleted runs, by the time of their deletion.
    deleted: bool = False
    #: Only these runs, in one batch.
    ids: tuple[str, ...] | None = None


class PruneResult(Struct, frozen=True, kw_only=True):
    """Result of one batch of pruning."""

    #: Number of runs that were deleted, including their descendants.
    runs: int
    #: Number of runs that were kept because other runs may still need them.
    spared: int
    #: Position of the next batch; None: this was the last one.
    cursor: str | None


class Retention(Struct, frozen=True, kw_only=True):
    """Time for which runs are kept after their end, by outcome, or after their deletion, and events; None: for ever.

    Children stay for as long as their parent, and are deleted with it.
    """

    completed: Duration | None = None
    failed: Duration | None = None
    cancelled: Duration | None = None
    deleted: Duration | None = None
    #: Events of the audit trail, including those of runs that stay.
    events: Duration | None = None

    @classmethod
    def of(cls, value: Retention | Duration | None) -> Retention | None:
        """Make a retention; one duration applies to all outcomes. Raises `UsageError` and `InvalidDuration`."""
        if value is None:
            return None
        if not isinstance(value, Retention):
            value = cls(completed=value, failed=value, cancelled=value, deleted=value)
        for name in value.__struct_fields__:
            limit = getattr(value, name)
            if limit is not None and microseconds(limit) <= 0:
                raise UsageError(f"retention: {name}={brief(limit)} keeps nothing; give a duration such as '30d'")
        return value

    def oldest_event(self, now: int) -> int | None:
        """Time before which events are deleted; None: never."""
        return None if self.events is None else now - microseconds(self.events)

    def rules(self, now: int) -> list[PruneRequest]:
        """Requests to prune what has expired at a time, one for each rule."""
        kept = ((Status.COMPLETED, self.completed), (Status.FAILED, self.failed), (Status.CANCELLED, self.cancelled))
        rules = [
            PruneRequest(before=now - microseconds(limit), statuses=(status,))
            for status, limit in kept
            if limit is not None
        ]
        if self.deleted is not None:
            rules.append(PruneRequest(before=now - microseconds(self.deleted), deleted=True))
        return rules
