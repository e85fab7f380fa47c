"""A headless Chromium: Debian's packages `chromium` and `chromium-driver`, driven by Selenium."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

WIDE = (1280, 860)
PHONE = (390, 844)


def missing() -> str:
    """What is not installed; empty if a browser can be started."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else ""


@contextmanager
def browser() -> Iterator[Chrome]:
    """A browser, for the time of the block."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in (
        "--headless=new",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--force-color-profile=srgb",
        # Root has no sandbox; a container runs as root.
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ):
        options.add_argument(argument)
    # A page follows the server for as long as it is open, so it never stops loading.
    options.page_load_strategy = "normal"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.set_page_load_timeout(110)
        # The checks of accessibility take long on a busy machine.
        driver.set_script_timeout(110)
        yield driver
    finally:
        driver.quit()


def look(driver: Chrome, size: tuple[int, int], theme: str) -> None:
    """Show pages in a size and in light or dark."""
    width, height = size
    command(
        driver, "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
        mobile=size == PHONE,
    )  # fmt: skip
    command(driver, "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])


def picture(driver: Chrome, path: Path) -> None:
    """Write the whole page as a picture."""
    found = command(driver, "Page.captureScreenshot", format="png", captureBeyondViewport=True)
    path.write_bytes(base64.b64decode(found["data"]))


def command(driver: Chrome, name: str, **parameters: Any) -> Any:
    """Send a command of the DevTools protocol."""
    return driver.execute_cdp_cmd(name, parameters)


def log_of(driver: Chrome, name: str) -> list[Any]:
    """What a log of the browser has that was not read before."""
    untyped: Any = driver
    found: list[Any] = untyped.get_log(name)
    return found
