"""Workflows with agents of pydantic-ai, whose models and tools are fakes that note their calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    FunctionToolset,
    ModelRetry,
    RunContext,
    ToolReturn,
    exceptions,
)
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.exceptions import CallDeferred
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import DynamicToolset

from perdure import Context, Retry, workflow
from perdure.pydantic_ai import ApprovalByMessage, PerdureDurability, receive_decisions, workflow_context
from tests.agent_libraries.crashes import note_call

DURABLE = PerdureDurability[object]()


class NotingTestModel(TestModel):
    """Calls every tool once, then answers."""

    async def request(self, *args: object, **kwargs: object) -> ModelResponse:
        note_call()
        return await super().request(*args, **kwargs)  # type: ignore[arg-type]


def returned(messages: list[ModelMessage], tool: str = "") -> list[object]:
    """What tools have returned so far."""
    return [
        part.content
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart) and tool in ("", part.tool_name) and part.outcome == "success"
    ]


def text(answer: object) -> ModelResponse:
    return ModelResponse(parts=[TextPart(str(answer))])


# Several tools at once, sync and async; instructions, output validators and history processors are workflow code.


@dataclass
class Shop:
    name: str


class Offer(BaseModel):
    article: str
    cents: int


async def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    note_call()
    assert "shop: corner" in (info.instructions or "")
    prices = returned(messages, "price")
    if not prices:
        return ModelResponse(
            parts=[ToolCallPart("price", {"article": name}, f"call-{name}") for name in ("tea", "cup", "pot")]
        )
    if len(returned(messages, "stock")) < 1:
        return ModelResponse(parts=[ToolCallPart("stock", {"article": "tea"}, "call-stock")])
    [output] = info.output_tools
    cheap = 1 if any("too dear" in str(message) for message in messages) else 900
    return ModelResponse(parts=[ToolCallPart(output.name, {"article": "tea", "cents": cheap}, f"call-{cheap}")])


def keep_all(messages: list[ModelMessage]) -> list[ModelMessage]:
    return messages


buyer = Agent(
    FunctionModel(think),
    name="buyer",
    deps_type=Shop,
    output_type=Offer,
    capabilities=[PerdureDurability[Shop](), ProcessHistory(keep_all)],
)


@buyer.instructions
def of_shop(ctx: RunContext[Shop]) -> str:
    return f"shop: {ctx.deps.name}"


@buyer.tool_plain
async def price(article: str) -> int:
    # The last call is the first to end: the calls begin in one turn of the loop, and each waits for a number of turns.
    for _ in range({"tea": 300, "cup": 200, "pot": 100}[article]):
        await asyncio.sleep(0)
    note_call()
    return {"tea": 250, "cup": 300, "pot": 900}[article]


@buyer.tool(retries=2)
def stock(ctx: RunContext[Shop], article: str) -> ToolReturn:
    note_call()
    if ctx.retry == 0:
        raise ModelRetry("ask once more")
    return ToolReturn(7, metadata={"shop": ctx.deps.name})


@buyer.output_validator
def not_too_dear(offer: Offer) -> Offer:
    if offer.cents > 500:
        raise ModelRetry("too dear")
    return offer


@workflow("agents.buy.v1")
async def buy(ctx: Context) -> Offer:
    result = await buyer.run("buy tea", deps=Shop("corner"))
    assert result.usage.requests == 5, (result.usage, result.all_messages())
    return result.output


# TestModel


greeter = Agent(NotingTestModel(), name="greeter", capabilities=[DURABLE])


@greeter.tool_plain
async def name_of(number: int) -> str:
    note_call()
    return f"guest {number}"


@workflow("agents.greet.v1")
async def greet(ctx: Context) -> str:
    return (await greeter.run("hello")).output


# Streaming


async def speak(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    note_call()
    if not returned(messages):
        yield {0: DeltaToolCall("name_of", '{"number"', tool_call_id="call-name")}
        yield {0: DeltaToolCall(json_args=": 7}")}
        return
    for word in ("good ", "day, ", "guest 7"):
        yield word
        await asyncio.sleep(0)


speaker = Agent(FunctionModel(stream_function=speak), name="speaker", capabilities=[PerdureDurability(stream="speech")])
speaker.tool_plain(name_of)


@workflow("agents.speak.v1")
async def speaking(ctx: Context) -> str:
    return (await speaker.run("hello")).output


async def handle(ctx: RunContext[object], events: AsyncIterable[AgentStreamEvent]) -> None:
    async for event in events:
        if event.event_kind in ("function_tool_call", "function_tool_result"):
            note_call()


handled = Agent(
    FunctionModel(stream_function=speak),
    name="handled",
    capabilities=[PerdureDurability(stream="speech", event_stream_handler=handle)],
)
handled.tool_plain(name_of)


@workflow("agents.handled.v1")
async def handling(ctx: Context) -> str:
    async with handled.run_stream("hello") as streamed:
        return await streamed.get_output()


# Toolsets that are chosen by a function


async def find_article(number: int) -> str:
    note_call()
    return f"article {number}"


async def browse(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    note_call()
    found = returned(messages)
    if len(found) < 2:
        return ModelResponse(parts=[ToolCallPart("find_article", {"number": len(found)}, f"call-{len(found)}")])
    return text(found)


def tools_of_shop(ctx: RunContext[object]) -> FunctionToolset[object]:
    return FunctionToolset([find_article])


dynamic = Agent(
    FunctionModel(browse),
    name="dynamic",
    toolsets=[DynamicToolset(tools_of_shop, id="shop")],
    capabilities=[DURABLE],
)


@workflow("agents.dynamic.v1")
async def choosing(ctx: Context) -> str:
    return (await dynamic.run("find articles")).output


# Approval, and calls that another program makes


async def pay(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    note_call()
    if not returned(messages):
        calls = [("transfer", {"cents": 500}), ("transfer", {"cents": 9000}), ("weigh", {"parcel": 3})]
        return ModelResponse(
            parts=[ToolCallPart(name, args, f"call-{number}") for number, (name, args) in enumerate(calls)]
        )
    return text(sorted(map(str, returned(messages))))


async def transfer(cents: int) -> str:
    note_call()
    return f"transferred {cents}"


def weigh(parcel: int) -> int:
    raise CallDeferred


payer = Agent(FunctionModel(pay), name="payer", output_type=[str, DeferredToolRequests], capabilities=[DURABLE])
payer.tool_plain(requires_approval=True)(transfer)
payer.tool_plain(weigh)


@workflow("agents.pay.v1")
async def paying(ctx: Context) -> str:
    result = await payer.run("pay")
    while isinstance(result.output, DeferredToolRequests):
        decisions = await receive_decisions(ctx, result.output, timeout="3d")
        result = await payer.run(message_history=result.all_messages(), deferred_tool_results=decisions)
    return result.output


asker = Agent(FunctionModel(pay), name="asker", capabilities=[DURABLE, ApprovalByMessage(channel="desk", timeout="3d")])
asker.tool_plain(requires_approval=True)(transfer)
asker.tool_plain(weigh)


@workflow("agents.ask.v1")
async def asking(ctx: Context) -> str:
    return (await asker.run("pay")).output


# Sub-agents: a tool that runs as workflow code starts child workflows.


@workflow("agents.research.v1")
async def research(ctx: Context, topic: str) -> str:
    return await ctx.options(name=f"read-{topic}").step(read, topic)


async def read(topic: str) -> str:
    note_call()
    return f"all about {topic}"


async def lead(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    note_call()
    if not (found := returned(messages)):
        return ModelResponse(parts=[ToolCallPart("look_up", {"topic": name}, f"call-{name}") for name in ("a", "b")])
    return text(found)


leader = Agent(FunctionModel(lead), name="leader", capabilities=[DURABLE])


@leader.tool_plain(metadata={"perdure": False})
async def look_up(topic: str) -> str:
    return await workflow_context().call(research(topic))


@workflow("agents.lead.v1")
async def leading(ctx: Context) -> str:
    return (await leader.run("research")).output


# Options

worrier = Agent(
    FunctionModel(browse),
    name="worrier",
    capabilities=[PerdureDurability(model={"retry": Retry(attempts=2, initial="1ms")}, tools={"timeout": "20s"})],
)
#: Errors that `find_article` of the worrier raises, one for each call.
ERRORS: list[Exception] = []


@worrier.tool_plain(name="find_article", metadata={"perdure": {"retry": Retry(attempts=3, initial="1ms")}})
async def find_sometimes(number: int) -> str:
    note_call()
    if ERRORS:
        raise ERRORS.pop(0)
    return f"article {number}"


@workflow("agents.worry.v1")
async def worrying(ctx: Context) -> str:
    return (await worrier.run("find articles")).output


@workflow("agents.catch.v1")
async def catching(ctx: Context) -> str:
    try:
        return (await worrier.run("find articles")).output
    except exceptions.ModelHTTPError as error:
        return f"{error.status_code} {error.body}"
