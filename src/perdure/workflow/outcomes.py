"""`ctx.outcome`: the result of a step, or of any other part of a workflow, as `Succeeded` or `Failed`."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Collection
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from msgspec import Struct

from perdure.core.codec.failure import attempts_of
from perdure.core.option_checks import check_list
from perdure.core.printed_text import brief
from perdure.errors import BadArguments, Fatal, Rollback
from perdure.workflow.runtime import Runtime
from perdure.workflow.scopes import current_scope
from perdure.workflow.step import refuse_advised

if TYPE_CHECKING:
    from perdure.workflow.context import Context

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class FailureKind(StrEnum):
    """Kind of a failure."""

    #: A step or a wait took longer than its timeout.
    TIMEOUT = "timeout"
    #: A step used up its attempts.
    EXHAUSTED = "exhausted"
    #: A step failed with an error that is not worth retrying, or the workflow raised `Fatal`.
    FATAL = "fatal"
    ROLLBACK = "rollback"
    #: Any other error: of the workflow itself, of a child, of branches.
    ERROR = "error"


#: All kinds but a rollback, which is meant to reach the run.
CAUGHT = frozenset(FailureKind) - {FailureKind.ROLLBACK}


class Succeeded(Struct, Generic[T_co], frozen=True):
    """Success, with the value."""

    value: T_co
    ok: ClassVar[Literal[True]] = True


class Failed(Struct, frozen=True):
    """Failure for good, with the error."""

    kind: FailureKind
    error: Exception
    #: Number of attempts of a failed step; 0 if no step failed.
    attempts: int
    ok: ClassVar[Literal[False]] = False


def outcome(
    context: Context,
    runtime: Runtime,
    what: Awaitable[T] | Callable[[Context], Awaitable[T]],
    name: str | None,
    catch: Collection[FailureKind],
) -> asyncio.Task[Succeeded[T] | Failed]:
    """Await something and return its outcome as a value. A function is called in its own scope."""
    refuse_advised(what)
    if not callable(what) and not inspect.isawaitable(what):
        raise BadArguments(f"ctx.outcome() takes an awaitable or a function that takes the context, not {brief(what)}")
    kinds = check_list("catch", catch, "[FailureKind.TIMEOUT]")
    for kind in kinds:
        if not isinstance(kind, str) or kind not in tuple(FailureKind):
            raise BadArguments(f"catch has {brief(kind)}: give kinds of failure: {', '.join(FailureKind)}")
    caught = frozenset(map(FailureKind, kinds))
    surroundings = contextvars.copy_context()
    if name is not None or not inspect.isawaitable(what):
        surroundings.run(current_scope.set, runtime.open_scope(name or "outcome"))

    async def wait() -> Succeeded[T] | Failed:
        try:
            return Succeeded(await (what if inspect.isawaitable(what) else what(context)))
        except Exception as error:
            failed = _failed(error)
            if failed.kind not in caught:
                raise
            return failed

    return asyncio.get_running_loop().create_task(wait(), context=surroundings)


def _failed(error: Exception) -> Failed:
    summary = attempts_of(error)
    attempts = 0 if summary is None else summary.attempts
    if isinstance(error, Rollback):
        kind = FailureKind.ROLLBACK
    elif isinstance(error, TimeoutError):
        kind = FailureKind.TIMEOUT
    elif isinstance(error, Fatal):
        kind = FailureKind.FATAL
    else:
        kind = FailureKind(summary.given_up) if summary is not None and summary.given_up else FailureKind.ERROR
    return Failed(kind, error, attempts)
