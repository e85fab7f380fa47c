"""Waiting runs kept in memory, so that they go on without replay; the longest unused goes first."""

from __future__ import annotations

from collections import OrderedDict

from perdure.core.model.claim import ClaimedRun
from perdure.worker.run.workflow_run import WorkflowRun


class Residents:
    """Parked runs by id, at most so many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parked: OrderedDict[str, WorkflowRun] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parked)

    def keep(self, held: WorkflowRun) -> None:
        """Remember a run that has just been parked, letting go of another if there is no room."""
        self.forget(held.run.id)
        self._parked[held.run.id] = held
        while len(self._parked) > self._limit:
            self._parked.popitem(last=False)[1].drop()

    def take(self, claimed: ClaimedRun) -> WorkflowRun | None:
        """The run as it was parked, if this claim is the first since then and its last record is still the last one."""
        run = claimed.run
        held = self._parked.pop(run.id, None)
        if held is None:
            return None
        if held.lease.token + 1 == run.token and held.run.attempt == run.attempt and held.last == claimed.last:
            return held
        held.drop()
        return None

    def forget(self, run_id: str) -> None:
        """Let go of a run that was taken up from the database instead: it was parked here after it had been claimed again."""
        held = self._parked.pop(run_id, None)
        if held is not None:
            held.drop()

    def clear(self) -> None:
        """Let go of all."""
        while self._parked:
            self._parked.popitem()[1].drop()
