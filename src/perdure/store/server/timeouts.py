"""Timeouts of connections: shorter than a lease, so that its holder notices a lost server in time.

The server gets them, too, so that it neither continues a statement whose client has given up, nor keeps the locks of a
client that died.
"""

from __future__ import annotations

from msgspec import Struct

#: The part of a lease that a statement may take, and the shortest time that is worth trying, in seconds.
_SHARE = 0.8
_SHORTEST = 1.0


class Timeouts(Struct, frozen=True):
    """Timeouts in seconds."""

    statement: float = 12.0
    connect: float = 5.0
    lock: float = 2.0

    def within(self, lease: float) -> Timeouts:
        """Timeouts for the holder of a lease of that many seconds."""
        statement = min(self.statement, max(_SHORTEST, _SHARE * lease))
        return Timeouts(statement, min(self.connect, statement / 2), min(self.lock, statement / 4))

    @property
    def server_statement(self) -> float:
        """Statement timeout of the server: slightly below our own, so that the server reports it before we give up."""
        return 0.85 * self.statement


#: Timeouts without a lease, or with one of the default length.
DEFAULT_TIMEOUTS = Timeouts()
