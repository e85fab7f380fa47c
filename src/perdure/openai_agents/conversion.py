"""Copies of agents whose models, tools, guardrails and MCP servers are steps. Hand-offs lead to copies, too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from agents import (
    Agent,
    ApplyPatchTool,
    ComputerTool,
    FunctionTool,
    GuardrailFunctionOutput,
    Handoff,
    InputGuardrail,
    LocalShellTool,
    Model,
    ModelProvider,
    OutputGuardrail,
    RunConfig,
    ShellTool,
    Tool,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolOutputGuardrail,
    function_tool,
)
from agents.mcp import MCPServer
from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from perdure.errors import UsageError
from perdure.openai_agents.mcp import StepMCPServer
from perdure.openai_agents.models import StepModel
from perdure.openai_agents.nested import NestedRun, invoke_nested
from perdure.openai_agents.steps import AgentSteps

G = TypeVar("G", InputGuardrail[Any], OutputGuardrail[Any])
T = TypeVar("T", ToolInputGuardrail[Any], ToolOutputGuardrail[Any])

_IN_WORKFLOW = "__perdure_in_workflow__"
#: Tools that act on the machine of the workflow itself.
_LOCAL = (ComputerTool, ShellTool, LocalShellTool, ApplyPatchTool)
_OUTPUTS = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
_output: TypeAdapter[Any] = TypeAdapter(ToolOutputText | ToolOutputImage | ToolOutputFileContent)


def workflow_tool(function: Callable[..., Any], /, **options: Any) -> FunctionTool:
    """Make a function tool that runs as workflow code: it may call steps, children and other agents of the workflow.

    The options are those of `agents.function_tool`. The function is an `async def`.
    """
    if not inspect.iscoroutinefunction(function):
        raise UsageError("workflow_tool() takes an async def, because workflow code has no threads")
    tool: FunctionTool = function_tool(function, **options)
    setattr(tool, _IN_WORKFLOW, True)
    return tool


class AgentConversion:
    """Makes a copy of each agent, once."""

    def __init__(
        self,
        steps: AgentSteps,
        provider: ModelProvider,
        override: str | Model | None,
        prepare: Callable[[Agent[Any], RunConfig | None], tuple[Agent[Any], RunConfig]],
    ) -> None:
        self._steps = steps
        #: Prepares runs of agents that are tools with a configuration of their own.
        self._prepare = prepare
        self._provider = provider
        #: Model of all agents; None: each has its own.
        self._override = override
        #: By the id of an agent: the agent, which is kept so that the id stays its own, and its copy.
        self._copies: dict[int, tuple[Agent[Any], Agent[Any]]] = {}

    def copy_of(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the copy of an agent; a copy is its own."""
        for original, copy in self._copies.values():
            if agent is original or agent is copy:
                return copy
        copy = agent.clone(
            model=self._model(agent),
            model_settings=agent.model_settings,
            tools=[],
            mcp_servers=[self._server(agent.name, server) for server in agent.mcp_servers],
            input_guardrails=[self.guardrail(agent.name, each) for each in agent.input_guardrails],
            output_guardrails=[self.guardrail(agent.name, each) for each in agent.output_guardrails],
            handoffs=[],
        )
        self._copies[id(agent)] = agent, copy
        # After the copy is known, because agents may hand off to each other, or be tools of each other.
        copy.tools = [self._tool(agent.name, tool) for tool in agent.tools]
        copy.handoffs = [self._handoff(each) for each in agent.handoffs]
        return copy

    def _model(self, agent: Agent[Any]) -> StepModel:
        wanted = agent.model if self._override is None else self._override
        provider = self._provider

        def resolve() -> Model:
            return wanted if isinstance(wanted, Model) else provider.get_model(wanted)

        return StepModel(self._steps, agent.name, resolve)

    def _tool(self, agent: str, tool: Tool) -> Tool:
        if isinstance(tool, _LOCAL):
            raise UsageError(
                f"the tool {tool.name!r} of agent {agent!r} acts on this machine, and its calls cannot be recorded; "
                "offer what it does as a function tool"
            )
        if not isinstance(tool, FunctionTool):
            return tool
        changes: dict[str, Any] = {
            name: [self._tool_guardrail(f"{agent}.tools.{tool.name}.guardrails", each) for each in guardrails]
            for name in ("tool_input_guardrails", "tool_output_guardrails")
            if (guardrails := getattr(tool, name))
        }
        # There is no public name for either; a tool without them is one step as a whole.
        if getattr(tool, "_is_agent_tool", False) and isinstance(
            inner := getattr(tool, "_agent_instance", None), Agent
        ):
            invoke = partial(self._invoke_agent, tool.on_invoke_tool)
            changes |= {"on_invoke_tool": invoke, "_agent_instance": self.copy_of(inner)}
        elif not getattr(tool, _IN_WORKFLOW, False):
            changes["on_invoke_tool"] = self._invoke_in_step(agent, tool)
        return replace(tool, **changes) if changes else tool

    def _invoke_in_step(self, agent: str, tool: FunctionTool) -> Callable[[Any, str], Any]:
        invoke, steps, name = tool.on_invoke_tool, self._steps, tool.name

        async def invoke_in_step(context: Any, arguments: str) -> Any:
            async def call() -> Any:
                return _dump_output(await invoke(context, arguments))

            return _load_output(await steps.call_tool(agent, name, call))

        return invoke_in_step

    async def _invoke_agent(self, invoke: Callable[..., Any], context: Any, arguments: str) -> Any:
        nested = NestedRun(getattr(context, "run_config", None), self.copy_of, self._prepare)
        return await invoke_nested(nested, invoke, context, arguments)

    def _tool_guardrail(self, prefix: str, guardrail: T) -> T:
        check, steps, name = cast("Callable[..., Any]", guardrail.guardrail_function), self._steps, guardrail.get_name()

        async def check_in_step(data: Any) -> ToolGuardrailFunctionOutput:
            async def call() -> Any:
                found = check(data)
                output: ToolGuardrailFunctionOutput = await found if inspect.isawaitable(found) else found
                return [output.behavior, _to_plain(output.output_info)]

            behavior, info = await steps.call(f"{prefix}.{name}", call)
            return ToolGuardrailFunctionOutput(output_info=info, behavior=behavior)

        return replace(guardrail, guardrail_function=check_in_step, name=name)

    def _server(self, agent: str, server: MCPServer) -> MCPServer:
        return StepMCPServer(self._steps, agent, server)

    def guardrail(self, agent: str, guardrail: G) -> G:
        """Return a guardrail whose function is called in a step."""
        check, steps, name = cast("Callable[..., Any]", guardrail.guardrail_function), self._steps, guardrail.get_name()

        async def check_in_step(*args: Any) -> GuardrailFunctionOutput:
            async def call() -> Any:
                found = check(*args)
                output: GuardrailFunctionOutput = await found if inspect.isawaitable(found) else found
                return [output.tripwire_triggered, _to_plain(output.output_info)]

            triggered, info = await steps.call(f"{agent}.guardrails.{name}", call)
            return GuardrailFunctionOutput(output_info=info, tripwire_triggered=triggered)

        return replace(guardrail, guardrail_function=check_in_step, name=name)

    def guardrails(self, agent: str, guardrails: Sequence[G] | None) -> list[G] | None:
        """Return such guardrails of a run."""
        return None if guardrails is None else [self.guardrail(agent, each) for each in guardrails]

    def _handoff(self, target: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(target, Agent):
            return self.copy_of(target)
        invoke = target.on_invoke_handoff

        async def invoke_copy(context: Any, arguments: str) -> Any:
            return self.copy_of(await invoke(context, arguments))

        return replace(target, on_invoke_handoff=invoke_copy)


def _to_plain(value: Any) -> Any:
    """Plain value of something that only people and programs outside of the model read."""
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError:
        return str(value)


def _dump_output(output: Any) -> list[Any]:
    """The output of a tool as JSON: typed outputs, plain values, and the text that the model gets of other objects."""
    if isinstance(output, _OUTPUTS):
        return ["typed", output.model_dump(mode="json")]
    if isinstance(output, list) and output and all(isinstance(one, _OUTPUTS) for one in output):
        return ["list", [one.model_dump(mode="json") for one in output]]
    return ["plain", output] if _is_plain(output) else ["plain", str(output)]


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(each) for key, each in value.items())
    return value is None or type(value) in (str, int, float, bool)


def _load_output(stored: Any) -> Any:
    kind, value = stored
    if kind == "typed":
        return _output.validate_python(value)
    return [_output.validate_python(one) for one in value] if kind == "list" else value
