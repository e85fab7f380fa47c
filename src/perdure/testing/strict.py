"""The guard of `Environment(strict=True)`: clocks, randomness and I/O in workflow code raise `NotInWorkflow`.

I/O is seen by audit events. Clocks and randomness have none, so calls of their C functions are seen by a profile
function, under whichever name the code knows them. It is set only while workflow code is executed.
"""

from __future__ import annotations

import _thread
import datetime
import os
import random
import sys
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from perdure.replay.run_loop import RunLoop
from perdure.worker.workflow_guard import Place, StrictGuard, place_of, through
from perdure.workflow.step import is_declared_step

_CLOCK = "reads the clock; a replay reads another time", "use `ctx.now()`, or `self.now()` in a state machine"
_RANDOM = (
    "is random; a replay gets another value",
    "use `ctx.random` or `ctx.uuid()`, or those of `self` in a state machine",
)
_THREAD = "starts a thread", "do it in a step: `await ctx.step(function, ...)`"
_SLEEP = "blocks the worker", "use `await ctx.sleep(...)`, or `self.timer(...)` in a state machine"

#: The generator behind the functions of the module `random`.
_SHARED = random.random.__self__  # type: ignore[attr-defined] # they are bound methods

#: C functions that workflow code may not call.
_FORBIDDEN: dict[Any, tuple[str, str]] = {
    **dict.fromkeys(
        (
            time.time, time.time_ns, time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns,
            time.process_time,
        ),
        _CLOCK,
    ),
    **dict.fromkeys((_SHARED.random, _SHARED.getrandbits, os.urandom), _RANDOM),
    time.sleep: _SLEEP,
    _thread.start_new_thread: _THREAD,
}  # fmt: skip
if hasattr(os, "getrandom"):
    _FORBIDDEN[os.getrandom] = _RANDOM

#: Class methods of dates that read the clock. They are made anew at each access, so they are known by name.
_OF_DATES = frozenset(("now", "utcnow", "today"))


#: The code that reads a variable of the environment.
_ENVIRON = type(os.environ).__getitem__.__code__
_ENVIRONMENT_REMEDY = "pass the value as an argument of the workflow, or read it in a step"


class DeterminismGuard(StrictGuard):
    """Raises `NotInWorkflow` for I/O, clocks, randomness, the environment, and steps that are called directly."""

    def __init__(self) -> None:
        super().__init__()
        #: Functions that are no steps.
        self._checked: set[CodeType] = set()

    def watch(self, loop: RunLoop, run_id: str) -> None:
        """Watch the code of a run."""
        super().watch(loop, run_id)
        loop.wrap_drains(self._traced)

    def _traced(self, run_ready: Callable[[], None]) -> None:
        before = sys.getprofile()
        # An error raised by a profile function unsets it, so it is set for each drain.
        sys.setprofile(self._profile)
        try:
            run_ready()
        finally:
            sys.setprofile(before)

    def _profile(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            self._saw_call(frame)
        if event != "c_call":
            return
        rule = _FORBIDDEN.get(called)
        if rule is None and getattr(called, "__name__", "") in _OF_DATES:
            owner = getattr(called, "__self__", None)
            rule = _CLOCK if isinstance(owner, type) and issubclass(owner, datetime.date) else None
        if rule is not None and (place := place_of(frame)) is not None:
            self.saw(place, f"calls {_name_of(called)}(){through(place)}, which {rule[0]}", rule[1])

    def _saw_call(self, frame: FrameType) -> None:
        code = frame.f_code
        if code is _ENVIRON:
            if (place := _direct_place(frame.f_back)) is not None:
                self.saw(place, "reads os.environ; a replay may run in another process", _ENVIRONMENT_REMEDY)
        elif code not in self._checked:
            function = frame.f_globals.get(code.co_name)
            if getattr(function, "__code__", None) is code and is_declared_step(function):
                if (place := place_of(frame.f_back)) is not None:
                    what = f"calls the step {code.co_name!r} directly, so nothing records its result"
                    self.saw(place, what, f"use `await ctx.step({code.co_name}, ...)`")
            else:
                self._checked.add(code)


def _direct_place(frame: FrameType | None) -> Place | None:
    """The line of workflow code, if only the standard library is between: other libraries have reasons of their own."""
    caller = frame
    while caller is not None and caller.f_globals.get("__name__", "").partition(".")[0] in sys.stdlib_module_names:
        caller = caller.f_back
    place = place_of(frame)
    return place if caller is not None and place is not None and caller.f_code.co_filename == place.file else None


def _name_of(called: Any) -> str:
    owner = called.__self__
    if owner is _SHARED:
        return f"random.{called.__name__}"
    if isinstance(owner, type):
        return f"{owner.__name__}.{called.__name__}"
    return f"{called.__module__}.{called.__name__}".replace("posix.", "os.").replace("nt.", "os.")
