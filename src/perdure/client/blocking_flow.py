"""What keeps programs out of each other's way, for code that is not async: limits, locks and watermarks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, cast

from perdure.client.blocking_limits import BlockingLimits
from perdure.client.blocking_locks import BlockingLock, BlockingLocks, holding
from perdure.client.blocking_watermarks import BlockingWatermarks

if TYPE_CHECKING:
    from perdure.client.blocking import Blocking
    from perdure.core.time.duration import Duration


class BlockingFlow:
    """See the module."""

    @property
    def limits(self) -> BlockingLimits:
        """See `Engine.limits`."""
        return BlockingLimits(cast("Blocking", self))

    @property
    def locks(self) -> BlockingLocks:
        """See `Engine.locks`."""
        return BlockingLocks(cast("Blocking", self))

    @property
    def watermarks(self) -> BlockingWatermarks:
        """See `Engine.watermarks`."""
        return BlockingWatermarks(cast("Blocking", self))

    def lock(
        self, name: str, ttl: Duration = "5m", *, wait: Duration | None = None, owner: str | None = None
    ) -> AbstractContextManager[BlockingLock]:
        """See `Engine.lock`. The block cannot be cancelled, so a long one looks at `lock.lost`; `LockLost` is raised at its end."""
        return holding(cast("Blocking", self), name, ttl, wait=wait, owner=owner)
