"""What is written about a run that was set aside because it may have killed its workers."""

from __future__ import annotations

from perdure.core.errors import WorkflowError
from perdure.store.rows import failure


def poisoned(run_id: str, claims: int) -> str:
    """A `Failure` as JSON."""
    return failure(
        WorkflowError,
        f"Run {run_id!r} was claimed {claims} times in a row and each time its worker went away before anything was "
        "recorded, the last times with nothing else to do. Look at what the run does first, then unblock it.",
    )
