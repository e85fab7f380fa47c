"""Failure as a value: what came of a step, or of any other part of a workflow."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Collection
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from msgspec import Struct

from perdure.core.codec.failure import attempts_of
from perdure.errors import BadArguments, Fatal, Rollback
from perdure.workflow.runtime import Runtime
from perdure.workflow.scopes import current_scope

if TYPE_CHECKING:
    from perdure.workflow.context import Context

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class FailureKind(StrEnum):
    """How something failed."""

    #: A step took longer than its timeout, or a wait took longer than it was given.
    TIMEOUT = "timeout"
    #: A step used up its attempts.
    EXHAUSTED = "exhausted"
    #: A step failed in a way that makes further attempts useless, or the workflow raised `Fatal`.
    FATAL = "fatal"
    ROLLBACK = "rollback"
    #: Anything else: an error of the workflow's own, of a child, of branches.
    ERROR = "error"


#: A rollback is meant to reach the run.
CAUGHT = frozenset(FailureKind) - {FailureKind.ROLLBACK}


class Succeeded(Struct, Generic[T_co], frozen=True):
    """It gave a value."""

    value: T_co
    ok: ClassVar[Literal[True]] = True


class Failed(Struct, frozen=True):
    """It failed for good."""

    kind: FailureKind
    error: Exception
    #: How many attempts there were, if it was a step that failed; else 0.
    attempts: int
    ok: ClassVar[Literal[False]] = False


def outcome(
    context: Context,
    runtime: Runtime,
    what: Awaitable[T] | Callable[[Context], Awaitable[T]],
    name: str | None,
    catch: Collection[FailureKind],
) -> asyncio.Task[Succeeded[T] | Failed]:
    """What comes of something, as a value. A function of the context is called in a scope of its own."""
    if not callable(what) and not inspect.isawaitable(what):
        raise BadArguments(f"ctx.outcome() takes an awaitable or a function of the context, not {what!r}")
    caught = frozenset(FailureKind(kind) for kind in catch)
    surroundings = contextvars.copy_context()
    if name is not None or not inspect.isawaitable(what):
        surroundings.run(current_scope.set, runtime.open_scope(name or "outcome"))

    async def attend() -> Succeeded[T] | Failed:
        try:
            return Succeeded(await (what if inspect.isawaitable(what) else what(context)))
        except Exception as error:
            failed = _failed(error)
            if failed.kind not in caught:
                raise
            return failed

    return asyncio.get_running_loop().create_task(attend(), context=surroundings)


def _failed(error: Exception) -> Failed:
    trial = attempts_of(error)
    attempts = 0 if trial is None else trial.attempts
    if isinstance(error, Rollback):
        kind = FailureKind.ROLLBACK
    elif isinstance(error, TimeoutError):
        kind = FailureKind.TIMEOUT
    elif isinstance(error, Fatal):
        kind = FailureKind.FATAL
    else:
        kind = FailureKind(trial.given_up) if trial is not None and trial.given_up else FailureKind.ERROR
    return Failed(kind, error, attempts)
