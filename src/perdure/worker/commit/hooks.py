"""Calls of the user's hooks: after the commit, one at a time, from a bounded queue.

A hook that raises, hangs or is slow affects no run. A call that finds the queue full is dropped and counted; the log
reports that, and errors of hooks, now and then.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from perdure.core.audit import Event
from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.hooks import DeadLetterNotice, ErrorNotice, Hook, Hooks
from perdure.core.system import System
from perdure.store.contract import NewEvent, Store
from perdure.worker.commit.attempt_log import AttemptEnd
from perdure.worker.steps.step_task import is_end_of

logger = logging.getLogger("perdure.hooks")

#: Longest queue of calls.
ROOM = 10_000
#: Seconds for which queued calls go on when the worker stops.
PATIENCE = 5.0
#: Seconds between two log entries of the same kind.
QUIET = 10.0

_SET_ASIDE = ("poison", "undecodable")


class ThrottledLog:
    """A log that writes one entry per interval and counts the rest."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._written_at = -QUIET
        self._skipped = 0

    def error(self, text: str, *args: object, error: BaseException | None = None) -> None:
        """Write an entry, or count it."""
        self._skipped += 1
        now = self._system.monotonic()
        if now - self._written_at >= QUIET:
            logger.error(f"{text} (%d times since the last word)", *args, self._skipped, exc_info=error)
            self._written_at, self._skipped = now, 0


class HookCaller:
    """Calls hooks for the workers of an engine: the first worker to start starts it, the last to stop stops it."""

    def __init__(self, hooks: Hooks, store: Store, system: System) -> None:
        self._hooks = hooks
        self._store = store
        self._system = system
        self._users: set[object] = set()
        #: Names of hooks with what they are called with; an empty name ends the queue.
        self._waiting: deque[tuple[str, AttemptEnd | NewEvent | None]] = deque()
        self._queued = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._errors, self._losses = ThrottledLog(system), ThrottledLog(system)
        #: Calls that were dropped.
        self.dropped = 0
        #: Errors of the loop itself; errors of hooks are only logged.
        self.health = LoopHealth()
        self._guard = LoopGuard("hooks", system, self.health, logger)

    def start(self, user: object) -> None:
        """Start to listen on behalf of a worker."""
        self._users.add(user)
        if self._task is not None:
            return
        loop = asyncio.get_running_loop()

        def on_events(lines: Sequence[NewEvent]) -> None:
            try:
                loop.call_soon_threadsafe(self._queue_events, lines)
            except RuntimeError:
                logger.debug("the event loop was closed before %d events could be told", len(lines))

        self._unsubscribe = self._store.observe_events(on_events)
        self._task = self._system.spawn(self._guard.keep_going(self._work), "perdure hooks")

    async def stop(self, user: object) -> None:
        """Stop once the last worker has stopped: make the queued calls for a while, and no others."""
        self._users.discard(user)
        if self._users or self._task is None:
            return
        # Callbacks for what was written just now are still to come.
        await self._system.sleep(0)
        if self._unsubscribe is not None:
            self._unsubscribe()
        task, self._task = self._task, None
        self._waiting.append(("", None))
        self._queued.set()
        limit = self._system.call_later(PATIENCE, task.cancel)
        await asyncio.gather(task, return_exceptions=True)
        limit.cancel()
        left = sum(1 for name, _ in self._waiting if name)
        self._waiting.clear()
        if left:
            self.dropped += left
            logger.error("%d calls of hooks were not made before the worker stopped", left)

    def queue_failures(self, found: Sequence[AttemptEnd]) -> None:
        """Queue calls for failed attempts."""
        if self._hooks.on_error is not None:
            for one in found:
                self._add("on_error", one)

    def _queue_events(self, lines: Sequence[NewEvent]) -> None:
        hooks, level = self._hooks, self._store.audit
        for line in lines:
            kind = line[2]
            if hooks.on_event is not None and level.writes(kind):
                self._add("on_event", line)
            # The sweep fails an overdue run, so no turn reports it.
            if hooks.on_error is not None and kind == "expired":
                self._add("on_error", line)
            if hooks.on_dead_letter is not None and kind in ("failed", "expired", "terminated", "blocked"):
                self._add("on_dead_letter", line)

    def _add(self, name: str, news: AttemptEnd | NewEvent) -> None:
        if len(self._waiting) >= ROOM:
            self.dropped += 1
            self._losses.error("hooks are slower than what they are told of: calls are left out")
            return
        self._waiting.append((name, news))
        self._queued.set()

    async def _work(self) -> None:
        while True:
            while self._waiting:
                name, news = self._waiting.popleft()
                if news is None:
                    return
                await self._call(name, news)
            self._queued.clear()
            await self._queued.wait()

    async def _call(self, name: str, news: AttemptEnd | NewEvent) -> None:
        hook: Hook = getattr(self._hooks, name)
        task = asyncio.current_task()
        try:
            value = await self._value(name, news)
            if value is None:
                return
            if inspect.iscoroutinefunction(hook):
                await hook(value)
                return
            answer = await self._system.in_thread(lambda: hook(value))
            if inspect.isawaitable(answer):
                await answer
        except BaseException as error:
            if is_end_of(task, error):
                raise
            self._errors.error("%s failed", name, error=error)

    async def _value(self, name: str, news: AttemptEnd | NewEvent) -> object | None:
        """Argument of a hook's call; None if the event does not concern the hook."""
        if isinstance(news, AttemptEnd):
            return _error(news)
        run_id, at, kind, actor, data = news
        if name == "on_event":
            return Event(id=0, run_id=run_id, at=at, kind=kind, actor=actor, data=data)
        reason = kind
        if kind == "blocked":
            reason = str(msgspec.json.decode(data)["reason"])
            if reason not in _SET_ASIDE:
                return None
        run = await self._store.get(run_id)
        if run is None:
            return None
        if name == "on_error":
            return _error(
                AttemptEnd(run=run, scope="run", attempt=run.attempt, status="failed", at=at, payload=run.error)
            )
        return DeadLetterNotice(run=run, reason=reason, at=at)


def _error(one: AttemptEnd) -> ErrorNotice:
    failure = one.failure
    return ErrorNotice(
        run_id=one.run.id,
        type=one.run.type,
        scope=one.scope,
        location=one.location,
        attempt=one.attempt,
        error=failure.type,
        message=failure.message,
        will_retry=one.status == "retrying",
        retry_at=one.retry_at,
        at=one.at,
    )
