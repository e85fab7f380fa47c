"""Calls the user's hooks, beside everything else: one at a time, from a bounded queue, after the commit.

Whatever a hook does (raise, hang, take its time) affects no run. What finds the queue full is not told, counted, and said in the log
now and then, as are errors.
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
from perdure.store.contract import Line, Store
from perdure.worker.callbacks import is_end_of
from perdure.worker.commit.attempt_log import AttemptEnd

logger = logging.getLogger("perdure.hooks")

#: Calls that wait, at the most.
ROOM = 10_000
#: How long calls that wait may go on when the worker stops, in seconds.
PATIENCE = 5.0
#: How far apart two words in the log about the same kind of trouble are, at least, in seconds.
QUIET = 10.0

_SET_ASIDE = ("poison", "undecodable")


class ThrottledLog:
    """Says something in the log, but not all the time: what was kept back is counted."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._since = -QUIET
        self._kept = 0

    def say(self, text: str, *args: object, error: BaseException | None = None) -> None:
        """Say it, or count it."""
        self._kept += 1
        now = self._system.monotonic()
        if now - self._since >= QUIET:
            logger.error(f"{text} (%d times since the last word)", *args, self._kept, exc_info=error)
            self._since, self._kept = now, 0


class HookCaller:
    """See the module. Shared by the workers of an engine: the first to start starts it, the last to stop stops it."""

    def __init__(self, hooks: Hooks, store: Store, system: System) -> None:
        self._hooks = hooks
        self._store = store
        self._system = system
        self._users: set[object] = set()
        #: The name of a hook and what it is to be told; no name: the end.
        self._waiting: deque[tuple[str, AttemptEnd | Line | None]] = deque()
        self._stirred = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unhear: Callable[[], None] | None = None
        self._errors, self._losses = ThrottledLog(system), ThrottledLog(system)
        #: Calls that were never made.
        self.dropped = 0
        #: Errors of the loop itself; those of hooks are in the log only.
        self.health = LoopHealth()
        self._guard = LoopGuard("hooks", system, self.health, logger)

    def start(self, user: object) -> None:
        """Begin to listen, for whoever asks for it."""
        self._users.add(user)
        if self._task is not None:
            return
        loop = asyncio.get_running_loop()

        def overheard(lines: Sequence[Line]) -> None:
            try:
                loop.call_soon_threadsafe(self._take_lines, lines)
            except RuntimeError:
                logger.debug("the event loop was closed before %d events could be told", len(lines))

        self._unhear = self._store.overhear(overheard)
        self._task = self._system.spawn(self._guard.keep_going(self._work), "perdure hooks")

    async def stop(self, user: object) -> None:
        """Once nobody asks for it any more: make the calls that wait, for a while, and no others."""
        self._users.discard(user)
        if self._users or self._task is None:
            return
        # What was written just now is told by callbacks that are still to come.
        await self._system.sleep(0)
        if self._unhear is not None:
            self._unhear()
        task, self._task = self._task, None
        self._waiting.append(("", None))
        self._stirred.set()
        limit = self._system.call_later(PATIENCE, task.cancel)
        await asyncio.gather(task, return_exceptions=True)
        limit.cancel()
        left = sum(1 for name, _ in self._waiting if name)
        self._waiting.clear()
        if left:
            self.dropped += left
            logger.error("%d calls of hooks were not made before the worker stopped", left)

    def failed(self, found: Sequence[AttemptEnd]) -> None:
        """Attempts have failed."""
        if self._hooks.on_error is not None:
            for one in found:
                self._add("on_error", one)

    def _take_lines(self, lines: Sequence[Line]) -> None:
        hooks, level = self._hooks, self._store.audit
        for line in lines:
            kind = line[2]
            if hooks.on_event is not None and level.writes(kind):
                self._add("on_event", line)
            # No turn says so: nobody was running it.
            if hooks.on_error is not None and kind == "expired":
                self._add("on_error", line)
            if hooks.on_dead_letter is not None and kind in ("failed", "expired", "blocked"):
                self._add("on_dead_letter", line)

    def _add(self, name: str, news: AttemptEnd | Line) -> None:
        if len(self._waiting) >= ROOM:
            self.dropped += 1
            self._losses.say("hooks are slower than what they are told of: calls are left out")
            return
        self._waiting.append((name, news))
        self._stirred.set()

    async def _work(self) -> None:
        while True:
            while self._waiting:
                name, news = self._waiting.popleft()
                if news is None:
                    return
                await self._call(name, news)
            self._stirred.clear()
            await self._stirred.wait()

    async def _call(self, name: str, news: AttemptEnd | Line) -> None:
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
            self._errors.say("%s failed", name, error=error)

    async def _value(self, name: str, news: AttemptEnd | Line) -> object | None:
        """What to call it with; None: it does not concern it, after all."""
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
