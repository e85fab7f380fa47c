"""Sets all over, and every one is sorted, counted or asked, never iterated."""

import asyncio

from perdure import Context, workflow
from perdure.testing import Environment

BLOCKED = {"spam.example", "junk.example"}


async def send(address: str) -> str:
    return f"sent to {address}"


async def unsubscribe(addresses: list[str]) -> int:
    return len(addresses)


def domains(addresses: list[str]) -> set[str]:
    return {address.split("@")[1] for address in addresses}


@workflow("samples.right.newsletter.v1")
async def newsletter(ctx: Context, addresses: list[str], bounced: list[str]) -> str:
    wanted = set(addresses) - set(bounced)
    allowed = {address for address in wanted if address.split("@")[1] not in BLOCKED}
    if not allowed or domains(addresses) <= BLOCKED:
        return "nothing to send"
    await asyncio.gather(*(ctx.step(send, address) for address in sorted(allowed)))
    first, *_ = sorted(wanted | allowed)
    longest = max(len(address) for address in wanted)
    gone = await ctx.step(unsubscribe, sorted(set(bounced) & set(addresses)))
    return f"{len(allowed)} sent, {gone} gone, {first} first, {longest} long, {any('@' in one for one in wanted)}"


WORKFLOWS = [newsletter]


async def drive(env: Environment) -> object:
    addresses = ["ann@shop.example", "bob@spam.example", "cid@shop.example", "dora@shop.example"]
    run = await env.start(newsletter(addresses, ["cid@shop.example"]))
    return await run.result()
