"""Why a run that is waited for has no outcome yet: in the log after a while, and in the error of a wait that ends.

Each look takes a few queries. So only some of very many waits are explained, as examples.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from perdure.client.waiting import within
from perdure.core.model.run import Reason, Run, Status
from perdure.core.system import System
from perdure.core.time.duration import Duration
from perdure.errors import PerdureError

T = TypeVar("T")

#: Seconds after which the log says why.
SLOW = 5.0
#: Explanations under way at a time, and the seconds that one may take when a wait has ended.
AT_ONCE = 10
LAST_LOOK = 2.0

logger = logging.getLogger("perdure.client")


class Overdue:
    """The waits of one engine. `look` gives a run and why it is where it is."""

    def __init__(self, system: System, look: Callable[[str], Awaitable[tuple[Run, str]]]) -> None:
        self._system = system
        self._look = look
        self._explaining = 0

    async def wait(
        self,
        run_id: str,
        work: Callable[[], Coroutine[Any, Any, T]],
        name: str,
        timeout: Duration | None,
        too_late: str,
    ) -> T:
        """Wait for something of a run. Raises `TimeoutError`, which says why, after `timeout`."""
        explaining: list[asyncio.Task[None]] = []

        def explain() -> None:
            if self._explaining < AT_ONCE:
                self._explaining += 1
                task = self._system.spawn(self._explain(run_id, too_late), f"perdure why {run_id}")
                task.add_done_callback(self._explained)
                explaining.append(task)

        timer = self._system.call_later(SLOW, explain)
        try:
            return await within(self._system, work, name, timeout, too_late)
        except TimeoutError as late:
            raise TimeoutError(f"{late}{await self._because(run_id)}") from None
        finally:
            timer.cancel()
            for task in explaining:
                task.cancel()

    def _explained(self, _: asyncio.Task[None]) -> None:
        # A task that is cancelled before it begins ends, too.
        self._explaining -= 1

    async def _explain(self, run_id: str, what: str) -> None:
        try:
            run, why = await self._look(run_id)
        except PerdureError as error:
            logger.warning("%s within %g s, and the database does not say why: %s", what, SLOW, error)
            return
        if not run.status.finished:
            logger.log(_level(run), "%s within %g s: %s", what, SLOW, why)

    async def _because(self, run_id: str) -> str:
        """The sentence for an error; nothing if the database does not answer soon."""
        try:
            _, why = await within(self._system, lambda: self._asked(run_id), "perdure why", LAST_LOOK, "no answer")
        except (PerdureError, TimeoutError):
            return ""
        return f": {why.removesuffix('.')}"

    async def _asked(self, run_id: str) -> tuple[Run, str]:
        return await self._look(run_id)


def _level(run: Run) -> int:
    """A run that is worked on, or waits for what its code asked for, is no reason to worry."""
    stands = run.status in (Status.PENDING, Status.BLOCKED) or run.reason is Reason.PAUSED
    return logging.WARNING if stands else logging.INFO
