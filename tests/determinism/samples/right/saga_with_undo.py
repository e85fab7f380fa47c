"""Undo functions do I/O; they are steps, too."""

import time
from datetime import datetime

from perdure import Context, step, workflow
from perdure.errors import Fatal
from perdure.testing import Environment


def cancel_flight(booking: str) -> None:
    time.sleep(0.001)
    print(f"cancelled {booking} at {datetime.now()}")


@step(undo=cancel_flight)
async def book_flight(traveller: str) -> str:
    return f"flight of {traveller}"


async def book_hotel(traveller: str) -> str:
    return f"hotel of {traveller}"


async def charge(traveller: str) -> str:
    raise Fatal(f"{traveller} has no money")


def cancel_hotel(booking: str) -> None:
    time.sleep(0.001)


@workflow("samples.right.trip.v1")
async def trip(ctx: Context, traveller: str) -> str:
    try:
        async with ctx.saga():
            flight = await ctx.step(book_flight, traveller)
            hotel = await ctx.options(undo=cancel_hotel).step(book_hotel, traveller)
            ctx.undo(cancel_hotel, hotel)
            return f"{flight} {hotel} {await ctx.step(charge, traveller)}"
    except Fatal as error:
        return f"no trip: {error}"


WORKFLOWS = [trip]


async def drive(env: Environment) -> object:
    run = await env.start(trip("ann"))
    return await run.result()
