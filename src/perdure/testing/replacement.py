"""Functions of a test in place of steps and activities: `env.replace(charge, fake)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from msgspec import Struct

from perdure.core.middleware import Invocation, Middleware, Next
from perdure.core.printed_text import brief
from perdure.errors import UsageError
from perdure.workflow.activity import Activity
from perdure.workflow.definition import Workflow

P = ParamSpec("P")
R = TypeVar("R")

#: A step or activity to replace: its function, the decorated activity, or its name.
Replaceable = Callable[..., Any] | Activity[..., Any] | str


class ReplacedCall(Struct, frozen=True):
    """One call of a replacement."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    run_id: str
    #: Location of the step; the type of an activity.
    location: str


class Replacement:
    """A function in place of a step or an activity, and the calls that it got. Attempts count one by one."""

    def __init__(self, replaced: Replaceable, fake: Callable[..., Any]) -> None:
        self._replaced = replaced
        self._fake = fake
        #: Calls, in order.
        self.calls: list[ReplacedCall] = []

    @property
    def count(self) -> int:
        """Number of calls."""
        return len(self.calls)

    def fits(self, call: Invocation) -> bool:
        """True if this replaces the function of a call."""
        if isinstance(self._replaced, str):
            return self._replaced in (name_of(call.location), call.location)
        if isinstance(self._replaced, Activity):
            return call.kind == "activity" and call.location == self._replaced.type
        return call.function == self._replaced

    def answer(self, call: Invocation) -> Any:
        """Call the function of the test."""
        self.calls.append(ReplacedCall(call.args, call.kwargs, call.run_id, call.location))
        return self._fake(*call.args, **call.kwargs)

    def __repr__(self) -> str:
        return f"<replacement of {brief(self._replaced)}, called {self.count} times>"


class Replacements(Middleware):
    """The replacements of an environment, as middleware. The latest that fits a call answers it."""

    def __init__(self) -> None:
        self._all: list[Replacement] = []

    def add(self, replaced: Replaceable, fake: Callable[..., Any]) -> Replacement:
        """Replace a step or activity from now on. Raises `UsageError`."""
        if isinstance(replaced, Workflow):
            raise UsageError(
                f"replace: {replaced.type} is a workflow, and steps and activities can be replaced; give the "
                "environment another workflow of the same type"
            )
        for what, value in (("replaces", replaced), ("is the replacement", fake)):
            if not callable(value) and not (value is replaced and isinstance(value, str | Activity)):
                raise UsageError(f"replace: {brief(value)} {what}; give a function")
        replacement = Replacement(replaced, fake)
        self._all.append(replacement)
        return replacement

    def replaces(self, call: Invocation) -> bool:
        """True if a step is replaced."""
        return any(one.fits(call) for one in self._all)

    def step(self, call: Invocation, next: Next, /) -> Any:
        """Answer a step that is replaced."""
        for one in reversed(self._all):
            if one.fits(call):
                return one.answer(call)
        return next(call)

    def activity(self, call: Invocation, next: Next, /) -> Any:
        """Answer an activity that is replaced."""
        return self.step(call, next)


def name_of(location: str) -> str:
    """The name of the step at a location: without its scope and ordinal."""
    return location.rpartition("/")[2].partition("#")[0]
