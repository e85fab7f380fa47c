"""Access to an engine over HTTP: roles, and the bearer tokens that carry them.

A token is 32 random bytes. The database stores its SHA-256 digest, so a copy of the database gives no access.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

from msgspec import Struct

from perdure.core.printed_text import brief
from perdure.core.time.duration import NEVER
from perdure.errors import UsageError

#: Prefix of the audit trail's run id for events of a token, and of the actor that uses one.
TRAIL = "token:"
#: Start of every token. Scanners for leaked secrets find it.
TOKEN_PREFIX = "perdure_"  # noqa: S105 - the public beginning of every token
#: Random bytes of a token.
TOKEN_BYTES = 32


class Role(StrEnum):
    """Role of a caller. Each one includes those before it."""

    #: Reads.
    VIEWER = "viewer"
    #: Starts, steers and deletes runs, and operates queues, limits and schedules.
    OPERATOR = "operator"
    #: Manages access.
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Tell whether this role may do what the other one may."""
        return _RANKS[self] >= _RANKS[other]

    @classmethod
    def of(cls, name: object) -> Role:
        """Parse the name of a role. Raises `UsageError`."""
        if isinstance(name, str) and name in tuple(cls):
            return cls(name)
        raise UsageError(f"a role is one of {', '.join(cls)}, not {brief(name)}")


_RANKS = {role: rank for rank, role in enumerate(Role)}


class NewToken(Struct, frozen=True, kw_only=True):
    """Request to create a token, or the session of a token."""

    name: str
    #: Name of the token that a session belongs to; empty for a token.
    parent: str = ""
    #: SHA-256 of the token, in hexadecimal digits.
    digest: str
    role: Role
    expires_at: int = NEVER


class TokenInfo(Struct, frozen=True, kw_only=True):
    """A token, as stored, without its digest; times in microseconds since the epoch."""

    #: Unique among tokens that are valid.
    name: str
    #: Name of the token that a session belongs to; empty for a token.
    parent: str = ""
    role: Role
    created_at: int
    created_by: str
    #: End of its validity; a constant far in the future for a token without one.
    expires_at: int
    #: Time of its revocation; 0: it was not revoked.
    revoked_at: int
    #: Time of a recent use, to about a minute; 0: never.
    used_at: int

    def is_valid(self, now: int) -> bool:
        """Tell whether it gives access at a time."""
        return not self.revoked_at and now < self.expires_at


class StoredToken(Struct, frozen=True):
    """A token and the digest that it was found by."""

    digest: str
    info: TokenInfo


def token_digest(token: str) -> str:
    """Digest by which a token is stored and found.

    A fast hash suffices: 32 random bytes cannot be guessed, however fast the guesses are.
    """
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
