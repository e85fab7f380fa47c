"""`@workflow`, and the calls that workflows and activities build.

A decorated function becomes a `Workflow[P, R]`. Calling it builds a `Call[R]`: a value with the type name and the
checked arguments. A call does nothing until it is started (`engine.start`) or awaited by another workflow (`ctx.call`).
"""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, TypeVar, Unpack, overload

from msgspec import structs, to_builtins

from perdure.core.codec.codec import Codec
from perdure.core.codec.snapshot import all_fixed, snapshot, snapshot_all
from perdure.core.ids import check_name
from perdure.core.limits.breaker import Breaker, check_breaker
from perdure.core.limits.call_limits import make_call_breaker, make_call_fair, make_call_limits
from perdure.core.limits.key_function import check_key_functions
from perdure.core.limits.limit import Fair, Limit, check_limits
from perdure.core.model.cloud_event import EVENT_TYPE, CloudEvent
from perdure.core.option_checks import check_flag, check_instance, check_retry
from perdure.core.policy.broken_code import check_block_on
from perdure.core.policy.retry import Retry
from perdure.core.policy.singleton import Singleton, SingletonPolicy, singleton_key_function
from perdure.core.printed_text import brief
from perdure.errors import BadArguments, EncodeError, UsageError
from perdure.workflow import blocking
from perdure.workflow.context import Context
from perdure.workflow.run_settings import NO_SETTINGS, ActivityOptions, Placement, RunSettings, make_settings, place
from perdure.workflow.signature import Signature, describe, names_at_decorator

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

#: Options of a call that a workflow does not take.
_ACTIVITY_ONLY = ("retry", "schedule_to_start", "start_to_close", "schedule_to_close", "heartbeat", "breaker")


