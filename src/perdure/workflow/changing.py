"""Changing the code of a workflow while runs of it are under way."""

from __future__ import annotations

from typing import Literal, cast

from perdure.core.ids import check_name
from perdure.core.model.run import Kind
from perdure.errors import UsageError
from perdure.workflow.facet import Facet
from perdure.workflow.operation import Operation

_REMOVABLE = {
    "step": Kind.STEP,
    "timer": Kind.TIMER,
    "child": Kind.CHILD,
    "version": Kind.VERSION,
}


class Changing(Facet):
    """The part of a `Context` that knows which version of the code a run follows."""

    __slots__ = ()

    def patched(self, name: str) -> bool:
        """Whether the run follows the changed code here: False if it had passed this place before the change was deployed.

        `if ctx.patched("new-tax"): ...` keeps runs under way on the old path. The answer is recorded, for each place by itself.
        """
        return self.version(name, 1) > 0

    def version(self, name: str, latest: int) -> int:
        """The version of the code that the run follows here: `latest`, or what was the latest when it came here.

        0 for a run that had passed this place before there was a call of `version`. The answer is recorded, for each place by
        itself: in a loop, each iteration has its own.
        """
        if not isinstance(latest, int) or isinstance(latest, bool) or latest < 1:
            raise UsageError(f"the latest version of {name!r} has to be a whole number from 1, not {latest!r}")
        return self._runtime.version(check_name(name, "version name"), latest)

    def removed(self, name: str, kind: Literal["step", "timer", "child", "version"]) -> Operation[None]:
        """Stand in for something that is no longer done here, so that runs that did it can be replayed; await it.

        `await ctx.removed("charge", "step")` takes the place of a call of `charge`, `("sleep", "timer")` that of a sleep,
        `("shop.ship.v1", "child")` of a child, `("new-tax", "version")` of a `patched` or `version`. New runs pass it by.
        """
        if kind not in _REMOVABLE:
            raise UsageError(f"what was removed is one of {', '.join(_REMOVABLE)}, not {kind!r}")
        return cast("Operation[None]", self._runtime.removed(check_name(name, "name"), _REMOVABLE[kind]))
