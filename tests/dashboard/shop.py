"""A shop with runs in every state, for pages to show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from perdure import (
    Breaker,
    Context,
    Cron,
    Engine,
    Every,
    Fatal,
    Handle,
    Limit,
    Retry,
    activity,
    step,
    step_info,
    workflow,
)
from perdure.dashboard import Dashboard
from perdure.http import Access, HttpApp, Redaction
from perdure.outbox import CloudEvent, Subscription
from tests.helpers import eventually


@dataclass
class Order:
    id: str
    cents: int
    note: str = ""


class CardDeclined(Exception):
    pass


@step(retry=Retry.fixed("40ms", attempts=4))
async def reserve(item: str) -> str:
    await asyncio.sleep(0.03)
    if step_info().attempt < 3:
        raise ConnectionError("the warehouse did not answer within 5 s")
    return f"shelf 7, {item}"


@step(retry=Retry.fixed("30ms", attempts=3))
async def charge(order: Order) -> str:
    await asyncio.sleep(0.02)
    if order.cents < 0:
        raise CardDeclined(f"do not honour, order {order.id}")
    return f"receipt-{order.id}"


async def label(order: Order) -> dict[str, Any]:
    await asyncio.sleep(0.06)
    return {"label": f"label-{order.id}", "weight": 1.25, "lines": [{"sku": "A-1", "count": 2}]}


@workflow("shop.ship.v1")
async def ship(ctx: Context, order: Order) -> str:
    """Ship a parcel."""
    await ctx.step(label, order)
    return f"parcel-{order.id}"


@workflow("shop.checkout.v1")
async def checkout(ctx: Context, order: Order) -> str:
    """Process an order from payment to delivery."""
    ctx.publish("stage", "paying")
    await asyncio.gather(ctx.step(reserve, "lamp"), ctx.step(label, order))
    receipt = await ctx.step(charge, order)
    ctx.publish("stage", "waits for approval")
    ctx.emit("log", f"paid with {receipt}")
    if not await ctx.receive("approval", bool):
        raise Fatal("the approval was refused")
    await ctx.sleep("20ms")
    parcel = await ctx.call(ship(order))
    ctx.publish("stage", "done")
    return parcel


@workflow("shop.reminder.v1")
async def reminder(ctx: Context, days: int) -> str:
    """Remind a customer later."""
    await ctx.step(label, Order("reminder", 0))
    await ctx.sleep(days * 86_400)
    return "reminded"


@workflow("shop.crawl.v1")
async def crawl(ctx: Context, pages: int) -> int:
    """Fetch many pages."""
    for number in range(pages):
        await ctx.step(fetch, number)
    return pages


async def fetch(number: int) -> int:
    return number


@workflow("shop.slow.v1")
async def slow(ctx: Context) -> str:
    """Take a while."""
    return await ctx.step(linger)


async def linger() -> str:
    await asyncio.sleep(3600)
    return "late"


@activity("shop.mail.v1", retry=Retry.never(), limit=Limit("mail", concurrency=5), breaker=Breaker("smtp"))
def mail(to: str) -> str:
    """Send a mail."""
    raise TimeoutError(f"no answer from {to} within 30 s")


WORKFLOWS = (checkout, ship, reminder, crawl, slow, mail)


async def store_away(event: CloudEvent) -> None:
    """Take any event."""


async def bill(event: CloudEvent) -> None:
    """Refuse events, as a receiver with a wrong key does."""
    raise PermissionError("the receiver answered 401: the signature is wrong")


def subscriptions() -> list[Subscription]:
    """Subscriptions of the shop: one takes all events, the other refuses paid orders."""
    return [
        Subscription("warehouse", store_away),
        Subscription("billing", bill, events=["order.paid"], retry=Retry.never()),
    ]


async def publish(engine: Engine) -> None:
    """Events for the subscriptions and sticky ones, once they are delivered; a worker has to serve them."""
    for number in (40, 41, 42):
        data = {"order": f"order-{number}", "cents": 1900}
        await engine.outbox.publish("order.made", data, key=f"order-{number}", id=f"made-{number}")
    await engine.outbox.publish("order.paid", {"order": "order-42"}, key="order-42", id="paid-42")
    await engine.events.emit("rates-loaded", {"EUR": 1, "USD": 1.08})
    await engine.events.emit("stocktaking-over", value=True)

    async def refused() -> bool:
        return len(await engine.outbox.deliveries("paid-42")) == 2 and bool(
            (await engine.dead_letters.list(type="perdure.delivery.billing")).letters
        )

    await eventually(refused)


async def populate(engine: Engine, *, text: str = "lamp") -> dict[str, Handle[Any]]:
    """Runs in every state, once they are there; a worker has to serve them. `text` is in all that a user writes."""
    tenants = ("acme", "globex")
    found: dict[str, Handle[Any]] = {}
    for number, name in enumerate(("completed", "waiting", "failed", "failed-too", "paused", "cancelled")):
        cents = -100 if name.startswith("failed") else 100 * number
        order = Order(f"order-{40 + number}", cents, text)
        found[name] = await engine.start(
            checkout(order), id=f"order-{40 + number}", attributes={"tenant": tenants[number % 2], "cents": cents}
        )
    found["asleep"] = await engine.start(reminder(2), id="reminder-7")
    found["crawl"] = await engine.start(crawl(120), id="crawl-1")
    found["running"] = await engine.start(slow(), id="slow-1")
    found["dead"] = await engine.start(mail("a@example.com"), id="mail-1")
    await engine.schedules.create("nightly-report", reminder(1), Cron("0 3 * * *", "Europe/Berlin"))
    await engine.schedules.create("hourly", reminder(1), Every("1h"))
    await engine.schedules.pause("hourly", f"holidays {text}")

    for name in ("completed", "waiting", "paused", "cancelled"):
        await eventually(_reason(found[name], "message"), saying=name)
    await found["completed"].send("approval", value=True)
    await found["completed"].result()
    await found["waiting"].send("aproval", text)
    await found["paused"].pause(f"asked by {text}")
    await eventually(_reason(found["paused"], "paused"))
    await found["cancelled"].cancel(f"changed their mind {text}")
    for name in ("failed", "failed-too", "cancelled", "dead", "crawl"):
        await eventually(_finished(found[name]), saying=name)
    await eventually(_reason(found["asleep"], "timer"))
    return found


def _reason(handle: Handle[Any], reason: str) -> Any:
    async def check() -> bool:
        return (await handle.info()).reason == reason

    return check


def _finished(handle: Handle[Any]) -> Any:
    async def check() -> bool:
        return (await handle.info()).status.finished

    return check


@asynccontextmanager
async def browsing(
    engine: Engine, *, role: str | None = "operator", redaction: Redaction | None = None, prefix: str = ""
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the pages of an engine, without a network."""
    app = HttpApp(
        engine, access=Access(anonymous=role), redaction=redaction, pages=Dashboard(), rate=10_000, burst=10_000
    )
    transport = httpx.ASGITransport(app=app, root_path=prefix)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        try:
            yield client
        finally:
            await app.close()
