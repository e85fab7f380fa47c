"""An address that stays while the server behind it changes, and a line that can be cut."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit


class Forwarder:
    """Forwards TCP connections to the server of a DSN."""

    def __init__(self, dsn: str) -> None:
        self._target = dsn
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._port = 0
        self._open = True

    @property
    def dsn(self) -> str:
        """The same database at this address."""
        parts = urlsplit(self._target)
        user = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{self._port}"))

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and end every connection."""
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """End every connection and refuse new ones."""
        self._open = False
        for writer in self._writers:
            writer.transport.abort()

    def lead_to(self, dsn: str) -> None:
        """Forward new connections to another server."""
        self._target = dsn
        self._open = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = urlsplit(self._target)
        try:
            if not self._open:
                raise ConnectionError
            there, back = await asyncio.open_connection(target.hostname, target.port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        self._writers -= {writer, back}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()
