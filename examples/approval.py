"""A person decides, or time does.

Run it: python examples/approval.py
"""

from __future__ import annotations

import asyncio

from perdure import Context, Engine, Status, workflow


@workflow("expenses.approval.v1")
async def approval(ctx: Context, cents: int, patience: float) -> str:
    try:
        # A run that waits holds no slot and no thread, for months if need be.
        async with asyncio.timeout(patience):
            approved = await ctx.receive("decision", bool)
    except TimeoutError:
        return f"{cents} cents: no one decided"
    return f"{cents} cents: {'approved' if approved else 'refused'}"


async def main() -> None:
    async with Engine("sqlite://", [approval]) as engine, engine.worker():
        decided = await engine.start(approval(900, patience=3600), id="lunch")
        forgotten = await engine.start(approval(90_000, patience=0.2), id="party")
        await decided.send("decision", True)
        print(await decided.result())
        print(await forgotten.result())
        page = await engine.runs.list(status=Status.COMPLETED)
        print(sorted(run.id for run in page.runs))


if __name__ == "__main__":
    asyncio.run(main())
