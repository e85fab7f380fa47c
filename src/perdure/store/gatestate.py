"""A gate while it is locked: what may pass, and what has."""

from __future__ import annotations

from perdure.core.breakers import BreakerRule, BreakerState, Circuit
from perdure.core.decoders import decoder_for
from perdure.core.gates import Bounds
from perdure.core.model import FAR
from perdure.store.dialect import Row

#: When to look again at a gate that waits for others to make room, should nobody tell, in microseconds.
BACKSTOP = 15_000_000

COLUMNS = "name, concurrency, pace, burst, override, arrival, turn, due_at, waits_for, breaker"

_bounds = decoder_for(Bounds)


class GateState:
    """See the module."""

    def __init__(self, row: Row) -> None:
        name, concurrency, pace, burst, override, arrival, turn, due_at, waits_for, breaker = row
        self.name: str = name
        self.arrival: int = arrival
        self.turn: int = turn
        self.due_at: int = due_at
        self.waits_for: str = waits_for
        self.declared = Bounds(concurrency, pace, burst)
        self.override = to_bounds(override)
        self.bounds = self.override or self.declared
        self.breaker = BreakerState.from_json(breaker) if breaker else None
        self.held = 0
        #: Somebody stands in its line.
        self.waited_at = self.due_at < FAR
        self.changed = False

    def declare(self, bounds: Bounds) -> None:
        """What the code says now."""
        if bounds != self.declared and bounds != Bounds():
            self.declared = bounds
            self.bounds = self.override or bounds
            self.changed = True

    def guard(self, rule: BreakerRule) -> BreakerState:
        """What the code says now about its breaker."""
        if self.breaker is None:
            self.breaker = BreakerState()
            self.changed = True
        self.changed |= self.breaker.declare(rule)
        return self.breaker

    @property
    def counts(self) -> bool:
        """Whether it matters how many have passed."""
        half_open = self.breaker is not None and self.breaker.circuit is Circuit.HALF_OPEN
        return half_open or self.bounds.concurrency > 0

    @property
    def remembers(self) -> bool:
        """Whether one that has passed makes a difference to the next."""
        return self.counts or self.bounds.pace > 0

    def has_room(self, now: int) -> bool:
        """Whether one more may pass now."""
        return self.lacks(now) == ""

    def lacks(self, now: int) -> str:
        """What the next one would have to wait for; nothing if it may pass."""
        if self.breaker is not None and (lacks := self.breaker.lacks(self.held)):
            return lacks
        if self.bounds.concurrency and self.held >= self.bounds.concurrency:
            return "room"
        return "rate" if self.bounds.ready_at(self.arrival) > now else ""

    def let_pass(self, now: int) -> None:
        """One passes."""
        self.held += 1
        # A breaker that is closed stays as it is, so that what passes costs no write.
        self.changed |= self.breaker is None or self.bounds != Bounds()
        if self.bounds.pace:
            self.arrival = max(self.arrival, now) + self.bounds.pace

    def settle(self, now: int, *, waited_at: bool) -> None:
        """Say when it is worth looking again."""
        lacks = self.lacks(now) if waited_at else ""
        due = FAR
        if waited_at:
            due = {"": now, "room": now + BACKSTOP, "open": self._until}.get(lacks, self.bounds.ready_at(self.arrival))
        if (due, lacks) != (self.due_at, self.waits_for):
            self.due_at, self.waits_for, self.changed = due, lacks, True

    @property
    def _until(self) -> int:
        return FAR if self.breaker is None else self.breaker.until

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
            "breaker": "" if self.breaker is None else self.breaker.to_json(),
        }


def to_bounds(text: str) -> Bounds | None:
    """Bounds as a column has them."""
    return _bounds.decode(text) if text else None
