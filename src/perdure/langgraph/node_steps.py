"""Nodes and tasks of LangGraph as steps: what runs in a step, and what its record holds.

The loop of a graph runs in workflow code; a node's function runs in a step, on whichever worker holds the run. Results
are recorded as plain JSON where they are plain, and by LangGraph's serializer where they are not.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import msgspec
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs, var_child_runnable_config
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.errors import GraphInterrupt
from langgraph.runtime import Runtime
from langgraph.types import Interrupt, RetryPolicy
from msgspec import Struct

from perdure.core.policy.retry import Retry
from perdure.errors import UsageError
from perdure.workflow.context import Context
from perdure.workflow.step import StepOptions, step_info

#: Members of a node's configuration that LangGraph keeps for itself. `tests/langgraph` checks that they are there.
SEND = "__pregel_send"
RUNTIME = "__pregel_runtime"
NAMESPACE = "checkpoint_ns"

#: Characters of step names that places in a history use.
_RESERVED = str.maketrans("/#~", "...")
_PLAIN = (str, bool, int, float, type(None))


Run = Callable[[str, Runnable[Any, Any], Any, RunnableConfig], Awaitable[Any]]


class Recorded(Struct, frozen=True):
    """A value in a record: plain JSON, or what the serializer made of it."""

    value: Any = None
    #: Type that the serializer named; empty for plain JSON. `data` is base64.
    type: str = ""
    data: str = ""


class RecordedInterrupt(Struct, frozen=True):
    """A question of a node to a human."""

    value: Recorded
    schema: Any = None


class NodeRecord(Struct, frozen=True, omit_defaults=True):
    """Record of one attempt at a node: its result, or the questions that it asks."""

    result: Recorded = Recorded()
    #: Writes to channels that the node made besides its result.
    writes: tuple[tuple[str, Recorded], ...] = ()
    interrupts: tuple[RecordedInterrupt, ...] | None = None


class RecordedValues:
    """Values of records, by a serializer of LangGraph."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde

    def record(self, value: object) -> Recorded:
        """Make a value to record."""
        if _is_plain(value):
            return Recorded(value=value)
        kind, data = self._serde.dumps_typed(value)
        return Recorded(type=kind, data=base64.b64encode(data).decode())

    def restore(self, recorded: Recorded) -> Any:
        """Restore a recorded value."""
        if not recorded.type:
            return recorded.value
        return self._serde.loads_typed((recorded.type, base64.b64decode(recorded.data)))


def _is_plain(value: object) -> bool:
    """Tell whether JSON gives the same value back."""
    kind = type(value)
    if kind is list:
        return all(map(_is_plain, cast("list[object]", value)))
    if kind is dict:
        members = cast("dict[object, object]", value)
        return all(type(key) is str for key in members) and all(map(_is_plain, members.values()))
    return kind in _PLAIN


class StepRunner:
    """Runs nodes and tasks of one run as steps."""

    def __init__(
        self, ctx: Context, values: RecordedValues, options: Mapping[str, StepOptions], stream: str | None
    ) -> None:
        self._ctx = ctx
        self._values = values
        self._options = options
        self._stream = stream
        self._asked: list[str] = []

    def in_order(self, interrupts: Sequence[Interrupt]) -> list[Interrupt]:
        """Sort interrupts as their nodes ended, which is the same on replay, and begin a new order.

        LangGraph collects the interrupts of a subgraph in a set of tasks, which on Python 3.12 and newer iterates by
        their addresses in memory.
        """
        places = {id: place for place, id in enumerate(self._asked)}
        self._asked = []
        return sorted(interrupts, key=lambda one: places.get(one.id, len(places)))

    async def node(self, name: str, bound: Runnable[Any, Any], input: Any, config: RunnableConfig) -> Any:
        """Run a node as a step, and return its result. Raises `GraphInterrupt` if it asks a human."""
        conf: dict[str, Any] = config.get("configurable", {})

        async def attempt() -> NodeRecord:
            return await self._attempt(name, bound, input, config)

        record = await self._step(name, attempt)
        writes = [(channel, self._values.restore(value)) for channel, value in record.writes]
        if writes:
            conf[SEND](writes)
        if record.interrupts is None:
            return self._values.restore(record.result)
        namespace = str(conf.get(NAMESPACE, ""))
        raise GraphInterrupt(tuple(self._interrupt(one, namespace) for one in record.interrupts))

    async def route(self, name: str, writer: Runnable[Any, Any], input: Any, config: RunnableConfig) -> Any:
        """Run a routing function as a step, whose record holds where the graph goes."""

        async def attempt() -> NodeRecord:
            record = await self._attempt(name, writer, input, config)
            return NodeRecord(writes=record.writes)

        record = await self._step(name, attempt)
        config.get("configurable", {})[SEND]([(channel, self._values.restore(one)) for channel, one in record.writes])
        return input

    async def task(self, name: str, function: Callable[[], Awaitable[Any]]) -> Any:
        """Run a task of the functional API as a step, and return its result."""

        async def attempt() -> NodeRecord:
            with _outside(None):
                return NodeRecord(result=self._values.record(await function()))

        return self._values.restore((await self._step(name, attempt)).result)

    async def _step(self, name: str, attempt: Callable[[], Awaitable[NodeRecord]]) -> NodeRecord:
        options: StepOptions = {**self._options.get(name, {}), "name": step_name(name)}
        return await self._ctx.options(**options).step(attempt)

    async def _attempt(self, name: str, bound: Runnable[Any, Any], input: Any, config: RunnableConfig) -> NodeRecord:
        """Make one attempt at a node, in a step. It must not use objects of the graph's own loop."""
        writes: list[tuple[str, Any]] = []
        own: dict[str, Any] = {**config.get("configurable", {}), SEND: writes.extend}
        if isinstance(runtime := own.get(RUNTIME), Runtime):
            own[RUNTIME] = runtime.override(stream_writer=self._writer(name))
        given: RunnableConfig = {**config, "configurable": own}
        if self._stream is not None:
            # Outside, because configurations are merged with that of the context.
            with _outside(None):
                given = merge_configs(given, {"callbacks": [_Tokens(self._writer(name, "tokens"))]})
        interrupts = None
        result = None
        with _outside(given):
            try:
                result = await bound.ainvoke(input, given)
            except GraphInterrupt as interrupt:
                asked: Sequence[Interrupt] = interrupt.args[0] if interrupt.args else ()
                interrupts = tuple(self._recorded(one) for one in asked)
        kept = tuple((channel, self._values.record(value)) for channel, value in writes)
        return NodeRecord(result=self._values.record(result), writes=kept, interrupts=interrupts)

    def _recorded(self, interrupt: Interrupt) -> RecordedInterrupt:
        schema = getattr(interrupt, "response_schema", None)
        return RecordedInterrupt(self._values.record(interrupt.value), schema if isinstance(schema, dict) else None)

    def _interrupt(self, recorded: RecordedInterrupt, namespace: str) -> Interrupt:
        # Its id follows from the place of the node in this execution of the graph, which is another one on replay.
        made = Interrupt.from_ns(self._values.restore(recorded.value), namespace)
        self._asked.append(made.id)
        if recorded.schema is not None:
            made.response_schema = recorded.schema
        return made

    def _writer(self, name: str, mode: str = "custom") -> Callable[[Any], None]:
        stream = self._stream

        def write(value: Any) -> None:
            if stream is not None:
                step_info().emit(stream, stream_item(mode, name, value))

        return write


