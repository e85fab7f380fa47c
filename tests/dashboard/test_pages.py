"""Every page on SQLite, read as a browser reads it."""

from __future__ import annotations

import asyncio
import datetime
import html
import inspect
import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from perdure import (
    At,
    Context,
    Cron,
    Engine,
    Every,
    Fair,
    Handle,
    Limit,
    Pending,
    Question,
    Retry,
    UsageError,
    activity,
    workflow,
)
from perdure.cli.app import cli
from perdure.client.session import session_of
from perdure.core.limits.limit import LimitBounds, pace_of
from perdure.core.model.run import Status
from perdure.core.time.duration import microseconds
from perdure.dashboard import Dashboard
from perdure.dashboard.actions import BY_NAME
from perdure.dashboard.page_request import CONTENT_SECURITY_POLICY, FOLDER
from perdure.dashboard.pages import rate_text
from perdure.dashboard.schedule_form import exact_duration
from perdure.dashboard.site import ROUTES, PageRoute
from perdure.http import Access, HttpApp, Redaction
from perdure.outbox import CloudEvent, Subscription
from perdure.testing.conformance.runs.log import a_line
from tests.cli.conftest import parse_command
from tests.dashboard.conftest import Shop
from tests.dashboard.html import Page
from tests.dashboard.shop import WORKFLOWS, browsing, checkout, crawl, fetch, reminder
from tests.helpers import eventually
from tests.stage import Stage

LATER = datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC)
PAGES = ("/", "/runs", "/workflows", "/schedules", "/queues", "/events", "/dead-letters", "/workers", "/deploy")
TABS = ("steps", "messages", "state", "family", "audit", "logs", "history", "source")


def run_pages(ids: Sequence[str]) -> list[str]:
    found = [f"/runs/{one}?tab={tab}" for one, tab in product(ids, TABS)]
    return found + [f"/runs/{ids[0]}/{action}" for action in BY_NAME]


async def read(client: httpx.AsyncClient, path: str, status: int = 200) -> Page:
    answer = await client.get(path)
    assert answer.status_code == status, (path, answer.status_code, answer.text[-2000:])
    assert answer.headers["content-type"].startswith("text/html"), path
    page = Page(answer.text)
    assert page.unmatched == [], path
    assert page.dangers("") == [], path
    return page


async def test_every_page_is_well_formed_and_keeps_its_policy(shop: Shop) -> None:
    ids = [handle.id for handle in shop.runs.values()]
    others = ["/queues/limit/mail/set", "/queues/breaker/smtp/open", "/queues/queue/default/pause"]
    others += ["/queues/type/shop.mail.v1/pause", "/schedules/hourly/resume", "/schedules/hourly/trigger"]
    others += [
        "/schedules/hourly/backfill",
        "/schedules/hourly/change",
        "/deploy/check",
        "/workflows/shop.mail.v1",
        "/workflows/unknown",
    ]
    for path in [*PAGES, *run_pages(ids), *others, "/runs?q=status%3Afailed", "/login"]:
        answer = await shop.client.get(path)
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["cache-control"] == "no-store"
        page = await read(shop.client, path)
        assert page.all("title"), path
        assert [name for name, _ in page.elements].count("h1") == 1, path
        ids_on_page = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
        assert len(ids_on_page) == len(set(ids_on_page)), path
        # Every field has a name that a screen reader says.
        assert all(image.get("aria-label") for image in page.all("svg") if image.get("role") == "img"), path


def test_the_policy_allows_no_inline_script_and_no_other_host() -> None:
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY


async def test_every_link_of_every_page_leads_somewhere(shop: Shop) -> None:
    seen: set[str] = set()
    todo = [*PAGES, "/runs/order-42", "/runs/order-41"]
    places: Counter[str] = Counter()
    while todo:
        path = todo.pop(0)
        # A timeline has links without end; a few of each page will do.
        places[path.partition("?")[0]] += 1
        if path in seen or places[path.partition("?")[0]] > 12:
            continue
        seen.add(path)
        answer = await shop.client.get(path)
        assert answer.status_code in (200, 303), (path, answer.status_code)
        if answer.headers.get("content-type", "").startswith("text/html"):
            links = {link.partition("#")[0] for link in Page(answer.text).links()}
            todo += sorted(link for link in links if link and not link.startswith(("/theme", "/logout")))
    assert "/runs/order-42/retry" in seen
    assert len(seen) > 100


async def test_the_overview_says_first_what_needs_a_person(shop: Shop) -> None:
    page = await read(shop.client, "/")
    assert "3 runs of the last hour failed: 2 of shop.checkout.v1, 1 of shop.mail.v1." in page.text
    assert "CardDeclined" in page.text
    assert page.text.index("Needs a person") < page.text.index("Latest runs")


async def test_an_empty_database_teaches_how_to_begin(on_disk: Stage) -> None:
    async with on_disk.engine() as engine, browsing(engine) as client:
        for path in PAGES:
            await read(client, path)
        assert "No worker is alive" in (await read(client, "/")).text
        assert "engine.start(checkout(order)" in (await read(client, "/runs")).text
        assert "perdure worker app:engine" in (await read(client, "/workers")).text
        assert "engine.schedules.create" in (await read(client, "/schedules")).text


# runs


async def test_the_query_in_the_url_chooses_the_runs(shop: Shop) -> None:
    async def ids(query: str) -> list[str]:
        answer = await shop.client.get("/runs", params={"q": query})
        assert answer.status_code == 200, answer.text
        return [row["id"].removeprefix("run-") for row in Page(answer.text).all("tr") if "id" in row]

    assert await ids("status:failed type:shop.checkout.v1") == ["order-43", "order-42"]
    assert await ids("attr.tenant=acme status:failed") == ["order-42"]
    assert await ids("attr.cents>=400") == ["order-45", "order-44"]
    assert await ids("status:failed text:honour") == ["order-43", "order-42"]
    assert await ids("id:order-4 order:oldest status:completed roots:yes") == ["order-40"]
    assert await ids("parent:order-40") == ["order-40/shop.ship.v1"]
    assert await ids("older:1h") == []
    assert await ids("unserved:yes status:failed") == []
    assert await ids("newer:2020-01-01T00:00Z") == await ids("")
    assert await ids("newer:2020-01-01 older:2020-02-01T00:00+01:00") == []


async def test_a_query_that_cannot_be_read_says_so(shop: Shop) -> None:
    for query in ("status:unknown", "older:soon", "attr.x", "status:failed newer:99999999999d"):
        page = await read(shop.client, f"/runs?q={query}", 422)
        assert page.all("table") or "cannot be read" in page.text
    page = await read(shop.client, "/runs?cursor=garbage", 422)
    assert "cursor" in page.text


async def test_the_exact_id_of_a_run_leads_to_it(shop: Shop) -> None:
    answer = await shop.client.get("/runs?q=order-42")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/order-42")


async def test_pages_of_runs_lead_on_and_back(on_disk: Stage) -> None:
    async with on_disk.engine(*WORKFLOWS) as engine, browsing(engine) as client:
        await engine.start_many([crawl(1) for _ in range(120)], ids=[f"crawl-{n:03}" for n in range(120)])
        seen: list[str] = []
        path = "/runs?q=type:shop.crawl.v1"
        pages = 0
        while path:
            page = await read(client, path)
            seen += [row["id"].removeprefix("run-") for row in page.all("tr") if "id" in row]
            older = re.findall(r'href="([^"]*cursor[^"]*)">Older', (await client.get(path)).text)
            path = older[0].replace("&amp;", "&") if older else ""
            pages += 1
    assert (pages, len(seen), len({*seen})) == (3, 120, 120)


