"""Parts of a workflow that have places of their own: a branch of a join, an iteration of a loop.

The current scope travels with the run's tasks, so that whatever is asked for inside, by any `Context` or by asyncio itself, finds
its place there.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar


class Scope:
    """Counts the calls of each name in it."""

    __slots__ = ("_counts", "path")

    def __init__(self, path: str = "") -> None:
        #: Empty for the workflow itself; otherwise it ends with a slash.
        self.path = path
        self._counts: dict[str, int] = {}

    def next(self, name: str) -> str:
        """The location of the next call of that name."""
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        return self.path + name if count == 1 else f"{self.path}{name}#{count}"

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
        # Not `reset`, which refuses where a run is ended from outside of its own context.
        current_scope.set(before)
