"""Two things that happen to one run at the same time, very often, on two workers of one database.

When the second one happens is drawn around the moment where the outcome turns: after each race that moment is sought a
little earlier or later, so that both orders come up all the time and most races are close.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from perdure import Engine, Workflow
from tests.invariants import scan_store
from tests.stage import Stage

PROVE = bool(os.environ.get("PERDURE_PROVE"))

#: Races that are under way at the same time.
_AT_ONCE = 20 if PROVE else 5

#: So many times as many are held at the most until both orders were seen.
_PATIENCE = 10


def how_many(stage: Stage) -> int:
    """Each on its database."""
    if PROVE:
        return 2000
    return 40 if stage.path is not None else 16


class Moment:
    """When to act, in seconds after the beginning of a race."""

    def __init__(self, guess: float) -> None:
        self._centre = guess
        # Several races are under way when one has taught where to look, so the search overshoots.
        self._least, self._most = guess / 30, guess * 30
        self._random = random.Random()
        self._seen: set[bool] = set()

    def draw(self) -> float:
        """Near to where the outcome turns, now and then far from it."""
        width = self._centre if self._random.random() < 0.2 else 0.1 * self._centre
        return self._centre + self._random.uniform(-width, width)

    def was(self, *, early: bool) -> None:
        """Whether the drawn moment came before the other event."""
        self._seen.add(early)
        step = 1.15 if len(self._seen) == 2 else 1.6
        centre = self._centre * step if early else self._centre / step
        self._centre = min(self._most, max(self._least, centre))


class Arena:
    """Where the races of a test take place."""

    def __init__(self, stage: Stage, *workflows: Workflow[Any, Any]) -> None:
        self.stage = stage
        self.engines = [stage.engine(*workflows) for _ in range(2)]
        self.orders: Counter[str] = Counter()

    async def race(self, one: Callable[[Engine, int], Awaitable[str]], **options: Any) -> None:
        """Hold as many races as there are to be; `one` checks its outcome and says which order it saw.

        `options` are those of the workers.
        """
        numbers = self._numbers()
        async with self.engines[0].worker(**options), self.engines[1].worker(**options):
            await asyncio.gather(*(self._hold(numbers, one) for _ in range(_AT_ONCE)))
        assert self.stage.store is not None
        assert await scan_store(self.stage.store.query) == []
        unfinished = "SELECT id, status FROM perdure_runs WHERE status NOT IN ('completed', 'cancelled')"
        assert await self.stage.rows(unfinished) == []
        print(f"{self.orders.total()} races: {dict(self.orders)}")

    def _numbers(self) -> Iterator[int]:
        enough = how_many(self.stage)
        for number in range(_PATIENCE * enough):
            if number >= enough and len(self.orders) > 1:
                return
            yield number

    async def _hold(self, numbers: Iterator[int], one: Callable[[Engine, int], Awaitable[str]]) -> None:
        for number in numbers:
            self.orders[await one(self.engines[number % 2], number)] += 1
