"""Futures and tasks of a run's own loop.

asyncio keeps tasks in sets, and a set iterates by hash. By default that is the memory address, so `asyncio.wait` and an
aborting `TaskGroup` would act in another order on replay. These hash by the run and a counter instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from perdure.replay.loop import RunLoop

T = TypeVar("T")

# Bound once: `super()` makes an object for each call.
_init = asyncio.Future.__init__
_await = asyncio.Future.__await__
_add_done_callback = asyncio.Future.add_done_callback


class RunFuture(asyncio.Future[T]):
    """A future with a hash that is the same in every process."""

    __slots__ = ("_stable_hash",)

    def __init__(self, *, loop: RunLoop) -> None:
        super().__init__(loop=loop)
        self._stable_hash = loop.next_hash()

    def __hash__(self) -> int:
        return self._stable_hash


class RunTask(asyncio.Task[T]):
    """A task with a hash that is the same in every process."""

    def __init__(self, coroutine: Any, *, loop: RunLoop, name: str | None, context: Context | None) -> None:
        self._stable_hash = loop.next_hash()
        super().__init__(coroutine, loop=loop, name=name or loop.next_task_name(), context=context)

    def __hash__(self) -> int:
        return self._stable_hash


class Watcher(Protocol):
    """Whoever wants to know that the workflow gave an operation up."""

    def abandoned(self, operation: Any) -> None:
        """The workflow cancelled it."""


class Watched(RunFuture[T]):
    """A future that knows whether anything ever waited for it, and tells when the workflow gives it up."""

    __slots__ = ("_unawaited", "label", "operation", "watcher")

    def __init__(self, *, loop: RunLoop, label: str, unawaited: dict[int, Watched[Any]] | None) -> None:
        # Not by way of `RunFuture`: this is made for every operation, and each level costs.
        _init(self, loop=loop)
        self._stable_hash = number = loop.next_hash()
        self.label = label
        #: Where it is listed until something waits for it.
        self._unawaited = unawaited
        if unawaited is not None:
            unawaited[number] = self
        #: Told when the workflow cancels it.
        self.watcher: Watcher | None = None
        self.operation: Any = None

    def __await__(self) -> Generator[Any, None, T]:
        unawaited = self._unawaited
        if unawaited is not None:
            unawaited.pop(self._stable_hash, None)
            self._unawaited = None
        return _await(self)

    __iter__ = __await__

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        """Call back when it is done; whoever asks for that waits for it."""
        if self._unawaited is not None:
            self._is_awaited(self._unawaited)
        _add_done_callback(self, fn, context=context)

    def observe(self, fn: Callable[[Any], object]) -> None:
        """Call back when it is done; that alone is not waiting for it."""
        _add_done_callback(self, fn)

    def cancel(self, msg: Any | None = None) -> bool:
        """Give the operation up."""
        cancelled = super().cancel(msg)
        if cancelled:
            if self._unawaited is not None:
                self._is_awaited(self._unawaited)
            if self.watcher is not None:
                self.watcher.abandoned(self.operation)
        return cancelled

    def _is_awaited(self, unawaited: dict[int, Watched[Any]]) -> None:
        unawaited.pop(self._stable_hash, None)
        self._unawaited = None
