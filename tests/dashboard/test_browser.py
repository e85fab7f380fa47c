"""Pages in a real browser, headless Chromium: light and dark, wide and on a phone, live."""

from __future__ import annotations

import asyncio
import datetime
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from perdure import Context, Workflow, workflow
from perdure.admin import Role
from perdure.core.model.run import Status
from perdure.dashboard.site import ROUTES, find_route
from perdure.http import Access
from tests.dashboard.browsing import (
    is_live,
    press,
    problems,
    requires_browser,
    serving,
    text_of,
    too_wide,
    type_into,
    wait,
)  # fmt: skip
from tests.dashboard.chromium import PHONE, WIDE, command, log_of, look
from tests.dashboard.screenshots import CHARTED, PAGES, REFUSED, SHOP, furnish
from tests.dashboard.shop import WORKFLOWS, crawl, fetch, populate, slow, subscriptions
from tests.helpers import eventually
from tests.stage import Stage

pytestmark = requires_browser


#: Routes of pages that only lead to another page, or to a file.
LEADING = {"/theme", "/runs/{}/diff", "/runs/{}/payload/{}"}


#: Places whose text runs out of them, and tables whose last columns are out of sight.
CROWDED = """
const [selector] = arguments;
const parents = (one) => (one.tagName === "TABLE" ? one.parentElement : one);
const all = [...document.querySelectorAll(selector)].map(parents);
const wide = all.filter((one) => one.scrollWidth > one.clientWidth + 1);
return wide.map((one) => `${one.className} ${one.innerText.slice(0, 80)}`);
"""
NEVER_CROWDED = {
    WIDE: ".figure dd, .scroll:not(.source), .panel .trace",
    PHONE: ".figure dd, .stack, .flow",
}


PROVE = bool(os.environ.get("PERDURE_PROVE"))
#: With the themes that a page has in it. `make prove` opens all pages in both sizes on each database; otherwise each
#: database has one of them.
SIZES = ((WIDE, ("light", "dark")), (PHONE, ("dark", "light")))


async def test_every_page_opens_in_each_look_without_an_error(place: Stage, driver: Chrome) -> None:
    paths = [path for name, path in PAGES.items() if name not in REFUSED]
    opened = {find_route("GET", f"/{path.partition('?')[0]}")[0].path for path in paths if path != "login"}
    assert {route.path for route in ROUTES if route.role is Role.VIEWER} - LEADING <= opened
    shop = place.engine(*SHOP, audit="full", outbox=subscriptions())
    async with shop as engine, engine.worker(slots=10, grace=0):
        await furnish(engine)
        async with serving(engine) as base:
            backgrounds: dict[str, str] = {}
            wrong: dict[Any, Any] = {}
            # A page is loaded once in each size, in which it has one theme after the other.
            for size, themes in SIZES if PROVE else SIZES[place.path is None :: 2]:
                for path in paths:
                    look(driver, size, themes[0])
                    await asyncio.to_thread(driver.get, f"{base}/{path}")
                    for theme in themes:
                        look(driver, size, theme)
                        assert await asyncio.to_thread(too_wide, driver) <= 0, (path, size, theme)
                        body = driver.find_element(By.TAG_NAME, "body")
                        backgrounds[theme] = body.value_of_css_property("background-color")
                    if crowded := await asyncio.to_thread(driver.execute_script, CROWDED, NEVER_CROWDED[size]):
                        wrong[path, size] = crowded
            assert wrong == {}
            assert problems(driver, base) == []
            assert backgrounds["light"] != backgrounds["dark"]
            await asyncio.to_thread(driver.get, "about:blank")


