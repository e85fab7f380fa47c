"""`@activity`: a leaf function that is a run of its own.

Any worker may take it, in any language. It has its own retries, timeouts, queue and heartbeat. An attempt begins when a
worker claims the run. A workflow that awaits an activity (`ctx.call`) holds nothing while it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Never, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from perdure.core.ids import check_name
from perdure.core.limits.breaker import Breaker, check_breaker
from perdure.core.limits.limit import Fair, Limit, check_limits
from perdure.core.option_checks import check_flag, check_instance
from perdure.core.printed_text import brief
from perdure.errors import BadArguments
from perdure.workflow.definition import Definition, default_type
from perdure.workflow.run_settings import ActivityOptions, RunSettings, make_settings
from perdure.workflow.signature import Signature, names_at_decorator
from perdure.workflow.step import NO_STEP_SETTINGS, StepSpec, check_for_process, is_async

P = ParamSpec("P")
R = TypeVar("R")


class PendingType:
    """Class of `Pending`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Pending"

    def __reduce__(self) -> str:
        return "Pending"  # so that a function in another process returns the same object


#: Returned by an activity that has given out its token (`activity_info().token`): the activity goes on without a worker
#: until its end is reported with `engine.runs.complete` or `engine.runs.fail`. It fits every result type.
Pending: Never = cast("Never", PendingType())


class Activity(Definition[P, R]):
    """A leaf function, sync or async, with its type name and its settings."""

    def __init__(
        self,
        type: str,
        function: Callable[P, Any],
        *,
        settings: RunSettings,
        process: bool = False,
        limits: tuple[Limit, ...] = (),
        fair: Fair | None = None,
        breaker: Breaker | None = None,
        local_names: Mapping[str, Any] | None = None,
    ) -> None:
        if process:
            check_for_process(function)
        signature = Signature(function, local_names, takes_context=False)
        super().__init__(
            type, function, signature, "activity", retry=settings.retry, limits=limits, fair=fair, breaker=breaker,
            singleton=settings.singleton,
        )  # fmt: skip
        self.settings = settings
        self.process = process
        self.spec = StepSpec(
            function=function,
            name=self.type,
            options=NO_STEP_SETTINGS,
            is_async=is_async(function),
            returns=Any,
            identity=function,
        )

    def __repr__(self) -> str:
        return f"<activity {self.type}>"


class ActivityDecorator(Protocol):
    """Decorator that makes a function an `Activity`."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Activity[P, R]: ...


@overload
def activity(function: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...


@overload
def activity(function: Callable[P, R], /) -> Activity[P, R]: ...


@overload
def activity(
    type: str | None = None,
    *,
    queue: str | None = None,
    priority: int | None = None,
    process: bool = False,
    **options: Unpack[ActivityOptions],
) -> ActivityDecorator: ...


def activity(
    type: str | Callable[..., Any] | None = None,
    *,
    queue: str | None = None,
    priority: int | None = None,
    process: bool = False,
    **options: Unpack[ActivityOptions],
) -> Any:
    """Make a function an activity of the given type, such as `"notify.email.v1"`.

    A bare `@activity` takes the module and the name of the function as its type, such as `shop.mail.send`.

    `queue`, `priority`: used where the start names none.
    `process`: run a sync function that keeps a processor busy in a process of its own.
    `retry`: a `Retry`, or the number of attempts; the worker's own policy by default.
    `schedule_to_start`: longest wait for a worker.
    `start_to_close`: longest duration of one attempt.
    `schedule_to_close`: longest duration of the whole run, waits and retries included.
    `heartbeat`: longest time between two heartbeats (`activity_info().heartbeat()`).
    `limit`: bound on concurrency or rate, over all processes.
    `fair`: key by which waiting runs take turns.
    `singleton`: at most one unfinished run of a key.
    `breaker`: circuit breaker of the dependency that the activity calls.
    """
    local_names = names_at_decorator()
    settings = make_settings(options, queue=queue, priority=priority)
    limits, fair, breaker = check_limits(options.get("limit")), options.get("fair"), options.get("breaker")
    check_flag("process", process)
    check_instance("fair", fair, Fair, "Fair(lambda tenant: tenant)")
    check_breaker(breaker)
    bare = None if type is None or isinstance(type, str) or not callable(type) else type
    given = None if type is None or bare is not None else check_name(type, "activity type")

    def decorate(function: Callable[..., Any]) -> Activity[Any, Any]:
        if not callable(function):
            raise BadArguments(f"an activity is a function, not {brief(function)}; write @activity above a `def`")
        return Activity(
            default_type(function) if given is None else given,
            function,
            settings=settings,
            process=process,
            limits=limits,
            fair=fair,
            breaker=breaker,
            local_names=local_names,
        )

    return decorate if bare is None else decorate(bare)
