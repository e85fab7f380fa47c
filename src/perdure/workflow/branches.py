"""`ctx.join`, `ctx.race` and `ctx.map`: concurrent branches of a workflow.

Plain asyncio works as well. These give each branch a named scope, name the branch in errors, record the winner of a
race, and bound the concurrency. A branch is an awaitable, or a function that takes the context.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from msgspec import Struct

from perdure.core.codec.snapshot import snapshot
from perdure.core.ids import check_name
from perdure.core.option_checks import check_whole
from perdure.core.printed_text import brief
from perdure.errors import BadArguments, JoinError, RaceError, WorkflowError
from perdure.workflow.runtime import Checkpoint, Runtime
from perdure.workflow.saga import restore_undo_errors, undo_losers
from perdure.workflow.scopes import Scope, begin_in, current_scope
from perdure.workflow.step import check_function, refuse_advised

if TYPE_CHECKING:
    from perdure.workflow.context import Context

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")

Branch = Awaitable[T] | Callable[["Context"], Awaitable[T]]


class RaceResult(Struct, Generic[T_co], frozen=True):
    """Name and value of the branch that won a race."""

    winner: str
    value: T_co


def join(
    context: Context, runtime: Runtime, branches: Mapping[str, Branch[T]], name: str
) -> asyncio.Task[dict[str, T]]:
    """Run all branches until each has ended."""
    scope = runtime.open_scope(name)
    listed = checked(branches, name)
    return _tidied(begin_in(scope, _join(context, scope, listed)), listed)


async def _join(context: Context, scope: Scope, branches: Mapping[str, Branch[T]]) -> dict[str, T]:
    tasks = {name: _begin(context, scope.branch(name), branch) for name, branch in branches.items()}
    if tasks:
        await finish(list(tasks.values()))
    errors = {name: error for name, task in tasks.items() if (error := error_of(task, name)) is not None}
    results = {name: task.result() for name, task in tasks.items() if name not in errors}
    if errors:
        failed: JoinError = JoinError.of(repr(scope.location), errors, len(tasks))
        failed.results = results
        raise failed
    return results


def race(
    context: Context, runtime: Runtime, branches: Mapping[str, Branch[T]], name: str
) -> asyncio.Task[RaceResult[T]]:
    """Run branches until the first one succeeds."""
    if not branches:
        raise BadArguments(f"{name}: there are no branches; give at least one")
    scope = runtime.open_scope(name)
    listed = checked(branches, name)
    return _tidied(begin_in(scope, _race(context, runtime, scope, listed)), listed)


async def _race(context: Context, runtime: Runtime, scope: Scope, branches: Mapping[str, Branch[T]]) -> RaceResult[T]:
    checkpoint = runtime.checkpoint(scope)
    if checkpoint is not None:
        # The other branches have no history any more, so they are not run again.
        winner = _winner_of(scope, checkpoint, branches)
        return RaceResult(winner, await _only(context, runtime, scope, checkpoint, winner, branches))
    tasks = {name: _begin(context, scope.branch(name), branch) for name, branch in branches.items()}
    first = await _first(tasks)
    if first is None:
        errors = {name: error for name, task in tasks.items() if (error := error_of(task, name)) is not None}
        raise RaceError.of(repr(scope.location), errors, len(tasks))
    losers = [name for name in branches if name != first]
    await end([tasks[name] for name in losers])
    paths = tuple(scope.branch(name).path for name in losers)
    not_undone = await undo_losers(runtime, paths)
    value = runtime.encode(first, f"winner of {scope.location!r}")
    await runtime.save_checkpoint(scope, Checkpoint(value, ended=True, errors=not_undone), str, paths)
    return RaceResult(first, tasks[first].result())


def _winner_of(scope: Scope, checkpoint: Checkpoint, branches: Mapping[str, Branch[T]]) -> str:
    winner: str = json.loads(checkpoint.value)
    if winner not in branches:
        raise WorkflowError(f"{scope.location!r} was won by {winner!r}, which is no longer one of its branches")
    return winner


async def _only(
    context: Context,
    runtime: Runtime,
    scope: Scope,
    checkpoint: Checkpoint,
    winner: str,
    branches: Mapping[str, Branch[T]],
) -> T:
    others = [branch for name, branch in branches.items() if name != winner]
    under_way = [future for branch in others for future in _given_to(branch)]
    for future in under_way:
        # The operation was started outside of the race and has records; as the first time, it counts as awaited.
        future.add_done_callback(lambda _: None)
    for branch in others:
        _close(branch)
    task = _begin(context, scope.branch(winner), branches[winner])
    await finish([task])
    for future in under_way:
        future.cancel()
    await runtime.save_checkpoint(scope, checkpoint, str, [])
    restore_undo_errors(runtime, checkpoint.errors)
    return task.result()


def _given_to(branch: Branch[Any]) -> list[asyncio.Future[Any]]:
    """Futures behind a branch: the branch itself, or the arguments of a coroutine that has not begun."""
    if isinstance(branch, asyncio.Future):
        return [branch]
    found: list[asyncio.Future[Any]] = []
    if not inspect.iscoroutine(branch) or inspect.getcoroutinestate(branch) != inspect.CORO_CREATED:
        return found
    for argument in inspect.getcoroutinelocals(branch).values():
        listed = argument if isinstance(argument, list | tuple) else [argument]
        found += [one for one in listed if isinstance(one, asyncio.Future)]
    return found


def _tidied(task: asyncio.Task[T], branches: Mapping[str, Branch[Any]]) -> asyncio.Task[T]:
    """Close the branches that never began when the task ends: losers of a replayed race, or all if it was cancelled."""

    def on_end(_: asyncio.Future[Any]) -> None:
        for branch in branches.values():
            for future in _given_to(branch):
                future.cancel()
            _close(branch)

    if task.get_loop().is_closed():
        on_end(task)  # the run is being evicted, so that a new task would never run
    else:
        task.add_done_callback(on_end)
    return task


def _close(branch: Branch[Any]) -> None:
    if inspect.iscoroutine(branch) and inspect.getcoroutinestate(branch) == inspect.CORO_CREATED:
        branch.close()


async def _first(tasks: Mapping[str, asyncio.Task[Any]]) -> str | None:
    pending: set[asyncio.Task[Any]] = set(tasks.values())
    while pending:
        try:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await end(list(tasks.values()))
            raise
        for name, task in tasks.items():
            if task.done() and error_of(task, name) is None:
                return name
    return None


def each(
    context: Context, runtime: Runtime, function: Callable[..., Any], items: Iterable[T], limit: int | None, name: str
) -> asyncio.Task[list[Any]]:
    """Call a function for every item, at most `limit` at a time."""
    if limit is not None:
        check_whole("limit", limit, 1, error=BadArguments)
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise BadArguments(f"ctx.map takes a function and a list of items, not {brief(items)}")
    check_function(function)
    scope = runtime.open_scope(name)
    call: Callable[[Any], Any]
    if takes_context(function):
        call, listed = _with_context(context, function), list(items)
    else:
        # Copies of the items as they are now, because a step may start much later.
        call, listed = lambda item: context.step(function, item), [snapshot(item) for item in items]
    return asyncio.get_running_loop().create_task(_each(context, scope, call, listed, limit or len(listed)))


async def _each(
    context: Context, scope: Scope, call: Callable[[T], Awaitable[R]], items: Sequence[T], limit: int
) -> list[R]:
    results: list[R | None] = [None] * len(items)
    left = iter(enumerate(items))

    async def work() -> None:
        for number, item in left:
            current_scope.set(scope.iteration(number))
            results[number] = await call(item)

    tasks = [_begin(context, scope, work()) for _ in range(min(limit, len(items)))]
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            await end(tasks)
            raise
        failed = [task for task in tasks if task.done() and (task.cancelled() or task.exception() is not None)]
        if failed:
            await end(tasks)
            failed[0].result()
    return cast("list[R]", results)


def takes_context(function: Callable[..., Any]) -> bool:
    """Tell whether a function's first parameter is annotated as `Context`."""
    try:
        first = next(iter(inspect.signature(function, eval_str=True).parameters.values()), None)
    except (ValueError, NameError, TypeError):
        return False
    # Compared by name, because `context` imports this module.
    return first is not None and getattr(first.annotation, "__qualname__", "") == "Context"


