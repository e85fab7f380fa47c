"""Watch of the worker's event loop: logs the workflow or the async step that blocks it, with its stack.

A thread samples what the loop's thread executes. While the loop is idle that is all. Otherwise it also asks the loop
for an answer: as long as none comes, and all samples show the same run or step, that one has not returned to the loop.
The run and the step are found in the frames of Perdure below the user's. Batches of many short callbacks show different
runs and are not reported.

C code that keeps the interpreter lock keeps this thread waiting, too. Which thread gets the lock next is chance: the
loop may have gone on before a sample is possible. So workflows and steps leave a trace (`LoopTrace`) if they end while
this thread should have taken a sample; the one that took longest is reported. Only a step that awaits something after
its long call leaves none; then the report names the steps that are in progress. The CPU time of the loop's thread tells
whether another thread kept the lock, such as one that executes a step.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import operator
import sys
import sysconfig
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import accumulate, chain, repeat, takewhile
from math import inf
from threading import Lock, get_ident
from types import FrameType
from typing import Any, cast

from msgspec import Struct

from perdure import errors
from perdure.core.printed_text import log_with_trace
from perdure.core.process_fork import watch_forks
from perdure.core.system import CpuClock, LongestCode, LoopTrace, System, Ticker
from perdure.replay.execution import Execution
from perdure.worker.steps.attempt import RUN_STEP, Attempt
from perdure.workflow.runtime import run_blocking
from perdure.workflow.step import current_step

logger = logging.getLogger("perdure.worker")

#: Shares of the limit: between two samples of an idle loop, and of one that owes an answer.
_IDLE_SHARE = 0.25
_BUSY_SHARE = 0.1
#: Samples of an idle loop after which a watch without runs rests.
_RESTS_AFTER = 8
#: A loop that is blocked for this many limits is reported at once, and not when it is free again.
_LONG = 10
#: Seconds between two reports of the same place, and the number of places that are remembered.
QUIET = 60.0
_PLACES = 200
#: Frames of a stack that are shown.
_FRAMES = 30
#: Of code after which this thread runs again, in the words of a report, and advice for its author.
_KEPT_LOCK = "that kept the interpreter lock (a long call into C)"
_KEPT_LOCK_REMEDY = "a thread does not help such code; put it in a step with process=True"
#: Steps in progress that a report names.
_NAMED = 3

_DRAIN = Execution.drain.__code__
#: The outermost function of a `def` workflow, whose frames do not lead to those of its run.
_BLOCKING = run_blocking.__code__
#: Functions that call code of users, and the variable that has its owner.
_OWNERS = {_DRAIN: "self", **RUN_STEP, _BLOCKING: "runtime"}
_PACKAGE = errors.__file__.removesuffix("errors.py")
_STANDARD = sysconfig.get_path("stdlib")
_ASYNCIO = asyncio.__file__.removesuffix("__init__.py")
#: Functions of asyncio that call callbacks, or wait for events.
_LOOP_FUNCTIONS = frozenset({"_run", "_run_once", "run_forever", "run_until_complete", "run"})


class Culprit(Struct, frozen=True):
    """The code that executes on the loop: a workflow, a step, or other code of the user."""

    run_id: str = ""
    run_type: str = ""
    #: Location of the step; empty for a workflow.
    location: str = ""
    attempt: int = 0

    def __str__(self) -> str:
        if not self.run_id:
            return "code outside of workflows and steps"
        if self.location:
            return f"step {self.location} of run {self.run_id}, attempt {self.attempt}"
        return f"the workflow of run {self.run_id} ({self.run_type})"

    @property
    def place(self) -> tuple[str, str]:
        """The place of its code, as far as it is known without a stack."""
        return self.run_type, self.location

    @property
    def remedy(self) -> str:
        """Advice for its author."""
        if not self.run_id:
            return "await an async library, or put blocking code in a thread, such as by asyncio.to_thread"
        if self.location:
            return (
                "make the function a plain `def`, which runs in a thread, await an async library, or use process=True"
            )
        return "put blocking code in a step: a plain `def` runs in a thread, with process=True in a process"


class _Sighting:
    """A culprit that consecutive samples have shown."""

    def __init__(self, culprit: Culprit, since: float, *, late: bool) -> None:
        self.culprit = culprit
        self.since = self.seen = since
        #: True if no sample was possible until it was seen, so that it may have begun only then.
        self.is_likely = late
        #: Frames of the user, outermost first; empty if there were none; None until the limit is passed.
        self.stack: traceback.StackSummary | None = None
        self.is_logged = False


class LoopWatch:
    """Watches the event loop on which it is made. `limit`: seconds from which a blocked loop is logged."""

    def __init__(
        self,
        system: System,
        limit: float,
        worker: Callable[[], str],
        trace: LoopTrace,
        attempts_under_way: Callable[[], Iterable[Attempt]],
        may_rest: Callable[[], bool],
    ) -> None:
        """`may_rest`: whether the worker holds no run, so that no workflow and no step can block the loop."""
        self._may_rest = may_rest
        #: True while no samples are taken.
        self.is_resting = False
        self._idle_samples = 0
        self._system = system
        self._limit = limit
        self._worker = worker
        self._trace = trace
        self._attempts_under_way = attempts_under_way
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        #: Whether the loop owes an answer. The loop resets it.
        self._asked = False
        self._sighting: _Sighting | None = None
        #: CPU seconds of this process and of the loop's thread at the last sample.
        self._cpu = 0.0, 0.0
        self._last = system.monotonic()
        #: Time from which the next sample is late. The first one never is: its thread may take long to start.
        self._late_at = inf
        #: By place: time of the last report, and the number of others since then.
        self._places: dict[tuple[str, str], tuple[float, int]] = {}
        self._ticker: Ticker | None = None

    def start(self) -> None:
        """Start to watch."""
        self._ticker = self._system.ticker(self.tick, "perdure loop watch", self._trace)

    async def stop(self) -> None:
        """Stop to watch. A block that has just ended is reported: no sample will find the loop free."""
        if self._ticker is not None:
            await self._ticker.stop()
        self._finish()

    def wake(self) -> None:
        """Go on after a rest, because the worker holds a run. From the loop's thread."""
        self.is_resting = False
        self._expect_next(self._system.monotonic())
        self._trace.take()
        if self._ticker is not None:
            self._ticker.wake()

    def tick(self, cpu_clock: CpuClock) -> float:
        """Take a sample and return the seconds until the next. The clock is for this process and the loop's thread."""
        last_cpu, self._cpu = self._cpu, cpu_clock()
        now = self._system.monotonic()
        before, late = self._last, now > self._late_at
        # Before the sample: the loop may be blocked again before its end.
        self._expect_next(now)
        # Read once more: the loop may have been blocked since the reading above.
        cpu, loop_cpu = map(operator.sub, cpu_clock(), last_cpu) if late else (0.0, 0.0)
        if late and cpu < self._limit:
            # The whole process stood still: it was suspended, or got no processor. A block that lasted too long before
            # that is reported.
            self._finish()
            late = False
        elif late and loop_cpu < min(self._limit, cpu / 2):
            self._finish()
            self._report_unseen(None, now - before, in_thread=True)
            late = False
        share = self._sample(now, before if late else now, late=late)
        return inf if share == _IDLE_SHARE and self._rests() else self._limit * share

    def _rests(self) -> bool:
        """Rest if the loop was idle for a while and the worker holds no run: samples cost more than all else then."""
        self._idle_samples = self._idle_samples + 1 if self._may_rest() else 0
        if self._idle_samples < _RESTS_AFTER:
            return False
        self._idle_samples = 0
        self.is_resting = True
        # A run that came before the line above has not woken this watch.
        self.is_resting = self._may_rest()
        return self.is_resting

    def _expect_next(self, now: float) -> None:
        self._last, self._late_at = now, now + self._limit * (1 + _IDLE_SHARE)

    def _sample(self, now: float, since: float, *, late: bool) -> float:
        """Take a sample; returns the share of the limit until the next."""
        before = self._sighting
        if not self._asked:
            self._finish()
        frames = _frames_of(self._thread)
        # After the frames, so that code that has ended meanwhile is noted.
        longest = self._trace.take()
        if late and self._has_gone_on(longest, frames, before, now - since):
            since, late = now, False
        if not frames or (not self._asked and _is_idle(frames[0])) or not self._ask():
            if late:
                self._report_unseen(before, now - since)
            return _IDLE_SHARE
        culprit = _find_culprit(frames, self._loop)
        if culprit is None and late:
            self._report_unseen(before, now - since)
        sighting = self._sighting
        if sighting is None or sighting.culprit != culprit:
            self._finish()
            sighting = self._sighting = None if culprit is None else _Sighting(culprit, since, late=late)
        if sighting is not None:
            sighting.seen = now
            blocked = now - sighting.since
            if sighting.stack is None and blocked >= self._limit:
                sighting.stack = _stack_of(frames)
            if blocked >= _LONG * self._limit:
                self._report(sighting)
        return _BUSY_SHARE

    def _ask(self) -> bool:
        """Ask the loop for an answer, unless it owes one; False if it is closed."""
        if not self._asked:
            self._asked = True
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                return False
        return True

    def _answer(self) -> None:
        self._asked = False

    def _finish(self) -> None:
        sighting, self._sighting = self._sighting, None
        if sighting is not None:
            self._report(sighting)

    def _report(self, sighting: _Sighting) -> None:
        stack, culprit = sighting.stack, str(sighting.culprit)
        if stack is None or sighting.is_logged:
            return
        sighting.is_logged = True
        innermost = next((one for one in reversed(stack) if _is_of_user(one.filename)), None)
        self._log(
            sighting.culprit.place if innermost is None else (innermost.filename, innermost.name),
            sighting.culprit,
            "Stack (most recent call last):\n" + "".join(stack.format()).rstrip("\n") if stack else "",
            f"by code {_KEPT_LOCK}, most likely by {culprit}" if sighting.is_likely else f"by {culprit}",
            sighting.seen - sighting.since,
            _KEPT_LOCK_REMEDY if sighting.is_likely else sighting.culprit.remedy,
        )

    def _has_gone_on(
        self, longest: LongestCode, frames: Sequence[FrameType], before: _Sighting | None, seconds: float
    ) -> bool:
        """True if the trace shows that the loop executes other code than before this sample; that code is reported."""
        code, code_seconds, unknown_seconds = longest
        culprit = _culprit_of(code) if code_seconds >= self._limit else None
        if culprit is None and unknown_seconds < self._limit:
            return False
        if culprit == _find_culprit(frames, self._loop):
            return False
        self._finish()
        if culprit is None:
            self._report_unseen(before, seconds)
        elif before is None or before.culprit != culprit or not before.is_logged:
            by = f"by code {_KEPT_LOCK}, most likely by {culprit}"
            self._log(culprit.place, culprit, "", by, seconds, _KEPT_LOCK_REMEDY)
        return True

    def _report_unseen(self, before: _Sighting | None, seconds: float, *, in_thread: bool = False) -> None:
        """Report that this thread was kept from its samples by code that neither a sample nor the trace has shown."""
        if before is not None and before.is_logged:
            return
        attempts = [one for one in self._attempts_under_way() if (one.is_in_thread if in_thread else one.is_on_loop)]
        steps = [_step_culprit(one) for one in attempts[:_NAMED]]
        culprit = steps[0] if len(steps) == 1 else Culprit() if before is None else before.culprit
        if len(steps) == 1:
            seen = f", most likely by {culprit}"
        else:
            names = f"{len(attempts)} steps are in progress, such as {', '.join(map(str, steps))}"
            seen = f" and was not seen; {names if steps else 'no step is in progress'}"
            seen += "" if before is None else f"; {culprit} was seen before"
        where = "in another thread " if in_thread else ""
        self._log(culprit.place, culprit, "", f"by code {where}{_KEPT_LOCK}{seen}", seconds, _KEPT_LOCK_REMEDY)

    def _log(self, place: tuple[str, str], culprit: Culprit, trace: str, by: str, seconds: float, remedy: str) -> None:
        """Log a report, unless one of the same place was logged lately; that one is counted."""
        now = self._system.monotonic()
        last, others = self._places.pop(place, (now - QUIET, 0))
        if now - last < QUIET:
            self._places[place] = last, others + 1
            return
        self._places[place] = now, 0
        if len(self._places) > _PLACES:
            del self._places[next(iter(self._places))]
        log_with_trace(
            logger,
            logging.WARNING,
            trace,
            "the event loop of worker %s was blocked for %.2f s %s; nothing else went on meanwhile; %s%s",
            *(self._worker(), seconds, by, remedy),
            f" ({others} more times at this place since the last report)" if others else "",
            extra={
                "run_id": culprit.run_id or None,
                "run_type": culprit.run_type or None,
                "location": culprit.location or None,
                "attempt": culprit.attempt or None,
                "worker": self._worker(),
            },
        )


