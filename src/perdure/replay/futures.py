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
    from perdure.replay.run_loop import RunLoop
    from perdure.workflow.scopes import Scope

T = TypeVar("T")

# Bound once: `super()` makes an object for each call.
_await = asyncio.Future.__await__
_add_done_callback = asyncio.Future.add_done_callback
_remove_done_callback = asyncio.Future.remove_done_callback
_cancel = asyncio.Future.cancel
_result = asyncio.Future.result
_exception = asyncio.Future.exception


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


class CancelWatcher(Protocol):
    """Whoever wants to know that the workflow gave an operation up."""

    def abandoned(self, operation: Any) -> None:
        """The workflow cancelled it."""


class OperationFuture(asyncio.Future[T]):
    """A future that tells when the workflow gives it up, and of which it can be told whether anything ever waited for it.

    One is made for every operation, so asyncio's own code makes it and waits for it: what that does not know, `new_operation_future` adds, and who waits
    shows in its callbacks. Before it is resolved, `note_waiters` has to look at them.
    """

    __slots__ = ("label", "operation", "stable_hash", "unawaited", "watcher")

    #: The same in every replay; given once, when the future is made.
    stable_hash: int
    #: Where it is listed unless something has waited for it; None: nothing has to.
    unawaited: dict[int, OperationFuture[Any]] | None
    label: str
    #: Told when the workflow cancels it.
    watcher: CancelWatcher | None
    operation: Any

    def __hash__(self) -> int:
        return self.stable_hash

    @property
    def is_forgotten(self) -> bool:
        """Whether nothing has waited for it, if it is listed."""
        return not self._callbacks

    def note_waiters(self) -> None:
        """Remember whether something waits for it by now. From now on, what does shows by itself."""
        unawaited = self.unawaited
        if unawaited is not None:
            if self._callbacks:
                unawaited.pop(self.stable_hash, None)
                self.unawaited = None
            else:
                self.__class__ = UnawaitedFuture  # pyright: ignore[reportAttributeAccessIssue] # of the same layout

    def observe(self, fn: Callable[[Any], object]) -> None:
        """Call back when it is done; that alone is not waiting for it."""
        self.note_waiters()
        _add_done_callback(self, fn)

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        """Whoever did not want to wait any longer has waited."""
        self._is_awaited()
        return _remove_done_callback(self, fn)

    def cancel(self, msg: Any | None = None) -> bool:
        """Give the operation up."""
        cancelled = _cancel(self, msg)
        if cancelled:
            self._is_awaited()
            if self.watcher is not None:
                self.watcher.abandoned(self.operation)
        return cancelled

    def _is_awaited(self) -> None:
        if self.unawaited is not None:
            self.unawaited.pop(self.stable_hash, None)
            self.unawaited = None


class UnawaitedFuture(OperationFuture[T]):
    """One that nothing had waited for when it was resolved, or when the engine began to observe it: whoever does so later says so."""

    __slots__ = ()

    @property
    def is_forgotten(self) -> bool:
        """Whether nothing has waited for it, if it is listed."""
        return True

    def note_waiters(self) -> None:
        """It does."""

    def __await__(self) -> Generator[Any, None, T]:
        self._is_awaited()
        return _await(self)

    __iter__ = __await__

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        """Call back when it is done; whoever asks for that waits for it."""
        self._is_awaited()
        _add_done_callback(self, fn, context=context)

    def result(self) -> T:
        """What came of it. `asyncio.gather` of Python 3.12 and newer does nothing else about what is done."""
        self._is_awaited()
        return _result(self)

    def exception(self) -> BaseException | None:
        """What went wrong."""
        self._is_awaited()
        return _exception(self)


def new_operation_future(
    loop: RunLoop, scope: Scope, label: str, unawaited: dict[int, OperationFuture[Any]] | None
) -> OperationFuture[Any]:
    """A new one, listed until something waits for it."""
    future: OperationFuture[Any] = OperationFuture(loop=loop)
    future.stable_hash = number = loop.next_hash_in(scope)
    future.label = label
    future.unawaited = unawaited
    if unawaited is not None:
        unawaited[number] = future
    future.watcher = future.operation = None
    return future
