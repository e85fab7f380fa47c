"""Effects that a crash doubles, loses or changes."""

from __future__ import annotations

import uuid

from perdure import Context, step, workflow
from tests.testing.samples.services import Sample, Services

WORLD = Services()


# 1: an effect without an idempotency key


async def charge(account: str, cents: int) -> str:
    return WORLD.charge(account, cents)


@workflow("samples.crash.no_key.v1")
async def no_key(ctx: Context, account: str) -> str:
    receipt = await ctx.step(charge, account, 500)
    await ctx.sleep("1d")
    return f"paid: {receipt}"


# 2: the key is made in the step, so each attempt has another


def charge_with_new_key(account: str, cents: int) -> str:
    return WORLD.charge(account, cents, key=str(uuid.uuid4()))


@workflow("samples.crash.new_key.v1")
async def new_key(ctx: Context, account: str) -> str:
    await ctx.step(charge_with_new_key, account, 700)
    return "paid"


# 3: a change relative to the value that is there


async def deduct(team: str, amount: int) -> int:
    WORLD.balances[team] = WORLD.balances.get(team, 100) - amount
    return WORLD.balances[team]


@workflow("samples.crash.relative.v1")
async def relative(ctx: Context, team: str) -> int:
    return await ctx.step(deduct, team, 30)


# 4: two effects in one step, of which only the first has a key


async def charge_and_mail(account: str, key: str) -> None:
    WORLD.charge(account, 100, key=key)
    WORLD.mails.append(account)


@workflow("samples.crash.half_keyed.v1")
async def half_keyed(ctx: Context, account: str) -> str:
    await ctx.step(charge_and_mail, account, str(ctx.uuid()))
    return "done"


# 5: the workflow itself has the effect


@workflow("samples.crash.direct_effect.v1")
async def direct_effect(ctx: Context, account: str) -> str:
    await ctx.sleep("1h")
    WORLD.mails.append(f"reminder for {account}")
    answer = await ctx.receive("answer", str)
    return f"{account}: {answer}"


# 6: a number that is taken in a step, and not by the run's id


async def take_number() -> int:
    return WORLD.print_number()


@workflow("samples.crash.invoice_number.v1")
async def invoice_number(ctx: Context, customer: str) -> str:
    number = await ctx.step(take_number)
    return f"invoice {number} of {customer}"


# 7: an interruption that the workflow does not expect


@step(at_most_once=True)
async def wire(account: str) -> str:
    WORLD.charges.append((account, 1))
    return "wired"


@workflow("samples.crash.interrupted.v1")
async def interrupted(ctx: Context, account: str) -> str:
    return await ctx.step(wire, account)


_CREDITS = "https://github.com/openstory-so/openstory/issues/846"

SAMPLES = [
    Sample("no_key", lambda: no_key("ann"), (no_key,), finds="effect", at="charge",
           source="https://github.com/celery/celery/issues/4426"),
    Sample("new_key", lambda: new_key("ann"), (new_key,), finds="effect", at="charge_with_new_key",
           source="https://github.com/tempoxyz/pympp/pull/155"),
    Sample("relative", lambda: relative("red"), (relative,), finds="effect", at="deduct", source=_CREDITS),
    Sample("half_keyed", lambda: half_keyed("ann"), (half_keyed,), finds="effect", at="charge_and_mail",
           source=_CREDITS),
    Sample("direct_effect", lambda: direct_effect("ann"), (direct_effect,), (("answer", "yes"),),
           finds="effect", at="sleep", source="https://github.com/langchain-ai/langgraph/issues/7780"),
    Sample("invoice_number", lambda: invoice_number("ann"), (invoice_number,), finds="result", at="take_number"),
    Sample("interrupted", lambda: interrupted("ann"), (interrupted,), finds="result", at="wire"),
]  # fmt: skip
