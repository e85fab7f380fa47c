"""Runs of agents that are tools of other agents. They are workflow code, whose calls are steps."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from agents import Agent, RunConfig, RunResult, RunResultStreaming
from agents.run import AgentRunner as SdkRunner
from agents.run import get_default_agent_runner, set_default_agent_runner
from msgspec import Struct

from perdure.workflow.step import current_step


class NestedRun(Struct, frozen=True):
    """A run that a tool is about to make."""

    #: Configuration of the outer run, which the SDK gives to the nested one if the tool has none. It is prepared.
    inherited: RunConfig | None
    #: Returns the copy of an agent for a run with the inherited configuration.
    copy_of: Callable[[Agent[Any]], Agent[Any]]
    #: Returns the copy of an agent, and the configuration, for a run with another configuration.
    prepare: Callable[[Agent[Any], RunConfig | None], tuple[Agent[Any], RunConfig]]

    def arrange(self, agent: Agent[Any], config: RunConfig | None) -> tuple[Agent[Any], RunConfig]:
        """Return the copy of the agent, and the configuration, that the run uses."""
        if config is not None and config is self.inherited:
            return self.copy_of(agent), config
        return self.prepare(agent, config)


#: Set while a tool that is an agent is invoked, until it runs the agent.
_nested: ContextVar[NestedRun | None] = ContextVar("perdure_nested_run", default=None)


class _NestedRunner:
    """The SDK's runner, except for runs that a tool of a workflow makes."""

    def __init__(self, runner: SdkRunner) -> None:
        self._runner = runner

    async def run(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:
        """Run an agent."""
        agent, options = _arranged(starting_agent, options)
        return await self._runner.run(agent, input, **options)

    def run_streamed(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResultStreaming:
        """Run an agent, and stream its events."""
        agent, options = _arranged(starting_agent, options)
        return self._runner.run_streamed(agent, input, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def _arranged(agent: Agent[Any], options: dict[str, Any]) -> tuple[Agent[Any], dict[str, Any]]:
    nested = _nested.get()
    if nested is None or current_step.get(None) is not None:
        return agent, options
    _nested.set(None)
    agent, config = nested.arrange(agent, options.get("run_config"))
    return agent, {**options, "run_config": config}


async def invoke_nested(nested: NestedRun, invoke: Callable[..., Any], context: Any, arguments: str) -> Any:
    """Invoke a tool that is an agent, so that the agent it runs is a copy."""
    runner = get_default_agent_runner()
    if not isinstance(runner, _NestedRunner):
        # `Agent.as_tool` calls `Runner.run` with the agent itself. Other runs pass through unchanged.
        set_default_agent_runner(_NestedRunner(runner))  # type: ignore[arg-type] # has the methods that are called
    token = _nested.set(nested)
    try:
        return await invoke(context, arguments)
    finally:
        _nested.reset(token)
