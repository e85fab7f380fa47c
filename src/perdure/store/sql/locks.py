"""Named locks: one row each, decided and written under its own row lock.

A released row stays for a while, so that the next holder's token is larger than the last one's. Besides, no token is
smaller than the time in microseconds, so that none is reused after the row was deleted, or lost with a failover or a
restored backup.
"""

from __future__ import annotations

from msgspec.structs import replace

from perdure.core.model.lock import TRAIL, LockGrant, LockInfo
from perdure.errors import StoreUnavailable
from perdure.store.sql.dialect import Row, Transaction
from perdure.store.sql.rows import event_json, to_json, values

#: Locks not held for this many microseconds are deleted, a few whenever a new one is made.
FORGOTTEN_AFTER = 7 * 24 * 3600 * 1_000_000
_AT_ONCE = 5

#: How the nonce of one that was released begins. The rest is kept, so that a release may be repeated.
_RELEASED = "-"

_INFO = "name, owner, token, acquired_at, expires_at"

_LOCKED = f"""
SELECT nonce, {_INFO}
FROM perdure_locks
WHERE name = :name
{{for_update}}
"""

_INSERT = """
INSERT INTO perdure_locks (name)
VALUES (:name)
{or_ignore}
"""

_TAKE = """
UPDATE perdure_locks
SET owner = :owner, nonce = :nonce, token = :token, acquired_at = :acquired_at, expires_at = :expires_at
WHERE name = :name
"""

_CHANGE = """
UPDATE perdure_locks
SET nonce = :nonce, expires_at = :expires_at
WHERE name = :name
"""

_PAGE = f"""
SELECT {_INFO}
FROM perdure_locks
WHERE name > :after AND expires_at > :now
ORDER BY name
LIMIT :limit
"""

_ONE = f"""
SELECT {_INFO}
FROM perdure_locks
WHERE name = :name AND expires_at > :now
"""

_OLD = """
SELECT name
FROM perdure_locks
WHERE expires_at < :before
ORDER BY expires_at
LIMIT :limit
"""

_FORGET = """
DELETE FROM perdure_locks
WHERE name = :name AND expires_at < :before
"""


async def acquire(tx: Transaction, name: str, owner: str, nonce: str, ttl: int) -> LockGrant:
    """Acquire a free lock for `ttl` microseconds. Repeated under one nonce, it is acquired once."""
    row = await _locked(tx, name)
    if row is None:
        await _forget_some(tx)
        await tx.execute(_INSERT, {"name": name})
        row = await _locked(tx, name)
        if row is None:
            raise StoreUnavailable(f"the lock {name!r} was forgotten at the same moment; try again")
    holder, lock = row[0], _to_lock(row[1:])
    if lock.expires_at > tx.now:
        return LockGrant(holder == nonce, lock)
    taken = LockInfo(
        name=name,
        owner=owner,
        token=max(lock.token + 1, tx.now),
        acquired_at=tx.now,
        expires_at=tx.now + ttl,
    )
    await tx.execute(_TAKE, {"nonce": nonce, **_row(taken)})
    tx.note(TRAIL + name, "lock_acquired", to_json({"owner": owner, "token": taken.token}))
    return LockGrant(True, taken)


async def extend(tx: Transaction, name: str, nonce: str, ttl: int) -> LockInfo | None:
    """Hold a lock for `ttl` microseconds from now; None if it was released or has another holder."""
    row = await _locked(tx, name)
    if row is None or row[0] != nonce:
        return None
    # An expired lock without a new holder is still the last holder's: there was none in between.
    lock = replace(_to_lock(row[1:]), expires_at=tx.now + ttl)
    await tx.execute(_CHANGE, {"name": name, "nonce": nonce, "expires_at": lock.expires_at})
    tx.note(TRAIL + name, "lock_extended", to_json({"token": lock.token}))
    return lock


async def release(tx: Transaction, name: str, token: int, nonce: str | None, reason: str = "") -> bool:
    """Release a lock held under that token and nonce, or take it from its holder (None). False if it is not held so."""
    row = await _locked(tx, name)
    if row is None:
        return False
    holder, lock = row[0], _to_lock(row[1:])
    if lock.token != token or nonce not in (None, holder.removeprefix(_RELEASED)):
        return False
    if holder.startswith(_RELEASED):
        return True
    await tx.execute(_CHANGE, {"name": name, "nonce": _RELEASED + holder, "expires_at": tx.now})
    tx.note(TRAIL + name, "lock_broken" if nonce is None else "lock_released", event_json(reason, token=token))
    return True


async def locks(tx: Transaction, after: str, limit: int, name: str | None) -> list[LockInfo]:
    """Held locks in the order of their names, after one; or only the lock of a name."""
    params = {"after": after, "now": tx.now, "limit": limit, "name": name}
    return values(_to_lock, await tx.fetch(_PAGE if name is None else _ONE, params))


async def _locked(tx: Transaction, name: str) -> Row | None:
    rows = await tx.fetch(_LOCKED, {"name": name})
    return rows[0] if rows else None


async def _forget_some(tx: Transaction) -> None:
    before = tx.now - FORGOTTEN_AFTER
    for (name,) in await tx.fetch(_OLD, {"before": before, "limit": _AT_ONCE}):
        await tx.execute(_FORGET, {"name": name, "before": before})


def _to_lock(row: Row) -> LockInfo:
    name, owner, token, acquired_at, expires_at = row
    return LockInfo(name=name, owner=owner, token=token, acquired_at=acquired_at, expires_at=expires_at)


def _row(lock: LockInfo) -> dict[str, object]:
    return {name: getattr(lock, name) for name in lock.__struct_fields__}
