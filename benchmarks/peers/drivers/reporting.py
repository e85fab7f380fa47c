"""What every driver in Python shares: its arguments, a clock, and the one line that it prints.

Drivers run in environments of their own, without this project, so they import nothing but this module and their peer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: What every step returns.
RECEIPT = {"order": "order-000042", "cents": 4200, "paid": True}


class Task:
    """The workload that a driver was asked to run."""

    def __init__(self) -> None:
        self.workload, self.dsn, sizes = sys.argv[1:4]
        given = json.loads(sizes)
        self.runs: int = given["runs"]
        self.steps: int = given["steps"]
        self.sleep: float = given["sleep"]
        self.slots: int = given["slots"]
        #: Steps or jobs that were executed in this process.
        self.executed = 0
        self.reached = asyncio.Event()

    @property
    def expected(self) -> int:
        """How many steps the runs have together."""
        return self.runs * self.steps

    def step(self) -> dict[str, Any]:
        """Count one executed step."""
        self.executed += 1
        if self.executed >= self.expected:
            self.reached.set()
        return RECEIPT

    def report(self, **values: object) -> None:
        """Print the result."""
        print(json.dumps(values), flush=True)


@contextmanager
def timed(into: dict[str, float], name: str) -> Iterator[None]:
    """Measure a block in seconds."""
    begun = time.perf_counter()
    yield
    into[name] = time.perf_counter() - begun


async def until(question: Callable[[], Awaitable[bool]], every: float = 0.02) -> None:
    """Ask until the answer is yes."""
    while True:
        if await question():
            return
        await asyncio.sleep(every)


async def latencies(call: Callable[[int], Awaitable[object]], count: int) -> list[float]:
    """Milliseconds from the start of one call to its result, one after the other; the first is left out."""
    took = []
    for number in range(count + 1):
        begun = time.perf_counter()
        await call(number)
        took.append((time.perf_counter() - begun) * 1e3)
    return took[1:]
