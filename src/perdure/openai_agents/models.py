"""Models whose calls are steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any

from agents import Model, ModelProvider, ModelResponse, Usage
from agents.models.multi_provider import MultiProvider
from openai.types.responses import Response, ResponseCompletedEvent
from pydantic import TypeAdapter, ValidationError

from perdure.openai_agents.steps import AgentSteps
from perdure.workflow.step import current_step

_SUMS = ("requests", "input_tokens", "output_tokens", "total_tokens")
_usages: TypeAdapter[Usage] = TypeAdapter(Usage)


@cache
def default_provider() -> ModelProvider:
    """Return the SDK's provider; one for the process, because it keeps connections."""
    return MultiProvider()


class StepModel(Model):
    """A model whose calls are steps of a workflow. The step makes the actual model, and with it the HTTP client."""

    def __init__(self, steps: AgentSteps, agent: str, resolve: Callable[[], Model]) -> None:
        self._steps = steps
        self._agent = agent
        self._resolve = resolve

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Call the model in a step, which emits the events of the response if the runner has a stream."""

        async def respond() -> Any:
            model = self._resolve()
            if self._steps.stream is None:
                response = await model.get_response(*args, **kwargs)
            else:
                response = _of_completed(await self._streamed(model, args, kwargs))
            return _dump(response)

        return _load(await self._steps.call_model(self._agent, respond))

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[ResponseCompletedEvent]:
        """Call the model in a step, and yield the event that ends the response; the step emits all of them."""

        async def respond() -> Any:
            return (await self._streamed(self._resolve(), args, kwargs)).to_dict(mode="json")

        response = Response.construct(**await self._steps.call_model(self._agent, respond))
        yield ResponseCompletedEvent(response=response, sequence_number=0, type="response.completed")

    async def _streamed(self, model: Model, args: Any, kwargs: Any) -> Response:
        info, stream = current_step.get(None), self._steps.stream
        completed: Response | None = None
        items: list[Any] = []
        async for event in model.stream_response(*args, **kwargs):
            if info is not None and stream is not None:
                info.emit(stream, event.to_dict(mode="json"))
            if event.type == "response.completed":
                completed = event.response
            elif event.type == "response.output_item.done":
                items.append(event.item)
            elif event.type in ("response.failed", "response.incomplete", "error"):
                raise RuntimeError(f"the response of the model of agent {self._agent!r} ended with {event.type}")
        if completed is None:
            raise RuntimeError(f"the response of the model of agent {self._agent!r} ended without an end")
        if not completed.output:
            # Some models have their items in earlier events only.
            completed.output = items
        return completed


def _dump(response: ModelResponse) -> dict[str, Any]:
    return {
        "output": [item.to_dict(mode="json") for item in response.output],
        "usage": _usages.dump_python(response.usage, mode="json", warnings=False),
        "response_id": response.response_id,
        "request_id": getattr(response, "request_id", None),
    }


def _load(stored: dict[str, Any]) -> ModelResponse:
    # As the client makes them, which does not insist on all fields: not every provider sends them.
    output = Response.construct(output=stored["output"]).output
    try:
        usage = _usages.validate_python(stored["usage"])
    except ValidationError:
        # Details that lack fields; the sums are what budgets count.
        sums: dict[str, Any] = {name: stored["usage"].get(name) or 0 for name in _SUMS}
        usage = Usage(**sums)
    response = ModelResponse(output=output, usage=usage, response_id=stored["response_id"])
    if stored.get("request_id"):
        response.request_id = stored["request_id"]
    return response


def _of_completed(response: Response) -> ModelResponse:
    used = response.usage
    usage = Usage(requests=1)
    if used is not None:
        usage = Usage(
            requests=1,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens_details=used.output_tokens_details,
        )
    return ModelResponse(output=response.output, usage=usage, response_id=response.id)
