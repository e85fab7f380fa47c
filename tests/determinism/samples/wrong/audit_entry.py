"""A dataclass stamps itself with the time of its construction, and the workflow constructs it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from perdure import Context, workflow
from perdure.testing import Environment


@dataclass
class Entry:
    actor: str
    action: str
    at: datetime = field(default_factory=lambda: datetime.now(tz=UTC))  # mistake
    tags: list[str] = field(default_factory=list)


async def append(entry: Entry) -> int:
    return len(entry.tags)


async def delete_account(customer: str) -> str:
    return f"deleted {customer}"


@workflow("samples.erasure.v1")
async def erase(ctx: Context, customer: str, clerk: str) -> str:
    await ctx.step(append, Entry(clerk, f"asked to erase {customer}", tags=["gdpr"]))
    await ctx.sleep("30d")
    deleted = await ctx.step(delete_account, customer)
    await ctx.step(append, Entry(clerk, f"erased {customer}"))
    return deleted


WORKFLOWS = [erase]


async def drive(env: Environment) -> object:
    run = await env.start(erase("ann", "joe"))
    await env.advance("31d")
    return await run.result()
