"""Parts of a workflow that have places of their own: a branch of a join, an iteration of a loop.

The current scope travels with the run's tasks, so that whatever is asked for inside, by any `Context` or by asyncio itself, finds
its place there.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from hashlib import blake2b
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


class WorkflowRandom(Random):
    """Random numbers that are the same on replay. Calling it gives a float in [0, 1)."""

    def __call__(self) -> float:
        """The next random float in [0, 1)."""
        return self.random()


class Scope:
    """Counts what is asked for in it, so that nothing there depends on what went on elsewhere and may be forgotten by now."""

    __slots__ = ("_counts", "_number", "functions", "futures", "path", "random", "tasks")

    def __init__(self, path: str = "") -> None:
        #: Empty for the workflow itself; otherwise it ends with a slash.
        self.path = path
        self._counts: dict[str, int] = {}
        self._number = -1
        #: By name, what was a step of that name in it.
        self.functions: dict[str, object] = {}
        #: How many futures and tasks were made in it.
        self.futures = 0
        self.tasks = 0
        #: Its source of random numbers, once it was asked for, and what those were salted with.
        self.random: tuple[str, WorkflowRandom] | None = None

    def next(self, name: str) -> str:
        """The location of the next call of that name."""
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        return self.path + name if count == 1 else f"{self.path}{name}#{count}"

    @property
    def number(self) -> int:
        """What tells it from other scopes, the same in every process."""
        if self._number < 0:
            self._number = int.from_bytes(blake2b(self.path.encode(), digest_size=8).digest()) if self.path else 0
        return self._number

    @property
    def location(self) -> str:
        """Where the scope itself is."""
        return self.path[:-1]

    def branch(self, name: str) -> Scope:
        """A part of it; entered once."""
        return Scope(f"{self.path}{name}/")

    def iteration(self, number: int) -> Scope:
        """One of many parts of it that are alike."""
        return Scope(f"{self.path}~{number}/")


current_scope: ContextVar[Scope] = ContextVar("perdure_scope")


@contextmanager
def inside(scope: Scope) -> Generator[None]:
    """Let what is asked for in this block belong to the scope."""
    before = current_scope.get()
    current_scope.set(scope)
    try:
        yield
    finally:
        # Not `reset`, which refuses where a run is ended from outside of its own context. And nothing at all where the garbage
        # collector ends it in the middle of another run, whose scope this is none of.
        if current_scope.get(None) is scope:
            current_scope.set(before)


def begin_in(scope: Scope, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task of the running workflow whose place is the scope."""
    surroundings = copy_context()
    surroundings.run(current_scope.set, scope)
    return asyncio.get_running_loop().create_task(coroutine, context=surroundings)


async def shielded(awaitable: Awaitable[T]) -> T:
    """Wait for something to its end. A cancellation that comes meanwhile is raised afterwards, its error the cause."""
    # Of the workflow's own loop, which replays what it does.
    part = asyncio.get_running_loop().create_task(_whole(awaitable))
    interrupted: asyncio.CancelledError | None = None
    try:
        while not part.done():
            try:
                await asyncio.wait([part])
            except asyncio.CancelledError as error:
                interrupted = interrupted or error
    finally:
        # The run may be let go of before the task has begun; nobody else would close what it was to wait for.
        if inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
            awaitable.close()
    if interrupted is not None:
        raise interrupted from (None if part.cancelled() else part.exception())
    return part.result()


async def _whole(awaitable: Awaitable[T]) -> T:
    return await awaitable