async def test_a_page_follows_its_run_and_keys_lead_through_it(place: Stage, driver: Chrome) -> None:
    look(driver, WIDE, "light")
    async with place.engine(*WORKFLOWS, audit="full") as engine, engine.worker(slots=10, grace=0):
        runs = await populate(engine)
        async with serving(engine) as base:

            def follow() -> None:
                driver.get(f"{base}/runs/order-41")
                wait(driver, is_live)
                command(driver, "Runtime.evaluate", expression="window.kept = true")
                wait(driver, lambda d: "History 6" in " ".join(text_of(d, "#tabs").split()), "all records are there")

            await asyncio.to_thread(follow)
            await runs["waiting"].send("approval", value=True)
            head = (By.ID, "run-head")
            await asyncio.to_thread(wait, driver, lambda d: "It completed" in d.find_element(*head).text)
            await asyncio.to_thread(wait, driver, lambda d: "History 9" in " ".join(text_of(d, "#tabs").split()))
            # The page was not loaded again.
            assert driver.execute_script("return window.kept")

            def by_keys() -> None:
                type_into(driver, By.TAG_NAME, "body", "7")
                wait(driver, lambda d: "tab=history" in d.current_url)
                type_into(driver, By.TAG_NAME, "body", "/")
                driver.switch_to.active_element.send_keys("status:failed", Keys.ENTER)
                wait(driver, lambda d: "q=status" in d.current_url)
                type_into(driver, By.TAG_NAME, "body", "j", "j", Keys.ENTER)
                wait(driver, lambda d: "/runs/order-43" in d.current_url)
                type_into(driver, By.TAG_NAME, "body", "r")
                wait(driver, lambda d: d.current_url.endswith("/retry"))
                press(driver, By.CSS_SELECTOR, "form.confirm button")
                wait(driver, lambda d: "goes again" in d.find_element(By.CLASS_NAME, "notice").text)

            await asyncio.to_thread(by_keys)
            assert (await runs["failed-too"].info()).generation == 2
            assert problems(driver, base) == []
            await asyncio.to_thread(driver.get, "about:blank")


async def test_times_are_in_the_zone_of_the_reader_and_in_utc_on_hover(on_disk: Stage, driver: Chrome) -> None:
    look(driver, WIDE, "light")
    async with on_disk.engine(*WORKFLOWS) as engine, engine.worker(grace=0), serving(engine) as base:
        run = await engine.start(crawl(1), id="crawl-1")
        await run.result("60s")
        command(driver, "Emulation.setTimezoneOverride", timezoneId="Asia/Tokyo")
        await asyncio.to_thread(driver.get, f"{base}/runs/crawl-1?tab=history")
        found = driver.execute_script(
            "const all = document.querySelectorAll('#run-tab time');"
            "return [...all].map((one) => [one.dateTime, one.title, one.innerText])"
        )
        heads = driver.execute_script("return [...document.querySelectorAll('th')].map((one) => one.innerText)")
        command(driver, "Emulation.setTimezoneOverride", timezoneId="")
        await asyncio.to_thread(driver.get, "about:blank")
    assert found
    for stored, title, text in found:
        moment = datetime.datetime.fromisoformat(stored)
        assert text == f"{moment.astimezone(ZoneInfo('Asia/Tokyo')):%Y-%m-%d %H:%M:%S.%f}"[:-3]
        assert title == f"{stored} (UTC)"
    assert "time" in heads


async def test_the_switch_of_the_theme_changes_what_is_seen_whatever_the_browser_prefers(
    on_disk: Stage, driver: Chrome
) -> None:
    async with on_disk.engine() as engine, serving(engine) as base:

        def background() -> str:
            return str(driver.find_element(By.TAG_NAME, "body").value_of_css_property("background-color"))

        def changed_from(last: str) -> Callable[[Chrome], str]:
            return lambda _: "" if (now := background()) == last else now

        def switch(prefers: str) -> list[str]:
            driver.delete_all_cookies()
            look(driver, WIDE, prefers)
            driver.get(f"{base}/queues")
            seen = [background()]
            for _ in range(2):
                [button] = [one for one in driver.find_elements(By.CSS_SELECTOR, ".tools .theme") if one.is_displayed()]
                button.click()
                # The page may be loaded again, after the click has been answered.
                seen.append(wait(driver, changed_from(seen[-1]), "the background changes"))
            return seen

        for prefers in ("light", "dark"):
            first, second, third = await asyncio.to_thread(switch, prefers)
            assert first == third != second, prefers
        driver.delete_all_cookies()
        await asyncio.to_thread(driver.get, "about:blank")


FOCUSED = """
const [place, number] = arguments;
window.kept = document.querySelectorAll(`${place} a[href], ${place} summary, ${place} button`)[number];
window.kept?.focus();
return window.kept === document.activeElement;
"""


