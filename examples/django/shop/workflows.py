"""Workflows of the shop. Its steps use the ORM."""

import time
from typing import Any

from django.db import connection
from django.db.models import F

from perdure import Context, workflow
from shop.models import Order


def reserve(_: Any, number: int) -> None:
    Order.objects.filter(number=number).update(reserved=F("reserved") + 1)


def pack(number: int) -> str:
    order = Order.objects.get(number=number)
    time.sleep(1)
    order.packed = True
    order.save()
    return f"parcel with {order.article}"


@workflow("shop.order.v1")
async def order(ctx: Context, number: int) -> str:
    await ctx.options(using=lambda: connection).transaction(reserve, number)  # exactly once
    ctx.publish("stage", "packing")
    parcel = await ctx.step(pack, number)
    cents = await ctx.receive("paid", int)
    return f"{parcel} for {cents} cents"


@workflow("shop.greet.v1")
async def greet(ctx: Context, name: str) -> str:
    return f"hello {name}"
