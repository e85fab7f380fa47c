"""A store that takes runs away from the worker that writes them, at random: before a turn lands, or after.

The worker that held such a run has lost it with all that it had in memory; another worker takes it up from what is
stored. That is what a crash is to a run, without the time until a lease ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from perdure.core.model.turn import Release, Turn, TurnOutcome
from perdure.store import Retrying
from perdure.store.contract import Store


class Thief(Retrying):
    """See the module. It lets go of runs whose id does not begin with `prey`, and of everything after `most` thefts of
    a run."""

    def __init__(self, store: Store, system: object, rng: Random, prey: str, most: int = 6) -> None:
        super().__init__(store, system)  # type: ignore[arg-type]  # what every store is given
        self._rng = rng
        self._prey = prey
        self._most = most
        self.stolen: Counter[str] = Counter()

    async def commit(self, turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        """Write turns, and steal the runs of some of them."""
        ids = [turn.lease.run_id for turn in turns]
        await self._steal(ids, actor)
        verdicts = await super().commit(turns, actor)
        await self._steal(ids, actor)
        return verdicts

    async def _steal(self, ids: Sequence[str], actor: str) -> None:
        chosen = {
            run_id
            for run_id in ids
            if run_id.startswith(self._prey) and self.stolen[run_id] < self._most and self._rng.random() < 0.3
        }
        if not chosen:
            return
        leases = [lease for lease in await self.leases(actor) if lease.run_id in chosen]
        for lease in leases:
            self.stolen[lease.run_id] += 1
        if leases:
            await super().commit([Turn(lease=lease, next=Release()) for lease in leases], actor)
