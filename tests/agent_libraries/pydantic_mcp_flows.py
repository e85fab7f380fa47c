"""A workflow with an agent of pydantic-ai whose tools are those of an MCP server."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.function import FunctionModel

from perdure import Context, workflow
from perdure.pydantic_ai import PerdureDurability
from tests.agent_libraries.crashes import note_call
from tests.agent_libraries.pydantic_flows import browse

catalogue = MCPServer("catalogue", instructions="ask for articles")


@catalogue.tool()
async def find_article(number: int) -> str:
    note_call()
    return f"article {number}"


browser = Agent(
    FunctionModel(browse),
    name="browser",
    toolsets=[MCPToolset(catalogue, id="catalogue", include_instructions=True)],
    capabilities=[PerdureDurability(mcp={"timeout": "30s"})],
)


@workflow("agents.browse.v1")
async def browsing(ctx: Context) -> str:
    return (await browser.run("find articles")).output
