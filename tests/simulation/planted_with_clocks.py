"""Faults that need clocks that differ, planted in the engine, each as a patch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from perdure.core.model.claim import ClaimResult
from perdure.store.server.clock import ServerClock
from perdure.worker.claiming.claimer import Claimer

Patch = pytest.MonkeyPatch


def claims_judged_again(patch: Patch) -> None:
    """A worker judges a claim again, at its own and later time, and drops what was taken if a timer has become due
    since."""
    ask = Claimer._claim

    async def judged(self: Claimer, room: int, *, alone: bool) -> ClaimResult:
        claimed = await ask(self, room, alone=alone)
        return replace(claimed, runs=()) if claimed.next_wake <= self._store.clock() else claimed

    patch.setattr(Claimer, "_claim", judged)


def own_clock_trusted(patch: Patch) -> None:
    """A process takes its own wall clock for the database's."""
    patch.setattr(ServerClock, "now", lambda self: self._system.now())


PLANTED_WITH_CLOCKS: dict[str, Callable[[Patch], None]] = {
    plant.__name__: plant for plant in (claims_judged_again, own_clock_trusted)
}