class Definition(Generic[P, R]):
    """A durable function, either a workflow or an activity: its type name, its code and its settings."""

    #: Declared settings of its runs.
    settings: RunSettings = NO_SETTINGS

    def __init__(
        self,
        type: str,
        function: Callable[..., Any],
        signature: Signature,
        what: str,
        *,
        retry: Retry | None,
        limits: tuple[Limit, ...] = (),
        fair: Fair | None = None,
        breaker: Breaker | None = None,
        singleton: Singleton | None = None,
    ) -> None:
        self.type = check_name(type, f"{what} type")
        keys = [singleton_key_function(singleton), *(one.key_function for one in (*limits, fair) if one is not None)]
        check_key_functions(keys, signature.names, f"the {what} {self.type!r}")
        self.function = function
        self.retry = retry
        #: Limits, fairness key and breaker that its runs pass before a worker gets them.
        self.limits = limits
        self.fair = fair
        self.breaker = breaker
        self.signature = signature
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Build a call. Raises `BadArguments` if the arguments do not fit the parameters."""
        try:
            arguments = self.signature.bind(args, kwargs, f"{self.type}()")
        except BadArguments:
            self._refuse_context((*args, *kwargs.values()))
            raise
        if not all_fixed(map(type, arguments.values())):
            self._refuse_context(arguments.values())
            arguments = {name: snapshot(value) for name, value in arguments.items()}
        return Call(self.type, arguments, self)

    @property
    def __perdure_advice__(self) -> str:
        return f"which is a run of its own; write `await ctx.call({self.__name__}(...))`"

    def _refuse_context(self, values: Iterable[object]) -> None:
        if any(isinstance(value, Context | blocking.Context) for value in values):
            raise BadArguments(
                f"{self.type}() was given a context; leave it out, because each run gets its own: "
                f"`await ctx.call({self.__name__}(...))`"
            )


class Workflow(Definition[P, R]):
    """A durable function that takes a `Context`, async or not; `retry` is the policy for the workflow as a whole."""

    def __init__(
        self,
        type: str,
        function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]
        | Callable[Concatenate[blocking.Context, P], R],
        *,
        retry: Retry | int | None,
        limits: tuple[Limit, ...] = (),
        fair: Fair | None = None,
        singleton: Singleton | None = None,
        block_on: tuple[type[Exception], ...] | None = None,
        pinned: bool | None = None,
        local_names: Mapping[str, Any] | None = None,
    ) -> None:
        _check_function(type, function)
        is_async = inspect.iscoroutinefunction(function)
        signature = Signature(function, local_names) if is_async else BlockingSignature(function, local_names)
        _check_context(type, function, signature)
        super().__init__(
            type, function, signature, "workflow", retry=check_retry(retry), limits=limits, fair=fair,
            singleton=singleton,
        )  # fmt: skip
        #: Classes of errors of its own code that block a run; None: as the worker says.
        self.block_on = block_on
        #: True: only the build that began a run continues it; None: as the engine says.
        self.pinned = pinned
        #: True: the code waits for all messages that it ever takes, whenever it waits.
        self.declares_channels = False
        #: Class or function whose source is the workflow's; None: the function itself.
        self.source_of: object = None
        if singleton is not None:
            self.settings = make_settings({"singleton": singleton})

    def __repr__(self) -> str:
        return f"<workflow {self.type}>"


class BlockingSignature(Signature):
    """Parameters of a workflow function that is not async."""

    def bound(self, arguments: dict[str, Any]) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        """Return the function with arguments by name, as a coroutine function of the context."""
        return partial(blocking.begin, super().bound(arguments))


def _check_function(type: str, function: Callable[..., Any]) -> None:
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise BadArguments(
            f"workflow {type!r}: {describe(function)} has a `yield`; a workflow returns one result, and shows others "
            "what it does by `ctx.emit(stream, item)`"
        )
    if inspect.iscoroutinefunction(function):
        return
    if not inspect.isroutine(function) or find_spec("greenlet") is None:
        raise BadArguments(
            f"workflow {type!r}: {describe(function)} must be an `async def`; "
            "an ordinary function can be a step: `await ctx.step(function, ...)`; "
            "workflows that are a `def` need greenlet: pip install 'perdure[sync]'"
        )


def _check_context(type: str, function: Callable[..., Any], signature: Signature) -> None:
    """Raise `BadArguments` if the first parameter of a workflow cannot be its context."""
    name, declared = signature.context
    if name == "self" and declared is Any:
        raise BadArguments(
            f"workflow {type!r}: {describe(function)} is a method; another process has no `self` to continue it with; "
            "make it a function, or remove `self` and put @staticmethod above @workflow"
        )
    if declared is Any:
        return
    is_async = not isinstance(signature, BlockingSignature)
    own, other = (Context, blocking.Context) if is_async else (blocking.Context, Context)
    try:
        fits = not isinstance(declared, builtins.type) or issubclass(own, declared) or issubclass(declared, own)
        is_other = not fits and issubclass(declared, other)
    except TypeError:  # a protocol that cannot be checked
        return
    if is_other:
        raise BadArguments(
            f"workflow {type!r}: {describe(function)} is an `async def`, whose context is a perdure.Context"
            if is_async
            else f"workflow {type!r}: {describe(function)} must be an `async def` to take a perdure.Context; "
            f"a `def` takes a perdure.blocking.Context: `def {function.__name__}({name}: blocking.Context, ...)`"
        )
    if not fits:
        raise BadArguments(
            f"workflow {type!r}: the first parameter of {describe(function)} is {name}: {declared.__name__}; put the "
            f"context before it: `{'async ' * is_async}def {function.__name__}(ctx: Context, "
            f"{name}: {declared.__name__})`"
        )


class WorkflowDecorator(Protocol):
    """Makes a function a workflow."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[blocking.Context, P], R], /) -> Workflow[P, R]: ...


