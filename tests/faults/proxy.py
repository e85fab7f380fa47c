"""A way to a database server that fails when it is told to.

It can lose the answer to the message that makes a write durable, lose that message, or deliver it late; and it can fall
silent without closing anything. See `wire` for how it knows that message.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from urllib.parse import urlsplit, urlunsplit

from tests.faults.wire import Reply, Request, Wire

_RESET = struct.pack("ii", 1, 0)


class Loss(Enum):
    """What becomes of a message that makes something durable, and of its connection."""

    #: It is carried out, the answer is lost and the connection with it.
    ANSWER = auto()
    #: It does not arrive; the connection is cut.
    REQUEST = auto()
    #: The connection is cut, and the message arrives all the same: later, when `deliver` is called.
    DELAY = auto()


class Fault:
    """One that has been ordered: the `nth` such message from now on whose statement has this text in it is lost."""

    def __init__(self, loss: Loss, nth: int, about: bytes) -> None:
        self.loss = loss
        self.left = nth
        self.about = about
        self.fired = False
        self._delayed: tuple[_Link, Request] | None = None

    def delay(self, link: _Link, request: Request) -> None:
        self._delayed = link, request

    async def deliver(self) -> None:
        """Let what was delayed arrive, and wait until the server has answered it."""
        if self._delayed is not None:
            link, request = self._delayed
            self._delayed = None
            await link.finish(request)


class Proxy:
    """Listens on a port of its own and passes everything on to the server."""

    def __init__(self, url: str, wire: Callable[[], Wire]) -> None:
        parts = urlsplit(url)
        self._target = parts.hostname or "127.0.0.1", parts.port or 0
        self._url = parts
        self._wire = wire
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Future[None]] = set()
        self._server: asyncio.Server | None = None
        self._port = 0
        self._fault: Fault | None = None
        #: Whether connections are refused at once, as by a server that has gone.
        self.is_down = False
        self.flowing = asyncio.Event()
        self.flowing.set()
        #: Times of connections, by the loop's clock.
        self.arrivals: list[float] = []
        #: How many messages that make something durable have come.
        self.durable = 0

    @property
    def url(self) -> str:
        """The server's URL, by way of this."""
        user, _, _ = self._url.netloc.rpartition("@")
        plain = "sslmode=disable" if self._url.scheme.startswith("postgres") else "ssl=off"
        query = "&".join(part for part in (self._url.query, plain) if part)
        return urlunsplit(self._url._replace(netloc=f"{user}@127.0.0.1:{self._port}", query=query))

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and cut everything."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def lose(self, loss: Loss, nth: int = 1, about: bytes = b"") -> Fault:
        """Order a fault."""
        self._fault = Fault(loss, nth, about)
        return self._fault

    def lose_nothing(self) -> None:
        """Take back what was ordered and has not happened."""
        self._fault = None

    def go_down(self) -> None:
        """Cut every connection, and refuse new ones."""
        self.is_down = True
        for link in list(self._links):
            link.cut()

    def come_up(self) -> None:
        """Take connections again."""
        self.is_down = False

    def fall_silent(self) -> None:
        """Forward nothing any more, in either direction, and close nothing."""
        self.flowing.clear()

    def recover(self, *, connections: bool) -> None:
        """Forward again; what is connected already, and was said meanwhile, included or never again."""
        if not connections:
            for link in self._links:
                link.is_dead = True
        self.flowing.set()

    def next_fault(self, request: Request) -> Fault | None:
        """What shall happen to a message that is about to make something durable."""
        self.durable += 1
        fault = self._fault
        if fault is None or fault.about not in request.text:
            return None
        fault.left -= 1
        if fault.left:
            return None
        self._fault = None
        return fault

    def again(self, fault: Fault) -> None:
        """It hit a request that the server refused, which made nothing durable."""
        fault.left = 1
        self._fault = fault

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.arrivals.append(asyncio.get_running_loop().time())
        if self.is_down:
            _reset(writer)
            return
        task = asyncio.ensure_future(self._serve(_Link(self, self._wire(), reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, link: _Link) -> None:
        self._links.add(link)
        try:
            await link.run(*self._target)
        finally:
            link.cut()
            self._links.discard(link)


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._wire = wire
        self._from_client = reader
        self._to_client = writer
        self._to_server: asyncio.StreamWriter | None = None
        self._losing: Fault | None = None
        #: Parts of an answer that may have to be lost.
        self._held: list[Reply] = []
        self._answered = asyncio.Event()
        self._delivering = False
        self.is_dead = False

    async def run(self, host: str, port: int) -> None:
        """Pass on, until either side has ended."""
        await self._flows()
        try:
            from_server, self._to_server = await asyncio.open_connection(host, port)
        except OSError:
            return
        pumps = [asyncio.ensure_future(self._pump_requests()), asyncio.ensure_future(self._pump_replies(from_server))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            # While nothing is forwarded, neither is the end of a connection.
            await self._flows()
            if self._delivering:
                await asyncio.wait(pumps[1:])
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def cut(self) -> None:
        """End both sides at once."""
        self._delivering = False
        for writer in (self._to_client, self._to_server):
            if writer is not None:
                _reset(writer)

    async def finish(self, request: Request) -> None:
        """Deliver a request whose client has gone."""
        self._answered.clear()
        self._send(request.data)
        await self._answered.wait()
        self.cut()

    async def _pump_requests(self) -> None:
        with suppress(ConnectionError):
            while data := await self._from_client.read(65536):
                await self._flows()
                for request in self._wire.from_client(data):
                    if not self._pass(request):
                        return

    def _pass(self, request: Request) -> bool:
        """Pass a request on, unless it is to be lost; whether there is more to pass."""
        fault = self._proxy.next_fault(request) if request.is_durable else None
        if fault is None or fault.loss is Loss.ANSWER:
            self._losing = fault
            self._send(request.data)
            return True
        fault.fired = True
        if fault.loss is Loss.DELAY:
            self._delivering = True
            fault.delay(self, request)
            _reset(self._to_client)
        return False

    async def _pump_replies(self, from_server: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while data := await from_server.read(65536):
                await self._flows()
                for reply in self._wire.from_server(data):
                    self._held.append(reply)
                    if reply.ends and self._is_lost(reply):
                        return
                if self._losing is None:
                    self._answer()

    def _is_lost(self, reply: Reply) -> bool:
        self._answered.set()
        fault, self._losing = self._losing, None
        if fault is None:
            return False
        if reply.refused:
            self._proxy.again(fault)
            return False
        fault.fired = True
        return True

    def _answer(self) -> None:
        held, self._held = self._held, []
        if not self._to_client.is_closing():
            self._to_client.write(b"".join(reply.data for reply in held))

    def _send(self, data: bytes) -> None:
        if self._to_server is not None and not self._to_server.is_closing():
            self._to_server.write(data)

    async def _flows(self) -> None:
        await self._proxy.flowing.wait()
        if self.is_dead:
            await asyncio.get_running_loop().create_future()


def _reset(writer: asyncio.StreamWriter) -> None:
    # What a cable that is pulled and a server that is killed look like: no goodbye.
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


@asynccontextmanager
async def proxy_to(url: str, wire: Callable[[], Wire]) -> AsyncIterator[Proxy]:
    """A proxy, for as long as the block lasts."""
    proxy = Proxy(url, wire)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()
