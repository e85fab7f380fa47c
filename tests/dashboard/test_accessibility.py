"""Every page in light and dark, wide and on a phone, by the rules of axe-core."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.dashboard.browsing import requires_browser, serving
from tests.dashboard.chromium import PHONE, WIDE, look
from tests.dashboard.screenshots import PAGES, SHOP, furnish
from tests.dashboard.shop import WORKFLOWS, populate, subscriptions
from tests.stage import Stage

pytestmark = requires_browser

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"], runOnly: arguments[0]}).then(
  (found) => done(found.violations.map((one) => [one.impact, one.id, one.nodes.map((node) => node.html)])),
  (error) => done([["error", String(error), []]]),
);
"""
#: Text, position and outline of the element that has the focus.
FOCUSED = """
const one = document.activeElement;
if (one === document.body) return null;
const outlined = getComputedStyle(one).outlineStyle !== "none";
return [one.innerText || one.getAttribute("aria-label") || "", one.getBoundingClientRect().y, outlined];
"""
#: All rules, and those that depend on the theme.
ALL_RULES = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
CONTRAST = {"type": "rule", "values": ["color-contrast", "link-in-text-block", "target-size"]}


#: Looks in which each page is checked by all rules, and those in which half of the pages are checked for contrast:
#: their layouts and colours were seen before, not together. `make prove` tries all looks with all rules.
LOOKS = ((WIDE, "light"), (PHONE, "dark"))
OTHER_LOOKS = ((WIDE, "dark"), (PHONE, "light"))


def looks_of(page: int) -> list[tuple[Any, str, dict[str, Any]]]:
    """Looks of a page, by its number, and their rules."""
    whole = [*LOOKS, *OTHER_LOOKS] if os.environ.get("PERDURE_PROVE") else [*LOOKS]
    size, theme = OTHER_LOOKS[page % 2]
    return [(*look, ALL_RULES) for look in whole] + ([(size, theme, CONTRAST)] if len(whole) == len(LOOKS) else [])


def violations(driver: Chrome, url: str, source: str, page: int) -> dict[Any, Any]:
    """Broken rules of a page by look. Nearly all of the time is axe's; so a page is loaded once for all looks."""
    found: dict[Any, Any] = {}
    for number, (size, theme, rules) in enumerate(looks_of(page)):
        look(driver, size, theme)
        if not number:
            driver.get(url)
            driver.execute_script(source)
        if wrong := driver.execute_async_script(RUN, rules):
            found[size, theme] = wrong
    return found


@pytest.mark.timeout(600)
async def test_no_page_breaks_a_rule_of_accessibility(on_disk: Stage, driver: Chrome) -> None:
    source = AXE.read_text(encoding="utf-8")
    shop = on_disk.engine(*SHOP, audit="full", outbox=subscriptions())
    async with shop as engine, engine.worker(slots=10, grace=0):
        await furnish(engine)
        async with serving(engine) as base:
            found: dict[str, Any] = {}
            for number, (name, path) in enumerate(PAGES.items()):
                if wrong := await asyncio.to_thread(violations, driver, f"{base}/{path}", source, number):
                    found[name] = wrong
            await asyncio.to_thread(driver.get, "about:blank")
    assert found == {}


async def test_keys_alone_lead_through_a_page_in_the_order_in_which_it_is_read(on_disk: Stage, driver: Chrome) -> None:
    look(driver, WIDE, "light")
    async with on_disk.engine(*WORKFLOWS, audit="full") as engine, engine.worker(slots=10, grace=0):
        await populate(engine)
        async with serving(engine) as base:

            def places(path: str) -> list[tuple[str, float, bool]]:
                driver.get(f"{base}/{path}")
                found: list[tuple[str, float, bool]] = []
                for _ in range(40):
                    ActionChains(driver).send_keys(Keys.TAB).perform()
                    if (one := driver.execute_script(FOCUSED)) is None:
                        break
                    found.append(tuple(one))
                return found

            for path in ("runs", "runs/order-42", "queues"):
                seen = await asyncio.to_thread(places, path)
                assert len(seen) > 10, path
                assert seen[0][0] == "Skip to content", path
                assert all(outlined for _, _, outlined in seen[1:]), path
            await asyncio.to_thread(driver.get, "about:blank")
