"""The ASGI application: from a request to a handler and back.

Each request passes, in this order: headers of proxies, probes, host, origin, credentials, rate, role, CSRF token, and
then the types of its route. Errors become problem documents at one place.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing
from typing import Any, Protocol, get_origin
from urllib.parse import quote

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response

from perdure.client.engine import Engine
from perdure.client.session import acting_as, session_of
from perdure.client.workers import EngineWorker
from perdure.core.access import Role
from perdure.core.codec.decoders import convert_to, decoder_for
from perdure.core.ids import check_id, check_name
from perdure.core.option_checks import check_duration, check_flag, check_mapping, check_positive, check_whole
from perdure.core.printed_text import brief
from perdure.core.redaction import Redaction
from perdure.core.time.duration import Duration
from perdure.core.tracing import carried_headers, request_headers
from perdure.errors import PerdureError, UsageError
from perdure.http.access import LOOPBACK_HOSTS, Access, Authenticator, Principal, check_csrf, without_port
from perdure.http.api import (
    EVENT_STREAM,
    ApiRequest,
    ApiServices,
    EventStream,
    EventStreamResponse,
    Reply,
    ServerEvent,
    event_text,
    with_signs_of_life,
)
from perdure.http.bounds import RateLimit, RecentOrders, StreamLimit, read_body
from perdure.http.health import METRICS, HealthView, readiness
from perdure.http.live import LIVE_RATE, Hub
from perdure.http.openapi import make_document
from perdure.http.problems import (
    BAD_REQUEST,
    FORBIDDEN,
    INVALID,
    MEDIA_TYPE,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNSUPPORTED_MEDIA_TYPE,
    Problem,
    ProblemKind,
    Refused,
    encode,
    headers_of,
    kind_of,
    problem_of,
)
from perdure.http.redaction import Redactor
from perdure.http.routes import PREFIX, Route, Router

logger = logging.getLogger("perdure.http")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = "application/json"
#: Headers of every answer. No answer may be stored, shown in a frame, or taken for something else than it is.
SAFE_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
#: Seconds between two signs of life of a stream, when the caller's credentials are checked again.
KEEP_ALIVE = 15.0
#: Seconds for the work of a request, besides the longest wait. Longer than a client waits for its database.
HANDLER_TIME = 30.0
#: Seconds for the body of a request.
BODY_TIME = 30.0
#: Seconds for which a browser remembers that another origin may call.
_PREFLIGHT_AGE = "600"
_ALLOWED_HEADERS = (
    "authorization, baggage, content-type, idempotency-key, last-event-id, request-id, traceparent, tracestate, "
    "x-csrf-token"
)
_BUG = ProblemKind(500, "internal-error")


class Pages(Protocol):
    """Pages for people, on the paths that the API does not use."""

    async def respond(self, api: ApiRequest, path: str, content: bytes, *, known: bool) -> Response | EventStream:
        """Answer a request; `known` is false without credentials. Host, origin and rate were checked, no role was."""

    async def close(self) -> None:
        """Stop what follows the database for open pages."""


class HttpApp:
    """An ASGI application with the HTTP API of an engine. Run it by `perdure serve`, or mount it in another one."""

    def __init__(
        self,
        engine: Engine,
        *,
        access: Access | None = None,
        redaction: Redaction | None = None,
        max_body: int = 4 * 1024 * 1024,
        rate: float = 100.0,
        burst: int = 200,
        streams: int = 20,
        longest_wait: Duration = 60,
        live_rate: float = LIVE_RATE,
        needs_workers: bool = True,
        pages: Pages | None = None,
    ) -> None:
        """Make the application of an engine.

        `access` says who may call, `redaction` what they see. `max_body` bounds the bytes of a request, `rate` and
        `burst` the requests a second of each caller, `streams` the streams that each has open, `longest_wait` how long
        a request waits for a result, `live_rate` the statements a second of all live updates. Without `needs_workers`,
        `/readyz` is ready without a worker. `pages` answers all other paths, such as `perdure.dashboard.Dashboard()`.
        """
        self._engine = engine
        self.access = Access() if access is None else access
        self._redaction = Redaction() if redaction is None else redaction
        self._max_body = check_whole("max_body", max_body, 1)
        system = session_of(engine).system
        self._rate = RateLimit(system, check_positive("rate", rate), check_whole("burst", burst, 1))
        self._orders = RecentOrders(system)
        self._streams = StreamLimit(check_whole("streams", streams, 1), 25 * streams)
        #: Done when the server stops: ends of the streams that are open.
        self._ends: set[asyncio.Future[None]] = set()
        self._stops = False
        self._needs_workers = check_flag("needs_workers", needs_workers)
        self._router = Router()
        self._pages = pages
        self._authenticator = Authenticator(engine, self.access)
        self._hub = Hub(engine, check_positive("live_rate", live_rate))
        self._bulk_worker: EngineWorker | None = None
        #: The check of a probe, while one is under way.
        self._check: asyncio.Task[HealthView] | None = None
        self._documents: dict[str, bytes] = {}
        self._longest_wait = check_duration("longest_wait", longest_wait)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            scope = dict(scope)
            request = Request(scope, receive)
            response = await self._respond(request)
            await response(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})

    def end_streams(self) -> None:
        """End the streams that are open and those that begin from now on, because the server stops."""
        self._stops = True
        for end in self._ends:
            if not end.done():
                end.set_result(None)

    async def close(self) -> None:
        """Stop live updates, and the worker that acts on many runs. The engine stays open."""
        if self._pages is not None:
            await self._pages.close()
        await self._hub.close()
        if self._check is not None:
            self._check.cancel()
            await asyncio.wait({self._check})
        worker, self._bulk_worker = self._bulk_worker, None
        if worker is not None:
            await worker.stop()

    async def _start_bulk_worker(self) -> None:
        """Work on actions on many runs from now on: most servers never have one."""
        if self._bulk_worker is None:
            self._bulk_worker = self._engine.runs.bulk_worker()
            await self._bulk_worker.start()

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    # one request

    async def _respond(self, request: Request) -> Response:
        path = _own_path(request.scope)
        _apply_forwarded(request.scope, self.access)
        shown = Redactor(self._redaction, Role.ADMIN)
        try:
            if path in ("/livez", "/readyz"):
                return await self._probe(request, path)
            self.access.check_host(request)
            if (answer := self._preflight(request)) is not None:
                return answer
            self.access.check_origin(request)
            response = await self._answer(request, path)
        except Exception as error:
            response = self._problem(error, shown)
        return self._with_cors(request, response)

    async def _answer(self, request: Request, path: str) -> Response:
        if path == METRICS.path:
            return await self._metrics(request)
        if not path.startswith(f"{PREFIX}/"):
            return await self._page(request, path)
        principal = await self._known(request)
        self._rate.take(_address(request) if principal is None else principal.account)
        route, parts = self._router.find(request.method, path.removeprefix(PREFIX))
        if route.role is not None:
            principal = _authorized(principal, route)
            check_csrf(principal, request, request.method)
        content = await read_body(request, self._max_body, BODY_TIME)
        arguments = self._arguments(route, parts, request, content)
        seed = _seed(route, path, request, content, principal)
        if (known := self._orders.find(seed)) is not None:
            return _encoded(known, route)
        api = await self._api(request, principal, seed)
        try:
            async with asyncio.timeout(self._longest_wait + HANDLER_TIME):
                answer = await route.handler(api, **arguments)
        except TimeoutError:
            # Such as a start at a watermark that lets starts wait.
            late = f"this took more than {self._longest_wait + HANDLER_TIME:g} s; repeat it with the same id or key"
            return self._problem(Refused(UNAVAILABLE, late), api.shown)
        except Exception as error:
            return self._problem(error, api.shown)
        self._orders.keep(seed, answer)
        return self._stream(api, answer) if isinstance(answer, EventStream) else _encoded(answer, route)

    async def _known(self, request: Request) -> Principal | None:
        """The caller. An address from which too many wrong tokens came is refused before another one is looked at."""
        self._rate.check(_address(request))
        try:
            return await self._authenticator.principal(request)
        except Refused:
            self._rate.take(_address(request))
            raise

    async def _metrics(self, request: Request) -> Response:
        principal = await self._known(request)
        self._rate.take(_address(request) if principal is None else principal.account)
        _authorized(principal, METRICS)
        if request.method not in ("GET", "HEAD"):
            raise Refused(METHOD_NOT_ALLOWED, "metrics are read by GET", {"allow": "GET"})
        await self._engine.open()
        content, kind = await METRICS.handler(self._engine, request)
        return Response(content, 200, {**SAFE_HEADERS, "content-type": kind})

    async def _page(self, request: Request, path: str) -> Response:
        if self._pages is None:
            raise Refused(NOT_FOUND, f"there is nothing at this path; the API is under {PREFIX}")
        principal = await self._known(request)
        self._rate.take(_address(request) if principal is None else principal.account)
        content = await read_body(request, self._max_body, BODY_TIME)
        api = await self._api(request, principal)
        answer = await self._pages.respond(api, path, content, known=principal is not None)
        return self._stream(api, answer) if isinstance(answer, EventStream) else answer

    async def _api(self, request: Request, principal: Principal | None, seed: bytes | None = None) -> ApiRequest:
        caller = principal or Principal(name="anonymous", role=Role.VIEWER)
        request_headers.set(carried_headers(request.headers))
        await self._engine.open()
        return ApiRequest(
            acting_as(self._engine, caller.name, seed),
            caller,
            Redactor(self._redaction, caller.role),
            request,
            ApiServices(
                self._authenticator,
                self._hub,
                self._longest_wait,
                lambda: self._document(request),
                self._start_bulk_worker,
            ),
        )

    def _arguments(self, route: Route, parts: dict[str, str], request: Request, content: bytes) -> dict[str, Any]:
        """Arguments of the handler, by the types of the route. Raises `Refused`."""
        query, body, _ = route.types()
        found: dict[str, Any] = {}
        types = route.path_types()
        try:
            for name, text in parts.items():
                found[name] = convert_to(types[name], text, strict=False)
            if query is not None:
                found["query"] = convert_to(query, _query(request, query), strict=False)
        except msgspec.ValidationError as error:
            raise Refused(INVALID, f"the request does not fit its types: {error}") from None
        if body is not None:
            found["body"] = _decoded(request, content, body)
        return found

    async def _probe(self, request: Request, path: str) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise Refused(NOT_FOUND, "a probe is read by GET")
        health = HealthView(True)
        if path == "/readyz":
            health = await self._readiness()
            try:
                known = await self._known(request) is not None
            except (Refused, PerdureError):
                known = False
            if not known:
                health = HealthView(health.ok, tuple(msgspec.structs.replace(one, detail="") for one in health.checks))
        return Response(msgspec.json.encode(health), 200 if health.ok else 503, dict(SAFE_HEADERS), media_type=JSON)

    async def _readiness(self) -> HealthView:
        """Check what is needed to work. A probe needs no credentials, so all probes share one check at a time."""
        if self._check is None or self._check.done():
            check = readiness(self._engine, needs_workers=self._needs_workers)
            self._check = session_of(self._engine).system.spawn(check, "perdure probe")
        return await asyncio.shield(self._check)

    def _document(self, request: Request) -> bytes:
        prefix = request.scope.get("root_path", "").rstrip("/")
        if prefix not in self._documents:
            self._documents = {prefix: msgspec.json.encode(make_document(prefix))}
        return self._documents[prefix]

    # answers

    def _problem(self, error: Exception, shown: Redactor) -> Response:
        problem = _shown_problem(error, shown)
        headers = {**SAFE_HEADERS, **headers_of(error, kind_of(error) or _BUG)}
        return Response(encode(problem), problem.status, headers, media_type=MEDIA_TYPE)

    def _stream(self, api: ApiRequest, answer: EventStream) -> Response:
        headers, caller = {**SAFE_HEADERS, "x-accel-buffering": "no"}, api.principal.account
        if api.request.method == "HEAD":
            return Response(b"", 200, headers, media_type=EVENT_STREAM)
        self._streams.enter(caller)
        return EventStreamResponse(self._texts(api, answer.events), headers, lambda: self._streams.leave(caller))

    async def _texts(self, api: ApiRequest, events: AsyncIterator[ServerEvent | None]) -> AsyncGenerator[bytes]:
        async with aclosing(self._kept_alive(api, events)) as kept:
            async for event in kept:
                yield event_text(event)

    async def _kept_alive(
        self, api: ApiRequest, events: AsyncIterator[ServerEvent | None]
    ) -> AsyncGenerator[ServerEvent | None]:
        """Events, with a sign of life now and then; ends when the caller's credentials do, or with an error."""
        system = session_of(api.engine).system
        checked = system.monotonic()
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._stops:
            end.set_result(None)
        self._ends.add(end)
        async with aclosing(with_signs_of_life(system, events, KEEP_ALIVE, end)) as kept:
            try:
                async for event in kept:
                    if system.monotonic() - checked >= KEEP_ALIVE:
                        if not await self._is_still_known(api.request):
                            return
                        checked = system.monotonic()
                    yield event
            except Exception as error:
                yield ServerEvent(_shown_problem(error, api.shown), event="problem")
            finally:
                self._ends.discard(end)

    async def _is_still_known(self, request: HTTPConnection) -> bool:
        try:
            return await self._authenticator.principal(request) is not None
        except Refused:
            return False
        except PerdureError:
            return True

    # other origins

    def _preflight(self, request: Request) -> Response | None:
        origin = request.headers.get("origin", "")
        if request.method != "OPTIONS" or "access-control-request-method" not in request.headers:
            return None
        if origin.lower() not in self.access.origins:
            raise Refused(FORBIDDEN, "pages of this origin may not call this server")
        headers = {
            **SAFE_HEADERS,
            "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE",
            "access-control-allow-headers": _ALLOWED_HEADERS,
            "access-control-max-age": _PREFLIGHT_AGE,
        }
        return self._with_cors(request, Response(b"", 204, headers))

    def _with_cors(self, request: Request, response: Response) -> Response:
        origin = request.headers.get("origin")
        if self.access.origins:
            response.headers["vary"] = "origin"
        if origin is not None and origin.lower() in self.access.origins:
            response.headers["access-control-allow-origin"] = origin
            response.headers["access-control-expose-headers"] = "retry-after"
        return response


