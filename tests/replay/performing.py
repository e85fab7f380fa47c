"""Base of all performers of nodes: the trace, the tasks of a program, and state that its parts share.

Parts of a workflow that replay may skip (a finished iteration, the loser of a race) are performed in a cell: what they
begin ends with them, and they share nothing with the outside, as in a real workflow.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from perdure import Context
from perdure.workflow.scopes import current_scope
from tests.replay.nodes import Node, described

#: Scopes whose parts replay may skip.
FORGETFUL = ("race", "loop")


class Cell:
    """State of one part that is performed or skipped as a whole."""

    def __init__(self, *, enclosed: bool) -> None:
        self.enclosed = enclosed
        self.tasks: list[asyncio.Task[Any]] = []
        self.shared: dict[tuple[str, int], Any] = {}


class Performer:
    """Performs nodes by the methods that are named after them."""

    def __init__(self) -> None:
        #: Places and observations.
        self.seen: list[tuple[str, str]] = []
        #: Nodes that were begun, with the locations of those that have one.
        self.begun: dict[int, set[str]] = {}
        self.ended: Counter[str] = Counter()
        #: Questions that handlers have answered, and calls of a validator that the workflow's code did not make.
        self.answered = 0
        self.validated = 0
        self._ctx: Context
        self._outermost = Cell(enclosed=False)
        self._cell: contextvars.ContextVar[Cell] = contextvars.ContextVar("cell", default=self._outermost)

    def trace(self, is_over: Callable[[str], bool]) -> list[str]:
        """Return the observations of parts that are not over."""
        return [line for path, line in self.seen if not is_over(path)]

    async def do(self, node: Node) -> Any:
        """Perform one node and what hangs on it."""
        self.begun.setdefault(node.id, set())
        method: Callable[[Node], Awaitable[Any]] = getattr(self, f"_{node.op}")
        result = await method(node)
        self.ended[node.op] += 1
        return result

    def note(self, node: Node, seen: object) -> None:
        """Add what a node saw to the trace."""
        self.seen.append((current_scope.get().path, f"{node.op} {node.id}: {seen}"))

    def _task(self, coroutine: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
        task = asyncio.create_task(coroutine, name=name)
        self._cell.get().tasks.append(task)
        return task

    def _tasks(self, node: Node) -> list[asyncio.Task[Any]]:
        return [self._task(self.do(each), name=f"t{number}") for number, each in enumerate(node.body)]

    async def _each(self, nodes: tuple[Node, ...]) -> list[Any]:
        return [await self.do(each) for each in nodes]

    async def _enclosed(self, nodes: tuple[Node, ...]) -> list[str]:
        """Perform nodes one after the other, in a cell of their own."""
        before, cell = self._cell.get(), Cell(enclosed=True)
        self._cell.set(cell)
        try:
            return [described(result) for result in await self._each(nodes)]
        finally:
            await _end(cell.tasks)
            self._cell.set(before)

    def _same(self, kind: str, number: int, make: Callable[[], Any]) -> Any:
        shared = self._cell.get().shared
        if (kind, number) not in shared:
            shared[kind, number] = make()
        return shared[kind, number]

    async def _durable(self, node: Node, operation: Any) -> Any:
        self.begun[node.id].add(operation.label)
        result = await operation
        self.note(node, result)
        return result


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError:
            # Sent once more to those that are left; the sender is answered when they have ended.
            continue
    for task in tasks:
        if not task.cancelled():
            task.exception()
