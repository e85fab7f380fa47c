"""An agent that calls its model with a client of the module, directly from the loop of the workflow."""

from dataclasses import dataclass, field
from typing import Any

import httpx

from perdure import Context, workflow
from perdure.testing import Environment

MODEL = "http://127.0.0.1:9/v1/chat"
client = httpx.AsyncClient(timeout=30)


@dataclass
class Chat:
    system: str
    messages: list[dict[str, str]] = field(default_factory=list)

    def add(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})


async def complete(chat: Chat) -> dict[str, Any]:
    answer = await client.post(MODEL, json={"system": chat.system, "messages": chat.messages})  # mistake
    reply: dict[str, Any] = answer.json()
    return reply


async def run_tool(name: str) -> str:
    return f"{name} done"


@workflow("samples.agent.v1")
async def agent(ctx: Context, task: str) -> str:
    chat = Chat("You are a careful assistant.")
    chat.add("user", task)
    for _ in range(10):
        reply = await complete(chat)
        if "tool" not in reply:
            return str(reply["text"])
        chat.add("tool", await ctx.step(run_tool, reply["tool"]))
    return "gave up"


WORKFLOWS = [agent]


async def drive(env: Environment) -> object:
    run = await env.start(agent("book a table"))
    return await run.result()
