"""What a workflow can do in named parts: side by side, or over and over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, TypeVar, cast, overload

from perdure.core.ids import check_name
from perdure.workflow.branches import Branch, Won, each, join, race
from perdure.workflow.continue_as_new import ContinuedAsNew
from perdure.workflow.facet import Facet
from perdure.workflow.loop import Body, loop
from perdure.workflow.operation import Operation

if TYPE_CHECKING:
    from perdure.workflow.context import Context
    from perdure.workflow.definition import Call

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")
V = TypeVar("V")


class Branching(Facet):
    """See the module."""

    __slots__ = ()

    def join(self, branches: Mapping[str, Branch[T]], *, name: str = "join") -> Operation[dict[str, T]]:
        """Run branches side by side until all have ended, each in a scope of its own; their results by name.

        A branch is an awaitable, or a function that is given the context. Raises `JoinError` with the error of every branch
        that failed, when all have ended. No branches give no results.
        """
        joined = join(self._context, self._runtime, branches, check_name(name, "name of a join"))
        return cast("Operation[dict[str, T]]", joined)

    def race(self, branches: Mapping[str, Branch[T]], *, name: str = "race") -> Operation[Won[T]]:
        """Run branches side by side until the first succeeds: its name and its value.

        The others are cancelled, may clean up, and leave no history. Raises `RaceError` if all fail. A race of no
        branches has no winner and is refused.
        """
        return cast(
            "Operation[Won[T]]", race(self._context, self._runtime, branches, check_name(name, "name of a race"))
        )

    @overload
    def map(
        self,
        function: Callable[Concatenate[Context, T, ...], Awaitable[R]],
        items: Iterable[T],
        *,
        limit: int | None = None,
        name: str = "map",
    ) -> Operation[list[R]]: ...

    @overload
    def map(
        self, function: Callable[[T], Awaitable[R]], items: Iterable[T], *, limit: int | None = None, name: str = "map"
    ) -> Operation[list[R]]: ...

    @overload
    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, limit: int | None = None, name: str = "map"
    ) -> Operation[list[R]]: ...

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], *, limit: int | None = None, name: str = "map"
    ) -> Operation[list[Any]]:
        """Run a function as a step for each item, at most `limit` at a time; the results in the order of the items.

        A function whose first parameter is a `Context` is part of the workflow instead, and may do whatever a workflow can. The
        first error cancels the rest and is raised.
        """
        mapped = each(self._context, self._runtime, function, items, limit, check_name(name, "name of a map"))
        return cast("Operation[list[Any]]", mapped)

    def loop(
        self, state: S, body: Body[S, V], *, name: str = "loop", commit_every: int = 20, keep: int = 0
    ) -> Operation[V]:
        """Call `body(ctx, state)` until it returns `Break(value)`; `Continue(state)` goes on with that state.

        The state is recorded every `commit_every` iterations, and the history of those that are over is let go, but for the last
        `keep`. What an iteration began has to end within it; what it leaves behind is the state alone.
        """
        looping = loop(
            self._context, self._runtime, state, body, check_name(name, "name of a loop"), commit_every, keep
        )
        return cast("Operation[V]", looping)

    def continue_as_new(self, call: Call[Any]) -> NoReturn:
        """End here and begin anew under the same id, with an empty history: `ctx.continue_as_new(poll(cursor))`.

        Messages that were not received stay in the mailbox. Call it in the workflow function itself, not in a task.
        """
        self._runtime.check_main("continue_as_new")
        raise ContinuedAsNew(call)

    @property
    def _context(self) -> Context:
        return cast("Context", self)