def _frames_of(thread: int) -> list[FrameType]:
    """Frames of a thread, innermost first; none if it has ended.

    The thread goes on whenever this one lets go of the interpreter lock, and the frame of a coroutine that has ended or
    waits no longer leads to its caller. So one call into C, which keeps the lock, collects all frames.
    """
    frames: list[Any] = []
    first = map(operator.getitem, map(operator.call, [sys._current_frames]), [thread])
    frame_and_steps: Iterator[Any] = chain(first, repeat("f_back"))
    # The outermost frame is before None, which has no `f_back`; an ended thread is missing.
    with without_collection(), suppress(AttributeError, KeyError):
        frames.extend(accumulate(frame_and_steps, getattr))
    return frames[:-1]


class _CollectionLock:
    """Keeps the garbage collector off in one thread at a time, and in no thread at a fork."""

    def __init__(self) -> None:
        self._lock = Lock()
        watch_forks(self._release, before=self._acquire, in_parent=self._release)

    @contextmanager
    def held(self) -> Generator[None]:
        with self._lock:
            was_on = gc.isenabled()
            gc.disable()
            try:
                yield
            finally:
                if was_on:
                    gc.enable()

    def _acquire(self) -> None:
        self._lock.acquire()

    def _release(self) -> None:
        self._lock.release()


