"""Whether there is code for the runs that are there, and whether it fits them: the half of an engine that guards a deploy."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.client.control import Control
from perdure.client.why import is_unserved
from perdure.core.model import Run


class Checking(Control):
    """What an `Engine` knows about code and runs."""

    async def unserved(self, runs: Sequence[Run]) -> set[str]:
        """The ids of those of the runs that are ready and that no live worker takes: their type or their queue has none."""
        store = await self._opened()
        workers, now = await store.workers(), await store.now()
        return {run.id for run in runs if is_unserved(run, workers, now)}
