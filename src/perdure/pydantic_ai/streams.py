"""Events of an agent as items of the run's stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import cache
from typing import Any, TypeAlias

from msgspec import Struct
from pydantic import TypeAdapter, ValidationError
from pydantic_ai import RunContext
from pydantic_ai.durable_exec import JSON_CODEC, CallToolResult
from pydantic_ai.messages import AgentStreamEvent, ModelResponse

from perdure.client.handle import Handle
from perdure.core.model.outputs import StreamItem
from perdure.workflow.step import current_step

EventHandler: TypeAlias = Callable[[RunContext[Any], AsyncIterable[AgentStreamEvent]], Awaitable[None]]


class StreamedEvent(Struct, frozen=True):
    """An event of an agent, as read from the stream of its run."""

    event: AgentStreamEvent
    #: Position in the stream: `agent_events(run, after=position)` continues behind it.
    position: int
    #: The execution that emitted the event: a new one for each attempt at a step, empty for workflow code.
    source: str
    #: True for the first event of a repeated model request: earlier events of the same step are void.
    restarted: bool = False


@cache
def _events() -> TypeAdapter[AgentStreamEvent]:
    return TypeAdapter(AgentStreamEvent)


@cache
def prepare_codecs() -> None:
    """Build the codecs of messages and events, which takes long, before a run needs them on the worker's loop."""
    _events()
    for kind in (ModelResponse, CallToolResult):
        with suppress(ValidationError):
            JSON_CODEC.load(kind, None)


def event_to_json(event: AgentStreamEvent) -> Any:
    """Plain value of an event."""
    return _events().dump_python(event, mode="json")


def emitting_handler(stream: str, handler: EventHandler | None) -> EventHandler:
    """Make a handler that emits each event from the step that calls it, and then hands it to `handler`."""

    async def handle(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        emitted = _emitted(stream, events)
        if handler is not None:
            await handler(ctx, emitted)
        async for _ in emitted:
            pass  # events that the handler has left

    return handle


async def _emitted(stream: str, events: AsyncIterable[AgentStreamEvent]) -> AsyncGenerator[AgentStreamEvent]:
    info = current_step.get(None)
    async for event in events:
        if info is not None:
            info.emit(stream, event_to_json(event))
        yield event


async def agent_events(
    run: Handle[Any], stream: str = "agent", *, after: int | None = None
) -> AsyncGenerator[StreamedEvent]:
    """Follow the events of the agents in a run, until the run ends.

    `stream` is that of `PerdureDurability(stream=...)`. `after` is the position of the last event that was seen.
    """
    attempts: dict[str, str] = {}
    async with aclosing(run.stream(stream, after=after)) as items:
        async for item in items:
            yield _read(item, attempts)


def _read(item: StreamItem[Any], attempts: dict[str, str]) -> StreamedEvent:
    # `step@token.attempt`: another attempt at the same step emits anew.
    step = item.source.rpartition("@")[0]
    before = attempts.get(step)
    if step:
        attempts[step] = item.source
    event = _events().validate_python(item.value)
    return StreamedEvent(event, item.position, item.source, before not in (None, item.source))
