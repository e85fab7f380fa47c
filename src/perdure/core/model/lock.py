"""Named locks, as stored.

An owner holds a lock until a time of the database's clock. The owner proves it by a secret nonce. A fencing token,
which only grows for each name, tells a later owner from an earlier one.
"""

from __future__ import annotations

from msgspec import Struct

#: Prefix of the audit trail's run id for events of a lock.
TRAIL = "lock:"


class LockInfo(Struct, frozen=True, kw_only=True):
    """A lock and its current or last owner; times in microseconds since the epoch."""

    name: str
    #: Name of the owner, for people.
    owner: str
    #: Fencing token, larger than those of all earlier owners.
    token: int
    acquired_at: int
    #: End of the lock; if it is in the past, the lock is free.
    expires_at: int


class LockGrant(Struct, frozen=True):
    """Answer to a request for a lock: granted or not, and the lock as it is then."""

    granted: bool
    lock: LockInfo