async def test_a_facet_adds_itself_to_the_query_and_removes_itself(shop: Shop) -> None:
    links = [*(await read(shop.client, "/runs?q=status:failed")).links()]
    assert "/runs?q=status%3Afailed+type%3Ashop.mail.v1" in links
    assert "/runs" in links
    assert "/runs?q=status%3Acompleted" in links


# one run


async def test_a_failed_run_says_why_first_and_what_a_retry_does(shop: Shop) -> None:
    page = await read(shop.client, "/runs/order-42?step=charge")
    assert "CardDeclined: do not honour, order order-42" in page.text
    assert "Retry does charge again; 2 finished operations are kept." in page.text
    assert page.text.index("It failed") < page.text.index("Timeline")
    crosses = [one for one in page.all("text") if one.get("class") == "cross"]
    assert len(crosses) == 5
    assert "attempt 3 failed" in page.text
    assert 'raise CardDeclined(f"do not honour, order {order.id}")' in page.text


async def test_tabs_show_messages_state_family_audit_and_history(shop: Shop) -> None:
    async def text(run: str, tab: str) -> str:
        return (await read(shop.client, f"/runs/{run}?tab={tab}")).text

    assert '"stage"' in (await text("order-40", "state")) or "stage" in await text("order-40", "state")
    assert "paid with receipt-order-40" in await text("order-40", "state")
    assert "order-40/shop.ship.v1" in await text("order-40", "family")
    child = await read(shop.client, "/runs/order-40%2Fshop.ship.v1?tab=family")
    assert "/runs/order-40" in [*child.links()]
    assert "changed their mind lamp" in await text("order-45", "audit")
    assert "approval" in await text("order-40", "messages")
    history = await read(shop.client, "/runs/order-40?tab=history")
    assert len([row for row in history.all("tr") if row.get("id", "").startswith("record-")]) == 8


async def test_the_scrubber_shows_the_run_as_it_was(shop: Shop) -> None:
    page = await read(shop.client, "/runs/order-40?at=2&tab=history")
    assert "as it was after record 2" in page.text
    assert len([row for row in page.all("tr") if row.get("id", "").startswith("record-")]) == 3
    assert "parcel-order-40" not in page.text


async def test_steps_of_a_long_run_are_shown_in_pages_and_groups(shop: Shop) -> None:
    page = await read(shop.client, "/runs/crawl-1")
    assert "1 to 100 of 120" in page.text
    assert "fetch \N{MULTIPLICATION SIGN}120" in page.text
    opened = await read(shop.client, "/runs/crawl-1?open=fetch%23&page=1")
    assert "101 to 120 of 120" in opened.text
    assert len(opened.all("li")) > 120


async def test_any_parameter_of_the_url_gives_a_page(shop: Shop) -> None:
    strange = ("-1", "1e9", "٣", "x" * 500, "%00", "9" * 30, "../..", "<b>")
    for name in ("tab", "step", "at", "open", "scale", "from", "to", "row", "page", "done"):
        for value in strange:
            answer = await shop.client.get("/runs/order-40", params={name: value})
            assert answer.status_code == 200, (name, value)
            assert Page(answer.text).dangers("") == []


async def test_payloads_can_be_downloaded_whole(shop: Shop) -> None:
    answer = await shop.client.get("/runs/order-40/payload/input")
    assert answer.json() == {"order": {"id": "order-40", "cents": 0, "note": "lamp"}}
    assert "attachment" in answer.headers["content-disposition"]
    assert (await shop.client.get("/runs/order-40/payload/record-2")).json() is not None
    assert (await shop.client.get("/runs/order-40/payload/nothing")).json() is None


@pytest.mark.parametrize("what", ["x\r\nset-cookie: a=b", "x\nset-cookie: a=b", 'x"; filename="y.html', "../x", "x y"])
async def test_the_name_of_a_downloaded_file_does_not_leave_its_header(shop: Shop, what: str) -> None:
    answer = await shop.client.get(f"/runs/order-40/payload/{quote(what, safe='')}")
    assert re.fullmatch(r'attachment; filename="[a-z0-9-]+\.json"', answer.headers["content-disposition"])


async def test_a_run_that_does_not_exist_is_a_page_of_its_own(shop: Shop) -> None:
    page = await read(shop.client, "/runs/nothing", 404)
    assert "nothing" in page.text
    await read(shop.client, "/nowhere", 404)
    await read(shop.client, "/runs/order-40/explode", 404)


# other pages


async def test_dead_letters_are_grouped_by_like_errors(shop: Shop) -> None:
    page = await read(shop.client, "/dead-letters")
    groups = [one["id"] for one in page.all("section") if one.get("id", "").startswith("group-")]
    assert len(groups) == 2
    assert "3 dead runs in 2 groups" in page.text
    assert "do not honour, order order-…" in page.text


async def test_schedules_show_ten_fire_times_in_their_zone(shop: Shop) -> None:
    page = await read(shop.client, "/schedules")
    assert page.text.count("03:00:00 CE") == 10
    assert "paused: holidays lamp" in page.text


@activity("pages.desk.v1", limit=Limit("desk", concurrency=1), fair=Fair(lambda tenant: tenant))
async def desk(tenant: str = "") -> None:
    await asyncio.sleep(3600)


async def test_queues_show_which_runs_have_the_permits_of_a_limit_and_which_keys_wait(stage: Stage) -> None:
    async with stage.engine(desk) as engine, engine.worker(grace=0), browsing(engine) as client:
        await engine.start(desk(), id="first")

        async def seen() -> bool:
            page = await read(client, "/queues")
            return "/runs/first" in [*page.links()] and "has a permit for" in page.text

        await eventually(seen)
        answer = await client.get("/api/v1/limits/desk/permits")
        assert [one["run_id"] for one in answer.json()["items"]] == ["first"]
        assert "takes effect at once, everywhere" in (await read(client, "/queues")).text
        for number, tenant in enumerate(("acme", "globex", "acme")):
            await engine.start(desk(tenant), id=f"other-{number}")

        async def waiting() -> bool:
            text = (await read(client, "/queues")).text
            return "acme 2 runs wait, the first for" in text and "globex 1 run waits, the first for" in text

        await eventually(waiting)


async def test_workers_show_their_running_steps(shop: Shop) -> None:
    async def shown() -> bool:
        page = await read(shop.client, "/workers")
        return "linger" in page.text and "slow-1" in page.text

    await eventually(shown)


async def test_workflows_show_figures_and_who_serves_them(shop: Shop) -> None:
    page = await read(shop.client, "/workflows")
    assert "Process an order from payment to delivery." in page.text
    assert "6 types of runs." in page.text


# actions


async def act(client: httpx.AsyncClient, path: str, **fields: str) -> httpx.Response:
    """Open the page of an action as a person does, fill in its form, and send it."""
    page = await read(client, path)
    (form,) = [one for one in page.all("form") if one.get("method") == "post" and one["action"] != "/logout"]
    hidden = {one["name"]: one.get("value", "") for one in page.all("input") if one.get("type") == "hidden"}
    return await client.post(form["action"], data={**hidden, **fields})