def _with_context(context: Context, function: Callable[..., Any]) -> Callable[[object], Any]:
    return lambda item: function(context, item)


def checked(branches: Mapping[str, Branch[T]], what: str) -> Mapping[str, Branch[T]]:
    """Check the names and values of branches; returns a copy. Raises `InvalidName` or `BadArguments`."""
    if not isinstance(branches, Mapping):
        raise BadArguments(
            f"{what} takes branches by name, such as {{'card': pay, 'timeout': wait}}, not {brief(branches)}"
        )
    for name, branch in branches.items():
        check_name(name, "branch name")
        refuse_advised(branch)
        if not callable(branch) and not inspect.isawaitable(branch):
            raise BadArguments(
                f"{what}: branch {name!r} is neither an awaitable nor a function that takes the context: "
                f"{brief(branch)}"
            )
    return dict(branches)


def _begin(context: Context, scope: Scope, branch: Branch[T]) -> asyncio.Task[T]:
    async def run() -> T:
        return await (branch if inspect.isawaitable(branch) else branch(context))

    return begin_in(scope, run())


def error_of(task: asyncio.Task[Any], name: str) -> Exception | None:
    """The error of a branch that has ended; None if it succeeded."""
    if task.cancelled():
        return WorkflowError(f"branch {name!r} was cancelled from within")
    error = task.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error


async def finish(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait for all tasks to end; if the wait is cancelled, cancel them."""
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        await end(tasks)
        raise


async def end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their cleanup; if the wait is cancelled, cancel them once more and raise afterwards."""
    interrupted: asyncio.CancelledError | None = None
    for task in tasks:
        task.cancel()
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            interrupted = error
            for task in pending:
                task.cancel()
    for task in tasks:
        if not task.cancelled():
            task.exception()
    if interrupted is not None:
        raise interrupted
