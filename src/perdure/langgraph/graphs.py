"""Graphs of LangGraph in workflows: every node is a step, and an interrupt waits for a message."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.constants import START
from langgraph.func import task as langgraph_task  # pyright: ignore[reportMissingTypeStubs]
from langgraph.graph.state import CompiledStateGraph  # pyright: ignore[reportMissingTypeStubs]
from langgraph.pregel import Pregel  # pyright: ignore[reportMissingTypeStubs]
from langgraph.types import Command, Interrupt
from msgspec import Struct

from perdure.core.ids import check_name
from perdure.core.option_checks import check_instance
from perdure.errors import UsageError
from perdure.langgraph.node_steps import (
    RecordedValues,
    StepNode,
    StepRunner,
    current_runner,
    retry_of,
    running,
    shown,
    step_name,
    stream_item,
)
from perdure.workflow.channels import Channel
from perdure.workflow.context import Context
from perdure.workflow.step import StepOptions, is_async

P = ParamSpec("P")
T = TypeVar("T")

#: Key under which values of a graph hold its interrupts.
_INTERRUPTS = "__interrupt__"


class GraphQuestion(Struct, frozen=True, kw_only=True):
    """A question of a graph to a human: an interrupt, or a breakpoint, whose value is None."""

    #: Unique in the run, and the same on replay.
    id: str
    value: Any = None
    #: JSON schema of the answer, if the node gave one.
    answer_schema: Any = None


class _Memory(InMemorySaver):
    """Checkpoints in memory, whose versions are the same on replay."""

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Version of a channel after `current`."""
        return f"{int(current or '0') + 1:032}"


Answers = Callable[[Context, Sequence[GraphQuestion]], Awaitable[Sequence[Any]]]


