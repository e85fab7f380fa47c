"""Approvals of tool calls, which come as messages to the run."""

from __future__ import annotations

from typing import Any

from agents import RunResult, RunState
from agents.items import ToolApprovalItem
from msgspec import Struct

from perdure.core.ids import check_name
from perdure.core.time.duration import Duration, microseconds
from perdure.workflow.channels import Channel
from perdure.workflow.context import Context, runtime_of

#: Name of the messages with approvals, and of the run's state that lists open calls.
CHANNEL = "tool_calls"


class PendingApproval(Struct, frozen=True):
    """A tool call that waits for approval, as published in the run's state."""

    id: str
    tool: str
    #: Arguments as JSON, as the model gave them.
    arguments: str
    #: Name of the agent.
    agent: str


class ToolApproval(Struct, frozen=True):
    """Message that approves or rejects a tool call."""

    id: str
    #: Whether the call may be made.
    approved: bool = True
    #: Apply the answer to later calls of the same tool, too.
    always: bool = False


async def receive_approvals(
    ctx: Context, result: RunResult, *, channel: str = CHANNEL, timeout: Duration | None = None
) -> RunState[Any]:
    """Wait for an approval of each interruption of a run; pass the state to `AgentRunner.run`.

    The open calls are published as the run's state `channel`, a list of `PendingApproval`. Approvals are messages of
    that name, of type `ToolApproval`. Calls that are undecided after `timeout` are rejected.
    """
    check_name(channel, "name of a channel")
    due = None if timeout is None else runtime_of(ctx).time + microseconds(timeout)
    state = result.to_state()
    open_items = {_call_id(item): item for item in result.interruptions}
    approvals = Channel(channel, ToolApproval)
    while open_items:
        ctx.publish(channel, [_pending(id, item) for id, item in open_items.items()])
        left = None if due is None else max(0, due - runtime_of(ctx).time) / 1e6
        try:
            approval = await ctx.receive(approvals, timeout=left)
        except TimeoutError:
            for item in open_items.values():
                state.reject(item)
            break
        item_or_none = open_items.pop(approval.id, None)
        if item_or_none is None:
            continue
        if approval.approved:
            state.approve(item_or_none, always_approve=approval.always)
        else:
            state.reject(item_or_none, always_reject=approval.always)
    ctx.publish(channel, [])
    return state


def _field(item: ToolApprovalItem, name: str) -> str:
    raw: Any = item.raw_item
    return str((raw.get(name) if isinstance(raw, dict) else getattr(raw, name, None)) or "")


def _call_id(item: ToolApprovalItem) -> str:
    return _field(item, "call_id") or _field(item, "id")


def _pending(id: str, item: ToolApprovalItem) -> PendingApproval:
    return PendingApproval(id, item.tool_name or _field(item, "name"), _field(item, "arguments"), item.agent.name)
