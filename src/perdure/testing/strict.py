"""The guard of strict tests and of `perdure dev`: clocks, randomness and I/O in workflow code raise `NotInWorkflow`.

I/O is seen by audit events. Clocks and randomness have none, so calls of their C functions are seen by a profile
function, under whichever name the code knows them. It is set only while workflow code is executed.
"""

from __future__ import annotations

import _thread
import datetime
import dis
import os
import random
import sys
import time
import uuid
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from perdure.worker.workflow_guard import CodeLine, IoGuard, StrictGuard, place_of, through
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
            time.process_time, time.process_time_ns,
        ),
        _CLOCK,
    ),
    **dict.fromkeys((_SHARED.random, _SHARED.getrandbits, os.urandom), _RANDOM),
    time.sleep: _SLEEP,
    _thread.start_new_thread: _THREAD,
}  # fmt: skip
#: C functions that not every system has. Those of `uuid` make the ids of `uuid1`.
for _owner, _names, _rule in (
    (os, ("getrandom",), _RANDOM),
    (time, ("clock_gettime", "clock_gettime_ns", "thread_time", "thread_time_ns"), _CLOCK),
    (uuid, ("_generate_time_safe", "_UuidCreate"), _RANDOM),
):
    _FORBIDDEN.update({getattr(_owner, _name): _rule for _name in _names if getattr(_owner, _name, None) is not None})

#: C functions that read the clock if they get fewer arguments.
_CLOCK_BY_DEFAULT: dict[Any, int] = {
    time.localtime: 1, time.gmtime: 1, time.ctime: 1, time.asctime: 1, time.strftime: 2,
}  # fmt: skip

#: The code of `random.Random` that sets a seed, which comes from the system if it gets none.
_SEED = random.Random.seed.__code__

#: Class methods of dates that read the clock. They are made anew at each access, so they are known by name.
_OF_DATES = frozenset(("now", "utcnow", "today"))


#: Packages that measure their own work and mark messages in workflow code; what they decide does not depend on it.
_AGENT_LIBRARIES = frozenset(("pydantic_ai", "pydantic_graph", "anyio", "genai_prices", "logfire_api", "openai"))

#: The code that reads a variable of the environment.
_ENVIRON = type(os.environ).__getitem__.__code__
_ENVIRONMENT_REMEDY = "pass the value as an argument of the workflow, or read it in a step"


class DeterminismGuard(StrictGuard):
    """Raises `NotInWorkflow` for I/O, clocks, randomness, the environment, and steps that are called directly."""

    def __init__(self, *, logs: bool = False) -> None:
        """`logs`: also log each line of code once, because the workflow may catch the error."""
        super().__init__()
        self._logs = logs
        #: Functions that are no steps.
        self._checked: set[CodeType] = set()
        self.trace = self._trace

    def saw(self, place: CodeLine, what: str, remedy: str) -> None:
        """Raise `NotInWorkflow`."""
        if self._logs:
            IoGuard.saw(self, place, what, remedy)
        super().saw(place, what, remedy)

    def _trace(self, run_ready: Callable[[], None]) -> None:
        """Run the callbacks of a loop, and watch each call."""
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
        rule = _FORBIDDEN.get(called) or _rule_of_arguments(frame, called)
        if rule is None and getattr(called, "__name__", "") in _OF_DATES:
            owner = getattr(called, "__self__", None)
            rule = _CLOCK if isinstance(owner, type) and issubclass(owner, datetime.date) else None
        if rule is not None and not _is_exempt(frame) and (place := place_of(frame)) is not None:
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


def _is_exempt(frame: FrameType) -> bool:
    """True if a library of agents itself reads a clock or makes a random value, not the code that it calls."""
    caller: FrameType | None = frame
    while caller is not None:
        name: str = caller.f_globals.get("__name__", "")
        root = name.partition(".")[0]
        if root not in sys.stdlib_module_names:
            return root in _AGENT_LIBRARIES or (root == "agents" and hasattr(sys.modules["agents"], "ModelProvider"))
        caller = caller.f_back
    return False


def _rule_of_arguments(frame: FrameType, called: Any) -> tuple[str, str] | None:
    """The rule that a call breaks by arguments that it does not have."""
    if frame.f_code is _SEED and called.__name__ == "seed":
        return _RANDOM if frame.f_locals.get("a") is None else None
    least = _CLOCK_BY_DEFAULT.get(called)
    if least is None:
        return None
    given = _count_arguments(frame)
    return _CLOCK if given is not None and given < least else None


def _count_arguments(frame: FrameType) -> int | None:
    """The number of arguments of the call that a frame makes; None if its instruction does not tell."""
    at, code = frame.f_lasti, frame.f_code.co_code
    return code[at + 1] if 0 <= at < len(code) - 1 and dis.opname[code[at]] == "CALL" else None


def _direct_place(frame: FrameType | None) -> CodeLine | None:
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
