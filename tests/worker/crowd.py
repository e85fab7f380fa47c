"""A counter of concurrent executions, for tests of limits."""

from __future__ import annotations

import asyncio


class Crowd:
    """Counts who is inside at once, and lets them out when told."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.most = 0
        self.order: list[str] = []
        self._out = asyncio.Event()

    async def visit(self, name: str) -> str:
        self.inside.append(name)
        self.order.append(name)
        self.most = max(self.most, len(self.inside))
        try:
            await self._out.wait()
        finally:
            self.inside.remove(name)
        return name

    def let_out(self) -> None:
        self._out.set()
