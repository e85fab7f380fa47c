"""The end point of worker processes: `perdure worker --metrics :9464`.

Processes of one host that are given the same port share it. One of them listens and serves the numbers of all; when it
ends, another one takes the port. The server has a thread of its own, so that it answers while the loop is busy.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, start_http_server

from perdure.client.engine import Engine
from perdure.client.session import session_of
from perdure.errors import UsageError
from perdure.metrics.prometheus import Metrics

if TYPE_CHECKING:
    from perdure.metrics.shared_directory import SharedDirectory

logger = logging.getLogger("perdure.metrics")

#: Seconds after which a process looks again whether the port is free.
LOOK_AGAIN = 1.0


def parse_address(text: str) -> tuple[str, int]:
    """Read `:9464`, `9464` or `127.0.0.1:9464`: host and port; without a host, all addresses. Raises `UsageError`."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--metrics {text}: give a port, or a host and a port, such as :9464 or 127.0.0.1:9464")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - as Prometheus asks for; the guide says so


class Endpoint:
    """Shows the metrics of an engine, and of the other processes on its port. Use it as an async context manager."""

    def __init__(self, engine: Engine, address: str) -> None:
        """`address`: such as `:9464`. Raises `UsageError`."""
        self._host, self._port = parse_address(address)
        self._system = session_of(engine).system
        self._directory = _join(self._port, f"{os.getpid()}-{self._system.entropy(4).hex()}")
        self.metrics = Metrics(engine, cells=None if self._directory is None else self._directory.cells)
        self.metrics.others = None if self._directory is None else self._directory.read_others
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self.metrics)
        #: The server and its thread.
        self._server: tuple[Any, Any] | None = None
        self._waiting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Endpoint:
        """Listen, or wait while another worker process listens. Raises `UsageError` if another program has the port."""
        try:
            listens = self._listen()
        except OSError as error:
            self._leave()
            raise UsageError(f"metrics cannot be shown at {self._host}:{self._port}: {error}") from error
        if not listens:
            logger.info("another process shows the metrics of this one, at port %d", self._port)
            self._waiting = self._system.spawn(self._wait(), "perdure metrics port")
        return self

    async def __aexit__(self, *_: Any) -> None:
        """Stop listening."""
        if self._waiting is not None:
            self._waiting.cancel()
        if self._server is not None:
            server, thread = self._server
            await self._system.in_thread(server.shutdown)
            server.server_close()
            thread.join()
        self._leave()

    def _leave(self) -> None:
        self.metrics.close()
        if self._directory is not None:
            self._directory.close()

    def _listen(self) -> bool:
        if self._directory is not None and not self._directory.may_gather():
            return False
        self._server = start_http_server(self._port, self._host, self._registry)
        logger.info("metrics are at http://%s:%d/metrics", self._host, self._port)
        return True

    async def _wait(self) -> None:
        while True:
            await self._system.sleep(LOOK_AGAIN)
            try:
                if self._listen():
                    return
            except OSError as error:
                # The former process may not have released the port yet.
                logger.warning("metrics cannot be shown at port %d yet: %s", self._port, error)


def _join(port: int, name: str) -> SharedDirectory | None:
    """Join the processes of a port; None on Windows, where each process needs its own port."""
    if sys.platform == "win32":
        return None
    from perdure.metrics.shared_directory import SharedDirectory, directory_of

    try:
        return SharedDirectory(directory_of(port), name)
    except OSError as error:
        raise UsageError(f"processes cannot share their metrics: {error}; set TMPDIR to a folder of yours") from error
