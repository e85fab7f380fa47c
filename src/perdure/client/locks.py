"""Named locks, `engine.locks`: `hold` for as long as a block lasts, `acquire` for everything else.

The database decides who holds a lock, and until when, by its own clock. A holder measures the time besides, from before
its request: once that is over it does not rely on the lock any more, even if the database cannot be reached.
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
from typing import TypeVar

from perdure.client.runs.results import within
from perdure.client.session import AsyncOnly, Session, refuse_in_workflow
from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.ids import check_key
from perdure.core.model.lock import LockInfo
from perdure.core.option_checks import check_page, check_text
from perdure.core.printed_text import brief
from perdure.core.time.duration import Duration, microseconds, moment_of, seconds
from perdure.errors import EngineClosed, Locked, LockLost, StoreError, UsageError
from perdure.store.contract import Change

logger = logging.getLogger("perdure.client")

#: Seconds before a lock is requested again: at first, and at most.
FIRST_WAIT = 0.02
LONGEST_WAIT = 1.0
#: Part of its time after which a lock is extended.
RENEWED_AFTER = 1 / 3
SHORTEST_PAUSE = 0.001


class Lock:
    """A lock that this process holds. Let go of it with `release`, or use it in an `async with`, which releases it."""

    def __init__(self, session: Session, info: LockInfo, nonce: str, ttl: int, asked: float) -> None:
        self._session = session
        self._nonce = nonce
        self._ttl = ttl
        #: A lock belongs to this process, not to one that is forked from it.
        self._process = os.getpid()
        self._taken(info, asked, ttl)
        self._gone = False

    def __repr__(self) -> str:
        return f"<lock {self.name} {self.token}>"

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._info.name

    @property
    def owner(self) -> str:
        """Name of the holder, as other processes see it."""
        return self._info.owner

    @property
    def token(self) -> int:
        """Fencing token, larger than that of every earlier holder: a guarded resource can refuse smaller ones."""
        return self._info.token

    @property
    def expires_at(self) -> datetime.datetime:
        """Time until which the lock is held, unless it is extended."""
        return moment_of(self._info.expires_at)

    @property
    def lost(self) -> bool:
        """True once the lock must not be relied on: it expired, was taken or released, or this process is a fork."""
        return self._gone or not self._is_ours() or self._session.system.monotonic() >= self._deadline

    async def extend(self, ttl: Duration | None = None) -> None:
        """Hold the lock for that long from now on; by default as long as it was acquired for. Raises `LockLost`."""
        session = self._session
        wanted = self._ttl if ttl is None else checked_ttl(ttl)
        asked = session.system.monotonic()
        store = await session.connect()
        info = (
            None
            if self._gone or not self._is_ours()
            else await store.extend_lock(self.name, self._nonce, wanted, session.actor)
        )
        if info is None:
            self._gone = True
            raise LockLost(
                f"the lock {self.name!r} (token {self.token}) is not {self.owner}'s any more", name=self.name
            )
        self._taken(info, asked, wanted)

    async def release(self) -> bool:
        """Release the lock; False if it was lost before."""
        refuse_in_workflow()
        if not self._is_ours():
            return False
        held, self._gone = not self._gone, True
        store = await self._session.connect()
        return held and await store.release_lock(self.name, self.token, self._nonce, self._session.actor)

    async def __aenter__(self) -> Lock:
        refuse_in_workflow()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._let_go()

    async def _let_go(self) -> None:
        """Release the lock if possible. If not, the guarded work is done all the same, and the lock expires."""
        try:
            await self.release()
        except (StoreError, EngineClosed) as problem:
            logger.warning(
                "the lock %s cannot be released; it is held until %s: %s", self.name, self.expires_at, problem
            )

    def _is_ours(self) -> bool:
        return self._process == os.getpid()

    def _taken(self, info: LockInfo, asked: float, ttl: int) -> None:
        self._info = info
        self._deadline = asked + ttl / 1e6


L = TypeVar("L", bound=Lock)


class RenewedLock(Lock):
    """A lock that a task extends for as long as a block lasts."""

    async def keep(self, on_lost: Callable[[], object]) -> None:
        """Extend the lock until it is lost, then call back.

        If the database was replaced, and may lack it, extend it at once.
        """
        system, loop = self._session.system, asyncio.get_running_loop()
        guard = LoopGuard(f"renewal of the lock {self.name!r}", system, LoopHealth(), logger)
        alarm = asyncio.Event()

        def on_change(change: Change) -> None:
            if change & Change.REPLACED and not loop.is_closed():
                loop.call_soon_threadsafe(alarm.set)

        unsubscribe = (await self._session.connect()).subscribe(on_change)
        try:
            while not self.lost:
                pause = max(SHORTEST_PAUSE, (self._deadline - system.monotonic()) * RENEWED_AFTER)
                with suppress(TimeoutError):
                    await within(system, alarm.wait, f"perdure lock {self.name}", pause, "nothing happened")
                alarm.clear()
                left = max(0.0, self._deadline - system.monotonic())
                # An answer is not waited for longer than the lock lasts.
                try:
                    with suppress(LockLost, StoreError, EngineClosed, TimeoutError):
                        await within(
                            system, self.extend, f"perdure lock {self.name}", left, "the database did not answer"
                        )
                except Exception as error:
                    # Whatever it is, the block has to learn of the loss when the time is over.
                    guard.failed(error)
        finally:
            unsubscribe()
        on_lost()

    async def end(self, keeping: asyncio.Task[None], *, patient: bool = True) -> bool:
        """Stop extending and release the lock; True if it had been lost.

        Without `patient`, a cancellation cuts the wait short.
        """
        if not self._is_ours():
            return True
        keeping.cancel()
        try:
            await asyncio.wait([keeping])
        except asyncio.CancelledError:
            if patient:
                raise
        lost = self.lost
        await self._let_go()
        return lost


class Locks:
    """Locks of an engine's database: `engine.locks`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def acquire(
        self, name: str, ttl: Duration = "5m", *, wait: Duration | None = 0, owner: str | None = None
    ) -> Lock:
        """Acquire a lock for `ttl`. Wait for it for `wait`, or with None as long as it takes, then raise `Locked`.

        It is not extended automatically: use `hold` for that. `owner` is the holder's name that others see; host
        and process by default.
        """
        return await acquire(Lock, self._session, name, ttl, wait, owner)

    def hold(
        self, name: str, ttl: Duration = "5m", *, wait: Duration | None = None, owner: str | None = None
    ) -> LockContext:
        """Hold a lock for as long as a block lasts: `async with engine.locks.hold("nightly-import") as lock: ...`.

        It is extended automatically, so that `ttl` is how long it outlives a process that dies. Waits for it, at most
        for `wait`, then raises `Locked`. If it is lost while the block goes on, the block is cancelled and `LockLost`
        raised.
        """
        return LockContext(self._session, name, ttl, wait, owner)

    async def list(self, *, limit: int = 100, after: str = "") -> builtins.list[LockInfo]:
        """List locks that are held, by name, beginning after a name."""
        check_page(limit)
        after = check_text("after", after)
        return await (await self._session.connect()).locks(after, limit)

    async def get(self, name: str) -> LockInfo | None:
        """Read one lock; None if it is free."""
        found = await (await self._session.connect()).locks("", 1, check_key(name, "lock name"))
        return found[0] if found else None

    async def force_release(self, name: str, reason: str = "") -> bool:
        """Take a lock from its holder, which learns of it when it extends or releases the lock; False if it is free."""
        reason = check_text("reason", reason)
        held = await self.get(name)
        store = await self._session.connect()
        return held is not None and await store.release_lock(name, held.token, None, self._session.actor, reason)


