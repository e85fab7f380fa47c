"""The circuit breakers of an engine, for code that is not async."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from perdure.core.limits.breaker import BreakerInfo

if TYPE_CHECKING:
    from perdure.client.blocking import Blocking


class BlockingBreakers:
    """`Breakers` whose methods block."""

    def __init__(self, blocking: Blocking) -> None:
        self._wait = blocking._wait
        self._breakers = blocking._engine.breakers

    def open(self, name: str) -> None:
        """See `Breakers.open`."""
        self._wait(self._breakers.open(name))

    def close(self, name: str) -> None:
        """See `Breakers.close`."""
        self._wait(self._breakers.close(name))

    def reset(self, name: str) -> None:
        """See `Breakers.reset`."""
        self._wait(self._breakers.reset(name))

    def list(self, *, limit: int = 100, after: str = "") -> builtins.list[BreakerInfo]:
        """See `Breakers.list`."""
        return self._wait(self._breakers.list(limit=limit, after=after))
