"""Durable agents of the OpenAI Agents SDK: model calls, tool calls and guardrails are steps of a workflow.

It needs the extra `perdure[openai-agents]`.
"""

from perdure.openai_agents.approvals import PendingApproval, ToolApproval, receive_approvals
from perdure.openai_agents.conversion import workflow_tool
from perdure.openai_agents.runner import AgentRunner
from perdure.openai_agents.sessions import WorkflowSession
from perdure.openai_agents.streams import StreamedResponseEvent, response_events

__all__ = [
    "AgentRunner",
    "PendingApproval",
    "StreamedResponseEvent",
    "ToolApproval",
    "WorkflowSession",
    "receive_approvals",
    "response_events",
    "workflow_tool",
]