async def test_an_update_keeps_the_focus_and_what_is_open(place: Stage, driver: Chrome) -> None:
    look(driver, WIDE, "light")
    async with place.engine(*WORKFLOWS, audit="full") as engine, engine.worker(slots=10, grace=0):
        runs = await populate(engine)
        async with serving(engine) as base:

            def focus(path: str, part: str) -> None:
                driver.get(f"{base}/{path}")
                wait(driver, is_live)
                assert wait(driver, lambda found: found.execute_script(FOCUSED, part, 0), part)
                driver.execute_script("document.querySelector('details[id]')?.setAttribute('open', '')")

            def check() -> None:
                assert driver.execute_script("return document.activeElement === window.kept && window.kept.isConnected")
                details = "return [...document.querySelectorAll('details[id]')].slice(0, 1).every((one) => one.open)"
                assert driver.execute_script(details)

            await asyncio.to_thread(focus, "runs/order-41", "#run-timeline")
            await runs["waiting"].send("approval", value=True)
            await asyncio.to_thread(wait, driver, lambda found: "It completed" in text_of(found, "#run-head"))
            await asyncio.to_thread(check)
            await asyncio.to_thread(focus, "runs", "#run-slow-1")
            await runs["running"].terminate()
            await asyncio.to_thread(wait, driver, lambda found: "failed" in text_of(found, "#run-slow-1"))
            await asyncio.to_thread(check)
            assert problems(driver, base) == []
            await asyncio.to_thread(driver.get, "about:blank")


async def test_rows_are_selected_and_words_completed_by_keys_and_pointer(place: Stage, driver: Chrome) -> None:
    look(driver, WIDE, "light")
    async with place.engine(*WORKFLOWS, audit="full") as engine, serving(engine) as base:
        await engine.start_many([crawl(1) for _ in range(12)], ids=[f"crawl-{number:02}" for number in range(12)])

        def shown(selector: str) -> str:
            return text_of(driver, selector)

        def keys(*typed: str) -> None:
            type_into(driver, By.TAG_NAME, "body", *typed)

        def select() -> None:
            driver.get(f"{base}/runs")
            wait(driver, is_live)
            keys("j", "x", "j", "x")
            assert shown("[data-picked]") == "2 selected ·"
            assert driver.find_element(By.CSS_SELECTOR, "[data-compare]").is_displayed()
            # An update may replace the row between two commands of the driver.
            click = "new MouseEvent('click', {shiftKey: true, bubbles: true, cancelable: true})"
            driver.execute_script(f"document.querySelectorAll('input[name=run]')[4].dispatchEvent({click})")
            assert shown("[data-picked]") == "5 selected ·"
            press(driver, By.CSS_SELECTOR, "[data-pick-page]")
            assert shown("[data-picked]") == "12 selected ·"

        def told_of_new_rows() -> None:
            wait(driver, lambda _: "2 new" in shown(".new-rows"))
            # The rows that are there stay where they are, and stay selected.
            assert len(driver.find_elements(By.CSS_SELECTOR, "#run-rows tr")) == 12
            assert shown("[data-picked]") == "12 selected ·"
            keys("c")
            wait(driver, lambda d: "12 runs that you selected are asked to stop" in shown("main"))
            driver.back()
            wait(driver, lambda d: d.current_url == f"{base}/runs")
            driver.get(f"{base}/runs")
            keys("j", "r")
            wait(driver, lambda d: d.current_url.endswith("/runs/late-1/retry"))

        def complete() -> None:
            driver.get(f"{base}/runs")
            line = driver.find_element(By.CSS_SELECTOR, "[data-complete]")
            line.send_keys("sta")
            wait(driver, lambda _: "status:" in shown("#completions"))
            line.send_keys(Keys.TAB, "pen")
            wait(driver, lambda _: "status:pending" in shown("#completions"))
            line.send_keys(Keys.ARROW_DOWN, Keys.ENTER, "type:shop.c", Keys.ARROW_DOWN, Keys.ENTER)
            assert line.get_attribute("value") == "status:pending type:shop.crawl.v1 "
            line.send_keys(Keys.ENTER)
            wait(driver, lambda _: "14 runs fit the query." in shown(".sentence"))

        await asyncio.to_thread(select)
        await engine.start_many([crawl(1), crawl(1)], ids=["late-0", "late-1"])
        await asyncio.to_thread(told_of_new_rows)
        await asyncio.to_thread(complete)
        assert problems(driver, base) == []
        await asyncio.to_thread(driver.get, "about:blank")


