"""UUIDs that are the same on every replay: from the context, from a name, from text."""

import hashlib
import uuid
from uuid import UUID

from perdure import Context, workflow
from perdure.testing import Environment

SHOP = uuid.uuid5(uuid.NAMESPACE_DNS, "shop.example")


async def charge(order: str, key: str) -> str:
    return f"{order} charged"


async def book(entry: str, digest: str) -> str:
    return f"{entry} {digest[:6]}"


@workflow("samples.right.ids.v1")
async def pay(ctx: Context, order: str, customer: str) -> str:
    key = str(ctx.uuid())
    receipt = await ctx.step(charge, order, key)
    entry = uuid.uuid5(SHOP, f"{order}/{customer}")
    owner = UUID(int=int.from_bytes(hashlib.sha256(customer.encode()).digest()[:16], "big"))
    if owner == entry or UUID(str(entry)).version != 5:
        return "impossible"
    return await ctx.step(book, f"{receipt} as {entry.hex[:8]}", hashlib.sha256(receipt.encode()).hexdigest())


WORKFLOWS = [pay]


async def drive(env: Environment) -> object:
    run = await env.start(pay("o-1", "ann"))
    return await run.result()