_collection = _CollectionLock()


def without_collection() -> AbstractContextManager[None]:
    """Keep the garbage collector off while `sys._current_frames` is called, in one thread at a time.

    That function holds a lock of the interpreter. A collection inside of it may call finalizers in Python, which let
    other threads run: a thread that needs the same lock then waits for ever, and keeps the interpreter lock.
    """
    return _collection.held()


def _is_idle(frame: FrameType) -> bool:
    """True if the loop waits for events: in `select`, or in the C code of a loop that asyncio's runner has called."""
    code = frame.f_code
    if code.co_name == "select" and code.co_filename.endswith("selectors.py"):
        return True
    return _is_of_loop(frame)


def _is_of_loop(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name in _LOOP_FUNCTIONS and code.co_filename.startswith(_ASYNCIO)


def _callback_frames(frames: Sequence[FrameType]) -> Iterator[FrameType]:
    """Frames of the callback that the loop executes, innermost first."""
    return takewhile(lambda one: not _is_of_loop(one), frames)


def _find_culprit(frames: Sequence[FrameType], loop: asyncio.AbstractEventLoop) -> Culprit | None:
    """The code of the user that is executed; None if there is none."""
    has_users = False
    for one in _callback_frames(frames):
        # A frame that has ended meanwhile may have lost its variables.
        owner = one.f_locals.get(_OWNERS[one.f_code]) if one.f_code in _OWNERS else None
        if (culprit := _culprit_of(owner)) is not None:
            return culprit
        has_users = has_users or _is_of_user(one.f_code.co_filename)
    return _step_of_task(loop) or (Culprit() if has_users else None)


def _culprit_of(owner: object) -> Culprit | None:
    """The workflow or the step that an object of Perdure executes."""
    if isinstance(owner, Execution):
        fields: dict[str, Any] = owner.log_fields
        return Culprit(fields["run_id"], fields["run_type"], "", fields["attempt"])
    return _step_culprit(owner) if isinstance(owner, Attempt) else None


def _step_culprit(attempt: Attempt) -> Culprit:
    return Culprit(attempt.run_id, "", attempt.operation.location, attempt.number)


def _step_of_task(loop: asyncio.AbstractEventLoop) -> Culprit | None:
    """The step that has made the current task of the loop. Python 3.11 does not tell the context of a task."""
    try:
        task = asyncio.current_task(loop)
        step = None if task is None else cast("Any", task).get_context().get(current_step)
    except (AttributeError, RuntimeError):
        return None
    return None if step is None else Culprit(step.run_id, "", step.location, step.attempt)


def _is_of_user(filename: str) -> bool:
    return not filename.startswith((_PACKAGE, "<frozen")) and (
        not filename.startswith(_STANDARD) or "site-packages" in filename
    )


def _stack_of(frames: Sequence[FrameType]) -> traceback.StackSummary:
    """The stack below the frames of Perdure, outermost first."""
    users: list[FrameType] = []
    for one in _callback_frames(frames):
        if one.f_code in _OWNERS:
            break
        users.append(one)
    while users and not _is_of_user(users[-1].f_code.co_filename):
        users.pop()
    shown = [(one, one.f_lineno) for one in reversed(users[:_FRAMES])]
    return traceback.StackSummary.extract(iter(shown))
