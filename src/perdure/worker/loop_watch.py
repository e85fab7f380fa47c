"""Watch of the worker's event loop: logs the workflow or the async step that blocks it, with its stack.

A thread samples what the loop's thread executes. While the loop is idle that is all. Otherwise it also asks the loop
for an answer: as long as none comes, and all samples show the same run or step, that one has not returned to the loop.
Nothing is noted on the loop itself, so workflows and steps cost nothing more. The run and the step are found in the
frames of Perdure below the user's. Batches of many short callbacks show different runs and are not reported.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from threading import get_ident
from types import FrameType
from typing import Any, cast

from msgspec import Struct

from perdure import errors
from perdure.core.printed_text import log_with_trace
from perdure.core.system import Background, System
from perdure.replay.execution import Execution
from perdure.worker.steps.attempt import RUN_STEP, Attempt
from perdure.workflow.step_info import current_step

logger = logging.getLogger("perdure.worker")

#: Shares of the limit: between two samples of an idle loop, and of one that owes an answer.
_IDLE_SHARE = 0.25
_BUSY_SHARE = 0.1
#: A loop that is blocked for this many limits is reported at once, and not when it is free again.
_LONG = 10
#: Seconds between two reports of the same place, and the number of places that are remembered.
QUIET = 60.0
_PLACES = 200
#: Frames of a stack that are shown.
_FRAMES = 30

_DRAIN = Execution._drain.__code__
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


class _Sighting:
    """A culprit that consecutive samples have shown."""

    def __init__(self, culprit: Culprit, since: float) -> None:
        self.culprit = culprit
        self.since = self.seen = since
        #: Frames of the user, outermost first; None until the limit is passed.
        self.stack: traceback.StackSummary | None = None
        self.is_logged = False


class LoopWatch:
    """Watches the event loop on which it is made. `limit`: seconds from which a blocked loop is logged."""

    def __init__(self, system: System, limit: float, worker: Callable[[], str]) -> None:
        self._system = system
        self._limit = limit
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        #: Whether the loop owes an answer. The loop resets it.
        self._asked = False
        self._sighting: _Sighting | None = None
        self._last = self._due = system.monotonic()
        #: By place: time of the last report, and the number of others since then.
        self._places: dict[tuple[str, str], tuple[float, int]] = {}
        self._ticker: Background | None = None

    def start(self) -> None:
        """Start to watch."""
        self._ticker = self._system.ticker(self.tick, "perdure loop watch")

    async def stop(self) -> None:
        """Stop to watch."""
        if self._ticker is not None:
            await self._ticker.stop()

    def tick(self, cpu: float) -> float:
        """Take a sample and return the seconds until the next. `cpu`: CPU seconds of this process since the last."""
        now = self._system.monotonic()
        late, before = now - self._due > self._limit, self._last
        if late and cpu < self._limit:
            # The whole process stood still: it was suspended, or got no processor.
            self._sighting = None
            late = False
        share = self._sample(now, before if late else now)
        self._last, self._due = now, now + self._limit * share
        return self._limit * share

    def _sample(self, now: float, since: float) -> float:
        """Take a sample; returns the share of the limit until the next."""
        if not self._asked:
            self._finish()
        frame = sys._current_frames().get(self._thread)
        if frame is None or (not self._asked and _is_idle(frame)) or not self._ask():
            return _IDLE_SHARE
        culprit = _find_culprit(frame, self._loop)
        sighting = self._sighting
        if sighting is None or sighting.culprit != culprit:
            self._finish()
            # C code that keeps the interpreter lock kept this thread waiting, too.
            sighting = self._sighting = None if culprit is None else _Sighting(culprit, since)
        if sighting is not None:
            sighting.seen = now
            blocked = now - sighting.since
            if sighting.stack is None and blocked >= self._limit:
                sighting.stack = _stack_of(frame)
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
        stack = sighting.stack
        if not stack or sighting.is_logged:
            return
        sighting.is_logged = True
        now = self._system.monotonic()
        innermost = next((one for one in reversed(stack) if _is_of_user(one.filename)), stack[-1])
        place = innermost.filename, innermost.name
        last, others = self._places.pop(place, (now - QUIET, 0))
        if now - last < QUIET:
            self._places[place] = last, others + 1
            return
        self._places[place] = now, 0
        if len(self._places) > _PLACES:
            del self._places[next(iter(self._places))]
        culprit = sighting.culprit
        log_with_trace(
            logger,
            logging.WARNING,
            "Stack (most recent call last):\n" + "".join(stack.format()).rstrip("\n"),
            "the event loop of worker %s was blocked for %.2f s by %s; nothing else went on meanwhile; put blocking "
            "code in a sync step, which runs in a thread, or in a step with process=True%s",
            *(self._worker(), sighting.seen - sighting.since, culprit),
            f" ({others} more times at this place since the last report)" if others else "",
            extra={
                "run_id": culprit.run_id or None,
                "run_type": culprit.run_type or None,
                "location": culprit.location or None,
                "attempt": culprit.attempt or None,
                "worker": self._worker(),
            },
        )


def _is_idle(frame: FrameType) -> bool:
    """True if the loop waits for events: in `select`, or in the C code of a loop that asyncio's runner has called."""
    code = frame.f_code
    if code.co_name == "select" and code.co_filename.endswith("selectors.py"):
        return True
    return _is_of_loop(frame)


def _is_of_loop(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name in _LOOP_FUNCTIONS and code.co_filename.startswith(_ASYNCIO)


def _callback_frames(frame: FrameType) -> Iterator[FrameType]:
    """Frames of the callback that the loop executes, innermost first."""
    current: FrameType | None = frame
    while current is not None and not _is_of_loop(current):
        yield current
        current = current.f_back


def _find_culprit(frame: FrameType, loop: asyncio.AbstractEventLoop) -> Culprit | None:
    """The code of the user that is executed; None if there is none."""
    has_users = False
    for one in _callback_frames(frame):
        if one.f_code is _DRAIN:
            execution: Execution = one.f_locals["self"]
            fields: dict[str, Any] = execution.log_fields
            return Culprit(fields["run_id"], fields["run_type"], "", fields["attempt"])
        if one.f_code is RUN_STEP:
            attempt: Attempt = one.f_locals["self"]
            return Culprit(attempt.run_id, "", attempt.operation.location, attempt.number)
        has_users = has_users or _is_of_user(one.f_code.co_filename)
    return _step_of_task(loop) or (Culprit() if has_users else None)


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


def _stack_of(frame: FrameType) -> traceback.StackSummary:
    """The stack below the frames of Perdure, outermost first."""
    frames: list[FrameType] = []
    for one in _callback_frames(frame):
        if one.f_code is _DRAIN or one.f_code is RUN_STEP:
            break
        frames.append(one)
    while frames and not _is_of_user(frames[-1].f_code.co_filename):
        frames.pop()
    shown = [(one, one.f_lineno) for one in reversed(frames[:_FRAMES])]
    return traceback.StackSummary.extract(iter(shown))
