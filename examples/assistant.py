"""An assistant that looks up an invoice and pays it once a person has approved, with agents of pydantic-ai.

Run it: python examples/assistant.py
"""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from perdure import Context, Engine, workflow
from perdure.pydantic_ai import ApprovalByMessage, PendingToolCall, PerdureDurability, ToolDecision


async def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stands in for a language model: looks up the invoice, pays it, reports."""
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("find_invoice", {"number": 7})])
    if len(messages) == 3:
        return ModelResponse(parts=[ToolCallPart("pay", {"number": 7, "cents": 4200})])
    return ModelResponse(parts=[TextPart(f"Done: {messages[-1].parts[0].content}")])  # type: ignore[union-attr]


assistant = Agent(FunctionModel(think), name="assistant", capabilities=[PerdureDurability(), ApprovalByMessage()])


@assistant.tool_plain
async def find_invoice(number: int) -> str:
    return f"invoice {number}: 4200 cents"


@assistant.tool_plain(requires_approval=True)
async def pay(number: int, cents: int) -> str:
    return f"paid {cents} cents for invoice {number}"


@workflow("assistant.v1")
async def assist(ctx: Context, request: str) -> str:
    return (await assistant.run(request)).output


async def main() -> None:
    # The first call of an agent library compiles its models, which blocks the loop for a moment.
    async with Engine("sqlite://", [assist]) as engine, engine.worker(warn_blocked="5s"):
        run = await engine.start(assist("Pay invoice 7."))
        calls: list[PendingToolCall] = await run.wait_state("tool_calls", bool, list[PendingToolCall])
        print(f"approved: {calls[0].tool} {calls[0].arguments}")
        await run.send("tool_calls", ToolDecision(calls[0].id))
        print(await run.result())
        print(" ".join(record.location for record in await run.history()))


if __name__ == "__main__":
    asyncio.run(main())
