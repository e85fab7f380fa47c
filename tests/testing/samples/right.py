"""Correct workflows, some of which look like the wrong ones."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass

from perdure import Call, Channel, Child, Context, Retry, activity, step, step_info, workflow
from perdure.errors import Fatal, StepInterrupted
from perdure.machine import Action, Actions, StateMachine
from tests.testing.samples.services import Sample, Services

WORLD = Services()


def key_of_step() -> str:
    info = step_info()
    return f"{info.run_id} {info.location}"


async def charge(account: str, cents: int) -> str:
    return WORLD.charge(account, cents, key=key_of_step())


def charge_in_thread(account: str, cents: int) -> str:
    return WORLD.charge(account, cents, key=key_of_step())


async def put(name: str, text: str) -> None:
    WORLD.documents[name] = text


async def echo(text: str) -> str:
    return text


@workflow("samples.crash.right.keyed.v1")
async def keyed(ctx: Context, account: str) -> str:
    first = await ctx.step(charge, account, 100)
    await ctx.sleep("3d")
    second = await ctx.step(charge_in_thread, account, 200)
    return f"{first}, {second}"


@workflow("samples.crash.right.key_from_workflow.v1")
async def key_from_workflow(ctx: Context, account: str) -> str:
    key = str(ctx.uuid())
    return await ctx.options(name="pay").step(WORLD.charge, account, 100, key)


@workflow("samples.crash.right.overwrite.v1")
async def overwrite(ctx: Context, names: list[str]) -> int:
    for name in names:
        await ctx.step(put, name, f"contents of {name}")
    return len(names)


@workflow("samples.crash.right.parallel.v1")
async def parallel(ctx: Context, accounts: list[str]) -> int:
    return len(await asyncio.gather(*(ctx.step(charge, account, 5) for account in accounts)))


@workflow("samples.crash.right.sorted_set.v1")
async def sorted_set(ctx: Context, regions: list[str]) -> list[str]:
    return [await ctx.step(echo, region) for region in sorted(set(regions))]


@workflow("samples.crash.right.durable_chance.v1")
async def durable_chance(ctx: Context, customer: str) -> str:
    carrier = ctx.random.choice(["north", "south", "east", "west"])
    return f"{await ctx.step(echo, carrier)} {ctx.now().year} {ctx.uuid()}"


@workflow("samples.crash.right.approval.v1")
async def approval(ctx: Context, order: str) -> str:
    await ctx.step(put, order, "waits")
    approved = await ctx.receive("approval", bool, timeout="7d")
    reason = await ctx.receive("reason", str)
    await ctx.step(put, order, "approved" if approved else "refused")
    return f"{order}: {approved}, {reason}"


@workflow("samples.crash.right.too_late.v1")
async def too_late(ctx: Context, order: str) -> str:
    try:
        return str(await ctx.receive("approval", bool, timeout="7d"))
    except TimeoutError:
        await ctx.step(put, order, "expired")
        return "expired"


@workflow("samples.crash.right.child.v1")
async def child(ctx: Context, account: str) -> str:
    return await ctx.step(charge, account, 10)


@workflow("samples.crash.right.parent.v1")
async def parent(ctx: Context, accounts: list[str]) -> list[str]:
    children: list[Child[str]] = [ctx.spawn(child(account), id=f"child-{account}") for account in accounts]
    return [(await each)[:7] for each in children]


@activity("samples.crash.right.resize.v1", start_to_close="1m")
async def resize(name: str) -> str:
    WORLD.documents[name] = "small"
    return name


@workflow("samples.crash.right.with_activity.v1")
async def with_activity(ctx: Context, names: list[str]) -> list[str]:
    return [await ctx.call(resize(name)) for name in names]


def refund(account: str, cents: int) -> None:
    WORLD.documents[f"refund of {account}"] = str(cents)


async def ship(account: str) -> str:
    raise Fatal(f"no parcel for {account}")


@workflow("samples.crash.right.undone.v1")
async def undone(ctx: Context, account: str) -> str:
    try:
        async with ctx.saga():
            await ctx.step(charge, account, 100)
            ctx.undo(refund, account, 100)
            return await ctx.step(ship, account)
    except Fatal:
        return "refunded"


@step(retry=Retry(attempts=3, initial="1m"))
async def flaky(account: str) -> str:
    receipt = WORLD.charge(account, 5, key=key_of_step())
    if step_info().attempt == 1:
        raise ConnectionError("the answer was lost")
    return receipt


@workflow("samples.crash.right.retried.v1")
async def retried(ctx: Context, account: str) -> str:
    return await ctx.step(flaky, account)


@step(at_most_once=True)
async def wire(account: str) -> None:
    WORLD.balances[account] = WORLD.balances.get(account, 0) + 1


async def was_wired(account: str) -> bool:
    return account in WORLD.balances


@workflow("samples.crash.right.asked.v1")
async def asked(ctx: Context, account: str) -> str:
    try:
        await ctx.step(wire, account)
    except StepInterrupted:
        if not await ctx.step(was_wired, account):
            await ctx.options(name="wire_again").step(wire, account)
    return "wired"


@workflow("samples.crash.right.pages.v1")
async def pages(ctx: Context, left: int, total: int) -> int:
    await ctx.step(put, f"page {left}", "read")
    if left > 1:
        ctx.continue_as_new(pages(left - 1, total + 1))
    return total + 1


@workflow("samples.crash.right.mapped.v1")
async def mapped(ctx: Context, names: list[str]) -> list[str]:
    async def one(ctx: Context, name: str) -> str:
        await ctx.step(put, name, "seen")
        return name.upper()

    return await ctx.map(one, names, limit=2)


@functools.lru_cache
def squares(count: int) -> tuple[int, ...]:
    return tuple(number * number for number in range(count))


#: Written once, when the module is imported.
RATES = {"book": 7, "pen": 19}


@workflow("samples.crash.right.pure_cache.v1")
async def pure_cache(ctx: Context, item: str) -> int:
    await ctx.step(echo, item)
    await ctx.sleep("1h")
    return squares(4)[-1] + RATES[item]


@workflow("samples.crash.right.returned_lists.v1")
async def returned_lists(ctx: Context, names: list[str]) -> list[str]:
    found: list[str] = []

    async def crawl(page: str) -> list[str]:
        return [page, f"{page}/next"]

    for name in names:
        found += await ctx.step(crawl, name)
    await ctx.sleep("1h")
    return found


async def mail_if_new(address: str) -> None:
    if address not in WORLD.mails:
        WORLD.mails.append(address)


@workflow("samples.crash.right.checked.v1")
async def checked(ctx: Context, address: str) -> str:
    ctx.log.info("mailing %s", address)
    await ctx.step(mail_if_new, address)
    ctx.publish("progress", "mailed")
    return "sent"


@step(ephemeral=True)
async def parse(text: str) -> int:
    return len(text)


@workflow("samples.crash.right.cheap.v1")
async def cheap(ctx: Context, texts: list[str]) -> int:
    total = sum([await ctx.step(parse, text) for text in texts])
    await ctx.step(put, "total", str(total))
    return total


@dataclass
class Proposal:
    title: str
    voters: int


class Ballot(StateMachine[Proposal, int], type="samples.crash.right.ballot.v1"):
    messages = (Channel("vote", str),)

    def __init__(self) -> None:
        self.votes = 0

    def on_start(self, input: Proposal) -> list[Action]:
        self.voters = input.voters
        return [self.activity("resize", resize(input.title)), self.timer("end", "3d")]

    def on_message(self, name: str, value: str) -> Actions:
        self.votes += 1
        return self.complete(self.votes) if self.votes == self.voters else None

    def on_timer(self, id: str) -> Actions:
        return self.complete(self.votes)


def ballot() -> Call[int]:
    return Ballot.call(Proposal("roof", 2))


SAMPLES = [
    Sample("keyed", lambda: keyed("ann"), (keyed,)),
    Sample("key_from_workflow", lambda: key_from_workflow("ann"), (key_from_workflow,)),
    Sample("overwrite", lambda: overwrite(["a"]), (overwrite,)),
    Sample("parallel", lambda: parallel(["ann", "bob"]), (parallel,)),
    Sample("sorted_set", lambda: sorted_set(["north", "east"]), (sorted_set,)),
    Sample("durable_chance", lambda: durable_chance("ann"), (durable_chance,)),
    Sample("approval", lambda: approval("o-1"), (approval,), (("approval", True), ("reason", "cheap"))),
    Sample("too_late", lambda: too_late("o-1"), (too_late,)),
    Sample("parent", lambda: parent(["ann", "bob"]), (parent, child)),
    Sample("with_activity", lambda: with_activity(["a"]), (with_activity, resize)),
    Sample("undone", lambda: undone("ann"), (undone,)),
    Sample("retried", lambda: retried("ann"), (retried,)),
    Sample("asked", lambda: asked("ann"), (asked,)),
    Sample("pages", lambda: pages(2, 0), (pages,)),
    Sample("mapped", lambda: mapped(["a", "b"]), (mapped,)),
    Sample("pure_cache", lambda: pure_cache("pen"), (pure_cache,)),
    Sample("returned_lists", lambda: returned_lists(["a"]), (returned_lists,)),
    Sample("checked", lambda: checked("ann"), (checked,)),
    Sample("cheap", lambda: cheap(["a", "bb"]), (cheap,)),
    Sample("ballot", ballot, (Ballot, resize), (("vote", "ann"), ("vote", "bob"))),
]
