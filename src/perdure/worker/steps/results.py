"""Results of steps that came in, handed to their runs together.

Steps that were begun together tend to end together. Each is told to its run from a plain callback of the loop, never inside a
task, and all that have come by then share one look at the clocks, and leave for the database together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from perdure.core.system import System
from perdure.replay.drain_context import Around
from perdure.worker.commit.moment import Moment
from perdure.worker.run_guard import Breakable

#: So many share one look at the clocks: what their workflows do then takes time too.
_AT_ONCE = 64


class Recipient(Breakable, Protocol):
    """Whoever waits for the result of a step."""

    def step_ended(self, attempt: Any, result: Any, error: BaseException | None, moment: Moment) -> None:
        """An attempt at one of its steps is over."""

    def emit(self, attempt: Any, stream: str, value: object) -> None:
        """An attempt at one of its steps has something for others to see. From any thread."""

    def credentials(self) -> Mapping[str, Any]:
        """What was given for the run, by the one who asked for it to be worked on. From any thread."""


class Arriving(Protocol):
    """An attempt that is over, unless it is closed first."""

    recipient: Recipient

    def close(self) -> bool:
        """Whether it was open."""


class Departures(Protocol):
    """Where what follows from results is gathered until it leaves for the database."""

    def gather(self) -> None:
        """Wait with what comes from now on."""

    def leave(self, moment: Moment) -> None:
        """That was all of it."""

    def leave_later(self) -> None:
        """Wait no longer, though there may be more."""


class Arrivals:
    """See the module."""

    def __init__(self, system: System, moment: Callable[[Around], Moment], departures: Departures) -> None:
        self._system = system
        self._moment = moment
        self._departures = departures
        self._waiting: list[tuple[Arriving, Any, BaseException | None]] = []

    def add(self, attempt: Arriving, result: Any, error: BaseException | None) -> None:
        """Tell the attempt's run soon."""
        self._waiting.append((attempt, result, error))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._departures.gather()
        try:
            with Around() as around:
                moment = self._tell(waiting, around)
        except BaseException:
            self._departures.leave_later()
            raise
        self._departures.leave(moment)

    def _tell(self, waiting: list[tuple[Arriving, Any, BaseException | None]], around: Around) -> Moment:
        moment = self._moment(around)
        for start in range(0, len(waiting), _AT_ONCE):
            if start:
                moment = self._moment(around)
            for attempt, result, error in waiting[start : start + _AT_ONCE]:
                if attempt.close():
                    self._system.crash_point("step.returned")
                    recipient = attempt.recipient
                    try:
                        recipient.step_ended(attempt, result, error, moment)
                    except Exception as failure:
                        recipient.break_off(failure)
        return moment
