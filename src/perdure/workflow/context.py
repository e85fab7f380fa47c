"""What a workflow can do.

Every method that does something durable takes its place in the history when it is *called* and returns an `Operation`: await it,
or hand it to `asyncio.gather`, `wait`, a `TaskGroup`… as any other future.
"""

from __future__ import annotations

import datetime
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

from msgspec import UNSET
from msgspec.structs import replace

from perdure.core.limits.breaker import Breaker
from perdure.core.limits.limit import Limit
from perdure.core.policy.retry import Retry
from perdure.core.time.duration import Duration, instant, microseconds
from perdure.errors import InvalidName, UsageError
from perdure.workflow.branching import Branching
from perdure.workflow.changing import Changing
from perdure.workflow.child import Starting
from perdure.workflow.failing import Failing
from perdure.workflow.messaging import Messaging
from perdure.workflow.operation import Operation
from perdure.workflow.runtime import StepRequest
from perdure.workflow.saga import current_undos
from perdure.workflow.scopes import WorkflowRandom
from perdure.workflow.shield import shielded
from perdure.workflow.signature import describe
from perdure.workflow.step import NO_OPTIONS, check_for_process, make_options, spec_of

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Context(Messaging, Branching, Starting, Failing, Changing):
    """The durable side of a workflow, handed to it as its first argument."""

    __slots__ = ()

    @overload
    def step(self, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> Operation[R]: ...

    @overload
    def step(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Operation[R]: ...

    def step(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function once, record its result, and give that result on every replay.

        Async functions run on the worker's loop, others in a thread. The workflow gets the result as it comes back from the
        database. A failed attempt is repeated as the step's retry policy says; what remains is raised here.
        """
        spec = spec_of(function)
        options = spec.options if self._options is NO_OPTIONS else self._options.over(spec.options)
        name = options.name if isinstance(options.name, str) else spec.name
        if name is None:
            raise InvalidName('a lambda has no name to record its result under: `ctx.options(name="...").step(...)`')
        if options is NO_OPTIONS:
            return self._runtime.step(StepRequest(name, spec, args, kwargs, options))
        if options.process is True:
            check_for_process(function)
        operation = self._runtime.step(StepRequest(name, spec, args, kwargs, options))
        if options.undo is not UNSET:
            current_undos(self._runtime).watch(operation, options.undo)
        return operation

    @overload
    def transaction(
        self, function: Callable[Concatenate[Any, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Operation[R]: ...

    @overload
    def transaction(
        self, function: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Operation[R]: ...

    def transaction(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function in a transaction of the engine's database: what it writes there happens exactly once.

        The function gets a connection before its other arguments: of the engine's own driver, or of another library by
        `ctx.options(using=...)`. Its writes and the record of its result are committed together. For the rest it is a step.
        """
        spec = spec_of(function)
        options = replace(self._options.over(spec.options), ephemeral=UNSET)
        if options.process is True:
            raise UsageError(f"{describe(function)} is to run in a transaction, which cannot be had in another process")
        name = options.name if isinstance(options.name, str) else spec.name
        if name is None:
            raise InvalidName(
                'a lambda has no name to record its result under: `ctx.options(name="...").transaction(...)`'
            )
        operation = self._runtime.step(StepRequest(name, spec, args, kwargs, options, transaction=True))
        if options.undo is not UNSET:
            current_undos(self._runtime).watch(operation, options.undo)
        return operation

    def options(
        self,
        *,
        name: str | None = None,
        retry: Retry | int | None = None,
        timeout: Duration | None = None,
        ephemeral: bool | None = None,
        using: Callable[[], Any] | None = None,
        undo: Callable[[Any], Any] | None = None,
        process: bool | None = None,
        limit: Limit | Sequence[Limit] | None = None,
        breaker: Breaker | None = None,
    ) -> Context:
        """This context with other options for the steps called through it: `ctx.options(timeout="5s").step(...)`.

        `using` gives the connection of a transaction; see `transaction`. `undo` is given a step's result to undo it; see `saga`.
        `limit` and `breaker` are what a step has to pass; see `@step`.
        """
        chosen = make_options(
            name=name, retry=retry, timeout=timeout, ephemeral=ephemeral, using=using, undo=undo, process=process,
            limit=limit, breaker=breaker,
        )  # fmt: skip
        return Context(self._runtime, chosen.over(self._options))

    def sleep(self, duration: Duration) -> Operation[None]:
        """Wait, for however long; holds no slot, no thread and no memory to speak of. `asyncio.sleep` is the same."""
        return cast("Operation[None]", self._runtime.sleep_until(self._runtime.time + microseconds(duration)))

    def sleep_until(self, when: datetime.datetime) -> Operation[None]:
        """Wait until a moment (with a time zone)."""
        return cast("Operation[None]", self._runtime.sleep_until(instant(when, self._runtime.time)))

    def shield(self, awaitable: Awaitable[R]) -> Coroutine[Any, Any, R]:
        """Protect a part: neither a timeout around it nor the cancellation of the run interrupts it.

        `await ctx.shield(ctx.step(...))` waits to the end of the step; what was to interrupt it is raised then.
        """
        return shielded(awaitable)

    def now(self) -> datetime.datetime:
        """The workflow's time: that of the last thing that happened to it; the same on replay."""
        return _EPOCH + datetime.timedelta(microseconds=self._runtime.time)

    @property
    def random(self) -> WorkflowRandom:
        """Random numbers that are the same on replay: `ctx.random()`, `ctx.random.choice(...)`."""
        return self._runtime.random

    def uuid(self) -> uuid.UUID:
        """A UUID that is the same on replay; good as an idempotency key."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._runtime.run_id

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is silent during replay, so that each line appears once."""
        return self._runtime.log


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
