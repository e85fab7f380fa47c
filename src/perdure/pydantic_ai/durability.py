"""`PerdureDurability`: the capability that makes an agent durable inside of workflows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, cast, overload

from pydantic_ai import Agent, RunContext
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities import WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    conversation_id_from_run_id,
)
from pydantic_ai.messages import (
    AgentStreamEvent,
    FinalResultEvent,
    ModelMessage,
    ModelRequest,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
)
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT

from perdure.core.ids import check_name
from perdure.errors import EncodeError, UsageError
from perdure.pydantic_ai.operations import METADATA_KEY, AgentStepOptions, StepBackend
from perdure.pydantic_ai.streams import emitting_handler, event_to_json, prepare_codecs
from perdure.pydantic_ai.threads import CallbackExecutor
from perdure.workflow.context import Context, running_context
from perdure.workflow.step import StepOptions

#: Events of a model's response. The step of the request emits them.
_OF_MODEL = (PartStartEvent, PartDeltaEvent, PartEndEvent, FinalResultEvent)

_callbacks = CallbackExecutor()


@overload
def workflow_context() -> Context: ...


@overload
def workflow_context(*, default: None) -> Context | None: ...


def workflow_context(*, default: Any = ...) -> Context | None:
    """Return the context of the workflow that runs the agent, for tools with `metadata={"perdure": False}`.

    Raises `UsageError` outside of workflow code, and in a tool that is a step; with `default=None` it returns None.
    """
    ctx = running_context()
    if ctx is None and default is ...:
        raise UsageError(
            "workflow_context() was called outside of workflow code; a tool that needs the context of the workflow has "
            f'metadata={{"{METADATA_KEY}": False}}, which makes it run as workflow code'
        )
    return ctx


def _not_encodable(error: Exception) -> BaseException:
    return EncodeError(f"a result of an agent's step cannot be stored: {error}")


class PerdureDurability(BaseDurabilityCapability[AgentDepsT]):
    """Capability of an agent: model requests, tool calls and MCP calls are steps of the workflow that runs the agent.

    `Agent("openai:gpt-5", name="support", capabilities=[PerdureDurability()])`. The agent's name begins the names of
    its steps. Outside of a workflow the agent is an ordinary one.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Perdure",
        durable_unit_noun="step",
        durable_container_noun="workflow",
        codec=JSON_CODEC,
        serialization_failure=_not_encodable,
        # A step enters what it needs, on the worker's loop. Workflow code has a loop of its own.
        toolset_lifecycles={"function": "enter-never", "mcp": "enter-never", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=METADATA_KEY,
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        name: str | None = None,
        stream: str | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        model: StepOptions | None = None,
        tools: StepOptions | None = None,
        mcp: StepOptions | None = None,
        events: StepOptions | None = None,
    ) -> None:
        """Options of the agent's steps, by kind: `model`, `tools`, `mcp` and `events`, as for `ctx.options`.

        `tools` are function tools; `metadata={"perdure": {"timeout": "5s"}}` of a tool overrides options, and
        `metadata={"perdure": False}` makes the tool run as workflow code. `stream` is the stream of the run that events
        are emitted to. `event_stream_handler` is called in steps. `models` are further models, by the key that
        `agent.run(model=...)` takes. `name` replaces the agent's name.
        """
        prepare_codecs()
        self._stream = None if stream is None else check_name(stream, "name of a stream")
        self._own_handler = event_stream_handler
        self._options = AgentStepOptions(model=model, tools=tools, mcp=mcp, events=events)
        handler = event_stream_handler
        if stream is not None:
            handler = emitting_handler(stream, handler)
        super().__init__(models=models, event_stream_handler=handler, name=name)

    @property
    def in_durable_context(self) -> bool:
        """True in workflow code."""
        return running_context() is not None

    def get_durable_operation_backend(self) -> StepBackend:
        """Return the backend that executes operations as steps."""
        return StepBackend(self.name, self.default_model_id, self._options)

    # Ids and times of a run that are the same on replay

    def get_default_run_id(self) -> str | None:
        """Id of an agent's run."""
        ctx = running_context()
        return None if ctx is None else str(ctx.uuid())

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Id of the conversation of a run."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    def get_run_clock(self) -> Callable[[], datetime] | None:
        """Clock of the workflow."""
        ctx = running_context()
        return None if ctx is None else ctx.now

    # Hooks of an agent's run

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Let sync callbacks run without threads in workflow code."""
        if not self.in_durable_context:
            return await handler()
        with Agent.using_thread_executor(_callbacks):
            return await handler()

    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Give the new messages the time of the workflow, which is the same on replay."""
        _stamp(request_context.messages)
        return await super().before_model_request(ctx, request_context)

    async def after_run(self, ctx: RunContext[AgentDepsT], *, result: AgentRunResult[Any]) -> AgentRunResult[Any]:
        """Give the last message the time of the workflow."""
        _stamp(result.all_messages())
        return await super().after_run(ctx, result=result)

    @property
    def has_wrap_run_event_stream(self) -> bool:
        """True if requests are to be streamed."""
        return self._own_handler is not None or (self._stream is not None and self.in_durable_context)

    async def wrap_run_event_stream(
        self, ctx: RunContext[AgentDepsT], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterable[AgentStreamEvent]:
        """Emit events of workflow code, or call the user's handler in a step, which emits them."""
        context = running_context()
        if self._own_handler is not None or self._stream is None or context is None:
            events = super().wrap_run_event_stream(ctx, stream=stream)
        else:
            events = _emitted(context, self._stream, stream)
        async with aclosing(cast("AsyncGenerator[AgentStreamEvent]", events)) as closing:
            async for event in closing:
                yield event


async def _emitted(
    ctx: Context, name: str, stream: AsyncIterable[AgentStreamEvent]
) -> AsyncGenerator[AgentStreamEvent]:
    async for event in stream:
        if not isinstance(event, _OF_MODEL):
            ctx.emit(name, event_to_json(event))
        yield event


def _stamp(messages: Sequence[ModelMessage]) -> None:
    """Set the times of the last request to that of the workflow."""
    ctx = running_context()
    if ctx is None or not messages or not isinstance(request := messages[-1], ModelRequest):
        return
    now = ctx.now()
    if request.timestamp is not None:
        request.timestamp = now
    for part in request.parts:
        if getattr(part, "timestamp", None) is not None:
            part.timestamp = now  # type: ignore[union-attr] # has one
