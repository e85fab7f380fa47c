"""Executing single runs, for code that is not async: the part of `Blocking` for serverless functions."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.core.model.run import DEFAULT_QUEUE

if TYPE_CHECKING:
    from perdure.client.engine import Engine
    from perdure.core.model.claim import ExecutionResult
    from perdure.core.time.duration import Duration

R = TypeVar("R")


class BlockingPushing(ABC):
    """See the module."""

    _engine: Engine

    @abstractmethod
    def _wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run it on the background loop."""

    def execute(
        self, run_id: str, *, timeout: Duration | None = None, credentials: Mapping[str, Any] | None = None
    ) -> ExecutionResult:
        """See `Engine.execute`."""
        return self._wait(self._engine.execute(run_id, timeout=timeout, credentials=credentials))

    def due(self, *, limit: int = 100, queues: str | Sequence[str] = (DEFAULT_QUEUE,)) -> builtins.list[str]:
        """See `Engine.due`."""
        return self._wait(self._engine.due(limit=limit, queues=queues))