async def test_the_charts_of_the_overview_are_drawn_and_share_a_cursor(place: Stage, driver: Chrome) -> None:
    look(driver, WIDE, "dark")
    async with place.engine(*WORKFLOWS) as engine, engine.worker(grace=0), serving(engine) as base:
        await (await engine.start(crawl(3))).result()

        def drawn() -> None:
            driver.get(f"{base}/?range=1h")
            wait(driver, lambda d: d.execute_script(CHARTED))
            plots = driver.find_elements(By.CSS_SELECTOR, ".u-over")
            assert len(plots) == 2
            ActionChains(driver).move_to_element_with_offset(plots[0], 150, 0).perform()

            def share(found: Chrome) -> bool:
                times = [one.text for one in found.find_elements(By.CSS_SELECTOR, ".u-legend tr:first-child .u-value")]
                return times[0] == times[1] != "--"

            wait(driver, share, "both charts show the time under the pointer")
            note = text_of(driver, "[data-chart-note]")
            assert "ended" in note
            assert "p99" in note
            # One of the newest parts, at the right edge, has the run: the one with a duration.
            edge = plots[1].size["width"] // 2
            for left in range(2, 200, 2):
                ActionChains(driver).move_to_element_with_offset(plots[1], edge - left, 0).perform()
                legend = driver.find_elements(By.CSS_SELECTOR, ".u-legend")[1]
                if " " in legend.find_elements(By.CSS_SELECTOR, ".u-value")[1].text:  # a figure and its unit
                    break
            ActionChains(driver).click().perform()
            wait(driver, lambda d: "/runs?q=" in d.current_url)
            wait(driver, lambda d: "1 run fits the query." in text_of(d, ".sentence"))
            assert "status:completed,failed,cancelled" in text_of(driver, ".chips")

        await asyncio.to_thread(drawn)
        assert problems(driver, base) == []
        await asyncio.to_thread(driver.get, "about:blank")


async def test_a_killed_worker_is_seen_to_go_and_its_run_to_be_taken_over(place: Stage, driver: Chrome) -> None:
    look(driver, WIDE, "light")
    async with place.engine(*WORKFLOWS, audit="full") as engine, serving(engine) as base:
        await engine.open()
        command_line = [sys.executable, "-m", "tests.dashboard.shop_worker", place.url]
        process = await asyncio.create_subprocess_exec(*command_line, cwd=Path(__file__).parents[2])
        try:
            run = await engine.start(slow(), id="slow-1")

            async def works() -> bool:
                return (await run.info()).status is Status.RUNNING and bool((await run.report()).running)

            await eventually(works, saying="the other process works on it")
            first = (await run.info()).worker
            assert first is not None

            def follow() -> None:
                driver.get(f"{base}/runs/slow-1")
                wait(driver, is_live)
                command(driver, "Runtime.evaluate", expression="window.kept = true")
                assert first[-8:] in text_of(driver, "#run-head")

            await asyncio.to_thread(follow)
            async with engine.worker(lease="6s", grace=0):
                process.kill()
                await asyncio.to_thread(
                    wait,
                    driver,
                    lambda d: "was lost; another one took over" in d.find_element(By.ID, "run-timeline").text,
                )
                second = (await run.info()).worker
                assert second not in (None, first)
                await asyncio.to_thread(
                    wait, driver, lambda d: str(second)[-8:] in d.find_element(By.ID, "run-head").text
                )
                # Each part of the page is drawn by itself.
                await asyncio.to_thread(wait, driver, lambda d: d.find_elements(By.CSS_SELECTOR, "line.m-takeover"))
                # The page was not loaded again.
                assert driver.execute_script("return window.kept")
                await asyncio.to_thread(driver.get, f"{base}/workers")
                dead = text_of(driver, f"#worker-{first}")
                assert "dead" in dead
                await asyncio.to_thread(driver.get, "about:blank")
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_a_limit_is_edited_in_place_while_the_page_is_live(on_disk: Stage, driver: Chrome) -> None:
    look(driver, WIDE, "light")
    async with on_disk.engine(*WORKFLOWS, audit="full") as engine, serving(engine, Access()) as base:
        await engine.limits.set("mail", concurrency=5)
        token = (await engine.tokens.create("night-shift", "operator")).token

        def begin() -> None:
            driver.get(f"{base}/queues")
            type_into(driver, By.NAME, "token", token, Keys.ENTER)
            wait(driver, is_live)
            press(driver, By.CSS_SELECTOR, "[id='edit-limit-mail'] summary")
            type_into(driver, By.CSS_SELECTOR, "[id='edit-limit-mail'] [name=concurrency]", Keys.BACKSPACE, "42")
            driver.execute_script("document.activeElement.blur()")

        def end() -> None:
            wait(driver, lambda found: "12 ready" in text_of(found, ".sentence"), "an update")
            # The form that is open stays as it is, and others have the token of this reader.
            token_of = "return [...document.querySelectorAll('main [name=csrf]')].every((one) => one.value)"
            assert driver.execute_script(token_of)
            type_into(driver, By.CSS_SELECTOR, "[id='edit-limit-mail'] [name=reason]", "they asked", Keys.ENTER)
            wait(driver, lambda found: "The limit mail has new bounds." in text_of(found, ".notice"))

        await asyncio.to_thread(begin)
        await engine.start_many([crawl(1) for _ in range(12)])
        await asyncio.to_thread(end)
        [limit] = await engine.limits.list()
        assert limit.bounds.concurrency == 42
        assert problems(driver, base) == []
        await asyncio.to_thread(driver.get, "about:blank")
        driver.delete_all_cookies()


