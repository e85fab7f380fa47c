"""`ctx.join`, `ctx.race` and `ctx.map`: concurrent branches of a workflow.

Plain asyncio works as well. These give each branch a named scope, name the branch in errors, record the winner of a
race, and bound the concurrency. A branch is an awaitable, or a function that takes the context.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, get_args

from msgspec import Struct

from perdure.core.codec.snapshot import snapshot
from perdure.core.ids import check_name
from perdure.core.option_checks import check_whole
from perdure.core.printed_text import brief
from perdure.errors import BadArguments, JoinError, RaceError, WorkflowError
from perdure.workflow.runtime import Runtime
from perdure.workflow.saga import restore_undo_errors, undo_losers
from perdure.workflow.scopes import Checkpoint, Scope, begin_in, current_scope
from perdure.workflow.step import check_function, refuse_advised

if TYPE_CHECKING:
    from perdure.workflow.context import Context

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")

Branch = Awaitable[T] | Callable[["Context"], Awaitable[T]]

BranchStatus = Literal["pending", "running", "completed", "failed", "cancelled"]

#: What ends a race: the first branch that succeeds, or the first one that ends in any way.
RaceEnd = Literal["success", "completion"]


class NamedBranch(Generic[T]):
    """A branch in a field of a dataclass or of a `TypedDict`, which names it; made by `ctx.branch`."""

    _name = ""
    _task: asyncio.Task[T] | None = None

    def __repr__(self) -> str:
        return f"<branch {self._name or 'without a name'}: {self.status}>"

    @property
    def status(self) -> BranchStatus:
        """Its state, also while the other branches run."""
        if self._task is None:
            return "pending"
        if not self._task.done():
            return "running"
        if self._task.cancelled():
            return "cancelled"
        return "completed" if self._task.exception() is None else "failed"

    @property
    def error(self) -> Exception | None:
        """Its error if it failed or was cancelled; otherwise None."""
        return None if self._task is None or not self._task.done() else error_of(self._task, self._name)

    @property
    def result(self) -> T:
        """Its result. Raises its error if it failed, and `WorkflowError` if it has not ended."""
        if self._task is None or not self._task.done():
            raise WorkflowError(f"a branch that is {self.status} has no result; await ctx.join first")
        return _value_of(self._task, self._name)


class JoinableBranch(NamedBranch[T]):
    """A named branch as a join runs it."""

    def __init__(self, body: Branch[T]) -> None:
        refuse_advised(body)
        if not callable(body) and not inspect.isawaitable(body):
            raise BadArguments(f"ctx.branch takes an awaitable or a function that takes the context, not {brief(body)}")
        self._body = body

    def begin(self, name: str) -> Branch[T]:
        """Give out what it runs, once, under its name."""
        if self._name:
            raise BadArguments(f"branch {name!r} was given to a join before; call ctx.branch for each join")
        self._name = name
        return self._body

    def follow(self, task: asyncio.Task[T]) -> None:
        """Read its state from the task that runs it."""
        self._task = task


class RaceResult(Struct, Generic[T_co], frozen=True):
    """Name and value of the branch that won a race."""

    winner: str
    value: T_co


def join(context: Context, runtime: Runtime, branches: object, name: str) -> asyncio.Task[Any]:
    """Run all branches until each has ended."""
    scope = runtime.open_scope(name)
    named = _named(branches, name)
    listed = checked(
        cast("Any", branches) if named is None else {key: one.begin(key) for key, one in named.items()}, name
    )
    if named is None:
        return _tidied(begin_in(scope, _join(context, scope, listed, {})), listed)
    return _tidied(begin_in(scope, _join_named(context, scope, listed, named, branches)), listed)


def _named(branches: object, what: str) -> dict[str, JoinableBranch[Any]] | None:
    """Branches by field if they are made by `ctx.branch`; None for a mapping of other branches."""
    fields: Mapping[Any, Any]
    is_dataclass = dataclasses.is_dataclass(branches) and not isinstance(branches, type)
    if is_dataclass:
        fields = {one.name: getattr(branches, one.name) for one in dataclasses.fields(cast("Any", branches))}
    elif isinstance(branches, Mapping):
        fields = branches
    else:
        return None
    others = [key for key, one in fields.items() if not isinstance(one, JoinableBranch)]
    if others and (is_dataclass or len(others) < len(fields)):
        raise BadArguments(
            f"{what}: branch {brief(others[0])} is not made by ctx.branch; make all or none of them by it"
        )
    return None if others or not (fields or is_dataclass) else dict(fields)


async def _join_named(
    context: Context, scope: Scope, branches: Mapping[str, Branch[Any]], named: dict[str, JoinableBranch[Any]], given: T
) -> T:
    await _join(context, scope, branches, named)
    return given


async def _join(
    context: Context, scope: Scope, branches: Mapping[str, Branch[T]], named: Mapping[str, JoinableBranch[T]]
) -> dict[str, T]:
    tasks = {name: _begin(context, scope.branch(name), branch) for name, branch in branches.items()}
    for name, one in named.items():
        one.follow(tasks[name])
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
    context: Context, runtime: Runtime, branches: Mapping[str, Branch[T]], until: RaceEnd, name: str
) -> asyncio.Task[RaceResult[T]]:
    """Run branches until the first one succeeds, or until the first one ends."""
    if until not in get_args(RaceEnd):
        raise BadArguments(f"{name}: until is 'success' or 'completion', not {brief(until)}")
    if not branches:
        raise BadArguments(f"{name}: there are no branches; give at least one")
    scope = runtime.open_scope(name)
    listed = checked(branches, name)
    return _tidied(begin_in(scope, _race(context, runtime, scope, listed, until)), listed)


async def _race(
    context: Context, runtime: Runtime, scope: Scope, branches: Mapping[str, Branch[T]], until: RaceEnd
) -> RaceResult[T]:
    checkpoint = runtime.checkpoint(scope)
    if checkpoint is not None:
        # The other branches have no history any more, so they are not run again.
        winner = _winner_of(scope, checkpoint, branches)
        return RaceResult(winner, await _only(context, runtime, scope, checkpoint, winner, branches))
    tasks = {name: _begin(context, scope.branch(name), branch) for name, branch in branches.items()}
    first = await _first(tasks, until)
    if first is None:
        errors = {name: error for name, task in tasks.items() if (error := error_of(task, name)) is not None}
        raise RaceError.of(repr(scope.location), errors, len(tasks))
    losers = [name for name in branches if name != first]
    await end([tasks[name] for name in losers])
    paths = tuple(scope.branch(name).path for name in losers)
    not_undone = await undo_losers(runtime, paths)
    value = runtime.encode(first, f"winner of {scope.location!r}")
    await runtime.save_checkpoint(scope, Checkpoint(value, ended=True, errors=not_undone), str, paths)
    return RaceResult(first, _value_of(tasks[first], first))


def _value_of(task: asyncio.Task[T], name: str) -> T:
    """The result of a branch that has ended. Raises its error."""
    if (error := error_of(task, name)) is not None:
        raise error
    return task.result()


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
    return _value_of(task, winner)


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


async def _first(tasks: Mapping[str, asyncio.Task[Any]], until: RaceEnd) -> str | None:
    """The branch that decides a race; None if all have failed in a race for a success."""
    pending: set[asyncio.Task[Any]] = set(tasks.values())
    while pending:
        try:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await end(list(tasks.values()))
            raise
        for name, task in tasks.items():
            if task.done() and (error_of(task, name) is None or until == "completion"):
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
