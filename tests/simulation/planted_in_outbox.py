"""Faults planted in events for other systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import pytest
from msgspec.structs import replace

from perdure.client import outbox
from perdure.core.model.cloud_event import EVENT_TYPE
from perdure.core.model.turn import Turn, TurnOutcome
from perdure.core.policy.singleton import Singleton, SingletonPolicy
from perdure.store.sql import singletons
from perdure.store.sqlite import commit
from perdure.store.sqlite.store import SqliteStore
from tests.simulation.planted import reword

Patch = pytest.MonkeyPatch


def deliveries_not_in_line(patch: Patch) -> None:
    """Deliveries of a key do not wait for each other."""
    numbers = count()
    patch.setattr(
        outbox, "Singleton", lambda key, policy=SingletonPolicy.QUEUE: Singleton(f"{key}{next(numbers)}", policy)
    )


def last_in_line_first(patch: Patch) -> None:
    """A line is served from its end."""
    reword(patch, singletons, "_LINE", "s.place, s.run_id", "s.place DESC, s.run_id DESC")


def events_after_their_turn(patch: Patch) -> None:
    """The events of a turn are written in another transaction than its records."""

    async def in_two(self: SqliteStore, turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        events = [
            Turn(lease=turn.lease, children=published)
            for turn in turns
            if (published := tuple(one for one in turn.children if one.type == EVENT_TYPE))
        ]
        rest = [replace(turn, children=tuple(one for one in turn.children if one.type != EVENT_TYPE)) for turn in turns]
        verdicts = await self._write("commit", actor, lambda tx: commit.commit(tx, rest))
        if events:
            await self._write("commit", actor, lambda tx: commit.commit(tx, events))
        return verdicts

    patch.setattr(SqliteStore, "commit", in_two)


PLANTED_IN_OUTBOX: dict[str, Callable[[Patch], None]] = {
    plant.__name__: plant for plant in (deliveries_not_in_line, last_in_line_first, events_after_their_turn)
}