def taxed(*, new: bool) -> Workflow[Any, Any]:
    """The code of an order, before and after a step was put in."""

    @workflow("deploy.order.v1")
    async def order(ctx: Context) -> None:
        await ctx.options(name="quote").step(fetch, 1)
        if new:
            await ctx.options(name="tax").step(fetch, 1)
        await ctx.options(name="charge").step(fetch, 1)
        await ctx.receive("go")

    return order


async def test_a_deploy_that_would_break_runs_is_seen_before_it_happens(place: Stage, driver: Chrome) -> None:
    before = taxed(new=False)
    async with place.engine(before, build="1.0") as engine, engine.worker(grace=0):
        runs = [await engine.start(before(), id=f"order-{number}") for number in range(2)]

        async def settled() -> bool:
            return all([(await run.info()).status is Status.WAITING for run in runs])

        await eventually(settled)
    async with place.engine(taxed(new=True), build="2.0") as engine, serving(engine) as base:

        def look_at() -> None:
            look(driver, PHONE, "dark")
            driver.get(f"{base}/deploy")
            assert "No deploy was checked yet" in text_of(driver, ".sentence")
            press(driver, By.LINK_TEXT, "Check the code of this server…")
            press(driver, By.CSS_SELECTOR, "main form button")
            sentence = "2 runs of 2 would diverge with build 2.0: deploy.order.v1. Fix it first."
            wait(driver, lambda found: text_of(found, ".sentence") == sentence, sentence)
            assert too_wide(driver) <= 0
            look(driver, WIDE, "light")
            driver.get(f"{base}/deploy")
            row = text_of(driver, "main tbody tr")
            for part in ("✕ diverges", "deploy.order.v1", "'charge'", "'tax'", "ctx.patched"):
                assert part in row, row
            press(driver, By.CSS_SELECTOR, "main tbody tr a.id")
            wait(driver, lambda found: "It waits for message 'go'" in text_of(found, "#run-head"))

        await asyncio.to_thread(look_at)
        assert problems(driver, base) == []
        await asyncio.to_thread(driver.get, "about:blank")


async def test_a_link_from_another_site_finds_its_reader_logged_in(on_disk: Stage, driver: Chrome) -> None:
    look(driver, WIDE, "light")
    async with on_disk.engine(*WORKFLOWS) as engine, serving(engine, Access()) as base:
        run = await engine.start(crawl(1), id="crawl-1")
        token = (await engine.tokens.create("night-shift", "operator")).token
        # The same server under another name is another site.
        elsewhere = base.replace("127.0.0.1", "localhost")

        def log_in() -> None:
            driver.get(f"{base}/runs")
            type_into(driver, By.NAME, "token", token, Keys.ENTER)
            wait(driver, lambda d: d.current_url == f"{base}/runs")

        def from_elsewhere(script: str) -> None:
            driver.get(f"{elsewhere}/livez")
            driver.execute_script(script)
            wait(driver, lambda d: d.current_url.startswith(base))

        await asyncio.to_thread(log_in)
        link = (
            f"const a = document.createElement('a'); a.href = '{base}/runs/crawl-1'; document.body.append(a); a.click()"
        )
        await asyncio.to_thread(from_elsewhere, link)
        assert driver.current_url == f"{base}/runs/crawl-1"
        assert "crawl-1" in text_of(driver, "h1")
        # A form of that site is refused, and does nothing.
        form = (
            f"const f = document.createElement('form'); f.method = 'post'; f.action = '{base}/runs/crawl-1/cancel'; "
            "document.body.append(f); f.submit()"
        )
        await asyncio.to_thread(from_elsewhere, form)
        assert (await run.info()).status is Status.PENDING
        log_of(driver, "browser")
        await asyncio.to_thread(driver.get, "about:blank")
        driver.delete_all_cookies()
