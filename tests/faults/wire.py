"""As much of two wire protocols as it takes to know the message that makes a write durable, and the end of its answer.

That message is a COMMIT, or outside of a transaction a statement that writes. Bytes are passed on as they came, cut at
the ends of messages.
"""

from __future__ import annotations

import re
from typing import Protocol

from msgspec import Struct

_WRITES = re.compile(rb"\b(INSERT|REPLACE|DELETE|(?<!FOR )(?<!NO KEY )UPDATE|CREATE|ALTER)\b")
_COMMITS = re.compile(rb"(^|;)\s*COMMIT\b")
_BEGINS = re.compile(rb"^\s*(BEGIN|START TRANSACTION)\b")


class Request(Struct, frozen=True):
    """What a client wants, whole."""

    data: bytes
    #: The statement, as far as there is one.
    text: bytes = b""
    #: Once the server has carried it out, something is durable.
    is_durable: bool = False


class Reply(Struct, frozen=True):
    """A part of an answer."""

    data: bytes
    #: The server waits for the next request.
    ends: bool = False
    #: That request failed.
    refused: bool = False


class Wire(Protocol):
    """One connection."""

    def from_client(self, data: bytes) -> list[Request]:
        """Whole requests, of these bytes and of those before."""

    def from_server(self, data: bytes) -> list[Reply]:
        """Whole messages, of these bytes and of those before."""


class _Session:
    """What both have in common: whether a transaction is open, and whether it may write."""

    def __init__(self) -> None:
        self.in_transaction = False
        self._reads_only = False

    def is_durable(self, text: bytes) -> bool:
        if _BEGINS.search(text):
            self._reads_only = b"READ ONLY" in text
        if _COMMITS.search(text):
            return not self._reads_only
        return not self.in_transaction and not _BEGINS.search(text) and bool(_WRITES.search(text))


class PostgresWire:
    """Version 3, without TLS. A request ends with a Sync or a simple query."""

    def __init__(self) -> None:
        self._session = _Session()
        self._started = False
        self._from_client = b""
        self._from_server = b""
        self._request: list[bytes] = []
        self._statements: dict[bytes, bytes] = {}
        self._bound = b""
        self._text = b""
        self._refused = False

    def from_client(self, data: bytes) -> list[Request]:
        self._from_client += data
        requests: list[Request] = []
        while True:
            head = 1 if self._started else 0
            size = head + int.from_bytes(self._from_client[head : head + 4], "big")
            if len(self._from_client) < head + 4 or len(self._from_client) < size:
                return requests
            message, self._from_client = self._from_client[:size], self._from_client[size:]
            self._request.append(message)
            if not self._started or self._read(message):
                self._started = True
                durable = bool(self._text) and self._session.is_durable(self._text)
                requests.append(Request(b"".join(self._request), self._text, durable))
                self._request, self._text = [], b""

    def _read(self, message: bytes) -> bool:
        """Take in a message; whether a request is whole with it."""
        kind, body = message[:1], message[5:]
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._statements[name] = text
        elif kind == b"B":
            self._bound = body.split(b"\0", 2)[1]
        elif kind == b"E":
            self._text = self._statements.get(self._bound, b"")
        elif kind == b"Q":
            self._text = body[:-1]
        return kind not in b"PBDEC"

    def from_server(self, data: bytes) -> list[Reply]:
        self._from_server += data
        replies = []
        while len(self._from_server) >= 5:
            size = 1 + int.from_bytes(self._from_server[1:5], "big")
            if len(self._from_server) < size:
                break
            message, self._from_server = self._from_server[:size], self._from_server[size:]
            kind = message[:1]
            self._refused = self._refused or kind == b"E"
            replies.append(Reply(message, kind == b"Z", self._refused))
            if kind == b"Z":
                self._session.in_transaction = message[5:6] != b"I"
                self._refused = False
        return replies


_MORE_RESULTS = 0x0008
_IN_TRANSACTION = 0x0001


class MysqlWire:
    """Text protocol, without TLS and compression. A request is a packet with the number 0."""

    def __init__(self) -> None:
        self._session = _Session()
        self._from_client = b""
        self._from_server = b""
        #: Columns still to be described, then -1 while rows come; None before an answer begins.
        self._columns: int | None = None
        self._greeted = False

    def from_client(self, data: bytes) -> list[Request]:
        self._from_client += data
        requests = []
        while packet := _whole_packet(self._from_client):
            self._from_client = self._from_client[len(packet) :]
            text = packet[5:] if packet[3] == 0 and packet[4:5] == b"\x03" else b""
            if packet[3] == 0:
                self._greeted = True
            requests.append(Request(packet, text, bool(text) and self._session.is_durable(text)))
        return requests

    def from_server(self, data: bytes) -> list[Reply]:
        self._from_server += data
        replies = []
        while packet := _whole_packet(self._from_server):
            self._from_server = self._from_server[len(packet) :]
            replies.append(self._reply(packet) if self._greeted else Reply(packet))
        return replies

    def _reply(self, packet: bytes) -> Reply:
        kind, body = packet[4:5], packet[4:]
        if kind == b"\xff":
            self._columns = None
            return Reply(packet, ends=True, refused=True)
        if self._columns is None:
            if kind == b"\x00":
                return self._end(packet, _after_two_numbers(body))
            self._columns = body[0]
        elif self._columns > 0:
            self._columns -= 1
        elif kind == b"\xfe" and len(body) < 9:
            # Old clients are told that all columns are described, and that all rows have come; newer ones only the
            # latter.
            if len(body) > 5 or self._columns == -1:
                return self._end(packet, 3 if len(body) == 5 else _after_two_numbers(body))
            self._columns = -1
        else:
            self._columns = -1
        return Reply(packet)

    def _end(self, packet: bytes, place: int) -> Reply:
        status = int.from_bytes(packet[4 + place : 6 + place], "little")
        self._columns = None
        self._session.in_transaction = bool(status & _IN_TRANSACTION)
        return Reply(packet, ends=not status & _MORE_RESULTS)


def _whole_packet(buffer: bytes) -> bytes:
    size = 4 + int.from_bytes(buffer[:3], "little")
    return buffer[:size] if len(buffer) >= max(size, 5) else b""


def _after_two_numbers(body: bytes) -> int:
    place = 1
    for _ in range(2):
        place += {0xFC: 3, 0xFD: 4, 0xFE: 9}.get(body[place], 1)
    return place
