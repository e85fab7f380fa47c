"""Named locks as the database has them.

A lock is a name, held by one owner until a time of the database's clock. Whoever holds it proves that by a nonce that nobody else knows;
a fencing token, which only grows for each name, tells others who came later.
"""

from __future__ import annotations

from msgspec import Struct

#: Lines of the audit trail about a lock are kept under this and its name.
TRAIL = "lock:"


class LockInfo(Struct, frozen=True, kw_only=True):
    """A lock that somebody holds, or held last; times in microseconds since the epoch."""

    name: str
    #: Who, for people.
    owner: str
    #: Larger than that of everybody who held it before.
    token: int
    acquired_at: int
    #: From then on anybody may take it. In the past: nobody holds it.
    expires_at: int


class LockGrant(Struct, frozen=True):
    """The answer to whoever wants a lock: whether they have it, and the lock as it is then."""

    granted: bool
    lock: LockInfo