class DurableGraph:
    """A graph of LangGraph in a workflow: `await DurableGraph(ctx, graph).run(input)`.

    Each node is a step under the node's name; subgraphs that are nodes are graphs of steps themselves. The edges, the
    routing functions, and the body of an entrypoint are workflow code, which replay repeats. `steps` has options of
    steps by node. Updates, values of stream writers, and tokens of models are items of the run's stream `stream`.

    When nodes interrupt the graph, the questions are published under the key `questions`, and the run waits until each
    was answered: by a message `answer`, which answers the oldest one, or `answer.<id>`. `answers` replaces this: a
    function of workflow code that returns the answers in order.

    Later calls of `run` continue the same thread. Retry policies and timeouts of nodes become those of their steps. The
    graph's own checkpointer and caches are not used: the history of the run is the checkpoint.
    """

    def __init__(
        self,
        ctx: Context,
        graph: Pregel[Any, Any, Any, Any],
        *,
        steps: Mapping[str, StepOptions] | None = None,
        stream: str | None = None,
        answers: Answers | None = None,
        serde: SerializerProtocol | None = None,
    ) -> None:
        check_instance("graph", graph, Pregel, "a compiled graph, or an entrypoint")
        self._ctx = ctx
        self._stream = None if stream is None else check_name(stream, "name of a stream")
        self._answers = answers or self._from_messages
        serializer = JsonPlusSerializer() if serde is None else serde
        self._steps = {**_options_of(graph), **(steps or {})}
        self._runner = StepRunner(ctx, RecordedValues(serializer), self._steps, self._stream)
        # In memory: replay makes the same checkpoints again.
        self._graph = self._stepped(graph).copy({"checkpointer": _Memory(serde=serializer)})
        self._asked = 0

    async def run(self, input: Any, *, config: RunnableConfig | None = None, context: Any = None) -> Any:
        """Run the graph to its end, and return what `ainvoke` would."""
        given = input
        while True:
            values, interrupts = await self._advance(given, config, context)
            if interrupts is None:
                return values
            questions = [self._question(one) for one in interrupts or (None,)]
            self._ctx.publish("questions", [shown(one) for one in questions])
            answers = await self._answers(self._ctx, questions)
            if len(answers) != len(questions):
                raise UsageError(f"answers returned {len(answers)} answers to {len(questions)} questions")
            self._ctx.publish("questions", [])
            resume = {one.id: answer for one, answer in zip(interrupts, answers, strict=False)}
            given = Command(resume=resume) if interrupts else None

    async def _advance(
        self, input: Any, config: RunnableConfig | None, context: Any
    ) -> tuple[Any, Sequence[Interrupt] | None]:
        """Run the graph to its end or to its next interrupts; None: it has ended."""
        own: dict[str, Any] = {**(config or {}).get("configurable", {}), "thread_id": self._ctx.run_id}
        given: RunnableConfig = {**(config or {}), "configurable": own}
        values: Any = None
        interrupts: list[Interrupt] | None = None
        with running(self._runner):
            chunk: Any
            async for mode, chunk in self._graph.astream(
                input,
                given,
                context=context,
                stream_mode=["values", "updates"],
                output_keys=self._graph.output_channels,
                durability="sync",
            ):
                if mode == "values":
                    values = chunk
                elif _INTERRUPTS in chunk:
                    interrupts = [*(interrupts or ()), *chunk[_INTERRUPTS]]
                else:
                    self._emit(chunk)
        if isinstance(values, dict):
            values.pop(_INTERRUPTS, None)
        return values, None if interrupts is None else self._runner.in_order(interrupts)

    def _emit(self, updates: Mapping[str, Any]) -> None:
        for node, update in updates.items():
            if self._stream is not None:
                self._ctx.emit(self._stream, stream_item("updates", node, update))

    def _question(self, interrupt: Interrupt | None) -> GraphQuestion:
        self._asked += 1
        if interrupt is None:
            return GraphQuestion(id=str(self._asked))
        schema = getattr(interrupt, "response_schema", None)
        return GraphQuestion(id=str(self._asked), value=interrupt.value, answer_schema=schema)

    async def _from_messages(self, ctx: Context, questions: Sequence[GraphQuestion]) -> list[Any]:
        """Wait for messages until every question is answered."""
        found: dict[str, Any] = {}
        anyone = Channel("answer", Any)
        by_name = {f"answer.{one.id}": one.id for one in questions}
        while len(found) < len(questions):
            left = [one.id for one in questions if one.id not in found]
            channels = [Channel(f"answer.{id}", Any) for id in left]
            received = await ctx.receive_any(anyone, *channels)
            found[by_name.get(received.name, left[0])] = received.value
        return [found[one.id] for one in questions]

    def _stepped(self, graph: Pregel[Any, Any, Any, Any]) -> Pregel[Any, Any, Any, Any]:
        """A copy of a graph whose nodes are steps."""
        nodes: dict[str, Any] = {}
        for name, node in graph.nodes.items():
            # Workflow code waits and tries again by the engine's rules.
            changes: dict[str, Any] = {"retry_policy": None, "cache_policy": None, "timeout": None}
            if isinstance(node.bound, Pregel):
                changes["bound"] = self._stepped(node.bound)
            elif name != START and isinstance(graph, CompiledStateGraph):
                changes["bound"] = StepNode(self._runner.node, name, node.bound)
            # A writer that is not a plain one asks a routing function where to go.
            changes["writers"] = [
                one if hasattr(one, "writes") else StepNode(self._runner.route, f"{name}.route", one)
                for one in node.writers
            ]
            nodes[name] = node.copy(changes)
        return graph.copy({"nodes": nodes, "cache": None, "cache_policy": None, "retry_policy": ()})


def _options_of(graph: Pregel[Any, Any, Any, Any]) -> dict[str, StepOptions]:
    """Options of steps that follow from the policies of nodes, by name."""
    found: dict[str, StepOptions] = {}
    for name, node in graph.nodes.items():
        options: StepOptions = {}
        if (retry := retry_of(node.retry_policy, name)) is not None:
            options["retry"] = retry
        if (timeout := getattr(node, "timeout", None)) is not None:
            if timeout.run_timeout is None or timeout.idle_timeout is not None:
                raise UsageError(f"the node {name!r} has an idle timeout, which a step has not; give a run_timeout")
            options["timeout"] = timeout.run_timeout
        if isinstance(node.bound, Pregel):
            found |= _options_of(node.bound)
        if options:
            found[name] = options
    return found


def task(function: Callable[P, Awaitable[T]] | None = None, /, *, name: str | None = None) -> Any:
    """LangGraph's `@task` for an async function: a step where its entrypoint runs in a `DurableGraph`.

    Elsewhere it is LangGraph's own.
    """
    if function is None:
        return functools.partial(task, name=name)
    check_instance("function", function, Callable, "an async function")  # type: ignore[arg-type] # a kind of object
    if not is_async(function):
        raise UsageError("a task that is a step is an `async def`; call blocking code in it by a thread")
    own = step_name(name or str(getattr(function, "__name__", "task")))

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        runner = current_runner()
        if runner is None:
            return await function(*args, **kwargs)
        result: T = await runner.task(own, functools.partial(function, *args, **kwargs))
        return result

    assert inspect.iscoroutinefunction(call)
    return langgraph_task(call) if name is None else langgraph_task(name=name)(call)
