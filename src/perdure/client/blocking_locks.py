"""Named locks, for code that is not async."""

from __future__ import annotations

import asyncio
import builtins
import datetime
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from perdure.client.locks import renew
from perdure.errors import LockLost

if TYPE_CHECKING:
    from perdure.client.blocking import Blocking
    from perdure.client.locks import Lock
    from perdure.core.model.lock import LockInfo
    from perdure.core.time.duration import Duration


class BlockingLock:
    """`Lock` whose methods block."""

    def __init__(self, blocking: Blocking, lock: Lock) -> None:
        self._wait = blocking._wait
        self._lock = lock

    def __repr__(self) -> str:
        return repr(self._lock)

    @property
    def name(self) -> str:
        """See `Lock.name`."""
        return self._lock.name

    @property
    def owner(self) -> str:
        """See `Lock.owner`."""
        return self._lock.owner

    @property
    def token(self) -> int:
        """See `Lock.token`."""
        return self._lock.token

    @property
    def expires_at(self) -> datetime.datetime:
        """See `Lock.expires_at`."""
        return self._lock.expires_at

    @property
    def lost(self) -> bool:
        """See `Lock.lost`. A block that is not async cannot be cancelled; a long one looks at this now and then."""
        return self._lock.lost

    def extend(self, ttl: Duration | None = None) -> None:
        """See `Lock.extend`."""
        self._wait(self._lock.extend(ttl))

    def release(self) -> bool:
        """See `Lock.release`."""
        return self._wait(self._lock.release())


class BlockingLocks:
    """`Locks` whose methods block."""

    def __init__(self, blocking: Blocking) -> None:
        self._blocking = blocking
        self._wait = blocking._wait
        self._locks = blocking._engine.locks

    def acquire(
        self, name: str, ttl: Duration = "5m", *, wait: Duration | None = 0, owner: str | None = None
    ) -> BlockingLock:
        """See `Locks.acquire`."""
        return BlockingLock(self._blocking, self._wait(self._locks.acquire(name, ttl, wait=wait, owner=owner)))

    def list(self, *, limit: int = 100, after: str = "") -> builtins.list[LockInfo]:
        """See `Locks.list`."""
        return self._wait(self._locks.list(limit=limit, after=after))

    def get(self, name: str) -> LockInfo | None:
        """See `Locks.get`."""
        return self._wait(self._locks.get(name))

    def force_release(self, name: str) -> bool:
        """See `Locks.force_release`."""
        return self._wait(self._locks.force_release(name))


@contextmanager
def holding(
    blocking: Blocking, name: str, ttl: Duration, *, wait: Duration | None = None, owner: str | None = None
) -> Generator[BlockingLock]:
    """A lock for as long as a block lasts, extended by the background loop. Raises `LockLost` at the end if it was lost meanwhile."""
    held = blocking._wait(blocking._engine.locks.acquire(name, ttl, wait=wait, owner=owner))
    renewing = blocking._wait(_begin(held))
    try:
        yield BlockingLock(blocking, held)
    except BaseException:
        blocking._wait(_end(held, renewing))
        raise
    if blocking._wait(_end(held, renewing)):
        raise LockLost(f"the lock {name!r} was lost before the block that it guards was over", name=name)


async def _begin(lock: Lock) -> asyncio.Task[None]:
    return lock._engine._system.spawn(renew(lock, lambda: None), f"perdure lock {lock.name}")


async def _end(lock: Lock, renewing: asyncio.Task[None]) -> bool:
    """Let go; whether it had been lost."""
    if lock._process != os.getpid():
        return True
    renewing.cancel()
    await asyncio.wait([renewing])
    lost = lock.lost
    await lock._let_go()
    return lost