async def status(handle: Handle[object]) -> Status:
    return (await handle.info()).status


async def test_actions_do_what_they_say_under_the_name_of_the_caller(shop: Shop) -> None:
    client, runs = shop.client, shop.runs
    assert (await act(client, "/runs/order-41/send", name="approval", value="true")).status_code == 303
    await eventually(lambda: _is(runs["waiting"], Status.COMPLETED))
    await act(client, "/runs/order-44/resume")
    await eventually(lambda: _reason(runs["paused"], "message"))
    await act(client, "/runs/order-44/pause", reason="lunch")
    await eventually(lambda: _reason(runs["paused"], "paused"))
    await act(client, "/runs/order-44/cancel", reason="no longer wanted")
    await eventually(lambda: _is(runs["paused"], Status.CANCELLED))
    await act(client, "/runs/slow-1/terminate", reason="stuck")
    await eventually(lambda: _is(runs["running"], Status.FAILED))
    await act(client, "/runs/reminder-7/wake")
    await eventually(lambda: _is(runs["asleep"], Status.COMPLETED))
    answer = await act(client, "/runs/order-42/retry")
    assert "goes+again" in answer.headers["location"]
    assert (await runs["failed"].info()).generation == 2
    answer = await act(client, "/runs/order-40/fork", from_step="charge", id="order-40-again", input="")
    assert answer.status_code == 303, answer.text
    assert (await (await shop.engine.get("order-40-again")).info()).id == "order-40-again"
    events = await runs["paused"].events()
    mine = [one for one in events if one.actor == "anonymous"]
    assert {"paused", "resumed"} <= {one.kind for one in mine}
    assert any("no longer wanted" in one.data for one in mine)


@activity("desk.sign.v1", retry=Retry.never())
async def sign(paper: str) -> Any:
    return Pending


@workflow("desk.clerk.v1", pinned=True)
async def clerk(ctx: Context) -> str:
    first = await ctx.receive_question(Question("how-far", int, str))
    first.reply(f"{first.value} pages")
    return await ctx.call(sign("contract"), id="paper")


async def test_rarer_actions_ask_complete_unpin_delete_and_restore(on_disk: Stage) -> None:
    async with (
        on_disk.engine(clerk, sign, build="1.4.2") as engine,
        engine.worker(grace=0),
        browsing(engine) as client,
    ):
        run = await engine.start(clerk(), id="clerk-1")
        await eventually(lambda: _reason(run, "message"))
        page = await read(client, "/runs/clerk-1")
        assert "pinned to build 1.4.2" in page.text
        assert {f"/runs/clerk-1/{name}" for name in ("ask", "unpin", "priority", "delete")} <= set(page.links())
        answer = await act(client, "/runs/clerk-1/ask", name="how-far", value="7")
        assert (answer.status_code, "7 pages" in Page(answer.text).text) == (200, True)
        assert "of them pinned" in (await read(client, "/workers")).text
        await act(client, "/runs/clerk-1/unpin", reason="1.4.2 is gone")
        assert (await run.info()).pinned_to is None
        await eventually(lambda: _waits_for_completion(engine, "paper"))
        await act(client, "/runs/clerk-1/delete", reason="a test")
        page = await read(client, "/runs/clerk-1")
        assert "deleted" in page.text
        assert [link for link in page.links() if link.startswith("/runs/clerk-1/")] == [
            "/runs/clerk-1/undelete", "/runs/clerk-1/payload/input",
        ]  # fmt: skip
        assert "clerk-1" not in (await read(client, "/runs")).text
        assert "clerk-1" in (await read(client, "/runs?q=deleted%3Ayes")).text
        await act(client, "/runs/clerk-1/undelete")
        await act(client, "/runs/paper/complete", value='"signed"')
        assert await run.result("60s") == "signed"
        reasons = [one.data for one in await run.events() if one.actor == "anonymous"]
        assert any("1.4.2 is gone" in one for one in reasons)
        assert any("a test" in one for one in reasons)


async def _waits_for_completion(engine: Engine, run_id: str) -> bool:
    return any(one.reason == "completion" for one in (await engine.runs.list(id_prefix=run_id)).runs)


async def test_events_show_their_deliveries_and_are_replayed_and_emitted(on_disk: Stage) -> None:
    broken = [True]

    async def store_away(event: CloudEvent) -> None:
        if broken:
            raise ConnectionError("the warehouse is closed")

    warehouse = Subscription("warehouse", store_away, events=["order.%"], retry=Retry.never())
    async with on_disk.engine(outbox=[warehouse]) as engine, engine.worker(grace=0), browsing(engine) as client:
        await engine.outbox.publish("order.paid", {"order": 42}, key="order-42", id="paid-42")

        async def failed() -> bool:
            return bool((await engine.dead_letters.list()).letters)

        await eventually(failed)
        page = await read(client, "/events?type=order.%25&key=order-42")
        assert "1 delivery has failed for good" in page.text
        assert "0 of 1, warehouse failed" in page.text
        assert "/events/paid-42" in page.links()
        page = await read(client, "/events/paid-42")
        assert "The delivery to warehouse has failed for good." in page.text
        assert "the warehouse is closed" in page.text
        [retry] = [link for link in page.links() if link.endswith("/retry")]
        broken.clear()
        await act(client, retry)
        await eventually(lambda: _all_delivered(engine))
        answer = await act(client, "/events/paid-42/replay", to="warehouse")
        assert answer.headers["location"].startswith("/runs/")
        assert (await client.get("/events/nothing")).status_code == 404
        page = await read(client, "/events")
        [csrf, *_] = [one["value"] for one in page.all("input") if one.get("name") == "csrf"]
        answer = await client.post("/events", data={"csrf": csrf, "name": "rates", "value": "[1, 2]"})
        assert answer.status_code == 303
        assert "rates" in (await read(client, "/events")).text
        await act(client, "/queues/sticky/rates/set", value="[3]")
        found = await engine.events.get("rates")
        assert found is not None
        assert found.value == [3]
        await act(client, "/queues/sticky/rates/delete", reason="stale")
        assert await engine.events.get("rates") is None


async def _all_delivered(engine: Engine) -> bool:
    return [run.status for run in await engine.outbox.deliveries("paid-42")] == [Status.COMPLETED]


async def test_a_lock_is_released_and_many_runs_are_deleted_or_get_a_message(shop: Shop) -> None:
    engine, client = shop.engine, shop.client
    await engine.locks.acquire("import", "1h", owner="me")
    assert "Release it" in (await read(client, "/queues")).text
    await act(client, "/queues/lock/import/release")
    assert await engine.locks.get("import") is None
    answer = await act(client, "/bulk/send?q=id%3Aorder-41", message="approval", value="true", reason="all are fine")
    assert answer.status_code == 303, answer.text
    await eventually(lambda: _is(shop.runs["waiting"], Status.COMPLETED))
    assert (await act(client, "/bulk/send?q=id%3Aorder-41", message="approval", value="{")).status_code == 422
    await act(client, "/bulk/delete?q=id%3Aorder-41", reason="tidy")

    async def deleted() -> bool:
        return bool((await shop.runs["waiting"].info()).deleted_at)

    await eventually(deleted)


