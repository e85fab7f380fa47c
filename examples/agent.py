"""An agent: a model decides, tools act, and every answer is paid for once, whatever crashes in between.

Run it: python examples/agent.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from perdure import Context, Engine, Retry, step, workflow


@dataclass
class Decision:
    tool: str = ""
    arguments: dict[str, int] = field(default_factory=dict)
    answer: str = ""


@step(retry=Retry(attempts=5), timeout="60s")
async def ask_model(question: str, findings: list[str]) -> Decision:
    """Stands in for a call of a language model."""
    if not findings:
        return Decision(tool="population", arguments={"year": 1900})
    if len(findings) == 1:
        return Decision(tool="population", arguments={"year": 2000})
    return Decision(answer=f"{question} From {findings[0]} to {findings[1]} million.")


def population(year: int) -> str:
    return {1900: "1650", 2000: "6150"}[year]


TOOLS = {"population": population}


@workflow("agent.v1")
async def agent(ctx: Context, question: str) -> str:
    findings: list[str] = []
    for turn in range(10):
        decision = await ctx.step(ask_model, question, findings)
        if decision.answer:
            return decision.answer
        ctx.log.info("turn %d: %s", turn, decision.tool)
        findings.append(await ctx.step(TOOLS[decision.tool], **decision.arguments))
    return "I do not know."


async def main() -> None:
    async with Engine("sqlite://", [agent]) as engine, engine.worker():
        run = await engine.start(agent("How did the world's population grow?"))
        print(await run.result())
        print(" ".join(record.location for record in await run.history()))


if __name__ == "__main__":
    asyncio.run(main())
