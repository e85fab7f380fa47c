"""How much may wait in a queue, or of a type, before producers are held back."""

from __future__ import annotations

from msgspec import Struct

from perdure.core.ids import check_name
from perdure.core.option_checks import check_whole
from perdure.errors import UsageError

REFUSE = "refuse"
WAIT = "wait"

#: Lines of the audit trail about a watermark are kept under this, its kind and its name.
TRAIL = "watermark:"


class Watermark(Struct, frozen=True, kw_only=True):
    """From `high` runs that are ready and wait, on a queue or of a type, starts are refused (`Overloaded`) or wait, until fewer than `low` do.

    `low` is four fifths of `high` by default. `when_full` is "refuse" or "wait".
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
            raise UsageError(f"when_full={self.when_full!r}: say {REFUSE!r} or {WAIT!r}")
        check_whole("high", self.high, 1)
        if self.low is not None:
            check_whole("low", self.low, 1)
        if not 0 < self.floor <= self.high:
            raise UsageError(f"high={self.high}, low={self.low}: low is between 1 and high")

    @property
    def kind(self) -> str:
        """What it is of: `queue` or `type`."""
        return "type" if self.queue is None else "queue"

    @property
    def name(self) -> str:
        """The queue or the type."""
        return (self.type or "") if self.queue is None else self.queue

    @property
    def floor(self) -> int:
        """Starts go on when fewer runs than this wait."""
        return max(1, self.high * 4 // 5) if self.low is None else self.low
