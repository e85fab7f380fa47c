"""Watermarks, for code that is not async."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.client.blocking import Blocking
    from perdure.core.policy.watermark import Watermark


class BlockingWatermarks:
    """`Watermarks` whose methods block."""

    def __init__(self, blocking: Blocking) -> None:
        self._wait = blocking._wait
        self._watermarks = blocking._engine.watermarks

    def set(self, watermark: Watermark) -> None:
        """See `Watermarks.set`."""
        self._wait(self._watermarks.set(watermark))

    def remove(self, *, queue: str | None = None, type: str | None = None) -> None:
        """See `Watermarks.remove`."""
        self._wait(self._watermarks.remove(queue=queue, type=type))

    def list(self) -> builtins.list[Watermark]:
        """See `Watermarks.list`."""
        return self._wait(self._watermarks.list())

    def depth(self, *, queue: str | None = None, type: str | None = None, limit: int = 100_000) -> int:
        """See `Watermarks.depth`."""
        return self._wait(self._watermarks.depth(queue=queue, type=type, limit=limit))
