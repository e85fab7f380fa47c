"""Watermarks: once enough runs of a queue or type are waiting, starts are refused or wait."""

from __future__ import annotations

from msgspec import Struct

from perdure.core.ids import check_name
from perdure.core.option_checks import check_whole
from perdure.core.printed_text import brief
from perdure.errors import UsageError

REFUSE = "refuse"
WAIT = "wait"

#: Prefix of the audit trail's run id for events of a watermark.
TRAIL = "watermark:"


class Watermark(Struct, frozen=True, kw_only=True):
    """A bound on the waiting runs of a queue or type.

    Once `high` runs are ready and waiting, starts are refused (`Overloaded`) or wait, until fewer than `low` are
    waiting. `low` is four fifths of `high` by default. `when_full` is "refuse" or "wait".
    """

    high: int
    low: int | None = None
    when_full: str = REFUSE
    queue: str | None = None
    type: str | None = None

    def __post_init__(self) -> None:
        if (self.queue is None) == (self.type is None):
            raise UsageError("a watermark is of a queue or of a type: give one of them")
        check_name(self.name, self.kind)
        if self.when_full not in (REFUSE, WAIT):
            raise UsageError(f"when_full={brief(self.when_full)}: give {REFUSE!r} or {WAIT!r}")
        check_whole("high", self.high, 1)
        if self.low is not None:
            check_whole("low", self.low, 1)
        if not 0 < self.floor <= self.high:
            raise UsageError(f"high={self.high}, low={self.low}: low is between 1 and high")

    @property
    def kind(self) -> str:
        """Kind of the watermark: `queue` or `type`."""
        return "type" if self.queue is None else "queue"

    @property
    def name(self) -> str:
        """Name of the queue or type."""
        return (self.type or "") if self.queue is None else self.queue

    @property
    def floor(self) -> int:
        """Number of waiting runs below which starts resume."""
        return max(1, self.high * 4 // 5) if self.low is None else self.low
