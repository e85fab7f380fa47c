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
    """An object that is told when the workflow abandons an operation."""

    def abandoned(self, operation: Any) -> None:
        """Handle an operation that the workflow has cancelled."""


class OperationFuture(asyncio.Future[T]):
    """Future of a durable operation: reports its cancellation, and whether anything has ever awaited it.

    One is made for every operation, so asyncio's own code, which is several times faster than a method in Python, makes
    and awaits it. `new_operation_future` sets what that code does not know. Whether something waits shows in the
    callbacks, so `note_waiters` has to check them before the future is resolved.
    """

    __slots__ = ("label", "operation", "stable_hash", "unawaited", "watcher")

    #: The same in every replay; set once, when the future is made.
    stable_hash: int
    #: Table of futures that nothing has awaited, which lists this one; None if it need not be awaited.
    unawaited: dict[int, OperationFuture[Any]] | None
    label: str
    #: Told when the workflow cancels the operation.
    watcher: CancelWatcher | None
    operation: Any

    def __hash__(self) -> int:
        return self.stable_hash

    @property
    def is_forgotten(self) -> bool:
        """True if nothing has awaited the future, provided that it is listed."""
        return not self._callbacks

    def note_waiters(self) -> None:
        """Check whether something waits. Afterwards, awaiting the future is noted by itself."""
        unawaited = self.unawaited
        if unawaited is not None:
            if self._callbacks:
                unawaited.pop(self.stable_hash, None)
                self.unawaited = None
            else:
                self.__class__ = UnawaitedFuture  # pyright: ignore[reportAttributeAccessIssue] # of the same layout

    def observe(self, fn: Callable[[Any], object]) -> None:
        """Call back when the future is done, without counting as awaiting it."""
        self.note_waiters()
        _add_done_callback(self, fn)

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        """Remove a callback. Its owner has awaited the future."""
        self._is_awaited()
        return _remove_done_callback(self, fn)

    def cancel(self, msg: Any | None = None) -> bool:
        """Abandon the operation."""
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
    """A future that nothing had awaited when it was resolved or observed; it notes awaiting by itself."""

    __slots__ = ()

    @property
    def is_forgotten(self) -> bool:
        """True if nothing has awaited the future, provided that it is listed."""
        return True

    def note_waiters(self) -> None:
        """Do nothing: waiters are noted anyway."""

    def __await__(self) -> Generator[Any, None, T]:
        self._is_awaited()
        return _await(self)

    __iter__ = __await__

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        """Call back when the future is done, which counts as awaiting it."""
        self._is_awaited()
        _add_done_callback(self, fn, context=context)

    def result(self) -> T:
        """Return the result, which counts as awaiting: all that `gather` of Python 3.12 does with a done future."""
        self._is_awaited()
        return _result(self)

    def exception(self) -> BaseException | None:
        """Return the exception, which counts as awaiting."""
        self._is_awaited()
        return _exception(self)


def new_operation_future(
    loop: RunLoop, scope: Scope, label: str, unawaited: dict[int, OperationFuture[Any]] | None
) -> OperationFuture[Any]:
    """Make a future for an operation, listed until something awaits it."""
    future: OperationFuture[Any] = OperationFuture(loop=loop)
    future.stable_hash = number = loop.next_hash_in(scope)
    future.label = label
    future.unawaited = unawaited
    if unawaited is not None:
        unawaited[number] = future
    future.watcher = future.operation = None
    return future
