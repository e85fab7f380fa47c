"""How long to wait for the server before it counts as lost: less than a lease, so that whoever holds one finds out in time.

The server is told as well, in each transaction, so that it does not go on with what nobody waits for, nor keeps the rows of
somebody who has gone without a word.
"""

from __future__ import annotations

from msgspec import Struct

#: The part of a lease that a statement may take, and the shortest time that is worth trying, in seconds.
_SHARE = 0.8
_SHORTEST = 1.0


class Patience(Struct, frozen=True):
    """In seconds."""

    statement: float = 12.0
    connect: float = 5.0
    lock: float = 2.0

    def within(self, lease: float) -> Patience:
        """For somebody who holds a lease of so many seconds."""
        statement = min(self.statement, max(_SHORTEST, _SHARE * lease))
        return Patience(statement, min(self.connect, statement / 2), min(self.lock, statement / 4))

    @property
    def begin(self) -> str:
        """The statement that begins a transaction."""
        # A little less than we wait ourselves: the server's word is better than its silence.
        return (
            "BEGIN ISOLATION LEVEL READ COMMITTED; "
            f"SET LOCAL lock_timeout = {int(1000 * self.lock)}; "
            f"SET LOCAL statement_timeout = {int(850 * self.statement)}; "
            f"SET LOCAL idle_in_transaction_session_timeout = {int(1000 * self.statement)}"
        )