async def test_the_head_of_a_page_leads_to_other_engines(on_disk: Stage) -> None:
    async with on_disk.engine() as engine:
        pages = Dashboard(name="orders", neighbours={"billing": "/billing/"})
        app = HttpApp(engine, access=Access(anonymous="viewer"), pages=pages)
        transport = httpx.ASGITransport(app=app, root_path="/orders")
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert "/billing/" in Page((await client.get("/orders/")).text).links()
        await app.close()
    with pytest.raises(UsageError, match="give one such as"):
        Dashboard(neighbours={"billing": "javascript:alert(1)"})


async def _is(handle: Handle[object], wanted: Status) -> bool:
    return await status(handle) is wanted


async def _reason(handle: Handle[object], wanted: str) -> bool:
    return (await handle.info()).reason == wanted


async def test_an_action_that_is_refused_says_why_and_keeps_what_was_typed(shop: Shop) -> None:
    answer = await act(shop.client, "/runs/order-40/retry")
    assert answer.status_code == 422
    assert "completed, so there is nothing to retry" in Page(answer.text).text
    answer = await act(shop.client, "/runs/order-41/send", name="approval", value="{broken")
    assert answer.status_code == 422
    page = Page(answer.text)
    assert "value is not JSON" in page.text
    assert "{broken" in page.text


async def test_orders_to_queues_limits_breakers_and_schedules(shop: Shop) -> None:
    engine, client = shop.engine, shop.client
    await act(client, "/queues/queue/default/pause", reason="maintenance")
    assert [(one.name, one.reason) for one in await engine.queues.paused()] == [("default", "maintenance")]
    assert "Paused: default" in (await read(client, "/queues")).text
    await act(client, "/queues/queue/default/resume")
    assert await engine.queues.paused() == []
    await act(client, "/queues/limit/mail/set", concurrency="3", rate="", reason="the provider asked")
    assert [one.bounds.concurrency for one in await engine.limits.list() if one.name == "mail"] == [3]
    assert (await act(client, "/queues/limit/mail/set", concurrency="many", rate="")).status_code == 422
    await act(client, "/queues/limit/mail/clear")
    await act(client, "/queues/breaker/smtp/open", reason="an outage")
    assert [one.circuit.value for one in await engine.breakers.list()] == ["open"]
    await act(client, "/queues/breaker/smtp/reset")
    await act(client, "/schedules/hourly/resume", reason="back")
    assert not (await engine.schedules.get("hourly")).paused
    await act(client, "/schedules/hourly/trigger", reason="a test")
    assert (await engine.schedules.get("hourly")).last_run
    assert (await client.get("/schedules/nothing/trigger")).status_code == 200
    await act(client, "/schedules/hourly/delete", reason="no longer needed")
    assert "hourly" not in [one.id for one in await engine.schedules.list()]
    reasons = [json.loads(one.data).get("reason") for one in await engine.schedules.events("hourly")]
    assert reasons[2:] == ["back", "a test", "no longer needed"]


async def test_the_page_of_queues_edits_in_place_and_the_audit_trail_has_actor_and_reason(shop: Shop) -> None:
    engine, client = shop.engine, shop.client

    async def forms() -> dict[str, dict[str, str]]:
        """The fields of each form of the page, by its address."""
        found: dict[str, dict[str, str]] = {}
        address = ""
        for tag, attributes in (await read(client, "/queues")).elements:
            if tag == "form" and attributes.get("method") == "post":
                address = attributes["action"]
                found[address] = {}
            elif tag == "input" and address and "csrf" in (attributes.get("name"), *found[address]):
                found[address][attributes["name"]] = attributes.get("value", "")
        return found

    there = await forms()
    assert there["/queues/limit/mail/set"].pop("csrf")
    assert there["/queues/limit/mail/set"] == {"concurrency": "5", "rate": "", "burst": "", "reason": ""}
    assert {"/queues/queue/default/pause", "/queues/queue/default/set-watermark"} <= {*there}
    assert {f"/queues/breaker/smtp/{verb}" for verb in ("open", "close", "reset")} <= {*there}
    assert "/queues/limit/mail/clear" not in there
    answer = await act(client, "/queues/limit/mail/set", concurrency="2", rate="100/m", burst="7", reason="they asked")
    assert answer.headers["location"] == "/queues?done=The+limit+mail+has+new+bounds."
    answer = await act(
        client, "/queues/queue/default/set-watermark", high="100", low="", when_full="wait", reason="busy"
    )
    assert answer.status_code == 303
    await act(client, "/queues/type/shop.mail.v1/set-watermark", high="10", low="5", when_full="refuse")
    there = await forms()
    assert (there["/queues/limit/mail/set"]["rate"], there["/queues/limit/mail/set"]["burst"]) == ("100/m", "7")
    assert there["/queues/queue/default/set-watermark"]["low"] == "80"
    assert "/queues/limit/mail/clear" in there
    page = await read(client, "/queues")
    assert "delays starts from 100 on, until fewer than 80" in page.text
    assert "refuses starts from 10 on, until fewer than 5" in page.text
    answer = await act(client, "/queues/queue/default/set-watermark", high="1", low="9", when_full="wait")
    assert answer.status_code == 422
    assert "low is between 1 and high" in Page(answer.text).text
    await act(client, "/queues/queue/default/remove-watermark", reason="calm")
    assert [one.name for one in await engine.queues.watermarks.list()] == ["shop.mail.v1"]
    store = await session_of(engine).connect()
    told = await store.events("gate:mail") + await store.events("watermark:queue:default")
    reasons = [(one.kind, json.loads(one.data).get("reason"), one.actor) for one in told]
    assert reasons == [
        ("limit_set", "they asked", "anonymous"),
        ("watermark_set", "busy", "anonymous"),
        ("watermark_removed", "calm", "anonymous"),
    ]
    async with browsing(engine, role="viewer") as viewer:
        assert '<form class="confirm"' not in (await viewer.get("/queues")).text


@pytest.mark.parametrize("rate", ["1/s", "3/s", "100/m", "7/h", "3/d", "2500/s"])
def test_a_rate_is_shown_as_it_was_written(rate: str) -> None:
    assert rate_text(LimitBounds(pace=pace_of(rate))) == rate
    assert rate_text(LimitBounds()) == ""


async def test_a_group_of_dead_letters_is_retried_or_discarded(shop: Shop) -> None:
    page = await read(shop.client, "/dead-letters")
    retry = next(link for link in page.links() if link.endswith("/retry"))
    discard = [link for link in page.links() if link.endswith("/discard")][-1]
    answer = await act(shop.client, retry)
    assert "2+runs+retried" in answer.headers["location"]
    answer = await act(shop.client, discard, reason="known")
    assert "1+run+discarded" in answer.headers["location"]
    assert (await shop.runs["dead"].info()).deleted_at


