"""Ways from a tool to the HTTP API: in this process for a database, or by requests for an engine on a server.

Both answer with the same JSON, so roles, redaction, types and the audit trail have one owner: the API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from perdure.client.remote.session import RemoteSession
from perdure.client.remote.transport import path_of, query_parameters
from perdure.core.codec.plain_json import plain_bytes
from perdure.core.ids import check_id
from perdure.errors import PerdureError
from perdure.http.app import HttpApp
from perdure.http.routes import PREFIX
from perdure.mcp.tools import REQUEST_ID, ApiCall


class Answer(Struct, frozen=True):
    """Answer of the API: JSON of a result, or of a problem."""

    ok: bool
    content: bytes


class Caller(Struct, frozen=True):
    """The caller of an MCP server over HTTP: headers and address of the request."""

    headers: Mapping[str, str] = {}
    address: str = "127.0.0.1"


#: The caller of a server on the standard streams: the user who started the process.
LOCAL = Caller()

#: The request that names the caller's role.
SESSION = ApiCall(method="GET", template="/session", parts={}, query={}, body=None, request_id=None, wait=0.0)
#: Headers of the caller that the API needs.
_PASSED_ON = ("authorization", "host", "origin")


class Gateway(Protocol):
    """A way to the HTTP API."""

    async def ask(self, call: ApiCall, caller: Caller) -> Answer:
        """Make a request."""

    async def close(self) -> None:
        """Stop the tasks that requests have started. The engine stays open."""


class LocalGateway:
    """The HTTP API of an engine in this process."""

    def __init__(self, app: HttpApp) -> None:
        self._app = app

    async def ask(self, call: ApiCall, caller: Caller) -> Answer:
        """Make a request."""
        content = b"" if call.body is None else plain_bytes(call.body)
        headers = {"host": "localhost"} | {name: caller.headers[name] for name in _PASSED_ON if name in caller.headers}
        if call.body is not None:
            headers["content-type"] = "application/json"
        if call.request_id is not None:
            headers["request-id"] = check_id(call.request_id, REQUEST_ID)
        return await self._request(call, headers, content, caller)

    async def _request(self, call: ApiCall, headers: Mapping[str, str], content: bytes, caller: Caller) -> Answer:
        path = PREFIX + path_of(call.template, **call.parts)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": call.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": urlencode(query_parameters(call.query)).encode(),
            "root_path": "",
            "headers": _raw([*headers.items(), ("content-length", str(len(content)))]),
            "client": (caller.address, 0),
            "server": ("localhost", 80),
        }
        parts: list[bytes] = []
        status = 500

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        return Answer(status < 400, b"".join(parts))

    async def close(self) -> None:
        """Stop the tasks that requests have started."""
        await self._app.close()


def _raw(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    # A Request-Id may have any character of an id; a header of HTTP/1.1 would not.
    return [(name.encode(), value.encode("latin-1", "backslashreplace")) for name, value in headers]


class RemoteGateway:
    """The HTTP API of the server that an engine was given as its URL; its token decides the role."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session

    async def ask(self, call: ApiCall, caller: Caller) -> Answer:
        """Make a request."""
        request_id = None if call.request_id is None else check_id(call.request_id, REQUEST_ID)
        try:
            transport = await self._session.transport()
            content = await transport.request(
                call.method,
                path_of(call.template, **call.parts),
                call.query,
                call.body,
                wait=call.wait,
                slow=True,
                request_id=request_id,
            )
        except PerdureError as error:
            return problem(error)
        return Answer(True, content)

    async def close(self) -> None:
        """Do nothing: the engine closes its connections."""


def problem(error: Exception) -> Answer:
    """An error as the answer that the API would give."""
    return Answer(False, msgspec.json.encode({"error": type(error).__name__, "detail": str(error)}))
