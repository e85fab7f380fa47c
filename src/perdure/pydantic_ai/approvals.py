"""Deferred tool calls: approvals and results come as messages to the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct
from pydantic_ai import RunContext, ToolDenied
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import AgentDepsT, DeferredToolRequests, DeferredToolResults, ToolApproved

from perdure.core.ids import check_name
from perdure.core.time.duration import Duration, microseconds
from perdure.pydantic_ai.durability import workflow_context
from perdure.workflow.channels import Channel
from perdure.workflow.context import Context, runtime_of

#: Name of the messages with decisions, and of the run's state that lists open calls.
CHANNEL = "tool_calls"


class PendingToolCall(Struct, frozen=True):
    """A tool call that waits for a decision, as published in the run's state."""

    id: str
    tool: str
    arguments: dict[str, Any]
    #: `approval`: a person allows or denies the call. `result`: another program makes the call and sends the result.
    needs: Literal["approval", "result"]


class ToolDecision(Struct, frozen=True):
    """Message that decides about a tool call."""

    id: str
    #: Whether the call may be made; False denies it.
    approved: bool = True
    #: Reason that the model is given for a denied call.
    reason: str = ""
    #: Arguments in place of those that the model chose.
    arguments: dict[str, Any] | None = None
    #: Result of a call that another program has made.
    result: Any = None


async def receive_decisions(
    ctx: Context, requests: DeferredToolRequests, *, channel: str = CHANNEL, timeout: Duration | None = None
) -> DeferredToolResults:
    """Wait for a decision about each deferred tool call; pass the results to the next `agent.run`.

    The open calls are published as the run's state `channel`, a list of `PendingToolCall`. Decisions are messages of
    that name, of type `ToolDecision`. Calls that are undecided after `timeout` are denied. Decisions about other calls
    are ignored.
    """
    check_name(channel, "name of a channel")
    due = None if timeout is None else runtime_of(ctx).time + microseconds(timeout)
    open_calls = {call.tool_call_id: _pending(call, "approval") for call in requests.approvals}
    open_calls |= {call.tool_call_id: _pending(call, "result") for call in requests.calls}
    results = DeferredToolResults()
    decisions = Channel(channel, ToolDecision)
    while open_calls:
        ctx.publish(channel, list(open_calls.values()))
        left = None if due is None else max(0, due - runtime_of(ctx).time) / 1e6
        try:
            decision = await ctx.receive(decisions, timeout=left)
        except TimeoutError:
            _deny(results, open_calls.values())
            break
        call = open_calls.pop(decision.id, None)
        if call is not None:
            _decide(results, call, decision)
    ctx.publish(channel, [])
    return results


def _pending(call: ToolCallPart, needs: Literal["approval", "result"]) -> PendingToolCall:
    return PendingToolCall(call.tool_call_id, call.tool_name, call.args_as_dict(), needs)


def _decide(results: DeferredToolResults, call: PendingToolCall, decision: ToolDecision) -> None:
    if not decision.approved:
        _deny(results, [call], decision.reason)
    elif call.needs == "result":
        results.calls[call.id] = decision.result
    elif decision.arguments is not None:
        results.approvals[call.id] = ToolApproved(override_args=decision.arguments)
    else:
        results.approvals[call.id] = True


def _deny(results: DeferredToolResults, calls: Iterable[PendingToolCall], reason: str = "") -> None:
    for call in calls:
        if call.needs == "approval":
            results.approvals[call.id] = ToolDenied(reason or "The tool call was not approved.")
        else:
            results.calls[call.id] = reason or "The tool call was not made."


class ApprovalByMessage(AbstractCapability[AgentDepsT]):
    """Capability that lets the agent wait for messages that decide about its deferred tool calls.

    Outside of a workflow, deferred calls are left to the caller.
    """

    def __init__(self, *, channel: str = CHANNEL, timeout: Duration | None = None) -> None:
        """Take the channel and the timeout of `receive_decisions`."""
        self._channel = check_name(channel, "name of a channel")
        self._timeout = timeout

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Wait for the decisions."""
        context = workflow_context(default=None)
        if context is None:
            return None
        return await receive_decisions(context, requests, channel=self._channel, timeout=self._timeout)
