"""Events of models as items of the run's stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cache
from typing import Any

from agents.items import TResponseStreamEvent
from msgspec import Struct
from pydantic import TypeAdapter

from perdure.client.handle import Handle


class StreamedResponseEvent(Struct, frozen=True):
    """An event of a model's response, as read from the stream of its run."""

    event: TResponseStreamEvent
    #: Position in the stream: `response_events(run, after=position)` continues behind it.
    position: int
    #: The execution that emitted the event: a new one for each attempt at a step.
    source: str
    #: True for the first event of a repeated model call: earlier events of the same step are void.
    restarted: bool = False


@cache
def _events() -> TypeAdapter[Any]:
    return TypeAdapter(TResponseStreamEvent)


async def response_events(
    run: Handle[Any], stream: str = "agent", *, after: int | None = None
) -> AsyncGenerator[StreamedResponseEvent]:
    """Follow the events of the models in a run, until the run ends.

    `stream` is that of `AgentRunner(stream=...)`. `after` is the position of the last event that was seen.
    """
    attempts: dict[str, str] = {}
    async with aclosing(run.stream(stream, after=after)) as items:
        async for item in items:
            # `step@token.attempt`: another attempt at the same step emits anew.
            step = item.source.rpartition("@")[0]
            before = attempts.get(step)
            attempts[step] = item.source
            restarted = before not in (None, item.source)
            yield StreamedResponseEvent(_events().validate_python(item.value), item.position, item.source, restarted)