async def test_all_runs_that_fit_a_query_are_acted_on_as_one_run(shop: Shop) -> None:
    page = await read(shop.client, "/runs?q=type:shop.checkout.v1+status:waiting")
    assert {"name": "q", "type": "hidden", "value": "type:shop.checkout.v1 status:waiting"} in page.all("input")
    page = await read(shop.client, "/bulk/cancel?q=type:shop.checkout.v1+status:waiting")
    assert "2 runs that fit type:shop.checkout.v1 status:waiting are asked to stop" in page.text
    assert "order-41" in page.text
    answer = await act(shop.client, "/bulk/cancel?q=type:shop.checkout.v1+status:waiting", reason="closed")
    assert answer.status_code == 303, answer.text
    await eventually(lambda: _is(shop.runs["waiting"], Status.CANCELLED))
    await eventually(lambda: _is(shop.runs["paused"], Status.CANCELLED))
    assert await status(shop.runs["asleep"]) is Status.WAITING
    await read(shop.client, answer.headers["location"])


async def test_more_than_a_hundred_runs_need_their_number_typed(on_disk: Stage) -> None:
    async with on_disk.engine(*WORKFLOWS) as engine, browsing(engine) as client:
        await engine.start_many([crawl(1) for _ in range(101)])
        assert (await act(client, "/bulk/cancel", number="100")).status_code == 422
        assert (await engine.runs.count()).count == 101
        assert (await act(client, "/bulk/cancel", number="101")).status_code == 303


async def test_selected_runs_are_acted_on_and_no_others(shop: Shop) -> None:
    csrf = next(one["value"] for one in (await read(shop.client, "/runs")).all("input") if one.get("name") == "csrf")
    form = {"csrf": csrf, "q": "status:waiting", "action": "cancel", "run": ["order-41", "reminder-7"]}
    answer = await shop.client.post("/bulk", data=form)
    page = Page(answer.text)
    assert (answer.status_code, page.dangers("")) == (200, [])
    assert "2 runs that you selected are asked to stop" in page.text
    hidden = {one["name"]: one["value"] for one in page.all("input") if one.get("type") == "hidden"}
    assert hidden["run"] == "order-41\nreminder-7"
    answer = await shop.client.post("/bulk/cancel", data=hidden)
    assert answer.status_code == 303, answer.text
    await eventually(lambda: _is(shop.runs["waiting"], Status.CANCELLED))
    await eventually(lambda: _is(shop.runs["asleep"], Status.CANCELLED))
    assert await status(shop.runs["paused"]) is Status.WAITING
    # The same form, sent twice, is the same action.
    assert (await shop.client.post("/bulk/cancel", data=hidden)).headers["location"] == answer.headers["location"]


@pytest.mark.parametrize(
    "form", [{}, {"action": "cancel"}, {"action": "burn", "run": "order-41"}, {"action": "compare"}]
)
async def test_an_action_on_no_run_does_nothing(shop: Shop, form: dict[str, str]) -> None:
    csrf = next(one["value"] for one in (await read(shop.client, "/runs")).all("input") if one.get("name") == "csrf")
    answer = await shop.client.post("/bulk", data={"csrf": csrf, **form})
    assert answer.status_code in (400, 422), answer.text
    assert await status(shop.runs["waiting"]) is Status.WAITING


async def test_two_selected_runs_are_compared(shop: Shop) -> None:
    csrf = next(one["value"] for one in (await read(shop.client, "/runs")).all("input") if one.get("name") == "csrf")
    answer = await shop.client.post("/bulk", data={"csrf": csrf, "action": "compare", "run": ["order-42", "order-40"]})
    assert answer.headers["location"] == "/runs/order-42/diff/order-40"
    page = await read(shop.client, answer.headers["location"])
    assert "5 places differ; the first is label." in page.text
    assert "reserve" not in page.text
    assert "reserve" in (await read(shop.client, "/runs/order-42/diff/order-40?show=all")).text
    assert "CardDeclined: do not honour, order order-42" in page.text
    same = await read(shop.client, "/runs/order-42/diff/order-42")
    assert "Both runs recorded the same at every place." in same.text
    answer = await shop.client.get("/runs/order-42/diff?with=order-40")
    assert answer.headers["location"] == "/runs/order-42/diff/order-40"
    await read(shop.client, "/runs/order-42/diff/nothing", 404)


async def test_a_comparison_shows_no_payload_to_a_role_that_sees_none(shop: Shop) -> None:
    async with browsing(shop.engine, role="viewer", redaction=Redaction(payloads="operator")) as client:
        page = await read(client, "/runs/order-42/diff/order-40?show=all")
    assert "honour" not in page.text
    assert "receipt" not in page.text


async def test_the_log_of_a_run_merges_all_that_is_stored(shop: Shop) -> None:
    store = await session_of(shop.engine).connect()
    await store.keep_log([("order-40", a_line(number)) for number in range(2)], 5, "w1")
    page = await read(shop.client, "/runs/order-40?tab=logs")
    for text in ("line 1", "the warehouse did not answer", "paid with receipt-order-40", "created", "approval"):
        assert text in page.text, text
    hidden = Redaction(payloads="operator")
    async with browsing(shop.engine, role="viewer", redaction=hidden) as client:
        page = await read(client, "/runs/order-40?tab=logs")
        assert "receipt-order-40" not in page.text
        assert "line 1" not in page.text


async def test_messages_that_were_set_aside_are_delivered_or_dropped(shop: Shop) -> None:
    handle = shop.runs["waiting"]
    await handle.send("approval", {"not": "a bool"})
    await eventually(lambda: _set_aside(handle, 1))
    page = await read(shop.client, "/runs/order-41?tab=messages")
    assert "could not decode" in page.text
    assert "/runs/order-41/drop?number=0" in [*page.links()]
    answer = await act(shop.client, "/runs/order-41/deliver?number=0", value="true")
    assert answer.status_code == 303, answer.text
    await eventually(lambda: _is(handle, Status.COMPLETED))
    assert [one.decision for one in await handle.set_aside_messages()] == ["delivered"]


async def _set_aside(handle: Handle[object], number: int) -> bool:
    return len(await handle.set_aside_messages()) == number


# access


async def test_a_form_without_its_token_changes_nothing(shop: Shop) -> None:
    for fields in ({}, {"csrf": "0" * 64}, {"csrf": ""}):
        answer = await shop.client.post("/runs/order-41/cancel", data=fields)
        assert answer.status_code == 403
    answer = await shop.client.post("/runs/order-41/cancel", json={"csrf": "x"})
    assert answer.status_code == 422
    answer = await shop.client.post("/runs/order-41/cancel", data={}, headers={"origin": "https://evil.example"})
    assert answer.status_code == 403
    assert await status(shop.runs["waiting"]) is Status.WAITING


async def test_a_viewer_reads_everything_and_changes_nothing(shop: Shop) -> None:
    async with browsing(shop.engine, role="viewer") as client:
        for path in PAGES:
            page = await read(client, path)
            assert not [link for link in page.links() if re.search(r"/(pause|resume|retry|discard|cancel)$", link)]
        page = await read(client, "/runs/order-41")
        assert not [link for link in page.links() if "/cancel" in link]
        for route in ROUTES:
            if route.role.value == "operator":
                path = route.path.replace("{}", "x")
                assert (await client.request(route.method, path, data={})).status_code == 403, path


async def test_no_page_is_shown_without_credentials(shop: Shop) -> None:
    async with browsing(shop.engine, role=None) as client:
        for route in ROUTES:
            answer = await client.request(route.method, route.path.replace("{}", "x"))
            assert answer.status_code == 303, route.path
            assert answer.headers["location"].startswith("/login?next=")
        assert (await client.get("/static/app.css")).status_code == 200
        assert (await client.get("/static/..%2f..%2fsite.py")).status_code == 404
        assert (await client.get("/login")).status_code == 200


