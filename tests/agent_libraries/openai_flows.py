"""Workflows with agents of the OpenAI Agents SDK, whose models and tools are fakes that note their calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    LocalShellTool,
    Model,
    ModelProvider,
    ModelResponse,
    RunConfig,
    ToolGuardrailFunctionOutput,
    Usage,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agents.mcp import MCPServer
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as MCPTool
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from perdure import Context, Retry, workflow
from perdure.openai_agents import AgentRunner, WorkflowSession, receive_approvals, workflow_tool
from tests.agent_libraries.crashes import note_call

Answer = str | list[tuple[str, str]]


def message(text: str) -> ResponseOutputMessage:
    content: list[Any] = [ResponseOutputText(annotations=[], text=text, type="output_text", logprobs=[])]
    return ResponseOutputMessage(id="message", content=content, role="assistant", status="completed", type="message")


def items_of(answer: Answer, input: Any) -> list[Any]:
    if isinstance(answer, str):
        return [message(answer)]
    # Ids of calls are unique in a conversation.
    first = 0 if isinstance(input, str) else len(input)
    return [
        ResponseFunctionToolCall(arguments=arguments, call_id=f"call-{first + number}", name=name, type="function_call")
        for number, (name, arguments) in enumerate(answer)
    ]


def outputs(input: Any) -> list[Any]:
    """What tools have returned so far."""
    if isinstance(input, str):
        return []
    return [one["output"] for one in input if one.get("type") == "function_call_output"]


class FakeModel(Model):
    """Answers as a function of the input says."""

    noted = True

    def __init__(self, answer: Callable[[Any], Answer]) -> None:
        self._answer = answer

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        if self.noted:
            note_call()
        usage = Usage(requests=1, input_tokens=3, output_tokens=2, total_tokens=5)
        return ModelResponse(output=items_of(self._answer(input), input), usage=usage, response_id="response")

    async def stream_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        note_call()
        answer = self._answer(input)
        if isinstance(answer, str):
            for number, word in enumerate(answer.split()):
                yield ResponseTextDeltaEvent(
                    content_index=0, delta=word, item_id="message", output_index=0, sequence_number=number,
                    type="response.output_text.delta", logprobs=[],
                )  # fmt: skip
        response = Response(
            id="response", created_at=0, model="fake", object="response", output=items_of(answer, input),
            parallel_tool_calls=True, tool_choice="auto", tools=[],
        )  # fmt: skip
        yield ResponseCompletedEvent(response=response, sequence_number=99, type="response.completed")


class FakeProvider(ModelProvider):
    def get_model(self, model_name: str | None) -> Model:
        assert model_name == "fake"
        return FakeModel(shopping)


PROVIDER = FakeProvider()


# Tools at once, one after the other, and a hand-off there and back


def shopping(input: Any) -> Answer:
    found = outputs(input)
    if not found:
        return [("price", f'{{"article": "{name}"}}') for name in ("tea", "cup", "pot")]
    if len(found) == 3:
        return [("transfer_to_clerk", "{}")]
    return f"bought {found[-1]}"


def serving(input: Any) -> Answer:
    return [("stock", '{"article": "tea"}')] if len(outputs(input)) == 4 else [("transfer_to_buyer", "{}")]


@function_tool
async def price(article: str) -> int:
    # The last call is the first to end: the calls begin in one turn of the loop, and each waits for a number of turns.
    for _ in range({"tea": 300, "cup": 200, "pot": 100}[article]):
        await asyncio.sleep(0)
    note_call()
    return {"tea": 250, "cup": 300, "pot": 900}[article]


@function_tool
def stock(article: str) -> dict[str, int]:
    note_call()
    return {article: 7}


@input_guardrail
async def polite(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
    note_call()
    return GuardrailFunctionOutput(output_info={"input": str(input)}, tripwire_triggered="damn" in str(input))


@output_guardrail
def short(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    note_call()
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=len(output) > 100)


clerk = Agent[Any](name="clerk", model=FakeModel(serving), tools=[stock])
buyer = Agent[Any](
    name="buyer", model="fake", tools=[price], handoffs=[clerk], input_guardrails=[polite], output_guardrails=[short]
)
clerk.handoffs = [handoff(buyer)]


@workflow("agents.openai.buy.v1")
async def buy(ctx: Context) -> str:
    result = await AgentRunner(ctx, model_provider=PROVIDER).run(buyer, "buy tea")
    assert result.context_wrapper.usage.requests == 5, result.context_wrapper.usage
    return f"{result.final_output} {result.last_agent.name}"


@workflow("agents.openai.rude.v1")
async def rude(ctx: Context) -> str:
    try:
        await AgentRunner(ctx, model_provider=PROVIDER).run(buyer, "buy the damn tea")
    except InputGuardrailTripwireTriggered as tripped:
        return str(tripped.guardrail_result.output.output_info)
    return "no guardrail"


# Streaming, and a conversation in a session


def chatting(input: Any) -> Answer:
    said = [one["content"] for one in input if one.get("role") == "user"]
    return f"you said {' and '.join(said)}"


chatter = Agent[Any](name="chatter", model=FakeModel(chatting))


@workflow("agents.openai.chat.v1")
async def chat(ctx: Context) -> list[str]:
    runner, session = AgentRunner(ctx, stream="speech"), WorkflowSession()
    answers = []
    for text in ("this", "that"):
        result = await runner.run(chatter, text, session=session)
        answers.append(str(result.final_output))
    return answers


# Approvals


def paying(input: Any) -> Answer:
    found = outputs(input)
    if found:
        return f"paid: {sorted(found)}"
    return [("transfer", '{"cents": 500}'), ("transfer", '{"cents": 9000}')]


@function_tool(needs_approval=True)
async def transfer(cents: int) -> str:
    note_call()
    return f"transferred {cents}"


payer = Agent[Any](name="payer", model=FakeModel(paying), tools=[transfer])


@workflow("agents.openai.pay.v1")
async def pay(ctx: Context) -> str:
    runner = AgentRunner(ctx)
    result = await runner.run(payer, "pay")
    while result.interruptions:
        result = await runner.run(payer, await receive_approvals(ctx, result, timeout="3d"))
    return str(result.final_output)


# Sub-agents as children, in a tool that is workflow code


async def read(topic: str) -> str:
    note_call()
    return f"all about {topic}"


@workflow("agents.openai.research.v1")
async def research(ctx: Context, topic: str) -> str:
    return await ctx.options(name=f"read-{topic}").step(read, topic)


def leading(input: Any) -> Answer:
    found = outputs(input)
    return [("look_up", '{"topic": "a"}'), ("look_up", '{"topic": "b"}')] if not found else str(found)


@workflow("agents.openai.lead.v1")
async def lead(ctx: Context) -> str:
    async def look_up(topic: str) -> str:
        return await ctx.call(research(topic))

    leader = Agent[Any](name="leader", model=FakeModel(leading), tools=[workflow_tool(look_up)])
    result = await AgentRunner(ctx).run(leader, "research", run_config=RunConfig(model=FakeModel(leading)))
    return str(result.final_output)


# An agent as a tool of another, and guardrails of tools


@tool_input_guardrail
async def known(data: Any) -> ToolGuardrailFunctionOutput:
    note_call()
    if "secret" in data.context.tool_arguments:
        return ToolGuardrailFunctionOutput.reject_content("That is secret.", {"why": "secret"})
    return ToolGuardrailFunctionOutput.allow()


@tool_output_guardrail
def clean(data: Any) -> ToolGuardrailFunctionOutput:
    note_call()
    return ToolGuardrailFunctionOutput.allow({"length": len(str(data.output))})


@function_tool(tool_input_guardrails=[known], tool_output_guardrails=[clean])
async def consult(topic: str) -> str:
    note_call()
    return f"all about {topic}"


@function_tool(needs_approval=True)
async def publish(text: str) -> str:
    note_call()
    return f"published {text}"


def researching(input: Any) -> Answer:
    found = outputs(input)
    return [("consult", '{"topic": "tea"}'), ("consult", '{"topic": "secret"}')] if not found else " and ".join(found)


def printing(input: Any) -> Answer:
    found = outputs(input)
    return [("publish", '{"text": "a page"}')] if not found else found[-1]


def editing(input: Any) -> Answer:
    found = outputs(input)
    tools = [("ask_researcher", '{"input": "tea"}'), ("ask_printer", '{"input": "print"}')]
    return [tools[len(found)]] if len(found) < 2 else " | ".join(found)


#: Events of the agent that is asked, which workflow code got.
HEARD: list[str] = []


async def hear(heard: Any) -> None:
    HEARD.append(heard["event"].type)


researcher = Agent[Any](name="researcher", model=FakeModel(researching), tools=[consult])
printer = Agent[Any](name="printer", model="fake", tools=[publish])
editor = Agent[Any](
    name="editor",
    model=FakeModel(editing),
    tools=[
        researcher.as_tool("ask_researcher", "Ask the researcher.", on_stream=hear),
        printer.as_tool("ask_printer", "Ask the printer.", run_config=RunConfig(model=FakeModel(printing))),
    ],
)
# An agent may be a tool of its tool.
researcher.tools.append(editor.as_tool("ask_editor", "Ask the editor."))


@workflow("agents.openai.edit.v1")
async def edit(ctx: Context) -> str:
    runner = AgentRunner(ctx)
    result = await runner.run(editor, "edit")
    while result.interruptions:
        result = await runner.run(editor, await receive_approvals(ctx, result, timeout="3d"))
    return str(result.final_output)


# Options and errors

#: Errors that `fetch` raises, one for each call.
ERRORS: list[Exception] = []


@function_tool(failure_error_function=None)
async def fetch(article: str) -> str:
    note_call()
    if ERRORS:
        raise ERRORS.pop(0)
    return f"fetched {article}"


def fetching(input: Any) -> Answer:
    return str(outputs(input)) if outputs(input) else [("fetch", '{"article": "tea"}')]


fetcher = Agent[Any](name="fetcher", model=FakeModel(fetching), tools=[fetch])


@workflow("agents.openai.fetch.v1")
async def fetch_article(ctx: Context) -> str:
    runner = AgentRunner(ctx, tool_options={"fetch": {"retry": Retry(attempts=3, initial="1ms")}})
    return str((await runner.run(fetcher, "fetch tea")).final_output)


@workflow("agents.openai.shell.v1")
async def shell(ctx: Context) -> str:
    agent = Agent[Any](name="shell", model=FakeModel(fetching), tools=[LocalShellTool(executor=lambda request: "")])
    return str((await AgentRunner(ctx).run(agent, "list files")).final_output)


# MCP


class Catalogue(MCPServer):
    """An MCP server in this process, which is always connected."""

    @property
    def name(self) -> str:
        return "catalogue"

    async def connect(self) -> None:
        pass

    async def cleanup(self) -> None:
        pass

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[MCPTool]:
        note_call()
        schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
        return [MCPTool.model_validate({"name": "find_article", "inputSchema": schema})]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> CallToolResult:
        note_call()
        return CallToolResult(content=[TextContent(type="text", text=f"article {arguments['number']}")])

    async def list_prompts(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        raise NotImplementedError


def browsing(input: Any) -> Answer:
    found = [json.loads(one) if isinstance(one, str) else one for one in outputs(input)]
    if not found:
        return [("find_article", '{"number": 7}')]
    return str([(one[0] if isinstance(one, list) else one)["text"] for one in found])


browser = Agent[Any](name="browser", model=FakeModel(browsing), mcp_servers=[Catalogue()])


@workflow("agents.openai.browse.v1")
async def browse(ctx: Context) -> str:
    return str((await AgentRunner(ctx).run(browser, "find article 7")).final_output)
