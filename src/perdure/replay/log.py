"""A logger that is silent during replay."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Protocol


class Replaying(Protocol):
    """Whoever knows whether what happens now has happened before."""

    replaying: bool
    run_id: str


class ReplayLog(logging.LoggerAdapter[logging.Logger]):
    """Logs what is new, with the run's id; says nothing while history is replayed."""

    def __init__(self, logger: logging.Logger, execution: Replaying) -> None:
        super().__init__(logger, {})
        self._execution = execution

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name is the standard library's
        """Whether a line of this level is written now."""
        return not self._execution.replaying and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the run's id."""
        extra = dict(kwargs.get("extra") or {})
        extra.setdefault("run_id", self._execution.run_id)
        return msg, {**kwargs, "extra": extra}
