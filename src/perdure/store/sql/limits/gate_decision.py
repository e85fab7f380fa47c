"""The decision of one gate, made while it is locked: what may pass now, and what has passed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from perdure.core.codec.decoders import decoder_for
from perdure.core.limits.breaker import BreakerRule, BreakerState, Circuit
from perdure.core.limits.limit import LimitBounds
from perdure.core.time.duration import NEVER
from perdure.store.sql.dialect import Row
from perdure.store.sql.rows import UNREADABLE, unreadable

#: A full gate is re-examined after this many microseconds even if no release is announced.
BACKSTOP = 15_000_000

#: A turn past this one cannot be: as many have never passed.
LAST_TURN = 2**61

COLUMNS = "name, concurrency, pace, burst, override, arrival, turn, due_at, waits_for, breaker"

_bounds = decoder_for(LimitBounds)

T = TypeVar("T")

_log = logging.getLogger("perdure.store")


class GateState:
    """State of a locked gate: its bounds, its breaker, and the permits that count."""

    def __init__(self, row: Row) -> None:
        name, concurrency, pace, burst, override, arrival, turn, due_at, waits_for, breaker = row
        self.name: str = name
        self.arrival: int = arrival
        self.turn: int = min(turn, LAST_TURN)
        self.due_at: int = due_at
        self.waits_for: str = waits_for
        self.declared = LimitBounds(concurrency, pace, burst)
        self.breaker: BreakerState | None = None
        self.override: LimitBounds | None = None
        #: By column, what cannot be read. Nothing passes until a person sets anew what holds.
        self.problems: dict[str, str] = {}
        self._breaker_text: str = breaker
        self._attempt("concurrency, pace, burst", lambda: check_bounds(self.declared))
        if override:
            self.override = self._attempt("override", lambda: to_bounds(override))
        if breaker:
            self.breaker = self._attempt("breaker", lambda: BreakerState.from_json(breaker))
        self.bounds = self.override or self.declared
        self.held = 0
        #: Its waitlist is not empty.
        self.waited_at = self.due_at < NEVER
        self.changed = False

    @property
    def problem(self) -> str:
        """Why it is set aside; empty: it is not."""
        return next(iter(self.problems.values()), "")

    def _attempt(self, column: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except UNREADABLE as error:
            self.problems[column] = str(unreadable("perdure_gates", f"name {self.name!r}, {column}", error))
            return None

    def declare(self, bounds: LimitBounds) -> None:
        """Apply the bounds that the code declares."""
        if bounds != LimitBounds() and "concurrency, pace, burst" in self.problems:
            del self.problems["concurrency, pace, burst"]
            self.changed = True
        if bounds != self.declared and bounds != LimitBounds():
            self.declared = bounds
            self.bounds = self.override or bounds
            self.changed = True

    def guard(self, rule: BreakerRule) -> BreakerState:
        """Apply the breaker rule that the code declares."""
        if self.breaker is None:
            self.breaker = BreakerState()
            self.changed = True
        self.changed |= self.breaker.declare(rule)
        return self.breaker

    def mend(self, column: str) -> None:
        """Forget that a column could not be read: a person has set anew what holds."""
        self.problems.pop(column, None)

    @property
    def counts(self) -> bool:
        """True if the number of permits matters."""
        half_open = self.breaker is not None and self.breaker.circuit is Circuit.HALF_OPEN
        return half_open or self.bounds.concurrency > 0

    @property
    def remembers(self) -> bool:
        """True if a permit changes the next admission."""
        return self.counts or self.bounds.pace > 0

    def has_room(self, now: int) -> bool:
        """True if one more may pass now."""
        return self.lacks(now) == ""

    def lacks(self, now: int) -> str:
        """Cause that the next run would wait for; empty if it may pass."""
        if self.problem:
            return "open"
        if self.breaker is not None and (lacks := self.breaker.lacks(self.held)):
            return lacks
        if self.bounds.concurrency and self.held >= self.bounds.concurrency:
            return "room"
        # Further ahead than its slack and one more it cannot be, unless a clock was set back or the row is damaged.
        self.arrival = min(self.arrival, now + self.bounds.slack + self.bounds.pace)
        return "rate" if self.bounds.ready_at(self.arrival) > now else ""

    def let_pass(self, now: int) -> None:
        """One passes."""
        self.held += 1
        # A breaker that is closed stays as it is, so that what passes costs no write.
        self.changed |= self.breaker is None or self.bounds != LimitBounds()
        if self.bounds.pace:
            self.arrival = max(self.arrival, now) + self.bounds.pace

    def settle(self, now: int, *, waited_at: bool) -> None:
        """Say when it is worth looking again."""
        lacks = self.lacks(now) if waited_at else ""
        due = NEVER
        if waited_at and self.problem:
            _log.error("the gate %s is set aside and lets nothing pass: %s", self.name, self.problem)
            # The row itself may be mended.
            due = now + BACKSTOP
        elif waited_at:
            due = {"": now, "room": now + BACKSTOP, "open": self._until}.get(lacks, self.bounds.ready_at(self.arrival))
        if (due, lacks) != (self.due_at, self.waits_for):
            self.due_at, self.waits_for, self.changed = due, lacks, True

    @property
    def _until(self) -> int:
        return NEVER if self.breaker is None else self.breaker.until

    def row(self) -> dict[str, object]:
        """As it is saved."""
        return {
            "name": self.name,
            "concurrency": self.declared.concurrency,
            "pace": self.declared.pace,
            "burst": self.declared.burst,
            "arrival": self.arrival,
            "turn": self.turn,
            "due_at": self.due_at,
            "waits_for": self.waits_for,
            "breaker": self._breaker_text
            if "breaker" in self.problems
            else ""
            if self.breaker is None
            else self.breaker.to_json(),
        }


def to_bounds(text: str) -> LimitBounds | None:
    """Bounds as a column has them."""
    return check_bounds(_bounds.decode(text)) if text else None


def check_bounds(bounds: LimitBounds) -> LimitBounds:
    """Give back bounds that make sense. Raises `ValueError`."""
    if not (0 <= bounds.concurrency < 2**31 and 0 <= bounds.pace < NEVER and 1 <= bounds.burst < 2**31):
        raise ValueError(f"no bounds: {bounds!r}")
    return bounds
