"""The MCP server over streamable HTTP: each caller has a token of the HTTP API, whose role decides about the tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import Response

from perdure.client.engine import Engine
from perdure.client.remote.session import RemoteSession
from perdure.client.session import session_of
from perdure.core.access import Role
from perdure.core.redaction import Redaction
from perdure.errors import UsageError
from perdure.http.access import Access
from perdure.http.app import HttpApp
from perdure.http.server import SignalledServer, server_config
from perdure.mcp.gateways import Answer, Caller, LocalGateway
from perdure.mcp.server import LONGEST_WAIT, OperatorServer, wrap_server

#: Path of the server.
PATH = "/mcp"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class McpApp:
    """An ASGI application with the MCP server of an engine at `/mcp`."""

    def __init__(self, engine: Engine, access: Access, redaction: Redaction, longest: int) -> None:
        if isinstance(session_of(engine), RemoteSession):
            raise UsageError("an MCP server over HTTP needs the database; for an engine on a server, leave out --bind")
        api = HttpApp(engine, access=access, redaction=redaction, longest_wait=LONGEST_WAIT)
        self._handlers = OperatorServer(LocalGateway(api), Role.OPERATOR, longest)
        # The API checks host and origin of each request: `/session` below is one.
        unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self._app = wrap_server(self._handlers).streamable_http_app(
            streamable_http_path=PATH, stateless_http=True, json_response=True, transport_security=unchecked
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a caller with a valid token."""
        if scope["type"] == "http":
            request = Request(scope)
            caller = Caller(dict(request.headers), request.client.host if request.client else "")
            role = await self._handlers.role_of(caller)
            if isinstance(role, Answer):
                headers = {"www-authenticate": "Bearer", "cache-control": "no-store"}
                await Response(role.content, 401, headers, "application/problem+json")(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def close(self) -> None:
        """Stop the tasks that requests have started."""
        await self._handlers.gateway.close()


def make_http_server(app: McpApp, host: str, port: int) -> SignalledServer:
    """Make a server that has not been started. It has no streams that would have to end."""
    return SignalledServer(server_config(app, host, port), lambda: None)
