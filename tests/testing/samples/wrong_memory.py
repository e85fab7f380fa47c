"""State of the process that a replay does not find again, and values that differ in each process."""

from __future__ import annotations

import datetime
import functools
import itertools
import random
import uuid

from perdure import Context, workflow
from tests.testing.samples.services import Sample, Services

WORLD = Services()


# 8: a counter in a global variable

started = 0


async def label(text: str) -> str:
    return text


@workflow("samples.crash.counter.v1")
async def counter(ctx: Context, name: str) -> str:
    global started  # noqa: PLW0603 - the mistake
    started += 1
    return await ctx.step(label, f"{name}-{started}")


# 9: a step leaves its result in a global, and the workflow reads it there

prices: dict[str, int] = {}


async def load_price(item: str) -> None:
    prices[item] = 250


@workflow("samples.crash.global_cache.v1")
async def global_cache(ctx: Context, item: str) -> int:
    await ctx.step(load_price, item)
    await ctx.sleep("1h")
    return prices.get(item, 0)


# 10: a step leaves a session for the next step

sessions: dict[str, str] = {}


async def log_in(user: str) -> None:
    sessions[user] = f"session of {user}"


async def download(user: str) -> str:
    return f"files in {sessions.get(user, 'nothing')}"


@workflow("samples.crash.session.v1")
async def session(ctx: Context, user: str) -> str:
    await ctx.step(log_in, user)
    return await ctx.step(download, user)


# 11: a step remembers in memory what it has done

sent: set[str] = set()


async def send_once(address: str) -> None:
    if address not in sent:
        sent.add(address)
        WORLD.mails.append(address)


@workflow("samples.crash.remembered.v1")
async def remembered(ctx: Context, address: str) -> str:
    await ctx.step(send_once, address)
    return "sent"


# 12: a closure appends to a list of the workflow


@workflow("samples.crash.closed_over.v1")
async def closed_over(ctx: Context, pages: list[str]) -> int:
    found: list[str] = []

    async def crawl(page: str) -> None:
        found.append(page)

    for page in pages:
        await ctx.step(crawl, page)
    await ctx.sleep("1h")
    return len(found)


# 13: a default argument that is changed


def collect(item: str, basket: list[str] = []) -> list[str]:  # noqa: B006 - the mistake
    basket.append(item)
    return basket


@workflow("samples.crash.default_list.v1")
async def default_list(ctx: Context, item: str) -> int:
    await ctx.step(label, item)
    return len(collect(item))


# 14: an effect behind lru_cache, which is empty in the next process


@functools.lru_cache
def create_account(user: str) -> str:
    return WORLD.charge(user, 0)


@workflow("samples.crash.memoized.v1")
async def memoized(ctx: Context, user: str) -> str:
    return await ctx.step(create_account, user)


# 15: the clock decides


@workflow("samples.crash.clock.v1")
async def clock(ctx: Context, customer: str) -> str:
    night = datetime.datetime.now(datetime.UTC).microsecond % 2
    return await ctx.options(name="night" if night else "day").step(label, customer)


# 16: chance decides


@workflow("samples.crash.chance.v1")
async def chance(ctx: Context, customer: str) -> str:
    carrier = random.choice(["north", "south", "east", "west"])
    await ctx.step(label, customer)
    return carrier


# 17: a new id in each replay


@workflow("samples.crash.new_id.v1")
async def new_id(ctx: Context, customer: str) -> str:
    order = str(uuid.uuid4())
    await ctx.step(label, customer)
    return await ctx.step(label, f"{customer} {order}")


# 18: the order of a set


@workflow("samples.crash.set_order.v1")
async def set_order(ctx: Context, regions: list[str]) -> int:
    for region in set(regions):
        await ctx.options(name=region).step(label, region)
    return len(regions)


# 19: hash() of a text


@workflow("samples.crash.shard.v1")
async def shard(ctx: Context, customer: str) -> str:
    return await ctx.options(name=f"shard-{hash(customer) % 997}").step(label, customer)


# 20: ids from a generator of the module

numbers = itertools.count(1)


@workflow("samples.crash.generator.v1")
async def generator(ctx: Context, customer: str) -> str:
    await ctx.step(label, customer)
    return f"{customer}-{next(numbers)}"


_SETS = "https://github.com/UCL/TLOmodel/pull/419"
_GLOBALS = "https://github.com/openclaw/openclaw/issues/14431"

SAMPLES = [
    Sample("counter", lambda: counter("ann"), (counter,), finds="divergence", at="label"),
    Sample("global_cache", lambda: global_cache("pen"), (global_cache,), finds="result", at="load_price"),
    Sample("session", lambda: session("ann"), (session,), finds="result", at="log_in"),
    Sample("remembered", lambda: remembered("ann"), (remembered,), finds="effect", at="send_once", source=_GLOBALS),
    Sample("closed_over", lambda: closed_over(["a"]), (closed_over,), finds="result", at="crawl",
           source="https://github.com/langchain-ai/langgraph/pull/6603"),
    Sample("default_list", lambda: default_list("pen"), (default_list,), finds="result"),
    Sample("memoized", lambda: memoized("ann"), (memoized,), finds="effect", at="create_account"),
    Sample("clock", lambda: clock("ann"), (clock,), finds="divergence", at="wrong_memory.py",
           source="https://github.com/Azure/azure-functions-durable-js/issues/122"),
    Sample("chance", lambda: chance("ann"), (chance,), finds="divergence", at="wrong_memory.py",
           source="https://github.com/Azure/azure-functions-durable-js/issues/224"),
    Sample("new_id", lambda: new_id("ann"), (new_id,), finds="divergence", at="wrong_memory.py",
           source="https://github.com/Azure/azure-functions-durable-extension/issues/377"),
    Sample("set_order", lambda: set_order(["north", "south", "east", "west"]), (set_order,),
           finds="divergence", source=_SETS),
    Sample("shard", lambda: shard("ann"), (shard,), finds="divergence", at="shard-",
           source="https://github.com/suitenumerique/meet/pull/148"),
    Sample("generator", lambda: generator("ann"), (generator,), finds="result"),
]  # fmt: skip