class LockContext(AsyncOnly):
    """A lock for the time of a block, extended automatically.

    If it is lost, the block is cancelled and `LockLost` raised.
    """

    def __init__(self, session: Session, name: str, ttl: Duration, wait: Duration | None, owner: str | None) -> None:
        self._session = session
        self._wanted = name, ttl, wait, owner
        self._lock: RenewedLock | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._block: asyncio.Task[object] | None = None
        self._interrupted = False
        self._cancelled_before = 0

    async def __aenter__(self) -> Lock:
        self._block = asyncio.current_task()
        assert self._block is not None
        self._cancelled_before = self._block.cancelling()
        return await self.begin(self._interrupt)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        refuse_in_workflow()
        lock, keeping, block = self._lock, self._keeping, self._block
        assert lock is not None
        assert keeping is not None
        assert block is not None
        keeping.cancel()
        # If the block was cancelled from elsewhere as well, that cancellation goes on from here.
        ours = self._interrupted and block.uncancel() <= self._cancelled_before
        lost = await lock.end(keeping, patient=not ours)
        if ours or (lost and error is None):
            raise lost_early(lock) from error

    async def begin(self, on_lost: Callable[[], object]) -> Lock:
        """Acquire the lock and begin to extend it. For blocks that cannot be cancelled, `on_lost` may do nothing."""
        name, ttl, wait, owner = self._wanted
        self._lock = await acquire(RenewedLock, self._session, name, ttl, wait, owner)
        self._keeping = self._session.system.spawn(self._lock.keep(on_lost), f"perdure lock {name}")
        return self._lock

    async def end(self) -> bool:
        """Release the lock; True if it had been lost before."""
        refuse_in_workflow()
        assert self._lock is not None
        assert self._keeping is not None
        return await self._lock.end(self._keeping)

    def _interrupt(self) -> None:
        assert self._block is not None
        assert self._lock is not None
        self._interrupted = True
        self._block.cancel(f"the lock {self._lock.name!r} was lost")


