"""How long to wait for the server before it counts as lost: less than a lease, so that whoever holds one finds out in time.

The server is told as well, so that it does not go on with what nobody waits for, nor keeps the rows of somebody who has gone
without a word.
"""

from __future__ import annotations

from msgspec import Struct

#: The part of a lease that a statement may take, and the shortest time that is worth trying, in seconds.
_SHARE = 0.8
_SHORTEST = 1.0


class Timeouts(Struct, frozen=True):
    """In seconds."""

    statement: float = 12.0
    connect: float = 5.0
    lock: float = 2.0

    def within(self, lease: float) -> Timeouts:
        """For somebody who holds a lease of so many seconds."""
        statement = min(self.statement, max(_SHORTEST, _SHARE * lease))
        return Timeouts(statement, min(self.connect, statement / 2), min(self.lock, statement / 4))

    @property
    def server_statement(self) -> float:
        """For how long the server may take for a statement: a little less, because its word is better than its silence."""
        return 0.85 * self.statement


#: For somebody who holds no lease, or one of the usual length.
DEFAULT_TIMEOUTS = Timeouts()
