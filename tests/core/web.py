"""A real HTTP server that answers as its path requests, and the HTTP libraries that call it."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import aiohttp
import httpx
import requests


class _Answer(BaseHTTPRequestHandler):
    """Answers `/429?after=7` with a 429 and Retry-After of 7 s; `date=60` sends a date, `undated` omits the Date."""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        wanted = {name: values[0] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        self.send_response_only(int(address.path.strip("/")))
        if "undated" not in wanted:
            self.send_header("Date", formatdate(1_000_000, usegmt=True))
        if "after" in wanted:
            self.send_header("Retry-After", wanted["after"])
        if "date" in wanted:
            self.send_header("Retry-After", formatdate(1_000_000 + int(wanted["date"]), usegmt=True))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[str]:
    """The server's address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def with_httpx(url: str) -> None:
    httpx.get(url, trust_env=False).raise_for_status()


def with_requests(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.get(url, timeout=20).raise_for_status()


def with_aiohttp(url: str) -> None:
    async def ask() -> None:
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(url):
            pass

    asyncio.run(ask())


def with_urllib(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=20):
        pass


LIBRARIES: dict[str, Callable[[str], None]] = {
    "httpx": with_httpx,
    "requests": with_requests,
    "aiohttp": with_aiohttp,
    "urllib": with_urllib,
}
