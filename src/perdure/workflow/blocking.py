"""The context of `def` workflows: `Context`, `Child`, `OtherRun` and `Saga` whose calls block instead of being awaited.

Each class has a member for each public member of the async class of the same name. A member calls the async one, and
waits for what it returns (`greenlets.py`). Where the async context takes an awaitable, this one takes a function
without parameters; where that one takes a coroutine function of the context, this one takes a function of the context.

Type checkers read `blocking.pyi`, which `python -m tests.typing.blocking_stub` writes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
)
from contextlib import AbstractAsyncContextManager
from functools import cache, partial, wraps
from types import GenericAlias, ModuleType, TracebackType
from typing import Any, ClassVar

from perdure.core.time.duration import Duration, microseconds
from perdure.errors import BadArguments
from perdure.workflow import child, context, other_run, saga
from perdure.workflow.branches import NamedBranch, RaceEnd, takes_context
from perdure.workflow.context import Context as AsyncContext
from perdure.workflow.context import runtime_of
from perdure.workflow.outcomes import CAUGHT, Failed, FailureKind, Succeeded


@cache
def _greenlets() -> ModuleType:
    # Imported late: only processes with `def` workflows need greenlet.
    from perdure.workflow import greenlets

    return greenlets


def _wait(awaitable: Awaitable[Any]) -> Any:
    return _greenlets().block(awaitable)


class View:
    """Base of all blocking classes: a view of an async object."""

    __slots__ = ("_target",)
    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)

    def __init__(self, target: Any) -> None:
        self._target = target

    def __repr__(self) -> str:
        return repr(self._target)


_views: dict[type, type[View]] = {}


def view(target: Any) -> Any:
    """Make the blocking view of an object; values of other classes stay as they are."""
    kind = _views.get(type(target))
    return target if kind is None else kind(target)


def _settle(value: Any) -> Any:
    """Turn the answer of an async object into the answer of its view."""
    if isinstance(value, asyncio.Future) or inspect.iscoroutine(value):
        return view(_wait(value))
    return _iterate(value) if isinstance(value, AsyncGenerator) else view(value)


def _iterate(items: AsyncGenerator[Any]) -> Generator[Any]:
    try:
        while True:
            try:
                item = _wait(anext(items))
            except StopAsyncIteration:
                return
            yield view(item)
    finally:
        _wait(items.aclose())


class Entered:
    """A `with` block over an async context manager."""

    __slots__ = ("_manager",)

    def __init__(self, manager: AbstractAsyncContextManager[Any]) -> None:
        self._manager = manager

    def __enter__(self) -> Any:
        return view(_wait(self._manager.__aenter__()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        given: bool | None = _wait(self._manager.__aexit__(kind, error, trace))
        return given


class Part:
    """A function without parameters, as an awaitable that calls it."""

    __slots__ = ("_function", "_runtime")

    def __init__(self, runtime: Any, function: Callable[[], Any]) -> None:
        self._runtime = runtime
        self._function = function

    def begin(self) -> Coroutine[Any, Any, Any]:
        """A coroutine that calls the function in a greenlet of its own."""
        begun: Coroutine[Any, Any, Any] = _greenlets().drive(self._runtime, self._function)
        return begun

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.begin().__await__()


class ContextView(View):
    """The durable side of a `def` workflow; the function gets it as its first argument."""

    __slots__ = ()
    __perdure_advice__ = AsyncContext.__perdure_advice__

    def gather(self, *functions: Callable[[], Any], return_exceptions: bool = False) -> list[Any]:
        """Call functions concurrently, each as a task of its own; returns their results in order.

        `ctx.gather(lambda: ctx.step(one), lambda: ctx.step(two))` is `asyncio.gather` of an async workflow. The first
        error is raised at once, while the other functions go on; `return_exceptions` returns errors as results.
        """
        parts = [Part(runtime_of(self._target), _checked("ctx.gather", one)) for one in functions]
        gathered = asyncio.gather(*(part.begin() for part in parts), return_exceptions=return_exceptions)
        results: list[Any] = _wait(gathered)
        return results

    def timeout(self, duration: Duration | None) -> Entered:
        """Bound a block: `with ctx.timeout("5m"): ...` raises `TimeoutError` in it when the time is over.

        It is `asyncio.timeout` of an async workflow; `expired()` of what it gives tells whether the time was over.
        """
        return Entered(asyncio.timeout(None if duration is None else microseconds(duration) / 1e6))

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Wait for an awaitable of this workflow, such as `queue.get()` of an `asyncio.Queue` that branches share."""
        return _wait(awaitable)

    def enter(self, manager: AbstractAsyncContextManager[Any]) -> Entered:
        """Enter an async context manager of this workflow: `with ctx.enter(lock): ...` of an `asyncio.Lock`."""
        return Entered(manager)

    def branch(self, body: Callable[..., Any]) -> NamedBranch[Any]:
        """Make a branch for a field of the dataclass or of the `TypedDict` that `join` takes.

        The field names the branch and has the type of its result. The branch begins with the join.
        """
        made: NamedBranch[Any] = self._target.branch(_branch(body))
        return made

    def join(self, branches: object, *, name: str = "join") -> Any:
        """Run named branches concurrently, each in its own scope, until all have ended; returns their results by name.

        A branch is a function that takes the context, or nothing. If branches fail, `JoinError` has all of their
        errors; it is raised when every branch has ended. No branches give no results.

        Branches with results of different types stand in the fields of a dataclass or of a `TypedDict`, made by
        `branch`. The join returns that object, and each field has the status, the result and the error of its branch.
        """
        return _wait(self._target.join(_branches(branches), name=name))

    def race(self, branches: Mapping[str, Any], *, until: RaceEnd = "success", name: str = "race") -> Any:
        """Run named branches concurrently until the first one succeeds; returns its name and value.

        A branch is a function that takes the context, or nothing. The others are cancelled, may clean up, and leave no
        history. Raises `RaceError` if every branch fails, and `BadArguments` if there are none. `until="completion"`
        ends the race with the first branch that ends; if that branch failed, its error is raised.
        """
        return _wait(self._target.race(_branches(branches), until=until, name=name))

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], *, limit: int | None = None, name: str = "map"
    ) -> list[Any]:
        """Run a function as a step for each item, at most `limit` at a time; returns the results in order.

        A function whose first parameter is a `Context` runs as workflow code instead of as a step. The first error
        cancels the other items and is raised.
        """
        mapped = _over_items(function) if callable(function) and takes_context(function) else function
        results: list[Any] = _wait(self._target.map(mapped, items, limit=limit, name=name))
        return results

    def loop(
        self, state: Any, body: Callable[..., Any], *, name: str = "loop", commit_every: int = 20, keep: int = 0
    ) -> Any:
        """Call `body(ctx, state)` until it returns `Break(value)`; `Continue(state)` begins the next iteration.

        The loop records its state every `commit_every` iterations and deletes the history of finished iterations,
        except for the last `keep`. What an iteration starts has to end within it; only the state passes on to the next
        one.
        """
        given = _of_context(body) if callable(body) else body
        return _wait(self._target.loop(state, given, name=name, commit_every=commit_every, keep=keep))

    def outcome(
        self, what: Callable[..., Any], *, name: str | None = None, catch: Collection[FailureKind] = CAUGHT
    ) -> Succeeded[Any] | Failed:
        """Call a function; returns `Succeeded` or `Failed` instead of raising.

        A function that takes the context runs in its own scope, called `name`; one that takes nothing runs in the scope
        that it is called in, unless there is a `name`. Kinds of failure that are not in `catch` are raised; by default
        only a rollback is. A cancellation is always raised.
        """
        given: Any = what
        if callable(what):
            given = Part(runtime_of(self._target), what) if _takes_nothing(what) else _of_context(what)
        ended: Succeeded[Any] | Failed = _wait(self._target.outcome(given, name=name, catch=catch))
        return ended

    def answer(
        self,
        question: Any,
        handler: Callable[[Any], Any],
        type: Any = Any,
        *,
        validate: Callable[[Any], object] | None = None,
    ) -> None:
        """Answer every question of that name from now on, until the run ends. Call this first in a workflow.

        `handler` gets the value of a question and returns the answer; it may block. If the handler raises an error, the
        asking side gets that error, and the run goes on.

        `validate` gets the value before anything is recorded. If it raises an error, the asking side gets a
        `QuestionRefused` with its message, and the history has no record of the question. It may read the state of the
        workflow. It must not change it, and must not use the context: replay does not call it.
        """
        given = _in_greenlet(runtime_of(self._target), handler) if callable(handler) else handler
        self._target.answer(question, given, type, validate=validate)

    def shield(self, function: Callable[[], Any]) -> Any:
        """Call a function, protected from a timeout around it and from the cancellation of the run.

        `ctx.shield(lambda: ctx.step(...))` waits until the step has ended, and raises the interruption only then.
        """
        return _wait(self._target.shield(Part(runtime_of(self._target), _checked("ctx.shield", function))))


