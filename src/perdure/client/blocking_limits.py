"""Limits, for code that is not async."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.client.blocking import Blocking
    from perdure.core.limits.limit import LimitInfo


class BlockingLimits:
    """`Limits` whose methods block."""

    def __init__(self, blocking: Blocking) -> None:
        self._wait = blocking._wait
        self._limits = blocking._engine.limits

    def set(
        self, name: str, *, concurrency: int | None = None, rate: str | None = None, burst: int | None = None
    ) -> None:
        """See `Limits.set`."""
        self._wait(self._limits.set(name, concurrency=concurrency, rate=rate, burst=burst))

    def clear(self, name: str) -> None:
        """See `Limits.clear`."""
        self._wait(self._limits.clear(name))

    def list(self, *, limit: int = 100, after: str = "") -> builtins.list[LimitInfo]:
        """See `Limits.list`."""
        return self._wait(self._limits.list(limit=limit, after=after))