def path_of(route: PageRoute) -> str:
    """A path of the route, of things that do not exist."""
    return route.path.replace("{}", "x")


async def test_every_form_of_every_page_needs_its_token(shop: Shop, on_disk: Stage) -> None:
    before = (await on_disk.dump())["events"]
    changing = [route for route in ROUTES if route.method == "POST"]
    for route, fields in product(changing, ({}, {"csrf": "0" * 64}, {"csrf": ""})):
        answer = await shop.client.post(path_of(route), data={**fields, "reason": "forged", "name": "forged"})
        assert (answer.status_code, "made by another page" in answer.text) == (403, True), route.path
    # A cookie of another person has another token.
    ada, eve = [(await shop.engine.tokens.create(name, "operator")).token for name in ("ada", "eve")]
    async with browsing(shop.engine, role=None) as client:
        cookies = [(await client.post("/login", data={"token": one})).headers["set-cookie"] for one in (ada, eve)]
        mine, other = [{"cookie": one.partition(";")[0]} for one in cookies]
        page = Page((await client.get("/queues", headers=other)).text)
        csrf = next(one["value"] for one in page.all("input") if one.get("name") == "csrf")
        for route in changing:
            answer = await client.post(path_of(route), data={"csrf": csrf, "name": "forged"}, headers=mine)
            assert answer.status_code == 403, route.path
        assert (await client.post("/logout", data={"csrf": csrf}, headers=mine)).status_code == 403
    after = [event for event in (await on_disk.dump())["events"] if event not in before]
    assert "forged" not in str(after)


@pytest.mark.parametrize(
    ("header", "value", "statuses"),
    [("host", "evil.example", (400, 421)), ("host", "localhost.evil.example", (400, 421)),
     ("origin", "https://evil.example", (403,)), ("origin", "null", (403,))],
)  # fmt: skip
async def test_no_page_answers_a_forged_host_or_origin(
    shop: Shop, header: str, value: str, statuses: tuple[int, ...]
) -> None:
    others = ["/live?view=/", "/charts?range=1h", "/login", "/logout", "/static/app.css"]
    asked = [(route.method, path_of(route)) for route in ROUTES] + [("GET", path) for path in others]
    for method, path in [*asked, ("POST", "/login"), ("POST", "/logout")]:
        answer = await shop.client.request(method, path, headers={header: value})
        assert answer.status_code in statuses, (method, path, answer.status_code)
        assert "set-cookie" not in answer.headers
        assert "order-4" not in answer.text


async def test_nothing_private_is_stored_by_a_browser_or_a_proxy(shop: Shop) -> None:
    private = [(route.method, path_of(route)) for route in ROUTES]
    private += [("GET", path) for path in ("/charts?range=1h", "/login", "/logout", "/runs/order-40/payload/input")]
    for role in (None, "viewer", "operator"):
        async with browsing(shop.engine, role=role) as client:
            for method, path in [*private, ("POST", "/login"), ("POST", "/logout")]:
                answer = await client.request(method, path, data={} if method == "POST" else None)
                assert answer.status_code < 500, (role, path)
                found = [answer.headers.get(name) for name in ("cache-control", "x-content-type-options")]
                assert found == ["no-store", "nosniff"], (role, method, path)
                assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


#: Code in sentences and examples of pages: a call of the context, awaited or not.
CALLED = re.compile(r"(await )?ctx\.([a-z_]+)\(")
#: A command line in a page or in a sentence.
COMMAND = re.compile(r"(?<=[>`\s])perdure ((?:worker|tokens|send|check|start|runs|serve) .*?)(?=</|`|\",|\"\n)")


def test_the_code_that_pages_teach_awaits_what_is_awaited() -> None:
    called = [one for path in sorted((FOLDER / "templates").iterdir()) for one in CALLED.findall(path.read_text())]
    assert len(called) > 5
    for awaited, name in called:
        result = str(inspect.signature(getattr(Context, name)).return_annotation)
        assert bool(awaited) == (result not in ("None", "str")), f"ctx.{name}"


def test_the_command_lines_that_pages_teach_exist() -> None:
    texts = [path.read_text() for path in sorted([*(FOLDER / "templates").iterdir(), *FOLDER.glob("*.py")])]
    lines = [line for text in texts for line in COMMAND.findall(text)]
    assert len(lines) > 7
    for line in lines:
        words = shlex.split(re.sub(r"\{\{.*?\}\}", "order-42", line).replace("URL", "sqlite:///shop.db"))
        parse_command(cli, ["perdure", *words])


