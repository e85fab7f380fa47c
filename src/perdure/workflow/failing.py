"""What a workflow can do about failure: undo what was done, or take it as a value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from perdure.core.ids import check_name
from perdure.errors import InvalidName
from perdure.workflow.facet import Facet
from perdure.workflow.operation import Operation
from perdure.workflow.outcomes import CAUGHT, Failed, FailureKind, Succeeded, outcome
from perdure.workflow.runtime import StepRequest
from perdure.workflow.saga import Saga, current_undos
from perdure.workflow.step import NO_OPTIONS, spec_of

if TYPE_CHECKING:
    from perdure.workflow.context import Context

P = ParamSpec("P")
T = TypeVar("T")


class Failing(Facet):
    """See the module."""

    __slots__ = ()

    def outcome(
        self,
        what: Awaitable[T] | Callable[[Context], Awaitable[T]],
        *,
        name: str | None = None,
        catch: Collection[FailureKind] = CAUGHT,
    ) -> Operation[Succeeded[T] | Failed]:
        """What comes of an operation, or of a function of the context, as a value: `Succeeded(value)` or `Failed(kind, error, ...)`.

        A function has a scope of its own, called `name`. Kinds of failure that are not in `catch` are raised; by default that
        is a rollback. A cancellation always is.
        """
        scope = None if name is None else check_name(name, "name of a block")
        return cast(
            "Operation[Succeeded[T] | Failed]",
            outcome(cast("Context", self), self._runtime, what, scope, catch),
        )

    def saga(self) -> Saga:
        """A block whose steps are undone, what was done last first, if an exception leaves it: `async with ctx.saga():`.

        What undoes a step is its option `undo`, or was said by `ctx.undo`. After that the exception goes on. Leaving the block
        without one hands its undos to the saga around it. The run as a whole is the outermost saga.
        """
        return Saga(self._runtime)

    def undo(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Say what undoes something that was done: a function and its arguments, run as a step if the saga fails."""
        spec = spec_of(function)
        options = spec.options if self._options is NO_OPTIONS else self._options.over(spec.options)
        name = options.name if isinstance(options.name, str) else spec.name
        if name is None:
            raise InvalidName('a lambda has no name to record its result under: `ctx.options(name="...").undo(...)`')
        current_undos(self._runtime).add(StepRequest(name, spec, args, kwargs, options))

    def keep(self) -> None:
        """What was done so far in the innermost saga is final, and will not be undone."""
        current_undos(self._runtime).keep()
