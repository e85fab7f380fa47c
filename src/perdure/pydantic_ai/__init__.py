"""Durable agents of pydantic-ai: model requests, tool calls and MCP calls are steps of a workflow.

It needs the extra `perdure[pydantic-ai]`.
"""

from perdure.pydantic_ai.approvals import ApprovalByMessage, PendingToolCall, ToolDecision, receive_decisions
from perdure.pydantic_ai.durability import PerdureDurability, workflow_context
from perdure.pydantic_ai.streams import StreamedEvent, agent_events

__all__ = [
    "ApprovalByMessage",
    "PendingToolCall",
    "PerdureDurability",
    "StreamedEvent",
    "ToolDecision",
    "agent_events",
    "receive_decisions",
    "workflow_context",
]