async def test_a_token_opens_a_session_and_logging_out_ends_it(shop: Shop) -> None:

    made = await shop.engine.tokens.create("night-shift", "operator")
    async with browsing(shop.engine, role=None) as client:
        wrong = await client.post("/login", data={"token": "perdure_wrong", "next": "/runs"})
        assert (wrong.status_code, "unknown" in Page(wrong.text).text) == (401, True)
        answer = await client.post("/login", data={"token": made.token, "next": "/runs/order-41"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs/order-41")
        assert "HttpOnly" in answer.headers["set-cookie"]
        cookie = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
        page = Page((await client.get("/runs/order-41", headers=cookie)).text)
        assert "token:night-shift" in page.text
        csrf = next(one["value"] for one in page.all("input") if one.get("name") == "csrf")
        done = await client.post("/runs/order-41/cancel", data={"csrf": csrf, "reason": "late"}, headers=cookie)
        assert done.status_code == 303, done.text
        assert any(one.actor.startswith("token:night-shift") for one in await shop.runs["waiting"].events())
        await client.post("/logout", data={"csrf": csrf}, headers=cookie)
        assert (await client.get("/runs", headers=cookie)).status_code == 303


@pytest.mark.parametrize(
    "address", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
async def test_no_redirect_leaves_this_server(shop: Shop, address: str) -> None:
    answer = await shop.client.get("/theme", params={"to": "dark", "back": address})
    assert answer.headers["location"] == "/"
    assert "perdure_theme=dark" in answer.headers["set-cookie"]


async def test_redacted_payloads_are_on_no_page(shop: Shop) -> None:
    hidden = Redaction(payloads="admin")
    async with browsing(shop.engine, role="operator", redaction=hidden) as client:
        for path in [*PAGES, *run_pages([handle.id for handle in shop.runs.values()])]:
            text = (await client.get(path)).text
            for secret in ("lamp", "receipt-", "do not honour", "shelf 7", "label-order"):
                assert secret not in text, (path, secret)
    some = Redaction(keys=["note"], texts=["receipt-[a-z0-9-]+"])
    async with browsing(shop.engine, role="operator", redaction=some) as client:
        text = (await client.get("/runs/order-40")).text
        assert "[redacted]" in text
        assert "receipt-order" not in text


async def test_pages_work_under_a_prefix(shop: Shop) -> None:
    async with browsing(shop.engine, prefix="/ops/perdure") as client:
        for path in ("/", "/runs", "/runs/order-42", "/runs/order-41/cancel"):
            answer = await client.get(f"/ops/perdure{path}")
            assert answer.status_code == 200, path
            assert Page(answer.text).dangers("/ops/perdure") == [], path


# the look


def colours(css: str) -> list[dict[str, str]]:
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", css)
    return [dict(re.findall(r"--([a-z-]+):\s*(#[0-9a-f]{6})", block)) for block in blocks]


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_colour_of_text_has_enough_contrast_on_every_background() -> None:
    themes = colours((FOLDER / "static" / "app.css").read_text())
    assert len(themes) == 3
    assert themes[1] == themes[2], "the switch and the preference of the browser show the same dark"
    texts = ("text", "muted", "accent", *Status)
    for theme in themes:
        for name, background in product(texts, ("bg", "panel", "raised")):
            assert contrast(theme[name], theme[background]) >= 4.5, (name, background)
        assert contrast(theme["on-accent"], theme["accent"]) >= 4.5
        assert contrast(theme["edge"], theme["bg"]) >= 3


def test_templates_have_no_inline_style_or_script() -> None:
    for path in (FOLDER / "templates").iterdir():
        text = path.read_text()
        assert not re.search(r"\sstyle=|<style|\son[a-z]+=|<script(?! src)|\|\s*safe|autoescape", text), path.name


async def test_a_worker_is_drained_from_its_page(shop: Shop) -> None:
    [worker] = await shop.engine.workers.list()
    page = await read(shop.client, "/workers")
    assert f"/workers/{worker.id}/drain" in [*page.links()]
    if worker.build:
        assert worker.build in page.text
    asked = await read(shop.client, f"/workers/{worker.id}/drain")
    assert "claims no more runs" in asked.text
    answer = await act(shop.client, f"/workers/{worker.id}/drain", reason="new host", grace="nonsense")
    assert answer.status_code == 422
    answer = await act(shop.client, f"/workers/{worker.id}/drain", reason="new host", grace="5m")
    assert answer.status_code == 303
    [worker] = await shop.engine.workers.list()
    assert worker.drain is not None
    assert (worker.drain.reason, worker.drain.grace) == ("new host", 300.0)
    shown = (await read(shop.client, "/workers")).text
    assert "draining" in shown or "stopped" in shown


async def test_the_page_of_deploys_shows_the_last_check_by_type(shop: Shop) -> None:
    assert "perdure check" in (await read(shop.client, "/deploy")).text
    assert (await act(shop.client, "/deploy/check")).status_code == 303
    page = await read(shop.client, "/deploy")
    [report] = await shop.engine.audit.deploy_checks()
    assert report.types
    assert all(one.type in page.text for one in report.types)
    await shop.engine.check()
    page = await read(shop.client, "/deploy")
    assert f"/deploy?report={report.id}" in [*page.links()]
    assert "shown above" in (await read(shop.client, f"/deploy?report={report.id}")).text


async def test_the_form_of_a_schedule_has_its_beginning_its_end_and_its_skipped_dates(shop: Shop) -> None:
    engine, path = shop.engine, "/schedules/bounded/change"
    await engine.schedules.create("bounded", reminder(1), Cron("@daily", "Asia/Tokyo"), skip=["2099-01-01"])
    page = (await shop.client.get(path)).text
    given = dict(re.findall(r'<input[^>]* name="([^"]*)"[^>]* value="([^"]*)"', page))
    given |= dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', page))
    assert (given["starts"], given["ends"], given["skip"]) == ("", "", "2099-01-01")
    given |= {"overlap": given["before-overlap"], "ends": "2099-02-01T00:00", "skip": "2099-01-01, 2099-01-06"}
    assert (await shop.client.post(path, data=given)).status_code == 303
    window = (await engine.schedules.get("bounded")).window
    assert window.ends == datetime.datetime(2099, 1, 31, 15, tzinfo=datetime.UTC)
    assert [str(day) for day in window.skip] == ["2099-01-01", "2099-01-06"]
    assert "until Sun 2099-02-01 00:00:00 JST, skips 2 dates" in (await shop.client.get("/schedules")).text
    for wrong in ({"ends": "later"}, {"skip": "someday"}):
        answer = await shop.client.post(path, data={**given, **wrong})
        assert answer.status_code == 422, answer.text


async def test_a_schedule_is_changed_by_what_differs_in_its_form(shop: Shop) -> None:
    engine, path = shop.engine, "/schedules/changed/change"
    await engine.schedules.create("changed", reminder(1), Every("90m", LATER), jitter="5m", priority=7)

    async def form() -> dict[str, str]:
        page = (await shop.client.get(path)).text
        found = dict(re.findall(r'<input[^>]* name="([^"]*)"[^>]* value="([^"]*)"', page))
        found |= dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', page))
        return {**found, "overlap": found["before-overlap"]}

    given = await form()
    assert {name: given[name] for name in ("timing", "zone", "jitter", "priority", "deadline", "overlap")} == {
        "timing": "every 90m", "zone": "UTC", "jitter": "5m", "priority": "7", "deadline": "", "overlap": "skip",
    }  # fmt: skip
    before = await engine.schedules.get("changed")
    assert (await shop.client.post(path, data=given)).status_code == 303
    assert await engine.schedules.get("changed") == before
    # Another person changes the queue while the form is open.
    await engine.schedules.change("changed", queue="other")
    assert (await shop.client.post(path, data={**given, "overlap": "queue", "deadline": "2h"})).status_code == 303
    one = await engine.schedules.get("changed")
    assert (one.overlap.value, one.deadline, one.queue, one.timing) == ("queue", 7_200_000_000, "other", before.timing)
    for timing, zone, expected in (
        ("0 3 * * *", "Europe/Prague", Cron("0 3 * * *", "Europe/Prague")),
        ("every 15m", "Europe/Prague", Every("15m")),
        ("at 2099-12-24T18:00+01:00", "", At(datetime.datetime.fromisoformat("2099-12-24T18:00+01:00"))),
    ):
        answer = await shop.client.post(path, data={**await form(), "timing": timing, "zone": zone})
        assert answer.status_code == 303, answer.text
        stored = (await engine.schedules.get("changed")).timing
        if isinstance(expected, Every):
            # It begins with the time of the change.
            assert isinstance(stored, Every)
            assert microseconds(stored.interval) == microseconds(expected.interval)
        else:
            assert stored == expected
    wrong = {
        "timing": "whenever",
        "zone": "Nowhere",
        "jitter": "soon",
        "priority": "first",
        "queue": "",
        "deadline": "x",
    }
    for name, value in wrong.items():
        answer = await shop.client.post(path, data={**await form(), "timing": "0 3 * * *", name: value})
        assert (answer.status_code, 'role="alert"' in answer.text) == (422, True), name
        assert f'value="{value}"' in answer.text
    events = await engine.schedules.events("changed")
    assert {one.kind for one in events} >= {"schedule_changed"}
    assert (await shop.client.get("/schedules/nothing/change")).status_code == 404


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "0s"),
        (250_000, "0.25s"),
        (90_000_000, "90s"),
        (5_400_000_000, "90m"),
        (86_400_000_000, "1d"),
        (1, "0.000001s"),
    ],
)
def test_a_duration_in_a_form_means_exactly_what_is_stored(length: int, text: str) -> None:
    assert exact_duration(length) == text
    assert microseconds(text) == length


