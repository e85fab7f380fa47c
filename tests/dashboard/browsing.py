"""A browser on the pages of a real server, for tests."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from perdure import Engine
from perdure.dashboard import Dashboard
from perdure.http import Access, HttpApp
from perdure.http.server import make_server
from tests.dashboard.chromium import log_of, missing

requires_browser = pytest.mark.skipif(
    bool(missing()) and os.environ.get("CI") != "true", reason=f"no browser: {missing()}; apt install chromium-driver"
)

#: Errors of a page that is being replaced.
_PASSING = (
    NoSuchElementException, StaleElementReferenceException, ElementClickInterceptedException,
    ElementNotInteractableException,
)  # fmt: skip


@asynccontextmanager
async def serving(engine: Engine, access: Access | None = None) -> AsyncIterator[str]:
    """A real server with the pages of an engine; its address."""
    access = Access(anonymous="operator") if access is None else access
    # As in `perdure dev`: one reader, who does not wait for the budget of a shared database.
    app = HttpApp(engine, access=access, pages=Dashboard(), rate=1000, burst=1000, live_rate=100)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()  # a connection that comes before the server is ready waits for it
        server = make_server(app, "127.0.0.1", one.getsockname()[1])
        task = asyncio.create_task(server.serve(sockets=[one]))
        try:
            yield f"http://127.0.0.1:{one.getsockname()[1]}"
        finally:
            server.should_exit = True
            server.force_exit = True
            await task


def problems(driver: Chrome, base: str) -> list[Any]:
    """Errors on the console, reports of the policy, and requests to other hosts."""
    found: list[Any] = [one for one in log_of(driver, "browser") if one["level"] in ("SEVERE", "WARNING")]
    for entry in log_of(driver, "performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            if not url.startswith((base, "data:", "about:", "chrome")):
                found.append(url)
    return found


def wait(driver: Chrome, condition: Callable[[Chrome], Any], saying: str = "") -> Any:
    """Wait until a condition holds on the page; an element may be replaced by an update while it is looked at."""
    patience = WebDriverWait(driver, 90, poll_frequency=0.1, ignored_exceptions=_PASSING)
    return patience.until(condition, saying)


def text_of(driver: Chrome, selector: str) -> str:
    """The text of the first element that fits, once there is one. One command, between which no update can come."""
    read = "const one = document.querySelector(arguments[0]); return one && [one.innerText]"
    return str(wait(driver, lambda found: found.execute_script(read, selector), f"{selector} is there")[0])


def press(driver: Chrome, by: str, name: str) -> None:
    """Click on an element, once there is one that takes it."""

    def click(found: Chrome) -> bool:
        found.find_element(by, name).click()
        return True

    wait(driver, click, f"{name} can be clicked")


def type_into(driver: Chrome, by: str, name: str, *keys: str) -> None:
    """Type into an element, once there is one that takes it."""

    def type_keys(found: Chrome) -> bool:
        found.find_element(by, name).send_keys(*keys)
        return True

    wait(driver, type_keys, f"{name} takes keys")


def is_live(driver: Chrome) -> bool:
    """Tell whether the page follows the server."""
    return "on" in (driver.find_element(By.CLASS_NAME, "live").get_attribute("class") or "").split()


def too_wide(driver: Chrome) -> int:
    """Pixels by which a page is wider than the screen."""
    return int(
        driver.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth") or 0
    )
