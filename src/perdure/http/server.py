"""A server with the HTTP API, on uvicorn; loopback unless callers are authenticated."""

from __future__ import annotations

import ipaddress
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn

from perdure.client.engine import Engine
from perdure.core.printed_text import brief
from perdure.errors import UsageError
from perdure.http.access import LOOPBACK_HOSTS, Access
from perdure.http.app import HttpApp, SideBySide

#: Seconds for which requests may end after a stop signal; streams are cut off then.
GRACE = 5
PORT = 8470


def parse_bind(text: str) -> tuple[str, int]:
    """Parse an address to listen on: `127.0.0.1:8470`, `[::1]:8470`, or a host alone. Raises `UsageError`."""
    host, found, port = text.rpartition(":")
    if not found or text.endswith("]"):
        host, port = text, str(PORT)
    if not host or not port.isdecimal() or not port.isascii() or int(port[:6]) > 65535:
        raise UsageError(f"{brief(text)} is not an address to listen on; give one such as 127.0.0.1:{PORT}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def check_bind(engine: Engine, access: Access, host: str) -> None:
    """Raise `UsageError` for an address that other machines reach, unless callers are authenticated."""
    if is_loopback(host):
        return
    if access.anonymous is not None:
        raise UsageError(
            f"{host} is reached by other machines, and anonymous callers would be {access.anonymous.value}; listen on "
            f"127.0.0.1, or create a token and leave out --anonymous"
        )
    if access.authenticate is None and access.login is None and not await engine.tokens.list(limit=1):
        raise UsageError(
            f"{host} is reached by other machines, and no caller could be authenticated: create a token first "
            "(perdure tokens create), or listen on 127.0.0.1"
        )
    if access.hosts == frozenset(LOOPBACK_HOSTS):
        raise UsageError(
            f"{host} is reached by other machines, under names that the server has to know: give each by --host"
        )


class SignalledServer(uvicorn.Server):
    """A server that SIGTERM and SIGINT stop in order: streams end, requests get time, and `serve` returns.

    A server of uvicorn sends itself the signal once more, which would end the process before its engine is closed.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop at a signal; a second SIGINT stops at once."""
        try:
            before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        except ValueError:
            # Only the main thread gets signals.
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: Any = None) -> None:
        """End streams, wait for requests, and close."""
        self._on_stop()
        await super().shutdown(sockets)


def make_server(app: HttpApp | SideBySide, host: str, port: int, root_path: str = "") -> SignalledServer:
    """Make a server that has not been started."""
    return SignalledServer(server_config(app, host, port, root_path), app.end_streams)


def server_config(app: Any, host: str, port: int, root_path: str = "") -> uvicorn.Config:
    """Make the configuration of a server, for any ASGI application."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        root_path=root_path,
        lifespan="on",
        ws="none",
        # The application itself believes headers of proxies, of trusted ones only.
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=GRACE,
    )
