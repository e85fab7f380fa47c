"""Perdure for coding agents: an MCP server that operates runs, and workflows as tools of the user's own MCP server.

It needs the extra `mcp`.
"""

from perdure.mcp.durable_tools import ToolRun, add_workflow
from perdure.mcp.server import make_server

__all__ = ["ToolRun", "add_workflow", "make_server"]
