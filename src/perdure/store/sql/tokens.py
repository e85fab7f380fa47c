"""Tokens of access, one row for each name, found by their digest.

The row of a token that is no longer valid is reused by the next token of that name. The audit trail keeps both.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perdure.core.access import TRAIL, NewToken, Role, StoredToken, TokenInfo
from perdure.errors import StoreUnavailable
from perdure.store.sql.dialect import Row, Transaction
from perdure.store.sql.rows import to_json, unreadable, values

#: Expired sessions that a new one deletes.
_AT_ONCE = 10

_INFO = "name, parent, role, created_at, created_by, expires_at, revoked_at, used_at"

_BY_DIGEST = f"""
SELECT digest, {_INFO}
FROM perdure_tokens
WHERE digest = :digest
"""

_LOCKED = f"""
SELECT digest, {_INFO}
FROM perdure_tokens
WHERE name = :name
{{for_update}}
"""

_PAGE = f"""
SELECT {_INFO}
FROM perdure_tokens
WHERE parent = '' AND name > :after
ORDER BY name
LIMIT :limit
"""

_ONE = f"""
SELECT {_INFO}
FROM perdure_tokens
WHERE name = :name
"""

_INSERT = """
INSERT INTO perdure_tokens (name, parent, digest, role, created_at, created_by, expires_at, revoked_at, used_at)
VALUES (:name, :parent, :digest, :role, :created_at, :created_by, :expires_at, 0, 0)
{or_ignore}
"""

_REPLACE = """
UPDATE perdure_tokens
SET parent = :parent, digest = :digest, role = :role, created_at = :created_at, created_by = :created_by,
  expires_at = :expires_at, revoked_at = 0, used_at = 0
WHERE name = :name
"""

_REVOKE = """
UPDATE perdure_tokens
SET revoked_at = :now
WHERE name = :name
"""

_SESSIONS = """
SELECT name
FROM perdure_tokens
WHERE parent = :parent AND revoked_at = 0
ORDER BY name
{for_update}
"""

_OLD_SESSIONS = """
SELECT name
FROM perdure_tokens
WHERE parent = :parent AND expires_at < :now
ORDER BY name
LIMIT :limit
"""

_FORGET = """
DELETE FROM perdure_tokens
WHERE name = :name AND expires_at < :now
"""

_TOUCH = """
UPDATE perdure_tokens
SET used_at = :at
WHERE digest = :digest AND used_at < :at
"""


async def create_token(tx: Transaction, new: NewToken) -> TokenInfo | None:
    """Store a token; None if another valid token has its name, another token its digest, or its parent is not valid.

    A repetition finds its own digest.
    """
    if new.parent and not await _has_valid_parent(tx, new.parent):
        return None
    rows = await tx.fetch(_LOCKED, {"name": new.name})
    there = _to_token(rows[0][1:]) if rows else None
    if there is not None and rows[0][0] == new.digest:
        return there
    if there is not None and there.is_valid(tx.now):
        return None
    if await tx.fetch(_BY_DIGEST, {"digest": new.digest}):
        return None
    row = {
        "name": new.name,
        "parent": new.parent,
        "role": new.role.value,
        # A revocation names the token by its time.
        "created_at": tx.now if there is None else max(tx.now, there.created_at + 1),
        "created_by": tx.actor,
        "expires_at": new.expires_at,
        "revoked_at": 0,
        "used_at": 0,
    }
    if await tx.execute(_REPLACE if rows else _INSERT, {**row, "digest": new.digest}) != 1:
        # Perhaps by this very request at an earlier try; that is seen by looking again.
        raise StoreUnavailable(f"another client created the token {new.name!r} at the same moment; try again")
    tx.note(TRAIL + new.name, "token_created", to_json({"role": new.role.value, "expires_at": new.expires_at}))
    return _to_token(tuple(row.values()))


async def _has_valid_parent(tx: Transaction, parent: str) -> bool:
    """Lock the token of a new session, so that a revocation finds the session or comes first; forget old ones."""
    rows = await tx.fetch(_LOCKED, {"name": parent})
    if not rows or not _to_token(rows[0][1:]).is_valid(tx.now):
        return False
    for (name,) in await tx.fetch(_OLD_SESSIONS, {"parent": parent, "now": tx.now, "limit": _AT_ONCE}):
        await tx.execute(_FORGET, {"name": name, "now": tx.now})
    return True


async def revoke_token(tx: Transaction, name: str, created_at: int) -> TokenInfo | None:
    """Revoke the token of that name that was created then, with its sessions; None if there is none."""
    rows = await tx.fetch(_LOCKED, {"name": name})
    there = _to_token(rows[0][1:]) if rows else None
    if there is None or there.created_at != created_at:
        return None
    if there.revoked_at:
        return there
    for (revoked,) in [(name,), *await tx.fetch(_SESSIONS, {"parent": name})]:
        await tx.execute(_REVOKE, {"name": revoked, "now": tx.now})
        tx.note(TRAIL + revoked, "token_revoked")
    return replace(there, revoked_at=tx.now)


async def touch_tokens(tx: Transaction, uses: Sequence[tuple[str, int]]) -> None:
    """Store times of use, by digest. An earlier time changes nothing."""
    for digest, at in sorted(uses):
        await tx.execute(_TOUCH, {"digest": digest, "at": at})


async def token(tx: Transaction, digest: str) -> StoredToken | None:
    """The token of a digest, valid or not."""
    rows = await tx.fetch(_BY_DIGEST, {"digest": digest})
    return StoredToken(rows[0][0], _to_token(rows[0][1:])) if rows else None


async def tokens(tx: Transaction, after: str, limit: int, name: str | None) -> list[TokenInfo]:
    """Tokens in the order of their names, after one; or only the token of a name."""
    params = {"after": after, "limit": limit, "name": name}
    return values(_to_token, await tx.fetch(_PAGE if name is None else _ONE, params))


def _to_token(row: Row) -> TokenInfo:
    name, parent, role, created_at, created_by, expires_at, revoked_at, used_at = row
    if role not in tuple(Role):
        raise unreadable("perdure_tokens", f"name {name!r}", f"the role {role!r} is unknown")
    return TokenInfo(
        name=name,
        parent=parent,
        role=Role(role),
        created_at=created_at,
        created_by=created_by,
        expires_at=expires_at,
        revoked_at=revoked_at,
        used_at=used_at,
    )
