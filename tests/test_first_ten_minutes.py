"""The first ten minutes of a newcomer: an empty environment, `perdure init`, `perdure dev`, and a browser."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.dashboard.browsing import press, text_of, type_into, wait
from tests.dashboard.chromium import WIDE, browser, look, missing

ROOT = Path(__file__).parent.parent

pytestmark = [
    pytest.mark.skipif(
        bool(missing()) and os.environ.get("CI") != "true",
        reason=f"no browser: {missing()}; apt install chromium-driver",
    ),
    # Packages are built, fetched and installed, which on a busy machine takes longer than a test usually gets.
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def perdure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a wheel that was installed into an empty environment."""
    place = tmp_path_factory.mktemp("newcomer")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--wheel-dir", str(place), str(ROOT)]
    venv.create(place / "venv", with_pip=False, symlinks=True)
    python = place / "venv" / "bin" / "python"
    for command in (wheel, [*pip, "--python", str(python), "install", "--prefer-binary"]):
        packages = [f"{one}[dev]" for one in place.glob("*.whl")] if command is not wheel else []
        ran = subprocess.run([*command, *packages], capture_output=True, text=True, check=False)
        if ran.returncode and "CI" not in os.environ and re.search("No matching distribution|retries", ran.stderr):
            pytest.skip(f"no package index can be reached: {ran.stderr.splitlines()[-1]}")
        assert ran.returncode == 0, ran.stderr
    return python.with_name("perdure")


class Terminal:
    """A command in a terminal, and what it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.text = ""
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self.text += line
                self._more.notify_all()

    def until(self, pattern: str) -> str:
        """The first group of a pattern, once it was printed."""
        with self._more:
            assert self._more.wait_for(lambda: re.search(pattern, self.text), timeout=90), self.text
        found = re.search(pattern, self.text)
        assert found is not None
        return found[1]

    def stop(self) -> int:
        """Press Ctrl-C, and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=60)
        # The pipe ends with the last process that holds it.
        self._reader.join(timeout=60)
        assert not self._reader.is_alive(), self.text
        return code


@contextmanager
def running(*command: str | Path, cwd: Path) -> Iterator[Terminal]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "VIRTUAL"))}
    with subprocess.Popen(
        command, cwd=cwd, env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield Terminal(process)
        finally:
            process.kill()


def shows(driver: Chrome, *words: str) -> None:
    """Wait until the head of a run's page shows some words; the page follows the run by itself."""

    def seen(found: Chrome) -> bool:
        text = text_of(found, "#run-head")
        return all(word in text for word in words)

    wait(driver, seen, f"the page shows {words}")


def start_order(driver: Chrome) -> None:
    def form(found: Chrome) -> bool:
        # The worker registers its workflows when it begins; until then the page has none.
        found.find_element(By.LINK_TEXT, "Workflows").click()
        found.find_element(By.CSS_SELECTOR, "a[href='/workflows/orders.order.v1/start']").click()
        return True

    wait(driver, form, "the form to start an order")
    arguments = wait(driver, lambda found: found.find_element(By.NAME, "input"), "the arguments")
    assert re.sub(r"\s", "", arguments.get_attribute("value") or "") == '{"item":"","quantity":1}'
    arguments.clear()
    arguments.send_keys('{"item": "teapot", "quantity": 2}')
    type_into(driver, By.NAME, "id", "order-1")
    press(driver, By.CSS_SELECTOR, "form.confirm button")


def test_a_newcomer_sees_a_run_survive_the_death_of_its_worker(perdure: Path, tmp_path: Path) -> None:
    made = subprocess.run([perdure, "init", "shop"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "perdure dev app:engine" in made.stdout
    with (
        running(perdure, "dev", "app:engine", "--no-browser", cwd=tmp_path / "shop") as terminal,
        browser() as driver,
    ):
        look(driver, WIDE, "light")
        page = terminal.until(r"dashboard  (http://127\.0\.0\.1:\d+/)")
        worker = int(terminal.until(r"worker (\d+) works on sqlite:///app\.db: orders\.order\.v1"))
        driver.get(page)
        start_order(driver)
        shows(driver, "order-1")
        terminal.until(r"(started) +order-1")

        os.kill(worker, signal.SIGKILL)
        terminal.until(rf"worker {worker} (was killed by SIGKILL)")
        terminal.until(rf"(?s)worker {worker} was killed.*worker (\d+) works on")
        shows(driver, "waiting", "approval")
        assert "find_price" in text_of(driver, "#run-timeline")
        terminal.until(r"(interrupted) +order-1")

        press(driver, By.LINK_TEXT, "Send")
        name = wait(driver, lambda found: found.find_element(By.NAME, "name"), "the form of a message")
        assert name.get_attribute("value") == "approval"
        press(driver, By.CSS_SELECTOR, "form.confirm button")
        shows(driver, "completed")
        wait(driver, lambda found: "2 x teapot shipped" in text_of(found, "body"), "the result")
        terminal.until(r"(completed)   order-1  [\d.]+ s\n")
        driver.get("about:blank")
        assert terminal.stop() == 0, terminal.text
    assert "Traceback" not in terminal.text
