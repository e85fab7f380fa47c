"""A logger that is silent during replay."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Protocol


class Speaker(Protocol):
    """Whoever knows whether what is said now is new."""

    run_id: str

    @property
    def mute(self) -> bool:
        """Whether it was said before, or is said by code that is only being ended."""


class ReplayLog(logging.LoggerAdapter[logging.Logger]):
    """Logs what is new, with the run's id; says nothing while history is replayed or the run is let go."""

    def __init__(self, logger: logging.Logger, execution: Speaker) -> None:
        super().__init__(logger, {})
        self._execution = execution

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name is the standard library's
        """Whether a line of this level is written now."""
        return not self._execution.mute and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the run's id."""
        extra = dict(kwargs.get("extra") or {})
        extra.setdefault("run_id", self._execution.run_id)
        return msg, {**kwargs, "extra": extra}
