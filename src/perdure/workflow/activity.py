"""`@activity`: a leaf function that is a run of its own.

Any worker may take it, in any language; it has its own retries, timeouts, queue and heartbeat. An attempt at it begins when a worker
claims its run; a workflow that awaits it (`ctx.call`) waits without holding anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from perdure.core.limits.breaker import Breaker, check_breaker
from perdure.core.limits.limit import Fair, Limit, check_limits
from perdure.core.option_checks import check_flag, check_instance
from perdure.core.policy.retry import Retry
from perdure.core.policy.singleton import Singleton
from perdure.core.time.duration import Duration
from perdure.workflow.activity_options import Settings, make_settings
from perdure.workflow.definition import Definition
from perdure.workflow.signature import Signature
from perdure.workflow.step import NO_OPTIONS, StepSpec, check_for_process, is_async

P = ParamSpec("P")
R = TypeVar("R")


class Activity(Definition[P, R]):
    """A leaf function, sync or async, with its type name and its policy."""

    def __init__(
        self,
        type: str,
        function: Callable[P, Any],
        *,
        settings: Settings,
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
            type, function, signature, "activity", retry=settings.retry, limits=limits, fair=fair, breaker=breaker
        )
        self.settings = settings
        self.process = process
        self.spec = StepSpec(
            function=function,
            name=self.type,
            options=NO_OPTIONS,
            is_async=is_async(function),
            returns=Any,
            identity=function,
        )

    def __repr__(self) -> str:
        return f"<activity {self.type}>"


class Decorate(Protocol):
    """Makes an activity of a function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Activity[P, R]: ...


def activity(
    type: str,
    *,
    retry: Retry | int | None = None,
    schedule_to_start: Duration | None = None,
    start_to_close: Duration | None = None,
    schedule_to_close: Duration | None = None,
    heartbeat: Duration | None = None,
    queue: str | None = None,
    priority: int | None = None,
    process: bool = False,
    limit: Limit | Sequence[Limit] | None = None,
    fair: Fair | None = None,
    singleton: Singleton | None = None,
    breaker: Breaker | None = None,
) -> Decorate:
    """Make a function an activity of the given type, such as `"notify.email.v1"`.

    `schedule_to_start` bounds how long it may wait for a worker, `start_to_close` one attempt, `schedule_to_close` all of it, and
    `heartbeat` the time between two signs of life (`activity_info().heartbeat()`). `retry` says how often and when to try
    again, a number how often; without it, the worker's own policy does. `queue` and `priority` are for whoever starts it without saying so. `process` is for a
    sync function that keeps a processor busy: it is called in a process of its own. `limit` bounds how many are executed at once, or in
    so much time, in all processes together; `fair` has those that wait take turns by a key. With a `singleton`, one of its runs may go on at
    a time. `breaker` leaves alone what keeps failing.
    """
    local_names = sys._getframe(1).f_locals
    settings = make_settings(
        retry=retry,
        schedule_to_start=schedule_to_start,
        start_to_close=start_to_close,
        schedule_to_close=schedule_to_close,
        heartbeat=heartbeat,
        queue=queue,
        priority=priority,
        singleton=singleton,
    )

    limits = check_limits(limit)
    check_flag("process", process)
    check_instance("fair", fair, Fair, "Fair(lambda tenant: tenant)")
    check_breaker(breaker)

    def decorate(function: Callable[..., Any]) -> Activity[Any, Any]:
        return Activity(
            type,
            function,
            settings=settings,
            process=process,
            limits=limits,
            fair=fair,
            breaker=check_breaker(breaker),
            local_names=local_names,
        )

    return decorate
