"""Parked runs that stay in memory, so that they go on without replay."""

from __future__ import annotations

from collections import OrderedDict

from perdure.core.model.claim import ClaimedRun
from perdure.worker.run.workflow_run import WorkflowRun


class Residents:
    """Parked runs by id, up to a limit, so that they go on without replay. The least recently used goes first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parked: OrderedDict[str, WorkflowRun] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parked)

    def keep(self, held: WorkflowRun) -> None:
        """Keep a run that was parked, dropping another if there is no room."""
        self.forget(held.run.id)
        self._parked[held.run.id] = held
        while len(self._parked) > self._limit:
            self._parked.popitem(last=False)[1].drop()

    def take(self, claimed: ClaimedRun) -> WorkflowRun | None:
        """Return a parked run if this claim is the first since and its history has not changed."""
        run = claimed.run
        held = self._parked.pop(run.id, None)
        if held is None:
            return None
        if held.lease.token + 1 == run.token and held.run.attempt == run.attempt and held.last == claimed.last:
            return held
        held.drop()
        return None

    def forget(self, run_id: str) -> None:
        """Drop a run that was loaded from the database instead, because it was parked after another claim."""
        held = self._parked.pop(run_id, None)
        if held is not None:
            held.drop()

    def clear(self) -> None:
        """Drop all runs."""
        while self._parked:
            self._parked.popitem()[1].drop()
