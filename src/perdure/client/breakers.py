"""Circuit breakers: their states, and opening, closing and resetting them by hand."""

from __future__ import annotations

import builtins

from perdure.client.session import Session
from perdure.core.ids import check_name
from perdure.core.limits.breaker import PREFIX, BreakerInfo, Circuit
from perdure.errors import UsageError


class Breakers:
    """Circuit breakers of an engine's database: `engine.breakers`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def open(self, name: str) -> None:
        """Let nothing pass until the breaker is closed or reset by hand. Calls under way go on."""
        await self._set(name, Circuit.OPEN)

    async def close(self, name: str) -> None:
        """Let everything pass, failures included, until the breaker is opened or reset by hand."""
        await self._set(name, Circuit.CLOSED)

    async def reset(self, name: str) -> None:
        """Close the breaker and forget its counts; from then on it opens and closes by itself."""
        await self._set(name, None)

    async def list(self, *, limit: int = 100, after: str = "") -> builtins.list[BreakerInfo]:
        """List breakers that calls have met or that were set by hand, by name, beginning after a name."""
        if not 1 <= limit <= 1000:
            raise UsageError(f"limit must be between 1 and 1000, not {limit}")
        gates = await (await self._session.opened()).gates(PREFIX + after, limit)
        return [gate.breaker for gate in gates if gate.name.startswith(PREFIX) and gate.breaker is not None]

    async def _set(self, name: str, circuit: Circuit | None) -> None:
        check_name(name, "breaker")
        await (await self._session.opened()).set_breaker(PREFIX + name, circuit, self._session.actor)