async def acquire(
    kind: type[L], session: Session, name: str, ttl: Duration, wait: Duration | None, owner: str | None
) -> L:
    """Acquire a lock, or raise `Locked`."""
    name, time = check_key(name, "lock name"), checked_ttl(ttl)
    system, actor = session.system, session.actor
    clock = system.monotonic
    until = None if wait is None else clock() + seconds(wait)
    # Reuse one nonce for all attempts, so that a lost response does not leak the lock.
    nonce = system.entropy(16).hex()
    holder = f"{socket.gethostname()}:{os.getpid()}" if owner is None else check_key(owner, "owner of a lock")
    store = await session.connect()
    delay = FIRST_WAIT
    while True:
        asked = clock()
        try:
            grant = await store.acquire_lock(name, holder, nonce, time, actor)
        except asyncio.CancelledError:
            # The lock may be granted all the same, and would block others until it expires. Ask again to find out.
            with suppress(StoreError, EngineClosed):
                grant = await store.acquire_lock(name, holder, nonce, time, actor)
                if grant.granted:
                    await store.release_lock(name, grant.lock.token, nonce, actor)
            raise
        if grant.granted:
            return kind(session, grant.lock, nonce, time, asked)
        left = (grant.lock.expires_at - store.clock()) / 1e6
        pause = min(delay * (0.5 + system.random() / 2), max(0.0, left) + 0.001)
        if until is not None and clock() + pause > until:
            if clock() >= until:
                raise _refused(grant.lock)
            pause = until - clock()
        await system.sleep(pause)
        delay = min(2 * delay, LONGEST_WAIT)


def lost_early(lock: Lock) -> LockLost:
    """Make the error of a block that lost its lock."""
    return LockLost(
        f"the lock {lock.name!r} (token {lock.token}) was lost before the block that it guards was over", name=lock.name
    )


def checked_ttl(ttl: Duration) -> int:
    """Return the time to live of a lock in microseconds. Raises `UsageError`."""
    time = microseconds(ttl)
    if time < 1000:
        raise UsageError(f"ttl={brief(ttl)}: a lock is held for a millisecond at the least")
    return time


def _refused(lock: LockInfo) -> Locked:
    until = moment_of(lock.expires_at)
    return Locked(
        f"the lock {lock.name!r} is held by {lock.owner} until {until.isoformat()}; wait for it (wait=...), "
        "or break it if its "
        "holder is gone for good",
        name=lock.name,
        owner=lock.owner,
        until=until,
    )
