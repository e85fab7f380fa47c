"""Every action of every page, clicked through in a real browser against a live worker, by a person who has logged in.

Each action begins on the page that offers it. Sizes and themes take turns. `make prove` does all actions on both
databases; otherwise each database has a part of them.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from perdure import Context, Engine, Handle, Pending, Question, Retry, activity, workflow
from perdure.core.model.run import Status
from perdure.dashboard.actions import BULK, BY_NAME, ORDERS
from perdure.dashboard.site import ROUTES
from perdure.http import Access
from tests.dashboard.browsing import press, problems, requires_browser, serving, text_of, too_wide, type_into, wait
from tests.dashboard.chromium import PHONE, WIDE, look
from tests.dashboard.shop import WORKFLOWS, populate, publish, reminder, subscriptions
from tests.helpers import eventually
from tests.stage import Stage

pytestmark = requires_browser

LOOKS = ((WIDE, "light"), (PHONE, "dark"), (WIDE, "dark"), (PHONE, "light"))
#: Fills in a field as a person does who replaces what is there.
FILL = """
const one = document.querySelector(arguments[0]);
if (!one) return false;
if (one.type === "checkbox") { one.checked = true; return true; }
one.value = arguments[1];
one.dispatchEvent(new Event("input", {bubbles: true}));
return true;
"""
#: Tells that another page has been loaded.
MARK = "window.before = true"
LOADED = "return !window.before && document.readyState === 'complete'"

Check = Callable[[], Awaitable[object]]


@activity("desk.sign.v1", retry=Retry.never())
async def sign(paper: str) -> Any:
    return Pending


@workflow("desk.clerk.v1", pinned=True)
async def clerk(ctx: Context) -> str:
    while True:
        question = await ctx.receive_question(Question("how-far", int, str))
        question.reply(f"{question.value} pages")


@dataclass
class Person:
    """A person at a browser, who does one action after the other."""

    driver: Chrome
    base: str
    done: set[tuple[str, str]] = field(default_factory=set)
    looks: Any = field(default_factory=lambda: itertools.cycle(LOOKS))

    async def act(self, kind: str, action: str, page: str, link: str, /, *, says: str = "", **fields: str) -> None:
        """Follow a link of a page, or open a form in it, fill in the fields, and confirm.

        `link` is the address of the form, and `says` a part of what the page says afterwards.
        """
        await asyncio.to_thread(self._act, page, link, says, fields)
        self.done.add((kind, action))

    def _act(self, page: str, link: str, says: str, fields: dict[str, str]) -> None:
        look(self.driver, *next(self.looks))
        self.driver.get(f"{self.base}/{page}")
        form = f"form[method=post][action='/{link}']"
        if self.driver.find_elements(By.CSS_SELECTOR, form):
            self._open(form)
        else:
            self._open(f"a[href^='/{link}']")
            self.driver.execute_script(MARK)
            press(self.driver, By.CSS_SELECTOR, f"a[href^='/{link}']")
            wait(self.driver, lambda one: one.execute_script(LOADED), f"the page of {link}")
        self.confirm(form, says, **fields)

    def _open(self, selector: str) -> None:
        """Open whatever an element is folded in."""
        script = "const one = document.querySelector(arguments[0])?.closest('details'); if (one) one.open = true"
        self.driver.execute_script(script, selector)

    def confirm(self, form: str, says: str, **fields: str) -> None:
        for name, value in fields.items():
            assert self.driver.execute_script(FILL, f"{form} [name={name}]", value), (form, name)
        assert too_wide(self.driver) <= 0, form
        self.driver.execute_script(MARK)
        press(self.driver, By.CSS_SELECTOR, f"{form} .actions button")
        wait(self.driver, lambda one: one.execute_script(LOADED), f"the page after {form}")
        assert not self.driver.find_elements(By.CSS_SELECTOR, ".notice.bad"), text_of(self.driver, "main")
        self.sees(says)

    def sees(self, text: str) -> None:
        """Wait until the page says something: a click may be answered before the next page is there."""
        wait(self.driver, lambda one: text in text_of(one, "main"), f"the page says {text!r}")

    def log_in(self, token: str) -> None:
        look(self.driver, *LOOKS[0])
        self.driver.get(f"{self.base}/runs")
        type_into(self.driver, By.NAME, "token", token)
        press(self.driver, By.CSS_SELECTOR, "form button")
        wait(self.driver, lambda one: one.find_element(By.CSS_SELECTOR, ".sentence"))

    def log_out(self) -> None:
        press(self.driver, By.CSS_SELECTOR, ".tools form button")
        self.sees("Log in with a token")
        self.driver.get("about:blank")
        self.driver.delete_all_cookies()


def holds(handle: Handle[Any], **wanted: object) -> Callable[[], Awaitable[bool]]:
    """Tell whether a run is as wanted."""

    async def check() -> bool:
        run = await handle.info()
        return all(getattr(run, name) == value for name, value in wanted.items())

    return check


async def on_runs(person: Person, engine: Engine, runs: dict[str, Handle[Any]]) -> None:
    """Actions on one run."""

    async def act(action: str, run: str, says: str = "", tab: str = "", /, **fields: str) -> None:
        link = f"runs/{run}/{action}"
        await person.act("run", action, f"runs/{run}{tab}", link, says=says, **fields)

    clerk_run = await engine.start(clerk(), id="clerk-1")
    papers = [await engine.start(sign("contract"), id=f"paper-{number}") for number in range(2)]
    for number in range(2):
        await runs["waiting"].send("approval", {"not": f"a bool {number}"})
    for run in papers:
        await eventually(holds(run, reason="completion"))
    await eventually(holds(clerk_run, reason="message"))

    async def set_aside() -> bool:
        return len(await runs["waiting"].set_aside_messages()) == 2

    await eventually(set_aside)
    await act("drop", "order-41", "The message was dropped.", "?tab=messages")
    await act("priority", "order-41", "The run has priority -3.", priority="-3", reason="urgent")
    await act("pause", "order-41", "The run pauses", reason="lunch")
    await eventually(holds(runs["waiting"], reason="paused"))
    await act("resume", "order-41", "The run goes on.", reason="back")
    await eventually(holds(runs["waiting"], reason="message"))
    await act("deliver", "order-41", "put into the inbox again", "?tab=messages", value="true")
    await eventually(holds(runs["waiting"], status=Status.COMPLETED))
    await act("resume", "order-44", "The run goes on.")
    await eventually(holds(runs["paused"], reason="message"))
    await act("send", "order-44", "The message approval was sent.", value="true", reason="by phone")
    await eventually(holds(runs["paused"], status=Status.COMPLETED))
    await act("ask", "clerk-1", "7 pages", name="how-far", value="7")
    await act("unpin", "clerk-1", "Workers of every build", reason="1.4.2 is gone")
    await act("cancel", "clerk-1", "asked to stop", reason="late")
    await eventually(holds(clerk_run, status=Status.CANCELLED))
    await act("complete", "paper-0", "The activity is completed.", value='"signed"')
    await act("fail", "paper-1", "The attempt has failed", error="no pen")
    await eventually(holds(papers[1], status=Status.FAILED))
    assert await papers[0].result("60s") == "signed"
    await act("wake", "reminder-7", "wakes up now")
    await eventually(holds(runs["asleep"], status=Status.COMPLETED))
    await act("evict", "slow-1", "another one takes it")
    await act("terminate", "slow-1", "The run was ended.", reason="stuck")
    await eventually(holds(runs["running"], status=Status.FAILED))
    await act("retry", "order-42", "The run goes again, as generation 2.")
    await act("fork", "order-40", "The run order-40-again was started.", from_step="charge", id="order-40-again")
    assert (await (await engine.get("order-40-again")).info()).type == "shop.checkout.v1"
    await act("delete", "order-45", "The run is deleted", reason="a test")
    await act("undelete", "order-45", "The run is back.")
    assert not (await runs["cancelled"].info()).deleted_at
    reasons = " ".join(event.data for event in await runs["waiting"].events() if "night-shift" in event.actor)
    assert all(reason in reasons for reason in ("urgent", "lunch", "back"))


async def on_places(person: Person, engine: Engine, runs: dict[str, Handle[Any]]) -> None:
    """Orders to queues, types, limits, breakers, locks, events and schedules."""

    async def order(kind: str, verb: str, page: str, name: str, /, **fields: str) -> None:
        place = f"schedules/{name}" if kind == "schedule" else f"queues/{kind}/{name}"
        says = ORDERS[kind, verb].done
        await person.act(kind, verb, page, f"{place}/{verb}", says=says, **fields)

    await engine.locks.acquire("import", "1h", owner="me")
    for kind, page, name in (
        ("queue", "queues", "default"),
        ("type", "workflows/shop.mail.v1", "shop.mail.v1"),
    ):
        await order(kind, "pause", page, name, reason="maintenance")
        assert [(one.name, one.reason) for one in await engine.queues.paused()] == [(name, "maintenance")]
        await order(kind, "resume", page, name)
        assert await engine.queues.paused() == []
        await order(kind, "set-watermark", page, name, high="100", when_full="wait", reason="busy")
        [mark] = await engine.queues.watermarks.list()
        assert (mark.kind, mark.name, mark.high, mark.floor, mark.when_full) == (kind, name, 100, 80, "wait")
        await order(kind, "remove-watermark", page, name)
        assert await engine.queues.watermarks.list() == []
    await order("limit", "set", "queues", "mail", concurrency="3", rate="100/m", burst="7")
    assert [one.bounds.concurrency for one in await engine.limits.list()] == [3]
    await order("limit", "clear", "queues", "mail")
    assert [one.bounds.concurrency for one in await engine.limits.list()] == [5]
    for verb, circuit in (("open", "open"), ("close", "closed"), ("reset", "closed")):
        await order("breaker", verb, "queues", "smtp", reason="an outage")
        assert [one.circuit.value for one in await engine.breakers.list()] == [circuit]
    await order("lock", "release", "queues", "import")
    assert await engine.locks.get("import") is None
    await order("schedule", "resume", "schedules", "hourly", reason="back")
    await order("schedule", "pause", "schedules", "hourly", reason="holidays")
    assert (await engine.schedules.get("hourly")).paused
    await order("schedule", "trigger", "schedules", "hourly", reason="a test")
    assert (await engine.schedules.get("hourly")).last_run
    await order("schedule", "delete", "schedules", "hourly")
    assert [one.id for one in await engine.schedules.list()] == ["nightly-report"]
    await order("sticky", "set", "events", "rates-loaded", value="[3]")
    found = await engine.events.get("rates-loaded")
    assert found is not None
    assert found.value == [3]
    await order("sticky", "delete", "events", "rates-loaded")
    assert await engine.events.get("rates-loaded") is None


async def on_others(person: Person, engine: Engine, runs: dict[str, Handle[Any]]) -> None:
    """Forms that make something, groups of dead letters, and the order to a worker, which ends it."""
    page = "workflows/shop.reminder.v1"
    await person.act("form", f"/{page}/start", "workflows", f"{page}/start", says="was started", id="made", input="[1]")
    assert (await (await engine.get("made")).info()).type == "shop.reminder.v1"
    link = "schedules/nightly-report/change"
    await person.act("form", f"/{link}", "schedules", link, says="nightly-report", timing="30 4 * * *")
    assert "30 4 * * *" in (await engine.schedules.get("nightly-report")).spec
    link = "schedules/nightly-report/backfill"

    def backfill() -> None:
        look(person.driver, *next(person.looks))
        person.driver.get(f"{person.base}/schedules")
        press(person.driver, By.CSS_SELECTOR, f"a[href='/{link}']")
        now = datetime.datetime.now(ZoneInfo("Europe/Berlin")).replace(tzinfo=None, microsecond=0)
        begin = now - datetime.timedelta(days=3)
        person.confirm("form[method=get].confirm", "3 fire times in this range", start=begin.isoformat())
        person.confirm("form[method=post].confirm", "3 runs fit the query.", reason="an audit")

    await asyncio.to_thread(backfill)
    person.done.add(("form", f"/{link}"))
    await person.act("form", "/events", "events", "events", says="The event rates has this value.", name="rates")
    link = "events/paid-42/replay"
    await person.act("form", f"/{link}", "events/paid-42", link, says="paid-42", to="warehouse")
    await person.act("form", "/deploy/check", "deploy", "deploy/check", says="build 1.4.2")
    assert len(await engine.audit.deploy_checks()) == 1
    await on_groups(person, engine)
    # The server of the pages has one for actions on many runs.
    [worker] = [one for one in await engine.workers.list() if "default" in one.queues]
    await person.act("worker", "drain", "workers", f"workers/{worker.id}/drain", says="drains", grace="1s")
    assert [one.id for one in await engine.workers.list() if one.drain is not None] == [worker.id]


async def on_groups(person: Person, engine: Engine) -> None:
    """Retry the largest group of dead letters, and discard the smallest."""
    for action, says in (("retry", "retried"), ("discard", "discarded")):
        before = {one.run_id for one in (await engine.dead_letters.list()).letters}

        def do(action: str = action, says: str = says) -> None:
            look(person.driver, *next(person.looks))
            person.driver.get(f"{person.base}/dead-letters")
            place = "last()" if action == "discard" else "1"
            press(
                person.driver,
                By.XPATH,
                f"(//a[contains(@href, '/dead-letters/')][contains(., '{action.title()}')])[{place}]",
            )
            person.confirm("form.confirm", says)

        await asyncio.to_thread(do)
        if action == "discard":
            assert not before <= {one.run_id for one in (await engine.dead_letters.list()).letters}
        person.done.add(("group", action))


async def on_many(person: Person, engine: Engine, runs: dict[str, Handle[Any]]) -> None:
    """Actions on many runs, chosen on the page of runs."""
    run = await engine.start(reminder(1), id="many-1", attributes={"many": "yes"})
    await eventually(holds(run, reason="timer"))

    def choose(action: str, fields: dict[str, str]) -> str:
        """Choose all runs of a query, and confirm; returns the id of the job."""
        look(person.driver, *next(person.looks))
        person.driver.get(f"{person.base}/runs?q=attr.many%3Dyes")
        press(person.driver, By.CSS_SELECTOR, "#bulk [name=all]")
        press(person.driver, By.CSS_SELECTOR, f"#bulk button[value={action}]")
        wait(person.driver, lambda one: one.find_element(By.CSS_SELECTOR, f"form[action='/bulk/{action}']"))
        assert "many-1" in text_of(person.driver, "main")
        person.confirm("form.confirm", "bulk-", **fields)
        return person.driver.current_url.rpartition("/")[2]

    for action, check in (
        ("pause", holds(run, reason="paused")),
        ("resume", holds(run, reason="timer")),
        ("send", holds(run, reason="timer")),
        ("terminate", holds(run, status=Status.FAILED)),
        ("retry", holds(run, reason="timer")),
        ("cancel", holds(run, status=Status.CANCELLED)),
        ("delete", lambda: _is_deleted(run)),
    ):
        fields = {"message": "hello", "value": "1"} if action == "send" else {"reason": "tidy"}
        job = await asyncio.to_thread(choose, action, fields)
        assert (await (await engine.get(job)).result("60s"))["done"] == 1, action
        await eventually(check, saying=action)
        person.done.add(("bulk", action))


async def _is_deleted(run: Handle[Any]) -> bool:
    return bool((await run.info()).deleted_at)


#: The last one ends the worker.
PARTS = (on_runs, on_places, on_many, on_others)
#: Parts of SQLite and of PostgreSQL.
PARTS_OF = {True: (on_runs, on_others), False: (on_places, on_many)}
#: What each part does; together, every action that there is.
EXPECTED: dict[Any, set[tuple[str, str]]] = {
    on_runs: {("run", name) for name in BY_NAME},
    on_places: {key for key in ORDERS if key != ("worker", "drain")},
    on_many: {("bulk", name) for name in BULK},
    on_others: {
        ("worker", "drain"),
        ("group", "retry"),
        ("group", "discard"),
        ("form", "/workflows/shop.reminder.v1/start"),
        ("form", "/schedules/nightly-report/change"),
        ("form", "/schedules/nightly-report/backfill"),
        ("form", "/events"),
        ("form", "/events/paid-42/replay"),
        ("form", "/deploy/check"),
    },
}
#: Routes of the actions by their kind, besides those of single forms.
ROUTED = {
    "/runs/{}/{}", "/bulk", "/bulk/{}", "/schedules/{}/{}", "/queues/{}/{}/{}", "/dead-letters/{}/{}", "/workers/{}/{}",
}  # fmt: skip


def test_every_route_that_changes_something_belongs_to_an_action_that_is_clicked() -> None:
    forms = {path.split("/")[-1] for kind, path in EXPECTED[on_others] if kind == "form"}
    others = {route.path for route in ROUTES if route.method == "POST"} - ROUTED
    assert {path.split("/")[-1] for path in others} == forms


@pytest.mark.timeout(600)
async def test_every_action_is_clicked_through_against_a_live_worker(place: Stage, driver: Chrome) -> None:
    parts = PARTS if os.environ.get("PERDURE_PROVE") else PARTS_OF[place.path is not None]
    shop = place.engine(*WORKFLOWS, clerk, sign, audit="full", outbox=subscriptions(), build="1.4.2")
    async with shop as engine, engine.worker(slots=20, grace=0):
        runs = await populate(engine)
        await publish(engine)
        token = (await engine.tokens.create("night-shift", "operator")).token
        async with serving(engine, Access()) as base:
            person = Person(driver, base)
            await asyncio.to_thread(person.log_in, token)
            for part in parts:
                person.done.clear()
                await part(person, engine, runs)
                assert person.done == EXPECTED[part]
            assert problems(driver, base) == []
            await asyncio.to_thread(person.log_out)
