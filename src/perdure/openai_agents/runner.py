"""`AgentRunner`: runs agents in a workflow, as `agents.Runner` does elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agents import Agent, Model, ModelProvider, RunConfig, Runner, RunResult, RunState, TResponseInputItem

from perdure.core.ids import check_name
from perdure.core.printed_text import brief
from perdure.errors import UsageError
from perdure.openai_agents.conversion import AgentConversion
from perdure.openai_agents.models import default_provider
from perdure.openai_agents.steps import AgentSteps
from perdure.workflow.context import Context
from perdure.workflow.step import StepOptions


class AgentRunner:
    """Runs agents in a workflow: `await AgentRunner(ctx).run(agent, "Hello")`.

    Model calls, function tools, MCP calls and guardrails are steps, called `agent.model`, `agent.tools.search` and so
    on; so are those of an agent that is a tool. Instructions, hooks, filters and hand-offs are workflow code.
    """

    def __init__(
        self,
        ctx: Context,
        *,
        model: StepOptions | None = None,
        tools: StepOptions | None = None,
        tool_options: Mapping[str, StepOptions] | None = None,
        stream: str | None = None,
        model_provider: ModelProvider | None = None,
    ) -> None:
        """Options of the steps: those of `model` calls, of `tools` and the like, and of single tools by name.

        `stream` is the stream of the run that events of models are emitted to. `model_provider` finds models by name;
        make one for the process, because it keeps connections.
        """
        if not isinstance(ctx, Context):
            raise UsageError(f"AgentRunner({brief(ctx)}): give the context of the workflow")
        if stream is not None:
            check_name(stream, "name of a stream")
        self._steps = AgentSteps(ctx, model=model, tools=tools, tool_options=tool_options, stream=stream)
        self._provider = model_provider
        #: Copies of agents, by the provider and by the model that replaces those of the agents.
        self._conversions: list[tuple[ModelProvider, str | Model | None, AgentConversion]] = []

    async def run(
        self,
        starting_agent: Agent[Any],
        input: str | list[TResponseInputItem] | RunState[Any],
        *,
        run_config: RunConfig | None = None,
        **options: Any,
    ) -> RunResult:
        """Run an agent, and those that it hands off to, until there is a final output.

        The options are those of `agents.Runner.run`. Traces of the SDK are off, because a replay would send them again.
        """
        agent, config = self._prepare(starting_agent, run_config)
        return await Runner.run(agent, input, run_config=config, **options)

    def _prepare(self, starting_agent: Agent[Any], run_config: RunConfig | None) -> tuple[Agent[Any], RunConfig]:
        """Return the copy of an agent, and the configuration, with which the SDK runs it."""
        provider = self._provider or (default_provider() if run_config is None else run_config.model_provider)
        config = RunConfig(model_provider=provider) if run_config is None else run_config
        conversion = self._conversion(provider, config.model)
        agent = conversion.copy_of(starting_agent)
        config = replace(
            config,
            model=None,
            tracing_disabled=True,
            input_guardrails=conversion.guardrails(agent.name, config.input_guardrails),
            output_guardrails=conversion.guardrails(agent.name, config.output_guardrails),
        )
        return agent, config

    def _conversion(self, provider: ModelProvider, model: str | Model | None) -> AgentConversion:
        for known, override, made in self._conversions:
            if known is provider and (override is model or (isinstance(model, str) and override == model)):
                return made
        made = AgentConversion(self._steps, provider, model, self._prepare)
        self._conversions.append((provider, model, made))
        return made
