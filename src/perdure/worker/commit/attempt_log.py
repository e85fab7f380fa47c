"""Tells the log, and hooks, what became of turns that have landed.

Records carry their fields as attributes (`extra`): run, type, step, attempt, retries, duration, status, error. What succeeds is for
DEBUG, what is tried again or fails for INFO: an error of the user's code is no trouble of the worker's. Who is interested is asked
once a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from perdure.core.model.run import Run, Turn, Verdict
from perdure.worker.commit.happenings import Happening, happenings, is_remarkable

logger = logging.getLogger("perdure.execution")

_LANDED = frozenset({Verdict.APPLIED, Verdict.AWAKE})


class Subject(Protocol):
    """Whose turn it was."""

    run: Run
    scope: str


class Witness:
    """See the module. `tell` is called with everything that failed."""

    def __init__(self, tell: Callable[[Sequence[Happening]], object] | None = None) -> None:
        self._tell = tell

    @property
    def cares(self) -> bool:
        """Whether anybody wants to know. Asked once a batch, before anything is looked up for it."""
        return self._tell is not None or logger.isEnabledFor(logging.INFO)

    def saw(self, turns: Sequence[tuple[Subject, Turn]], verdicts: Sequence[Verdict], now: int) -> None:
        """What became of a batch."""
        if not self.cares:
            return
        everything = logger.isEnabledFor(logging.DEBUG)
        found = [
            happening
            for (subject, turn), verdict in zip(turns, verdicts, strict=True)
            if (everything or is_remarkable(turn)) and verdict in _LANDED
            for happening in happenings(subject.run, subject.scope, turn, now)
        ]
        for happening in found:
            _log(happening)
        failed = [one for one in found if one.payload is not None and one.status != "cancelled"]
        if self._tell is not None and failed:
            self._tell(failed)


def _log(one: Happening) -> None:
    level = logging.DEBUG if one.status == "success" else logging.INFO
    if not logger.isEnabledFor(level):
        return
    error = None if one.payload is None else str(one.failure)
    place = f"step {one.location} of run" if one.scope == "step" else one.scope
    logger.log(
        level,
        "%s %s (%s): %s, attempt %d, %.3f s%s",
        place,
        one.run.id,
        one.run.type,
        one.status,
        one.attempt,
        one.duration,
        "" if error is None else f": {error}",
        extra={
            "run_id": one.run.id,
            "run_type": one.run.type,
            "scope": one.scope,
            "step": one.location or None,
            "attempt": one.attempt,
            "retry_count": max(0, one.attempt - 1),
            "duration": one.duration,
            "status": one.status,
            "error": error,
            "retry_at": one.retry_at or None,
        },
    )