def _checked(where: str, function: Any) -> Callable[[], Any]:
    if callable(function) and not inspect.iscoroutinefunction(function):
        return function  # type: ignore[no-any-return] # a callable
    if inspect.iscoroutine(function):
        function.close()
    raise BadArguments(f"{where} takes functions without parameters, such as `lambda: ctx.step(pay, order)`")


def _branches(branches: Any) -> Any:
    """Branches as the async context takes them. A `TypedDict` or dataclass has branches that `branch` has made."""
    if not isinstance(branches, Mapping) or any(isinstance(one, NamedBranch) for one in branches.values()):
        return branches
    return {name: _branch(one) for name, one in branches.items()}


def _branch(body: Any) -> Any:
    """A branch as the async context takes it; what is no branch is left for it to refuse."""
    return _of_context(body) if callable(body) and not _is_advised(body) else body


def _is_advised(value: object) -> bool:
    return getattr(value, "__perdure_advice__", None) is not None


def _of_context(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A coroutine function of the async context that calls a blocking function, with the same annotations."""
    takes_nothing = _takes_nothing(function)

    async def part(context: AsyncContext, *args: Any) -> Any:
        given = args if takes_nothing else (view(context), *args)
        return await _greenlets().drive(runtime_of(context), partial(function, *given))

    return wraps(function)(part)


def _over_items(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def part(context: AsyncContext, item: Any) -> Any:
        return await _greenlets().drive(runtime_of(context), partial(function, view(context), item))

    return part


def _in_greenlet(runtime: Any, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of one argument that may block, as one that returns an awaitable."""
    if inspect.iscoroutinefunction(function):
        return function
    return lambda value: _greenlets().drive(runtime, partial(function, value))


def _takes_nothing(function: Callable[..., Any]) -> bool:
    """True if a function can be called without arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return not any(
        one.kind is inspect.Parameter.VAR_POSITIONAL
        or (one.kind is not inspect.Parameter.VAR_KEYWORD and one.default is inspect.Parameter.empty)
        for one in parameters
    )


class SagaView(View):
    """A block that undoes its steps if an exception leaves it. Made by `ctx.saga()`, for `with`."""

    __slots__ = ()

    def __enter__(self) -> SagaView:
        _wait(self._target.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _wait(self._target.__aexit__(kind, error, trace))


class ChildView(View):
    """A child run. `result()` waits for it, any number of times; giving up the wait does not cancel the child."""

    __slots__ = ()


class OtherRunView(View):
    """A run that another part of the system has started. It holds no state: two of one id are the same."""

    __slots__ = ()


def _mirror(target: type, base: type[View]) -> Any:
    """Make the blocking class of an async class. Members that `base` defines take the place of mirrored ones."""
    members = {
        name: _property(name, member) if isinstance(member, property) else _method(name, member)
        for name, member in vars(target).items()
        if not name.startswith("_") and name not in vars(base)
    }
    body = {**members, "__slots__": (), "__doc__": base.__doc__, "__module__": "perdure.blocking"}
    made = type(target.__name__, (base,), body)
    _views[target] = made
    return made


#: Words of docstrings of async members, and those of blocking ones.
_WORDS = {
    "`await child` gives": "`child.result()` gives",
    "replay; await it.": "replay.",
    "`await ": "`",
    "`async with ": "`with ",
    "; awaiting it raises": "; `result()` raises",
    "An operation that resolves to the child's result, or raises its error.": "Wait for the child's result; raises its "
    "error.",
    " `asyncio.sleep` does the same.": "",
    "has ended; resolves to its result,": "has ended; returns its result,",
    "; awaiting its result raises": "; `result()` raises",
}


def _method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(self: View, *args: Any, **kwargs: Any) -> Any:
        return _settle(getattr(self._target, name)(*args, **kwargs))

    for words, ours in _WORDS.items():
        call.__doc__ = (call.__doc__ or "").replace(words, ours)
    return call


def _property(name: str, member: property) -> property:
    return property(lambda self: view(getattr(self._target, name)), doc=member.__doc__)


Context = _mirror(context.Context, ContextView)
Child = _mirror(child.Child, ChildView)
OtherRun = _mirror(other_run.OtherRun, OtherRunView)
Saga = _mirror(saga.Saga, SagaView)


def begin(function: Callable[..., Any], given: AsyncContext) -> Coroutine[Any, Any, Any]:
    """Begin a `def` workflow: a coroutine that calls it with the blocking view of a context."""
    begun: Coroutine[Any, Any, Any] = _greenlets().drive(runtime_of(given), partial(function, view(given)))
    return begun
