"""The steps of a runner: their context, options and errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any

from agents import exceptions

from perdure.errors import StepFailed
from perdure.library_steps import LibraryErrors, execute_step, giving_up_on
from perdure.workflow.context import Context
from perdure.workflow.step import StepOptions

#: Errors that another attempt would only repeat.
FINAL_ERRORS: tuple[type[Exception], ...] = (
    exceptions.UserError,
    exceptions.ModelBehaviorError,
    exceptions.MaxTurnsExceeded,
    exceptions.InputGuardrailTripwireTriggered,
    exceptions.OutputGuardrailTripwireTriggered,
    exceptions.ToolInputGuardrailTripwireTriggered,
    exceptions.ToolOutputGuardrailTripwireTriggered,
)


@cache
def _library_errors() -> LibraryErrors:
    found = vars(exceptions).values()
    return LibraryErrors(one for one in found if isinstance(one, type) and issubclass(one, exceptions.AgentsException))


class AgentSteps:
    """Executes the calls of one runner as steps of its workflow."""

    def __init__(
        self,
        ctx: Context,
        *,
        model: StepOptions | None,
        tools: StepOptions | None,
        tool_options: Mapping[str, StepOptions] | None,
        stream: str | None,
    ) -> None:
        self.ctx = ctx
        #: Stream of the run that events of models are emitted to.
        self.stream = stream
        self._model = giving_up_on(model, FINAL_ERRORS)
        self._tools = giving_up_on(tools, FINAL_ERRORS)
        self._by_tool = {
            name: giving_up_on({**(tools or {}), **options}, FINAL_ERRORS)
            for name, options in (tool_options or {}).items()
        }

    async def call_model(self, agent: str, body: Callable[[], Awaitable[Any]]) -> Any:
        """Execute a model call."""
        return await self._execute(f"{agent}.model", body, self._model)

    async def call_tool(self, agent: str, tool: str, body: Callable[[], Awaitable[Any]]) -> Any:
        """Execute a tool call."""
        return await self._execute(f"{agent}.tools.{tool}", body, self._by_tool.get(tool, self._tools))

    async def call(self, name: str, body: Callable[[], Awaitable[Any]]) -> Any:
        """Execute a call of something else: a guardrail, or the listing of tools."""
        return await self._execute(name, body, self._tools)

    async def _execute(self, name: str, body: Callable[[], Awaitable[Any]], options: StepOptions) -> Any:
        try:
            return await execute_step(self.ctx, name, body, options)
        except StepFailed as error:
            raise _library_errors().restore(error) from error.__cause__
