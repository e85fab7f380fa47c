"""Requests to the HTTP API of a server: credentials, repetition, and errors as the exceptions that they were.

Every request may be repeated after its answer was lost. A request that changes something has a `Request-Id`, from which
the server derives its ids and keys, so the store recognises the repetition.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, quote, urlsplit

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.codec.failure import ErrorTypes, Failure
from perdure.core.codec.plain_json import plain_bytes
from perdure.core.option_checks import check_text, is_encodable
from perdure.core.printed_text import brief
from perdure.core.process_fork import never_finalize
from perdure.core.system import System
from perdure.errors import (
    AccessRefused,
    EncodeError,
    EngineClosed,
    PerdureError,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from perdure.store.retrying import Repeating
from perdure.store.url import is_local, shown

if TYPE_CHECKING:
    import httpx

#: Path of the API, under the URL of the server.
PREFIX = "/api/v1"
#: Seconds in which a server answers a request whose work takes long. A server gives up before.
SLOW = 100.0
#: Seconds without a sign of life after which a stream counts as broken. A server sends one every 15 seconds.
SILENCE = 45.0
#: Longest pause that a server may ask for, in seconds.
_LONGEST_PAUSE = 5.0
_URN = "urn:perdure:problem:"
#: Statuses of a proxy whose server is away.
_AWAY = frozenset({502, 503, 504})

Query = Mapping[str, Any]


class ReceivedEvent(Struct, frozen=True):
    """An event of a stream, as received."""

    event: str
    id: str
    data: bytes


class _Problem(Struct, frozen=True):
    """Body of an error; the fields that a proxy may leave out have defaults."""

    type: str = ""
    detail: str = ""
    run_id: str = ""
    error: str = ""
    state: dict[str, Any] = {}


_problem_decoder = decoder_for(_Problem)


def is_server(url: object) -> bool:
    """Tell the URL of a server from that of a database."""
    return isinstance(url, str) and url.lower().startswith(("http://", "https://"))


def path_of(template: str, **parts: object) -> str:
    """Fill the varying parts of a path, each encoded by itself."""
    return template.format(**{name: _part(name, value) for name, value in parts.items()})


def _part(name: str, value: object) -> str:
    # A part of dots only would be taken for a step in the path.
    return quote(check_text(name, value), safe="").replace(".", "%2E")


class Transport:
    """Connections to one server, one pool for each event loop."""

    def __init__(self, url: str, token: str | None, system: System, bound_seconds: float, errors: ErrorTypes) -> None:
        self._httpx = _library()
        self._url = _checked_url(url, token, self._httpx)
        self._token = token
        self._system = system
        #: How long a request is repeated, in seconds.
        self.bound = bound_seconds
        self._errors = errors
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<server {self._url}>"

    def detach(self) -> None:
        """Leave the connections to the process that this one was forked from."""
        never_finalize(self._clients)
        self._clients = {}

    async def close(self) -> None:
        """Close the connections of this event loop; those of others end with their loops. Requests are refused then."""
        self._closed = True
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    async def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: object = None,
        *,
        wait: float = 0.0,
        slow: bool = False,
        request_id: str | None = None,
    ) -> bytes:
        """Make a request, repeated while the server is unavailable; the body of the answer.

        `wait` is how long the server may wait before it answers; a `slow` request may take longer than others.
        `request_id` is that of a request which the caller may repeat itself. Raises the error that the server names,
        `AccessRefused` and `StoreUnavailable`.
        """
        headers = {} if method == "GET" else {"Request-Id": request_id or self._system.entropy(16).hex()}
        content = None
        if body is not None:
            content, headers["Content-Type"] = _encoded(body), "application/json"
        bound = self.bound + wait + (SLOW if slow else 0.0)
        repeating = _RepeatingRequest(self._system, bound, strict=True)
        repeating.other = f"the server {self._url}"
        url = f"{self._url}{PREFIX}{path}"
        made = {"method": method, "url": url, "params": query_parameters(query), "headers": headers, "content": content}
        return cast("bytes", await repeating.within_bound(self._once, (made,), {}))

    async def _once(self, made: Mapping[str, Any]) -> bytes:
        try:
            response = await self._client().request(**made, timeout=None)
        except self._httpx.TransportError as error:
            raise self._unreachable(error) from error
        except self._httpx.InvalidURL as error:
            raise UsageError(f"the request cannot be sent to {self._url}: {error}; give shorter values") from None
        if response.is_success:
            return bytes(response.content)
        raise await self._error(response)

    @asynccontextmanager
    async def events(self, path: str, last: int | None) -> AsyncGenerator[AsyncIterator[ReceivedEvent]]:
        """Open a stream of server-sent events, after a position. Raises `StoreUnavailable` when it breaks."""
        headers = {"Accept": "text/event-stream"} | ({} if last is None else {"Last-Event-ID": str(last)})
        timeout = self._httpx.Timeout(self.bound, read=SILENCE)
        url = f"{self._url}{PREFIX}{path}"
        try:
            async with self._client().stream("GET", url, headers=headers, timeout=timeout) as response:
                if not response.is_success:
                    await response.aread()
                    raise await self._error(response)
                yield _events(_lines(response.aiter_bytes()))
        except self._httpx.TransportError as error:
            raise self._unreachable(error) from error
        except self._httpx.InvalidURL as error:
            raise UsageError(f"the request cannot be sent to {self._url}: {error}; give shorter values") from None

    def rebuilt(self, status: int, content: bytes) -> Exception:
        """Make the exception that the body of an error describes."""
        try:
            problem = _problem_decoder.decode(content)
        except (msgspec.MsgspecError, ValueError):
            problem = _Problem()
        detail = problem.detail or f"the server {self._url} answered with status {status}"
        if problem.error:
            state = problem.state | ({"run_id": problem.run_id} if problem.run_id else {})
            failure = Failure(
                type=f"{PerdureError.__module__}.{problem.error}",
                message=detail,
                state=msgspec.json.encode(state).decode(),
            )
            error = self._errors.restore(failure)
            # A server that shuts down is away for this client.
            return StoreUnavailable(detail) if isinstance(error, EngineClosed) else error
        if status in (401, 403):
            return AccessRefused(f"{detail} ({self._url})")
        if status in _AWAY or status == 429:
            return StoreUnavailable(detail)
        if status >= 500:
            return StoreError(detail)
        if not problem.type.startswith(_URN):
            return UsageError(f"{detail}; the URL is that of `perdure serve`, such as https://ops.example.com/perdure")
        return UsageError(detail)

    async def _error(self, response: httpx.Response) -> Exception:
        if response.is_redirect:
            return UsageError(f"the server {self._url} redirects to another address; use that as the URL")
        error = self.rebuilt(response.status_code, response.content)
        if response.status_code == 429 and isinstance(error, StoreUnavailable):
            pause = response.headers.get("retry-after", "")
            await self._system.sleep(min(float(pause) if pause.isdecimal() else 0.0, _LONGEST_PAUSE))
        return error

    def _unreachable(self, error: Exception) -> StoreUnavailable:
        told = f": {error}" if str(error) else ""
        return StoreUnavailable(
            f"the server {self._url} cannot be reached: {type(error).__name__}{told}; check that it runs"
        )

    def _client(self) -> httpx.AsyncClient:
        if self._closed:
            raise EngineClosed(f"the engine on {self._url} was closed; make a new one")
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            self._clients = {known: one for known, one in self._clients.items() if not known.is_closed()}
            # Waits hold connections, so their number has no bound here.
            limits = self._httpx.Limits(max_connections=None, max_keepalive_connections=20)
            client = self._httpx.AsyncClient(auth=self._authorize, limits=limits, follow_redirects=False)
            self._clients[loop] = client
        return client

    def _authorize(self, request: httpx.Request) -> httpx.Request:
        # An `auth` of its own, so that no file of the user such as .netrc takes the place of the token.
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class _RepeatingRequest(Repeating):
    """Repeats one request."""


def _library() -> ModuleType:
    try:
        import httpx
    except ModuleNotFoundError:
        raise UsageError(
            "an engine on a server needs the package httpx; install it: pip install 'perdure[client]'"
        ) from None
    return httpx


def _checked_url(url: str, token: object, library: ModuleType) -> str:
    """The URL without a slash at its end. Raises `UsageError`; no message has the token or a password."""
    if token is not None and not (isinstance(token, str) and token and token.isascii() and token.isprintable()):
        raise UsageError("token: give the text that `perdure tokens create` printed")
    parts = _parts(url, library)
    if parts is None:
        # Raised here, so that the error of the library, which repeats the URL, is not its context.
        raise UsageError(f"{shown(url)!r} is not the URL of a server; write https://host or https://host/prefix")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"{shown(url)!r} has a user in it; give a token of the server instead: Engine(url, token=...)")
    if not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"{shown(url)!r} is not the URL of a server; write https://host or https://host/prefix")
    if parts.scheme.lower() == "http" and not is_local(parts.hostname):
        raise UsageError(
            f"{shown(url)!r} would send the token and all data in the clear; use https://, which only a server on this "
            "machine does not need"
        )
    return url.rstrip("/").removesuffix(PREFIX)


def _parts(url: str, library: ModuleType) -> SplitResult | None:
    """Parts of a URL; None if a reader of URLs cannot read it."""
    try:
        library.URL(url)
        parts = urlsplit(url)
        # Read for their errors: a port that is none, a name that no resolver takes.
        _ = (parts.port, (parts.hostname or "").encode("idna"))
    except (ValueError, library.InvalidURL):
        return None
    # One reader leaves out spaces and controls that another one sends.
    return parts if url.isprintable() and " " not in url else None


def _encoded(body: object) -> bytes:
    """The body of a request. Raises `EncodeError`, which names the option that cannot be sent."""
    try:
        return plain_bytes(body)
    except (TypeError, ValueError, RecursionError):
        for name, value in body.items() if isinstance(body, Mapping) else ():
            _json_of(name, value)
        return _json_of("body", body)


def _json_of(name: str, value: object) -> bytes:
    try:
        return plain_bytes(value)
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        raise EncodeError(f"{name} has a text with {character!r}, which UTF-8 cannot hold; remove it") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise EncodeError(f"{name}={brief(value)} cannot be sent to the server: {error}") from None


def query_parameters(query: Query | None) -> list[tuple[str, str]]:
    """Parameters of a query; None and empty lists are left out. Raises `EncodeError`."""
    found: list[tuple[str, str]] = []
    for name, value in (query or {}).items():
        values: Iterable[Any] = value if isinstance(value, list | tuple) else () if value is None else (value,)
        found += [
            (name, _text_of(name, one) if isinstance(one, str) else _json_of(name, one).decode()) for one in values
        ]
    return found


def _text_of(name: str, value: str) -> str:
    if not is_encodable(value):
        raise EncodeError(f"{name}={brief(value)} cannot be sent to the server: it has a lone surrogate")
    return value


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Lines of a stream of events. Only a line feed ends one: JSON may have all other separators as they are."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[ReceivedEvent]:
    fields: dict[str, str] = {}
    async for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            yield ReceivedEvent(fields.get("event", ""), fields.get("id", ""), fields["data"].encode())
            fields = {}
