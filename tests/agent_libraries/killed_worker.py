"""Worker processes, one after another: two are killed in the middle of a tool call, the third is not.

    AGENT_NOTES=FILE python -m tests.agent_libraries.killed_worker URL 3

Each call of a model or a tool is a line of the file. The workers are forked, because the libraries take seconds to
import. The process prints the exit code of each.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from agents import Agent as OpenAIAgent
from agents import function_tool
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from perdure import Context, Engine, step_info, workflow
from perdure.openai_agents import AgentRunner
from perdure.pydantic_ai import PerdureDurability
from tests.agent_libraries.openai_flows import Answer, FakeModel, outputs
from tests.agent_libraries.pydantic_flows import returned

NOTES = Path(os.environ.get("AGENT_NOTES", os.devnull))


def note() -> None:
    """Note a call; the first call of the second tool kills the process."""
    location = step_info().location
    known = NOTES.read_text(encoding="utf-8")
    with NOTES.open("a", encoding="utf-8") as file:
        file.write(f"{location}\n")
    if location.endswith("tools.second") and location not in known:
        os.kill(os.getpid(), signal.SIGKILL)


async def decide(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    note()
    tools = ["first", "second"][len(returned(messages)) :]
    return ModelResponse(parts=[ToolCallPart(tools[0], {}, f"call-{tools[0]}") if tools else TextPart("done")])


async def first() -> str:
    note()
    return "1"


async def second() -> str:
    note()
    return "2"


def answer(input: Any) -> Answer:
    note()
    tools = ["first", "second"][len(outputs(input)) :]
    return [(tools[0], "{}")] if tools else "done"


class QuietModel(FakeModel):
    """Notes its calls in the file alone."""

    noted = False


typed = Agent(FunctionModel(decide), name="typed", capabilities=[PerdureDurability()], tools=[first, second])
scripted = OpenAIAgent[Any](
    name="scripted", model=QuietModel(answer), tools=[function_tool(first), function_tool(second)]
)


@workflow("agents.killed.v1")
async def killed(ctx: Context) -> str:
    one = (await typed.run("go")).output
    two = (await AgentRunner(ctx).run(scripted, "go")).final_output
    return f"{one} and {two}"


async def main(url: str) -> None:
    async with Engine(url, [killed]) as engine, engine.worker(lease="2s"):
        await (await engine.get("killed", killed)).result()


def work_in_child(url: str) -> int:
    """Work in a process of its own; return its exit code."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            asyncio.run(main(url))
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    print(*(work_in_child(sys.argv[1]) for _ in range(int(sys.argv[2]))))