@overload
def workflow(function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...


@overload
def workflow(function: Callable[Concatenate[blocking.Context, P], R], /) -> Workflow[P, R]: ...


@overload
def workflow(
    type: str | None = None,
    *,
    retry: Retry | int | None = None,
    limit: Limit | Sequence[Limit] | None = None,
    fair: Fair | None = None,
    singleton: Singleton | None = None,
    block_on: Sequence[type[Exception]] | None = None,
    pinned: bool | None = None,
) -> WorkflowDecorator: ...


def workflow(
    type: str | Callable[..., Any] | None = None,
    *,
    retry: Retry | int | None = None,
    limit: Limit | Sequence[Limit] | None = None,
    fair: Fair | None = None,
    singleton: Singleton | None = None,
    block_on: Sequence[type[Exception]] | None = None,
    pinned: bool | None = None,
) -> Any:
    """Make a function a workflow of the given type, such as `"shop.checkout.v1"`.

    An `async def` gets a `Context`, a `def` a `perdure.blocking.Context`, whose calls block; it needs the extra
    `perdure[sync]`.

    The type names the workflow in the database; do not change it while runs of it exist. A bare `@workflow` takes the
    module and the name of the function, such as `shop.orders.checkout`: do not rename or move it then.

    `retry`: retry policy of the workflow as a whole; none by default. Another attempt keeps the results of steps that
    succeeded.
    `limit`: bound on how many of its runs go on at once, or begin per time, over all processes.
    `fair`: key by which waiting runs take turns.
    `singleton`: at most one unfinished run of a key.
    `block_on`: classes of errors of the workflow's own code that block a run until corrected code is deployed, instead
    of failing it; by default `NameError`, `AttributeError`, `ImportError`, `TypeError`, `SyntaxError` and
    `RecursionError`, or as the worker says. Empty: none.
    `pinned`: only workers of the build that began a run continue it (`Engine(build=...)`); by default as the engine
    says.
    """
    local_names = names_at_decorator()
    limits, policy, blocking = check_limits(limit), check_retry(retry), check_block_on(block_on)
    bare = None if type is None or isinstance(type, str) or not callable(type) else type
    given = None if type is None or bare is not None else check_name(type, "workflow type")
    check_instance("fair", fair, Fair, "Fair(lambda tenant: tenant)")
    check_instance("singleton", singleton, Singleton, "Singleton(policy='queue')")
    pinning = None if pinned is None else check_flag("pinned", pinned)

    def decorate(function: Callable[..., Any]) -> Workflow[..., Any]:
        name = default_type(function) if given is None else given
        return Workflow(
            name, function, retry=policy, limits=limits, fair=fair, singleton=singleton, block_on=blocking,
            pinned=pinning, local_names=local_names,
        )  # fmt: skip

    return decorate if bare is None else decorate(bare)


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A call of a workflow or activity: its type and arguments, to be started or awaited."""

    type: str
    #: By name, or by position where only the type name is known.
    arguments: Mapping[str, Any] | tuple[Any, ...]
    definition: Definition[Any, R_co] | None = field(default=None, repr=False)
    settings: RunSettings = field(default=NO_SETTINGS, repr=False)

    @classmethod
    def named(cls, type: str, /, *args: Any, **kwargs: Any) -> Call[Any]:
        """Call a workflow or activity by its type name, where its code is not installed.

        All arguments by position, or all by name.
        """
        check_name(type, "workflow type")
        if args and kwargs:
            raise BadArguments(
                f"{type}: give all arguments by name, or all by position; without its code they cannot be matched"
            )
        # Not `Call[Any](...)`: before 3.12 a subscripted class cannot set `__orig_class__` on a frozen instance with
        # slots.
        owned_args, owned_kwargs, _ = snapshot_all(args, kwargs)
        named: Call[Any] = Call(type, owned_args or owned_kwargs)
        return named

    def options(self, **options: Unpack[ActivityOptions]) -> Call[R_co]:
        """A copy of this call with other settings than its code declares; what is not given stays as declared.

        The options are those of `@activity`: `retry`, `schedule_to_start`, `start_to_close`, `schedule_to_close`,
        `heartbeat`, `singleton`, `limit`, `fair` and `breaker`. They travel with the run, so they have to be plain
        data: a `retry` with functions or exception classes is refused, and so is a `breaker` with `counts`. A `limit`
        needs a name; `limit=[]` removes the declared limits. Keys are computed from the arguments now. A workflow takes
        only `singleton`, `limit` and `fair`. Raises `UsageError`.
        """
        if isinstance(self.definition, Workflow) and any(options.get(name) is not None for name in _ACTIVITY_ONLY):
            raise UsageError(
                f"{self.type} is a workflow; its policy is in its code, and its deadline is given where it is started"
            )
        settings = make_settings(options)
        limit, fair, breaker = options.get("limit"), options.get("fair"), options.get("breaker")
        if limit is not None or fair is not None or breaker is not None:
            settings = structs.replace(
                settings,
                limits=make_call_limits(limit, self.type, self._completed()),
                fair=make_call_fair(fair, self._completed()),
                breaker=make_call_breaker(check_breaker(breaker)),
            )
        # Raises for what cannot travel with a run.
        settings.to_json()
        return replace(self, settings=settings.over(self.settings))

    def _completed(self) -> Mapping[str, Any] | tuple[Any, ...]:
        """Arguments by name with defaults, for keys; by position where only the type name is known."""
        if self.definition is None or not isinstance(self.arguments, Mapping):
            return self.arguments
        return self.definition.signature.complete(self.arguments)

    def place(self, ready_at: int, queue: str | None, priority: int | None, deadline: int) -> Placement:
        """Queue, priority, deadlines and options of a run of this call that is ready at `ready_at`."""
        definition, given = self.definition, self.settings
        declared = NO_SETTINGS if definition is None else definition.settings
        if given is NO_SETTINGS and declared is NO_SETTINGS:
            return Placement(queue, priority, deadline)
        singleton, single = given.singleton or declared.singleton, given.single
        # The call of a fork has no arguments, and a fork is no singleton.
        is_fork = definition is not None and not isinstance(self.arguments, Mapping)
        if singleton is not None and single is None and not is_fork:
            single = singleton.to_stored(self.type, self._completed())
        return place(given, declared, ready_at, queue, priority, deadline, single)

    def encode(self, codec: Codec) -> str:
        """Encode the arguments as JSON. Raises `EncodeError` or `BadArguments`."""
        what = f"input of {self.type}"
        if self.definition is not None and isinstance(self.arguments, Mapping):
            return self.definition.signature.encode(self.arguments, codec, what)
        return codec.encode(self.arguments, what)

    def digest(self, codec: Codec) -> str:
        """Short digest of the arguments; empty if they cannot be encoded, which the start of the run reports."""
        try:
            return codec.digest(self.arguments)
        except EncodeError:
            return ""

    @property
    def __perdure_advice__(self) -> str:
        return "which is a call of a run of its own; write `await ctx.call(...)`"

    if not TYPE_CHECKING:  # type checkers report an `await` by themselves

        def __await__(self) -> NoReturn:
            name = "Call.named(...)" if self.definition is None else f"{self.definition.__name__}(...)"
            raise UsageError(
                f"a call of {self.type} is a value and does not run by itself; write `await ctx.call({name})` in a "
                f"workflow, or `run = await engine.start({name})` and `await run.result()` elsewhere"
            )

    @property
    def returns(self) -> Any:
        """Type of the result; `Any` where only the type name is known."""
        return Any if self.definition is None else self.definition.signature.returns


def event_call(event: CloudEvent, to: str | None = None) -> Call[Any]:
    """Call that hands an event to its subscriptions, or to one of them; events of a key one after the other."""
    call = Call.named(EVENT_TYPE, event=to_builtins(event), to=to)
    if event.partitionkey is None:
        return call
    return call.options(singleton=Singleton(event.partitionkey, SingletonPolicy.QUEUE))


def call_hint(value: object) -> str:
    """A value that was given instead of a call, and what to write in its place, for error messages."""
    if isinstance(value, Definition):
        return f"{brief(value)} itself; call it: `{value.__name__}(...)`"
    if inspect.iscoroutine(value):
        name = value.__qualname__.rpartition(".")[2]
        value.close()
        return (
            f"the coroutine of {name}(...); for a step write `ctx.step({name}, ...)`, else decorate {name} with "
            "@workflow or @activity"
        )
    if isinstance(value, type) or callable(value):
        return f"{brief(value)}; decorate it with @workflow or @activity and call it, or run it by `ctx.step`"
    return f"{brief(value)} of type {type(value).__name__}"


def misplaced_hint(where: str, target: object) -> str:
    """Text of the error about arguments beside a workflow instead of in its call."""
    name = target.type if isinstance(target, Call) else getattr(target, "__name__", "workflow")
    if callable(target) and not isinstance(target, Definition):
        instead = (
            "decorate it with @workflow or @activity" if where == "engine.start" else f"use `ctx.step({name}, ...)`"
        )
        return f"{where} takes the call of a workflow or activity, and {name} is a plain function; {instead}"
    inside = "Call.named(type, ...)" if isinstance(target, Call | str) else f"{name}(...)"
    return f"{where} takes one call, with the arguments inside it: `{where}({inside})`, not `{where}({name}, ...)`"


#: Names of the module that a program begins with; the second one in processes that `multiprocessing` spawns.
_MAIN = ("__main__", "__mp_main__")


def default_type(function: Callable[..., Any]) -> str:
    """The module and name of a function, such as `shop.orders.checkout`.

    A program that is run as a script has the name of its file, so that `python shop.py` and `import shop` agree.
    """
    module: str = getattr(function, "__module__", None) or _MAIN[0]
    name: str = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{_main_name() if module in _MAIN else module}.{name.replace('.<locals>', '')}"


def _main_name() -> str:
    main = sys.modules.get(_MAIN[0])
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return _MAIN[0] if file is None else PurePath(file).stem
