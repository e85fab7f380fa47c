"""MCP servers whose calls are steps."""

from __future__ import annotations

from functools import cache
from typing import Any

from agents.mcp import MCPServer
from pydantic import TypeAdapter

from perdure.openai_agents.steps import AgentSteps


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def _types() -> Any:
    # Optional, and slow to import.
    from mcp import types

    return types


class StepMCPServer(MCPServer):
    """A connected MCP server whose tools are listed and called in steps. The program connects it, around its worker."""

    def __init__(self, steps: AgentSteps, agent: str, server: MCPServer) -> None:
        # What the SDK keeps of the server's settings, under whichever names.
        vars(self).update(vars(server))
        self._perdure = steps, agent, server

    @property
    def name(self) -> str:
        """Name of the server."""
        return self._perdure[2].name

    async def connect(self) -> None:
        """Do nothing: the program connects the server."""

    async def cleanup(self) -> None:
        """Do nothing: the program disconnects the server."""

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Any]:
        """List the tools in a step."""
        kind: Any = list[_types().Tool]  # type: ignore[misc] # a type at run time
        tools: list[Any] = await self._call("list-tools", kind, "list_tools", run_context, agent)
        return tools

    async def call_tool(self, tool_name: str, arguments: dict[str, Any] | None, meta: Any = None) -> Any:
        """Call a tool in a step."""
        # Older versions of the SDK have no `meta`.
        more = {} if meta is None else {"meta": meta}
        return await self._call(tool_name, _types().CallToolResult, "call_tool", tool_name, arguments, **more)

    async def list_prompts(self, *args: Any, **kwargs: Any) -> Any:
        """List the prompts in a step."""
        return await self._call("list-prompts", _types().ListPromptsResult, "list_prompts", *args, **kwargs)

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """Get a prompt in a step."""
        return await self._call("prompt", _types().GetPromptResult, "get_prompt", name, arguments)

    async def _call(self, label: str, kind: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        steps, agent, server = self._perdure

        async def call() -> Any:
            answer = await getattr(server, method)(*args, **kwargs)
            return _adapter(kind).dump_python(answer, mode="json", by_alias=True, exclude_none=True)

        answer = await steps.call(f"{agent}.mcp.{server.name}.{label}", call)
        return _adapter(kind).validate_python(answer)
