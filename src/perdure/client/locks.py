"""Named locks: `engine.lock(name)` for as long as a block lasts, `engine.locks` for everything else.

Who holds a lock, and until when, the database says, by its own clock. Whoever holds one keeps time by a clock of their own besides, from
before they asked: once that is over they no longer count on it, even if the database cannot be asked.
"""

from __future__ import annotations

import asyncio
import builtins
import datetime
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from perdure.client.refusing import refuse_in_workflow
from perdure.client.results import within
from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.ids import check_key
from perdure.core.model.lock import LockInfo
from perdure.core.time.duration import Duration, microseconds, moment_of, seconds
from perdure.errors import EngineClosed, Locked, LockLost, StoreError, UsageError
from perdure.store.contract import Change

if TYPE_CHECKING:
    from perdure.client.engine import Engine

logger = logging.getLogger("perdure.client")

#: How long to wait before a lock is asked for again, in seconds: at first, and at the most.
FIRST_WAIT = 0.02
LONGEST_WAIT = 1.0
#: A lock is extended after this part of its time.
RENEWED_AFTER = 1 / 3
SHORTEST_PAUSE = 0.001


class Lock:
    """A lock that this process holds. Let go of it with `release`; or use it in an `async with`, which does that."""

    def __init__(self, engine: Engine, info: LockInfo, nonce: str, ttl: int, asked: float) -> None:
        self._engine = engine
        self._nonce = nonce
        self._ttl = ttl
        #: The lock is of this process, not of one that is forked from it.
        self._process = os.getpid()
        self._taken(info, asked, ttl)
        self._gone = False

    def __repr__(self) -> str:
        return f"<lock {self.name} {self.token}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._info.name

    @property
    def owner(self) -> str:
        """Who holds it, as others are told."""
        return self._info.owner

    @property
    def token(self) -> int:
        """Larger than that of everybody who held this lock before: what is guarded can refuse whoever comes with a smaller one."""
        return self._info.token

    @property
    def expires_at(self) -> datetime.datetime:
        """Until when it is held, unless it is extended."""
        return moment_of(self._info.expires_at)

    @property
    def lost(self) -> bool:
        """Whether it is not to be counted on any more: its time is over, another took it, it was released, or this process is a fork."""
        return self._gone or self._process != os.getpid() or self._engine._system.monotonic() >= self._deadline

    async def extend(self, ttl: Duration | None = None) -> None:
        """Hold it for so long from now on; as long as it was acquired for by default. Raises `LockLost`."""
        wanted = self._ttl if ttl is None else checked_ttl(ttl)
        asked = self._engine._system.monotonic()
        store = await self._engine._opened()
        info = (
            None
            if self._gone or self._process != os.getpid()
            else await store.extend_lock(self.name, self._nonce, wanted, self._engine._actor)
        )
        if info is None:
            self._gone = True
            raise LockLost(
                f"the lock {self.name!r} (token {self.token}) is not {self.owner}'s any more", name=self.name
            )
        self._taken(info, asked, wanted)

    async def release(self) -> bool:
        """Let go of it; False if it was lost before."""
        refuse_in_workflow()
        if self._process != os.getpid():
            return False
        held, self._gone = not self._gone, True
        store = await self._engine._opened()
        return held and await store.release_lock(self.name, self.token, self._nonce, self._engine._actor)

    async def __aenter__(self) -> Lock:
        refuse_in_workflow()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._let_go()

    async def _let_go(self) -> None:
        """Release it, as far as that is possible: what was done under it is done, and its time will run out."""
        try:
            await self.release()
        except (StoreError, EngineClosed) as problem:
            logger.warning(
                "the lock %s cannot be released; it is held until %s: %s", self.name, self.expires_at, problem
            )

    def _taken(self, info: LockInfo, asked: float, ttl: int) -> None:
        self._info = info
        self._deadline = asked + ttl / 1e6


