"""`ctx.loop`: a loop without end whose history stays short.

The loop records a checkpoint of its state every few iterations and deletes the history of the iterations before. After
a crash or a park it continues from the last checkpoint.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.codec.snapshot import snapshot
from perdure.core.option_checks import check_whole
from perdure.core.printed_text import brief
from perdure.errors import BadArguments, WorkflowError
from perdure.workflow.runtime import Runtime
from perdure.workflow.saga import current_undos
from perdure.workflow.scopes import Checkpoint, Scope, begin_in, inside
from perdure.workflow.signature import type_hints

if TYPE_CHECKING:
    from perdure.workflow.context import Context

S = TypeVar("S")
V = TypeVar("V")
S_co = TypeVar("S_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)


class Continue(Struct, Generic[S_co], frozen=True):
    """Begin the next iteration with this state."""

    state: S_co


class Break(Struct, Generic[V_co], frozen=True):
    """Leave the loop with this value."""

    value: V_co


Body = Callable[["Context", S], Awaitable[Continue[S] | Break[V]]]


def loop(
    context: Context, runtime: Runtime, state: S, body: Body[S, V], name: str, commit_every: int, keep: int
) -> asyncio.Task[V]:
    """Call `body` with its last state until it returns `Break`."""
    check_whole("commit_every", commit_every, 1, error=BadArguments)
    check_whole("keep", keep, 0, error=BadArguments)
    if not callable(body):
        raise BadArguments(f"the body of a loop is a function of the context and the state, not {brief(body)}")
    scope = runtime.open_scope(name)
    looping = _Loop(context, runtime, scope, body, commit_every, keep, type(state))
    return begin_in(scope, looping.run(snapshot(state)))


class _Loop(Generic[S, V]):
    def __init__(
        self,
        context: Context,
        runtime: Runtime,
        scope: Scope,
        body: Body[S, V],
        commit_every: int,
        keep: int,
        kind: type[S],
    ) -> None:
        self._context = context
        self._runtime = runtime
        self._scope = scope
        self._body = body
        self._commit_every = commit_every
        self._keep = keep
        self._state_type, self._value_type = _types_of(body, kind)
        #: Digest of the state that the loop begins with.
        self._begins = ""

    async def run(self, state: S) -> V:
        number = 0
        self._begins = self._runtime.digest_of_state(state)
        checkpoint = self._runtime.checkpoint(self._scope, self._begins)
        if checkpoint is not None:
            number, checkpoint = checkpoint.upto, replace(checkpoint, begins=self._begins)
            reached = await self._runtime.save_checkpoint(
                self._scope, checkpoint, self._value_type if checkpoint.ended else self._state_type, []
            )
            if checkpoint.ended:
                value: V = reached
                return value
            state = reached
        while True:
            with inside(self._scope.iteration(number)):
                outcome = await self._body(self._context, state)
            if self._runtime.undos is not None:
                # The iteration's records will be deleted, so that its steps could not be undone after a crash.
                current_undos(self._runtime).forget(self._scope.iteration(number).path)
            number += 1
            if isinstance(outcome, Break):
                return await self._end(number, outcome.value)
            if not isinstance(outcome, Continue):
                raise WorkflowError(
                    f"the body of loop {self._scope.location!r} has to return Continue(state) or Break(value), "
                    f"not {brief(outcome)}"
                )
            state = snapshot(outcome.state)
            if number % self._commit_every == 0:
                state = await self._reach(number, state, self._state_type, ended=False)

    async def _end(self, number: int, value: V) -> V:
        if not self._runtime.finished_iterations(self._scope, number) and number <= self._commit_every:
            return value  # nothing was recorded inside, so there is nothing to delete
        ended: V = await self._reach(number, value, self._value_type, ended=True)
        return ended

    async def _reach(self, number: int, value: Any, type: Any, *, ended: bool) -> Any:
        encoded = self._runtime.encode(value, f"state of loop {self._scope.location!r}", type)
        checkpoint = Checkpoint(encoded, number, ended, begins=self._begins)
        over = self._runtime.finished_iterations(self._scope, number - self._keep)
        return await self._runtime.save_checkpoint(self._scope, checkpoint, type, over)


def _types_of(body: Callable[..., Any], kind: Any) -> tuple[Any, Any]:
    """Types of state and value, from the body's annotations; by default a state has the type of the first one."""
    try:
        hints = type_hints(body)
    except BadArguments:
        hints = {}
    try:
        parameters = [name for name in inspect.signature(body).parameters if name in hints]
    except (TypeError, ValueError):  # a callable that does not tell its parameters
        parameters = []
    state = (
        hints[parameters[-1]]
        if parameters and getattr(hints[parameters[-1]], "__qualname__", "") != "Context"
        else None
    )
    returned = hints.get("return")
    value = None
    for one in (returned, *typing.get_args(returned)):
        arguments = typing.get_args(one)
        if typing.get_origin(one) is Break and arguments:
            value = arguments[0]
        elif typing.get_origin(one) is Continue and arguments and state is None:
            state = arguments[0]
    return (kind if state is None or isinstance(state, TypeVar) else state), (
        Any if value is None or isinstance(value, TypeVar) else value
    )
