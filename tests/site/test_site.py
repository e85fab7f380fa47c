"""The documentation site: it builds without a warning, has no dead link, and makes no request to another host."""

from __future__ import annotations

import fcntl
import functools
import importlib
import json
import os
import re
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.dashboard.browsing import wait
from tests.dashboard.chromium import WIDE, browser, log_of, look, missing

#: One process of pytest builds the site, and the others wait: on a busy machine longer than a test usually gets.
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parent.parent.parent
#: What a page loads by itself, without a click.
LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "link": "href",
}
STYLE_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(HTMLParser):
    """Links, loaded files and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.unnamed_pictures: list[str] = []
        self.styles: list[str] = []
        self.text: list[str] = []
        self._inside = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self._inside = tag
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in LOADED and LOADED[tag] in found and found.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(found[LOADED[tag]])
        if tag == "img" and not found.get("alt"):
            self.unnamed_pictures.append(found["src"])

    def handle_data(self, data: str) -> None:
        (self.styles if self._inside == "style" else self.text).append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, which the processes of pytest share."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, finished = shared / "site", shared / "site.finished"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")
            finished.touch()
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_the_site_has_no_dead_link(site: Path, pages: dict[Path, Page]) -> None:
    dead = defaultdict(set)
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment) if target.suffix == ".html" else ""
            if not target.is_file() or (anchor and anchor not in pages[target].anchors):
                dead[link].add(path.name)
    assert not dead


def test_no_page_loads_anything_from_another_host(site: Path, pages: dict[Path, Page]) -> None:
    foreign = {link for page in pages.values() for link in page.loaded if urlsplit(link).netloc}
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    styles += [style for page in pages.values() for style in page.styles]
    found = {one or other for style in styles for one, other in STYLE_URL.findall(style)}
    assert foreign | {one for one in found if urlsplit(one).netloc} == set()


def test_every_picture_has_a_text(pages: dict[Path, Page]) -> None:
    assert {link for page in pages.values() for link in page.unnamed_pictures} == set()


@pytest.mark.parametrize("module", ["perdure", "perdure.blocking", "perdure.testing"])
def test_the_reference_has_the_public_names_of_a_module(module: str, pages: dict[Path, Page], site: Path) -> None:
    public = importlib.import_module(module).__all__
    anchors = {anchor.rpartition(".")[2] for anchor in pages[site / "reference" / "python" / f"{module}.html"].anchors}
    # Aliases of types have no docstring.
    assert len(set(public) - anchors) <= len(public) * 0.1, set(public) - anchors


def test_programs_find_every_page_as_text(site: Path) -> None:
    listed = re.findall(r"^- \[(.+)\]\(([^)]+)\): (.+)$", (site / "llms.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(listed) > 70
    for title, address, summary in listed:
        assert f"# {title.split('`')[0]}" in (site / address).read_text(encoding="utf-8").replace("`", "")
        assert 20 < len(summary) < 600, address
    assert "# How it works" in (site / "llms-full.txt").read_text(encoding="utf-8")
    assert (site / "skill" / "SKILL.md").read_text(encoding="utf-8").count("\n") < 250


def test_the_skill_has_a_name_and_a_short_description() -> None:
    text = (ROOT / "docs" / "skill" / "SKILL.md").read_text(encoding="utf-8")
    found = re.match(r"---\nname: ([a-z-]{1,64})\ndescription: (.{1,1024})\n---\n", text)
    assert found is not None


class Handler(SimpleHTTPRequestHandler):
    """Serves the site with a policy that forbids other hosts, so that an attempt is in the log of the browser."""

    def end_headers(self) -> None:
        scripts = "script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'"
        policy = f"default-src 'self'; {scripts}; img-src 'self' data:"
        self.send_header("Content-Security-Policy", policy)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.skipif(
    bool(missing()) and os.environ.get("CI") != "true", reason=f"no browser: {missing()}; apt install chromium-driver"
)
def test_the_search_works_without_another_host(site: Path) -> None:
    with served(site) as address, browser() as driver:
        look(driver, WIDE, "light")
        driver.get(f"{address}/index.html")
        box = driver.find_element(By.CSS_SELECTOR, "input.md-search__input")
        box.send_keys("approval timeout", Keys.SPACE)

        def found(driver: object) -> bool:
            return any(
                "Patterns" in one.text
                for one in box.find_elements(By.XPATH, "//ol[@class='md-search-result__list']/li")
            )

        wait(driver, found, "a result of the search")
        driver.get(f"{address}/concepts/how-it-works.html")
        requests = [json.loads(one["message"])["message"] for one in log_of(driver, "performance")]
        urls = {one["params"]["request"]["url"] for one in requests if one["method"] == "Network.requestWillBeSent"}
        assert len(urls) > 5
        assert {url for url in urls if not url.startswith((address, "data:", "about:", "blob:"))} == set()
        assert [
            one["message"] for one in log_of(driver, "browser") if "Content Security Policy" in one["message"]
        ] == []