class Locks:
    """The locks of an engine's database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def acquire(
        self, name: str, ttl: Duration = "5m", *, wait: Duration | None = 0, owner: str | None = None
    ) -> Lock:
        """Take a lock for `ttl`, waiting for it for so long if need be, or, with None, for as long as it takes. Raises `Locked`.

        It is not extended by itself: that does `engine.lock`. `owner` is what others are told; host and process by default.
        """
        name, time = check_key(name, "lock name"), checked_ttl(ttl)
        engine = self._engine
        clock = engine._system.monotonic
        until = None if wait is None else clock() + seconds(wait)
        # One nonce for all tries, so that an answer that was lost is no lock that is lost.
        nonce = engine._system.entropy(16).hex()
        who = f"{socket.gethostname()}:{os.getpid()}" if owner is None else check_key(owner, "owner of a lock")
        store = await engine._opened()
        delay = FIRST_WAIT
        while True:
            asked = clock()
            try:
                grant = await store.acquire_lock(name, who, nonce, time, engine._actor)
            except asyncio.CancelledError:
                # It may be granted all the same, and would be nobody's until its time has run out. Asking again tells.
                with suppress(StoreError, EngineClosed):
                    grant = await store.acquire_lock(name, who, nonce, time, engine._actor)
                    if grant.granted:
                        await store.release_lock(name, grant.lock.token, nonce, engine._actor)
                raise
            if grant.granted:
                return Lock(engine, grant.lock, nonce, time, asked)
            left = (grant.lock.expires_at - store.clock()) / 1e6
            pause = min(delay * (0.5 + engine._system.random() / 2), max(0.0, left) + 0.001)
            if until is not None and clock() + pause > until:
                if clock() >= until:
                    raise _refused(grant.lock)
                pause = until - clock()
            await engine._system.sleep(pause)
            delay = min(2 * delay, LONGEST_WAIT)

    async def list(self, *, limit: int = 100, after: str = "") -> builtins.list[LockInfo]:
        """Locks that somebody holds, by name, past one."""
        if not 1 <= limit <= 1000:
            raise UsageError(f"limit must be between 1 and 1000, not {limit}")
        return await (await self._engine._opened()).locks(after, limit)

    async def get(self, name: str) -> LockInfo | None:
        """Who holds a lock; None if nobody does."""
        found = await (await self._engine._opened()).locks("", 1, check_key(name, "lock name"))
        return found[0] if found else None

    async def force_release(self, name: str) -> bool:
        """Take a lock from whoever holds it, who learns of it when extending or releasing it; False if nobody does."""
        held = await self.get(name)
        store = await self._engine._opened()
        return held is not None and await store.release_lock(name, held.token, None, self._engine._actor)


class Holding:
    """A lock for as long as a block lasts: extended by itself; the block is cancelled if it is lost, and `LockLost` raised."""

    def __init__(self, engine: Engine, name: str, ttl: Duration, wait: Duration | None, owner: str | None) -> None:
        self._engine = engine
        self._wanted = name, ttl, wait, owner
        self._lock: Lock | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._block: asyncio.Task[object] | None = None
        self._interrupted = False
        self._cancelled_before = 0

    async def __aenter__(self) -> Lock:
        name, ttl, wait, owner = self._wanted
        self._block = asyncio.current_task()
        assert self._block is not None
        self._cancelled_before = self._block.cancelling()
        self._lock = await self._engine.locks.acquire(name, ttl, wait=wait, owner=owner)
        self._renewing = self._engine._system.spawn(renew(self._lock, self._interrupt), f"perdure lock {name}")
        return self._lock

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        refuse_in_workflow()
        lock, renewing, block = self._lock, self._renewing, self._block
        assert lock is not None
        assert renewing is not None
        assert block is not None
        renewing.cancel()
        # Somebody else may want the block to end as well; that is theirs, and goes on from here.
        ours = self._interrupted and block.uncancel() <= self._cancelled_before
        try:
            await asyncio.wait([renewing])
        except asyncio.CancelledError:
            if not ours:
                raise
        lost = lock.lost
        await lock._let_go()
        if ours or (lost and error is None):
            raise LockLost(
                f"the lock {lock.name!r} (token {lock.token}) was lost before the block that it guards was over",
                name=lock.name,
            ) from error

    def _interrupt(self) -> None:
        assert self._block is not None
        assert self._lock is not None
        self._interrupted = True
        self._block.cancel(f"the lock {self._lock.name!r} was lost")


async def renew(lock: Lock, on_lost: Callable[[], object]) -> None:
    """Extend a lock again and again until it is lost, and say so; at once if the database was replaced and may have lost it."""
    system, loop = lock._engine._system, asyncio.get_running_loop()
    guard = LoopGuard(f"renewal of the lock {lock.name!r}", system, LoopHealth(), logger)
    alarm = asyncio.Event()

    def on_change(change: Change) -> None:
        if change & Change.REPLACED and not loop.is_closed():
            loop.call_soon_threadsafe(alarm.set)

    unsubscribe = (await lock._engine._opened()).subscribe(on_change)
    try:
        while not lock.lost:
            pause = max(SHORTEST_PAUSE, (lock._deadline - system.monotonic()) * RENEWED_AFTER)
            with suppress(TimeoutError):
                await within(system, alarm.wait, f"perdure lock {lock.name}", pause, "nothing happened")
            alarm.clear()
            left = max(0.0, lock._deadline - system.monotonic())
            # An answer that does not come is not waited for longer than the lock lasts.
            try:
                with suppress(LockLost, StoreError, EngineClosed, TimeoutError):
                    await within(system, lock.extend, f"perdure lock {lock.name}", left, "the database did not answer")
            except Exception as error:
                # Whatever it is, the block has to hear of it when the time is over.
                guard.failed(error)
    finally:
        unsubscribe()
    on_lost()


def checked_ttl(ttl: Duration) -> int:
    """For how long, in microseconds. Raises `UsageError`."""
    time = microseconds(ttl)
    if time < 1000:
        raise UsageError(f"ttl={ttl!r}: a lock is held for a millisecond at the least")
    return time


def _refused(lock: LockInfo) -> Locked:
    until = moment_of(lock.expires_at)
    return Locked(
        f"the lock {lock.name!r} is held by {lock.owner} until {until.isoformat()}; wait for it (wait=...), or break it if its holder "
        "is gone for good",
        name=lock.name,
        owner=lock.owner,
        until=until,
    )
