"""Cancellation is caught, cleaned up after, and raised again; or it is taken back on purpose."""

import asyncio

from perdure import Channel, Context, workflow
from perdure.testing import Environment

go = Channel("go", bool)


async def reserve(seat: str) -> str:
    return f"reserved {seat}"


async def release(seat: str) -> None:
    """Give the seat back."""


@workflow("samples.right.seat.v1")
async def hold_seat(ctx: Context, seat: str) -> str:
    reserved = await ctx.step(reserve, seat)
    try:
        await ctx.receive(go, timeout="15m")
    except TimeoutError:
        await ctx.step(release, seat)
        return "expired"
    except asyncio.CancelledError:
        await ctx.step(release, seat)
        raise
    except BaseException:
        ctx.log.exception("unexpected")
        raise
    return reserved


@workflow("samples.right.watch.v1")
async def watch(ctx: Context) -> str:
    try:
        await ctx.sleep("1000d")
    except asyncio.CancelledError:
        ctx.uncancel()
        return "asked to stop, and stopped in order"
    return "nothing happened"


WORKFLOWS = [hold_seat, watch]


async def drive(env: Environment) -> object:
    held = await env.start(hold_seat("4a"))
    watching = await env.start(watch())
    await env.settle()
    await env.cancel(watching)
    await env.send(held, "go", True)
    return await held.result(), await watching.result()
