"""The verbs of a store that are about named locks, singletons and watermarks, each as one transaction."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from perdure.core.model.lock import Grant, LockInfo
from perdure.core.policy.watermark import Watermark
from perdure.store.sql import locks, singletons, watermarks
from perdure.store.sql.dialect import Transaction

T = TypeVar("T")
Body = Callable[[Transaction], Coroutine[Any, Any, T]]


class Locking(ABC):
    """The part of a `Store` that locks need."""

    @abstractmethod
    async def _write(self, verb: str, actor: str, body: Body[T]) -> T:
        """Run a verb that writes, as one transaction."""

    @abstractmethod
    async def _read(self, verb: str, body: Body[T]) -> T:
        """Run a verb that only reads."""

    @abstractmethod
    async def now(self) -> int:
        """The database's time, measured."""

    async def acquire_lock(self, name: str, owner: str, nonce: str, ttl: int, actor: str) -> Grant:
        """Take a lock that nobody holds, by the database's clock as it is now."""
        await self.now()
        return await self._write("acquire_lock", actor, lambda tx: locks.acquire(tx, name, owner, nonce, ttl))

    async def extend_lock(self, name: str, nonce: str, ttl: int, actor: str) -> LockInfo | None:
        """Hold a lock for longer."""
        await self.now()
        return await self._write("extend_lock", actor, lambda tx: locks.extend(tx, name, nonce, ttl))

    async def release_lock(self, name: str, token: int, nonce: str | None, actor: str) -> bool:
        """Give up a lock."""
        return await self._write("release_lock", actor, lambda tx: locks.release(tx, name, token, nonce))

    async def succeed(self, names: Sequence[str], actor: str) -> int:
        """Let the next of these singletons begin."""
        return await self._write("succeed", actor, lambda tx: singletons.succeed(tx, names))

    async def locks(self, after: str, limit: int, name: str | None = None) -> builtins.list[LockInfo]:
        """Locks that somebody holds."""
        return await self._read("locks", lambda tx: locks.locks(tx, after, limit, name))

    async def set_watermark(self, watermark: Watermark, actor: str) -> None:
        """Set a watermark."""
        await self._write("set_watermark", actor, lambda tx: watermarks.set_watermark(tx, watermark))

    async def remove_watermark(self, kind: str, name: str, actor: str) -> None:
        """Remove a watermark."""
        await self._write("remove_watermark", actor, lambda tx: watermarks.remove_watermark(tx, kind, name))

    async def watermarks(self) -> builtins.list[Watermark]:
        """Every watermark."""
        return await self._read("watermarks", watermarks.watermarks)

    async def depth(self, kind: str, name: str, limit: int) -> int:
        """How many runs are ready and wait."""
        return await self._read("depth", lambda tx: watermarks.depth(tx, kind, name, limit))
