"""A client of a world with workers of two builds, that unpins runs now and then."""

from __future__ import annotations

from tests.simulation.client import Action, Client

BUILDS = ("one", "two")


class Releaser(Client):
    """See the module."""

    def _kinds(self) -> tuple[tuple[Action, int], ...]:
        return (*super()._kinds(), (self._unpin, 1))

    async def _unpin(self, name: str) -> None:
        run = self._rng.choice(self._runs)
        self._ledger.unpinned.add(run.id)
        done = await self._persist(lambda: run.unpin(f"{name} wants it"))
        self._ledger.note(name, "unpins", run.id, done)
        self._ledger.sometimes["a run was unpinned"] += done