class _Tokens(AsyncCallbackHandler):
    """Passes the tokens of models on to the run's stream."""

    def __init__(self, write: Callable[[Any], None]) -> None:
        self._write = write

    async def on_llm_new_token(self, token: Any, **_: Any) -> None:
        """Emit a token."""
        if token:
            self._write(token)


class StepNode(Runnable[Any, Any]):
    """A function of a graph that runs as a step, in the graph that runs in workflow code.

    `run` is `StepRunner.node` or `StepRunner.route`.
    """

    def __init__(self, run: Run, name: str, bound: Runnable[Any, Any]) -> None:
        self._run = run
        self._node = name
        self._bound = bound

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        """Refused: workflow code does not block."""
        raise UsageError(f"{self._node!r} runs as a step of an async workflow, so the graph runs by `ainvoke`")

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        """Run the function as a step."""
        return await self._run(self._node, self._bound, input, config or {})


#: Runner of the graph that this workflow code belongs to; None in steps, and outside of workflows.
_current: ContextVar[StepRunner | None] = ContextVar("perdure_langgraph_runner", default=None)


def current_runner() -> StepRunner | None:
    """Runner of the graph whose code calls this."""
    return _current.get()


@contextmanager
def running(runner: StepRunner) -> Generator[None]:
    """Make tasks that are called in this block steps of a run."""
    token = _current.set(runner)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def _outside(config: RunnableConfig | None) -> Generator[None]:
    """Leave the graph: a step inherits its context variables, in which LangGraph looks for `config`."""
    token, configured = _current.set(None), var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(configured)
        _current.reset(token)


def step_name(node: str) -> str:
    """Name of the step of a node."""
    return node.translate(_RESERVED)[:200]


def retry_of(policies: RetryPolicy | Sequence[RetryPolicy] | None, node: str) -> Retry | None:
    """The policy of a node as one of its step: kept by the engine, so that waits between attempts survive a crash."""
    given = [policies] if isinstance(policies, RetryPolicy) else list(policies or ())
    if not given:
        return None
    if len(given) > 1:
        raise UsageError(f"the node {node!r} has {len(given)} retry policies; give its step one: steps={{...: ...}}")
    [policy] = given
    return Retry(
        attempts=policy.max_attempts,
        initial=policy.initial_interval,
        factor=policy.backoff_factor,
        max=policy.max_interval,
        jitter=0.5 if policy.jitter else 0.0,
        jitter_only_adds=True,
        classify=False,
    )


def stream_item(mode: str, node: str, value: object) -> dict[str, Any]:
    """Item of the run's stream."""
    return {"mode": mode, "node": node, "data": shown(value)}


def shown(value: object) -> Any:
    """A value as plain JSON, for people and browsers: models and messages by their fields."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_fields_of))


def _fields_of(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) and not isinstance(value, type) else repr(value)