class SideBySide:
    """An ASGI application with several engines, each under its name: `/orders/`, `/billing/`.

    The path `/` leads to the first one. A probe at the root answers for all of them.
    """

    def __init__(self, apps: Mapping[str, HttpApp]) -> None:
        apps = check_mapping("apps", apps, "{'orders': HttpApp(orders), 'billing': HttpApp(billing)}")
        for name in apps:
            if "/" in check_name(name, "name of an engine"):
                raise UsageError(f"{brief(name)} would be two parts of a path; give the engine a name without '/'")
        if not apps:
            raise UsageError("name at least one engine")
        self._apps: dict[str, HttpApp] = apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        root: str = scope.get("root_path", "").rstrip("/")
        path: str = scope.get("path", "").removeprefix(root)
        if path in ("/livez", "/readyz") and scope["type"] == "http":
            await self._probe(scope, receive, send)
            return
        name, found, _ = path.removeprefix("/").partition("/")
        app = self._apps.get(name)
        if app is not None and found:
            await app({**scope, "root_path": f"{root}/{name}", "perdure.mount": f"/{name}"}, receive, send)
        elif scope["type"] == "http":
            await self._elsewhere(root, path, name)(scope, receive, send)

    def end_streams(self) -> None:
        """End the streams of all engines, because the server stops."""
        for app in self._apps.values():
            app.end_streams()

    def _elsewhere(self, root: str, path: str, name: str) -> Response:
        if path in ("", "/") or name in self._apps:
            first = name if name in self._apps else next(iter(self._apps))
            return RedirectResponse(f"{root}/{first}/", 303, SAFE_HEADERS)
        return Response(b"there is no engine of this name", 404, SAFE_HEADERS, media_type="text/plain")

    async def _probe(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the first probe that fails, or with the last one."""
        messages: list[Any] = []

        async def keep(message: Any) -> None:
            messages.append(message)

        for app in self._apps.values():
            messages.clear()
            await app(scope, receive, keep)
            if messages[0]["status"] != 200:
                break
        for message in messages:
            await send(message)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                for app in self._apps.values():
                    await app.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


def _shown_problem(error: Exception, shown: Redactor) -> Problem:
    """Body of the answer to an error. One that the API does not expect is logged, and not shown."""
    kind = kind_of(error)
    if kind is None:
        logger.error("a request failed", exc_info=error)
        kind, error = _BUG, Refused(_BUG, "the server met an error of its own; its log has it")
    problem = problem_of(error, kind)
    if isinstance(error, Refused):
        return problem
    # Messages of errors may repeat values of the run.
    state = problem.state if isinstance(problem.state, msgspec.UnsetType) else shown.details(problem.state)
    return msgspec.structs.replace(problem, detail=shown.detail(problem.detail), state=state)


def _authorized(principal: Principal | None, route: Route) -> Principal:
    assert route.role is not None
    if principal is None:
        raise Refused(UNAUTHENTICATED, "send `Authorization: Bearer <token>`; `perdure tokens create` makes a token")
    if not principal.role.includes(route.role):
        raise Refused(FORBIDDEN, f"this needs the role {route.role.value}; {principal.name} is {principal.role.value}")
    return principal


def _seed(route: Route, path: str, request: Request, content: bytes, principal: Principal | None) -> bytes | None:
    """Seed of the ids and keys that a request makes: the same for a repetition of the request. Raises `InvalidId`."""
    given = request.headers.get("request-id")
    if given is None or principal is None or not route.is_repeatable:
        return None
    parts = (check_id(given, "header Request-Id"), principal.name, request.method, path, request.url.query)
    return hashlib.sha256("\0".join(parts).encode() + b"\0" + content).digest()


def _address(request: HTTPConnection) -> str:
    return f"address:{request.client.host if request.client else ''}"


def _query(request: Request, query: Any) -> dict[str, Any]:
    """Parameters of a query; those of a list by all of their values."""
    lists = {field.name for field in msgspec.structs.fields(query) if get_origin(field.type) in (list, tuple)}
    found: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in lists:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise Refused(INVALID, f"the parameter {name!r} is given twice")
        else:
            found[name] = value
    return found


def _decoded(request: Request, content: bytes, body: Any) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content and kind != JSON:
        raise Refused(UNSUPPORTED_MEDIA_TYPE, f"send the body as {JSON}, not as {kind or 'something unnamed'}")
    try:
        return decoder_for(body).decode(content or b"{}")
    except msgspec.ValidationError as error:
        raise Refused(INVALID, f"the body does not fit its type: {error}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Refused(BAD_REQUEST, f"the body is not JSON: {error}") from None


def _encoded(answer: Any, route: Route) -> Response:
    reply: Reply[Any] = answer if isinstance(answer, Reply) else Reply(answer, route.statuses[0])
    return Response(msgspec.json.encode(reply.value), reply.status, {**SAFE_HEADERS, **reply.headers}, media_type=JSON)


def _own_path(scope: Scope) -> str:
    """Path of a request without the prefix of this application, its parts still encoded."""
    raw = scope.get("raw_path")
    path: str = quote(scope["path"], safe="/%:@!$&'()*+,;=~") if raw is None else raw.decode("ascii", "replace")
    path = path.partition("?")[0]
    prefix: str = scope.get("root_path", "").rstrip("/")
    if prefix and f"{scope['path']}/".startswith(f"{prefix}/"):
        path = "/" + path.split("/", prefix.count("/") + 1)[-1]
    return path


def _apply_forwarded(scope: Scope, access: Access) -> None:
    """Believe a trusted proxy about the client, the scheme, the host and the prefix of a request."""
    peer = scope["client"][0] if scope.get("client") else ""
    scope["perdure.peer"] = peer
    headers = [(name.lower(), value) for name, value in scope["headers"]]
    found = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    if peer and access.trusts(peer):
        clients = [one.strip() for one in found.get("x-forwarded-for", "").split(",") if one.strip()]
        client = next((one for one in reversed(clients) if not access.trusts(one)), None)
        if client is not None:
            scope["client"] = (client, 0)
        if (scheme := found.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()) in ("http", "https"):
            scope["scheme"] = scheme
        if host := found.get("x-forwarded-host", "").rpartition(",")[2].strip():
            headers = [(name, value) for name, value in headers if name != b"host"]
            headers.append((b"host", host.encode("latin-1")))
            found["host"] = host
        if prefix := found.get("x-forwarded-prefix", "").rstrip("/"):
            scope["root_path"] = prefix + scope.get("perdure.mount", "")
    scope["headers"] = headers
    scope["perdure.loopback"] = without_port(found.get("host", "")) in LOOPBACK_HOSTS
