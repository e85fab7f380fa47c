"""Circuit breakers, as an engine hands them out: where they stand, and how people open, close and reset them."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from perdure.core.ids import check_name
from perdure.core.limits.breaker import PREFIX, BreakerInfo, Circuit
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.client.engine import Engine


class Breakers:
    """The circuit breakers of an engine's database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def open(self, name: str) -> None:
        """Let nothing pass, until somebody closes or resets it. What is being executed goes on."""
        await self._set(name, Circuit.OPEN)

    async def close(self, name: str) -> None:
        """Let everything pass, whatever fails, until somebody opens or resets it."""
        await self._set(name, Circuit.CLOSED)

    async def reset(self, name: str) -> None:
        """Close it and forget what was counted; from then on it opens and closes by itself."""
        await self._set(name, None)

    async def list(self, *, limit: int = 100, after: str = "") -> builtins.list[BreakerInfo]:
        """Breakers that something had to pass or that somebody opened or closed, in the order of their names, past one."""
        if not 1 <= limit <= 1000:
            raise UsageError(f"limit must be between 1 and 1000, not {limit}")
        gates = await (await self._engine._opened()).gates(PREFIX + after, limit)
        return [gate.breaker for gate in gates if gate.name.startswith(PREFIX) and gate.breaker is not None]

    async def _set(self, name: str, circuit: Circuit | None) -> None:
        check_name(name, "breaker")
        await (await self._engine._opened()).set_breaker(PREFIX + name, circuit, self._engine._actor)