async def test_a_schedule_is_backfilled_after_a_preview(shop: Shop) -> None:
    await shop.engine.schedules.create("backfilled", reminder(1), Cron("0 3 * * *", "Europe/Prague"))
    path = "/schedules/backfilled/backfill"
    assert "regardless of overlap" in (await read(shop.client, path)).text
    await read(shop.client, f"{path}?start=nonsense", 422)
    span = {"start": "2026-01-01T00:00", "end": "2026-01-04T00:00"}
    preview = await read(shop.client, f"{path}?{httpx.QueryParams(span)}")
    assert "3 fire times in this range, 3 without a run" in preview.text
    assert (await act(shop.client, f"{path}?{httpx.QueryParams(span)}", reason="an audit")).status_code == 303
    assert all("an audit" in one.data for one in (await shop.engine.schedules.events("backfilled"))[1:])
    assert "nothing would start" in (await read(shop.client, f"{path}?{httpx.QueryParams(span)}")).text
    fires = await shop.engine.schedules.fires("backfilled")
    assert len(fires) == 3
    page = await read(shop.client, "/schedules")
    assert all(f"/runs/{fire.run_id.replace(':', '%3A').replace('@', '%40')}" in [*page.links()] for fire in fires)
    many = {"start": "2025-01-01T00:00", "end": "2026-01-01T00:00"}
    refused = await act(shop.client, f"{path}?{httpx.QueryParams(many)}")
    assert (refused.status_code, "type 365, the number of runs" in refused.text) == (422, True)


async def test_the_priority_of_a_run_is_changed_from_its_page(shop: Shop) -> None:
    run = shop.runs["waiting"]
    assert f"/runs/{run.id}/priority" in (await read(shop.client, f"/runs/{run.id}")).links()
    refused = await act(shop.client, f"/runs/{run.id}/priority", priority="high")
    assert refused.status_code == 422
    answer = await act(shop.client, f"/runs/{run.id}/priority", priority="-3", reason="urgent")
    assert answer.status_code == 303
    assert (await run.info()).priority == -3


# sources


def marked(text: str) -> list[tuple[str, str]]:
    """The marked lines of a source: the code, and the remark."""
    rows = re.findall(r'<tr id="line-\d+" class="marked[^>]*>(.*?)</tr>', text)
    cut = [row.partition("</code>") for row in rows]
    return [(_text(code), _text(mark)) for code, _, mark in cut]


def _text(markup: str) -> str:
    code = markup.partition("<code>")[2] or markup
    return html.unescape(re.sub(r"<[^>]*>", "", code)).strip()


async def test_a_run_shows_the_source_of_its_code_and_the_line_where_it_is(shop: Shop) -> None:
    async def of(run: str) -> list[tuple[str, str]]:
        return marked((await shop.client.get(f"/runs/{run}?tab=source")).text)

    await eventually(lambda: shop.engine.queues.sources("shop.checkout.v1"))
    assert await of("order-41") == [('if not await ctx.receive("approval", bool):', "◔ waits for message approval")]
    assert await of("order-42") == [("receipt = await ctx.step(charge, order)", "✕ failed here: CardDeclined")]
    assert await of("reminder-7") == [("await ctx.sleep(days * 86_400)", "◔ waits for timer sleep")]
    assert await of("order-40") == []
    first = inspect.getsourcelines(inspect.unwrap(checkout.function))[1]
    page = await read(shop.client, "/runs/order-40?tab=source")
    assert f"line-{first}" in [attributes.get("id") for _, attributes in page.elements]
    assert "shop.py" in page.text


async def test_the_past_of_a_run_marks_the_steps_that_ran_then(shop: Shop) -> None:
    await eventually(lambda: shop.engine.queues.sources("shop.checkout.v1"))
    text = (await shop.client.get("/runs/order-40?tab=source&at=0")).text
    assert [mark.partition(" runs for ")[0] for _, mark in marked(text)] == ["◐ label"]


async def test_a_line_that_cannot_be_told_is_one_of_several(on_disk: Stage) -> None:
    @workflow("test.twice.v1")
    async def twice(ctx: Context) -> None:
        await ctx.receive("go", bool)
        await ctx.step(fetch, 1)
        await ctx.receive("go", bool)

    async with on_disk.engine(twice) as engine, engine.worker(grace=0), browsing(engine) as client:
        run = await engine.start(twice(), id="a")
        await eventually(lambda: _waits(run))
        await eventually(lambda: engine.queues.sources("test.twice.v1"))
        found = marked((await client.get("/runs/a?tab=source")).text)
        assert [mark for _, mark in found] == ["◔ waits for message go (one of 2 lines)"] * 2


async def _waits(run: Handle[None]) -> bool:
    return (await run.info()).status is Status.WAITING


async def test_the_page_of_a_type_shows_docstring_and_source_of_each_build(on_disk: Stage) -> None:
    for build in ("1.4.1", "1.4.2"):
        async with on_disk.engine(*WORKFLOWS, build=build) as engine, engine.worker(grace=0):
            pass
    async with on_disk.engine() as engine, browsing(engine) as client:
        page = await read(client, "/workflows/shop.checkout.v1")
        assert "Process an order from payment to delivery." in page.text
        assert {"/workflows/shop.checkout.v1?build=1.4.1"} <= {*page.links()}
        assert "1.4.2" in page.text
        assert "No worker has registered" in (await read(client, "/workflows/nothing")).text


async def test_a_secret_in_a_source_is_redacted(shop: Shop) -> None:
    await eventually(lambda: shop.engine.queues.sources("shop.checkout.v1"))
    async with browsing(shop.engine, redaction=Redaction(texts=["appro[a-z]+"])) as client:
        for path in ("/workflows/shop.checkout.v1", "/runs/order-41?tab=source"):
            source = (await client.get(path)).text.partition('class="scroll source"')[2]
            assert "[redacted]" in source
            assert "approval" not in source


@workflow("pages.talker.v1")
async def talker(ctx: Context, items: int) -> None:
    for number in range(items):
        ctx.emit("numbers", number)
    ctx.emit("zebra", "only")


async def test_a_long_stream_shows_its_newest_items_and_leads_to_the_older_ones(stage: Stage) -> None:
    async with stage.engine(talker) as engine, engine.worker(grace=0), browsing(engine) as client:
        await (await engine.start(talker(1234), id="t")).result(timeout=60)

        async def shown(path: str) -> tuple[list[str], list[str], str]:
            text = (await client.get(path)).text.partition("<h2>Streams</h2>")[2]
            blocks = re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)
            links = [html.unescape(one) for one in re.findall(r'href="([^"]*before=[^"]*)"', text)]
            return blocks[0].split(), links, text

        items, [older], text = await shown("/runs/t?tab=state")
        assert items == [str(number) for number in range(1184, 1234)]
        assert "items 1,185 to 1,234, the newest" in text
        assert "all 1 item" in text
        items, [_, newer], text = await shown(older)
        assert items == [str(number) for number in range(1134, 1184)]
        assert "only" not in text
        assert (await shown(newer))[0] == [str(number) for number in range(1184, 1234)]
        items, links, _ = await shown("/runs/t?tab=state&stream=numbers&before=3")
        assert (items, len(links)) == (["0", "1", "2"], 1)
        for wrong in ("x", "-1", "9" * 40):
            assert (await shown(f"/runs/t?tab=state&before={wrong}"))[0][-1] == "1233"
        assert "1233" in (await client.get("/runs/t?tab=logs&page=9")).text
