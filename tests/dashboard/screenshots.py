"""Write pictures of all pages: `make screenshots`."""

from __future__ import annotations

import asyncio
import datetime
import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from selenium.webdriver.support.wait import WebDriverWait

from perdure import Context, Engine, Handle, workflow
from perdure.dashboard import Dashboard
from perdure.http import Access, HttpApp
from perdure.http.server import make_server
from tests.dashboard.chromium import PHONE, WIDE, browser, look, missing, picture
from tests.dashboard.shop import WORKFLOWS, Order, checkout, label, populate, publish, subscriptions

PAGES = {
    "overview": "",
    "runs": "runs",
    "runs-query": "runs?q=status%3Afailed",
    "run-completed": "runs/order-40",
    "run-waiting": "runs/order-41",
    "run-failed": "runs/order-42?step=charge",
    "run-crawl": "runs/crawl-1",
    "run-asleep": "runs/reminder-7",
    "run-messages": "runs/order-41?tab=messages",
    "run-state": "runs/order-40?tab=state",
    "run-stream": "runs/talker-1?tab=state&stream=readings&before=1000",
    "run-family": "runs/order-40?tab=family",
    "run-audit": "runs/order-45?tab=audit",
    "run-history": "runs/order-40?tab=history&at=4",
    "cancel": "runs/order-41/cancel",
    "fork": "runs/order-40/fork?from_step=charge",
    "bulk": "bulk/cancel?q=status%3Awaiting",
    "workflows": "workflows",
    "schedules": "schedules",
    "queues": "queues",
    "events": "events",
    "event": "events/paid-42",
    "dead-letters": "dead-letters",
    "workers": "workers",
    "run-logs": "runs/order-42?tab=logs",
    "diff": "runs/order-42/diff/order-40?show=all",
    "deploy": "deploy",
    "backfill": "schedules/nightly-report/backfill?start=2026-09-01T00%3A00&end=2026-09-05T00%3A00",
    "schedule-change": "schedules/nightly-report/change",
    "not-found": "runs/nothing",
    "run-source": "runs/order-41?tab=source",
    "run-source-failed": "runs/order-42?tab=source",
    "type": "workflows/shop.checkout.v1",
    "start": "workflows/shop.checkout.v1/start",
    "queues-edited": "queues",
    "workflows-paused": "queues/type/shop.mail.v1/pause",
    "login": "login",
    "query-refused": "runs?q=status%3Anonsense",
}
#: Pages that are errors: the browser reports their status.
REFUSED = ("not-found", "query-refused")
#: Pages of a database without a run and without a worker.
EMPTY = {
    f"empty-{name or 'overview'}": name
    for name in ("", "runs", "workflows", "schedules", "queues", "events", "dead-letters", "workers", "deploy")
}
PORT = 8498
#: Opens every form of a page.
OPENED = "for (const one of document.querySelectorAll('details.edit')) one.open = true"
#: True on a page whose charts are complete.
CHARTED = "return !/read|JavaScript/.test(document.querySelector('[data-chart-note]')?.textContent ?? '')"


@workflow("shop.checkout.v1")
async def changed_checkout(ctx: Context, order: Order) -> str:
    """The next version of the code, which runs that are under way do not fit."""
    await ctx.options(name="tax").step(label, order)
    return "done"


@workflow("shop.talker.v1")
async def talker(ctx: Context) -> None:
    """Emit a long stream."""
    for number in range(1234):
        ctx.emit("readings", {"number": number, "celsius": 20 + number % 7 / 10})
    ctx.emit("notes", "calibrated")


#: Code of the engine whose pages are shown.
SHOP = (*WORKFLOWS, talker)


def take(folder: Path, names: list[str]) -> None:
    """Pictures of the pages, wide and on a phone, in light and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as driver:
        for size, theme in ((WIDE, "light"), (WIDE, "dark"), (PHONE, "light"), (PHONE, "dark")):
            look(driver, size, theme)
            for name in names:
                port, path = (PORT + 1, EMPTY[name]) if name in EMPTY else (PORT, PAGES[name])
                driver.get(f"http://127.0.0.1:{port}/{path}")
                if name.endswith("-edited"):
                    driver.execute_script(OPENED)
                # A chart is read as the budget of statements allows.
                WebDriverWait(driver, 60).until(lambda one: one.execute_script(CHARTED))
                picture(driver, folder / f"{name}-{'wide' if size == WIDE else 'phone'}-{theme}.png")


async def furnish(engine: Engine) -> dict[str, Handle[Any]]:
    """All that the pages show, once it is there; a worker of `SHOP` has to serve the engine."""
    runs = await populate(engine)
    await publish(engine)
    await engine.locks.acquire("nightly-import", "1h", owner="importer on host-7")
    await (await engine.start(talker(), id="talker-1")).result()
    await engine.check()
    await Engine(engine.url, [changed_checkout], build="1.5.0").check()
    now = datetime.datetime.now(datetime.UTC)
    await engine.schedules.backfill("nightly-report", now - datetime.timedelta(days=20), now)
    return runs


async def main(folder: Path, names: list[str]) -> None:
    """Serve a shop, and take pictures of it."""
    with TemporaryDirectory() as place, chdir(place):
        async with (
            Engine("sqlite:///shop.db", SHOP, audit="full", outbox=subscriptions()) as engine,
            engine.worker(slots=10, grace=0),
        ):
            await furnish(engine)
            for number in range(50, 57):
                order = Order(f"order-{number}", -1 if number == 53 else 1200 + 37 * number)
                tenant = ("acme", "globex")[number % 2]
                run = await engine.start(checkout(order), id=order.id, attributes={"tenant": tenant})
                if number % 3:
                    await run.send("approval", value=True)
            async with Engine("sqlite:///empty.db") as empty:
                servers = [make_server(pages_of(one), "127.0.0.1", PORT + n) for n, one in enumerate((engine, empty))]
                serving = [asyncio.create_task(server.serve()) for server in servers]
                await asyncio.sleep(1.2)
                try:
                    await asyncio.to_thread(take, folder, names)
                finally:
                    for server in servers:
                        server.should_exit = True
                    await asyncio.gather(*serving)


def pages_of(engine: Engine) -> HttpApp:
    """The pages of an engine, for anyone on this machine."""
    pages = Dashboard(name="shop", neighbours={"billing": "/billing/", "warehouse": "/warehouse/"})
    return HttpApp(engine, access=Access(anonymous="operator"), pages=pages, rate=1000, burst=1000)


if __name__ == "__main__":
    if problem := missing():
        sys.exit(f"no pictures: {problem}; on Debian and Ubuntu: apt install chromium chromium-driver")
    asyncio.run(main(Path(sys.argv[1]).absolute(), sys.argv[2:] or [*PAGES, *EMPTY]))
