"""A client that publishes events for other systems itself."""

from __future__ import annotations

from tests.simulation.client import Action, Client
from tests.simulation.programs import KEYS, TOLD


class Publisher(Client):
    """See the module."""

    def _kinds(self) -> tuple[tuple[Action, int], ...]:
        return (*super()._kinds(), (self._publish, 6))

    async def _publish(self, name: str) -> None:
        type, key = self._rng.choice(TOLD), self._rng.choice(KEYS)
        for _ in range(2 if self._rng.random() < 0.2 else 1):
            await self._persist(lambda: self._engine.outbox.publish(type, name, key=key, id=name))
        self._ledger.outbox.published.add(name)
