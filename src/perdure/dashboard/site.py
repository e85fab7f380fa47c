"""The paths of the dashboard, and the way of a request to its page.

Access is that of the HTTP API: the same callers, roles, redaction and names in the audit trail. A form carries the
CSRF token of its caller.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from perdure.client.engine import Engine
from perdure.core.access import Role
from perdure.core.option_checks import check_mapping, check_text
from perdure.core.printed_text import brief
from perdure.dashboard import actions, backfill_page, deploy_page, events_page, pages
from perdure.dashboard.charts import RANGES, Charts
from perdure.dashboard.diff_page import choose_diff, show_diff
from perdure.dashboard.live import LiveViews, ViewKey
from perdure.dashboard.page_request import HEADERS, THEME_COOKIE, THEMES, PageRequest, environment, static_files
from perdure.dashboard.run_page import download, show_run
from perdure.dashboard.schedule_form import change_schedule, show_change
from perdure.dashboard.sources import show_type
from perdure.dashboard.start_form import show_start, start_run
from perdure.errors import UsageError
from perdure.http.api import ApiRequest, EventStream
from perdure.http.problems import FORBIDDEN, NOT_FOUND, ProblemKind, Refused, headers_of, kind_of
from perdure.http.redaction import Redactor
from perdure.http.tokens import cookie

logger = logging.getLogger("perdure.dashboard")

_FORM = "application/x-www-form-urlencoded"
_BUG = ProblemKind(500, "internal-error")
_MEDIA = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}

Handler = Callable[..., Awaitable[Response]]


class PageRoute(Struct, frozen=True):
    """A path of the dashboard. A POST passes the fields of its form as the last argument."""

    method: str
    path: str
    role: Role
    handler: Handler


async def _confirm_run(request: PageRequest, run_id: str, action: str) -> Response:
    return await actions.confirm_run(request, run_id, _known(action, actions.BY_NAME))


async def _perform_run(request: PageRequest, run_id: str, action: str, form: dict[str, str]) -> Response:
    return await actions.perform_run(request, run_id, _known(action, actions.BY_NAME), form)


async def _confirm_order(request: PageRequest, kind: str, name: str, action: str) -> Response:
    _known((kind, action), actions.ORDERS)
    return actions.confirm_order(request, kind, name, action)


async def _perform_order(request: PageRequest, kind: str, name: str, action: str, form: dict[str, str]) -> Response:
    _known((kind, action), actions.ORDERS)
    return await actions.perform_order(request, kind, name, action, form)


async def _confirm_schedule(request: PageRequest, name: str, action: str) -> Response:
    return await _confirm_order(request, "schedule", name, action)


async def _perform_schedule(request: PageRequest, name: str, action: str, form: dict[str, str]) -> Response:
    return await _perform_order(request, "schedule", name, action, form)


async def _choose_runs(request: PageRequest) -> Response:
    return request.redirect(request.url("runs"))


async def _confirm_worker(request: PageRequest, name: str, action: str) -> Response:
    return await _confirm_order(request, "worker", name, action)


async def _perform_worker(request: PageRequest, name: str, action: str, form: dict[str, str]) -> Response:
    return await _perform_order(request, "worker", name, action, form)


async def _confirm_bulk(request: PageRequest, action: str) -> Response:
    chosen = actions.Chosen.read({"all": "yes", "q": request.http.query_params.get("q", "")})
    return await actions.confirm_bulk(request, _known(action, actions.BULK), chosen)


async def _perform_bulk(request: PageRequest, action: str, form: dict[str, str]) -> Response:
    return await actions.perform_bulk(request, _known(action, actions.BULK), form)


async def _confirm_group(request: PageRequest, key: str, action: str) -> Response:
    group = await pages.find_group(request, key)
    if group is None:
        return request.redirect(request.url("dead-letters"))
    return actions.confirm_group(request, group, _known(action, ("retry", "discard")))


async def _perform_group(request: PageRequest, key: str, action: str, form: dict[str, str]) -> Response:
    group = await pages.find_group(request, key)
    if group is None:
        return request.redirect(request.url("dead-letters"))
    return await actions.perform_group(request, group, _known(action, ("retry", "discard")), form)


def _known(name: Any, names: Any) -> Any:
    if name not in names:
        raise Refused(NOT_FOUND, "there is no such action")
    return name


async def _theme(request: PageRequest) -> Response:
    """Choose a theme, which is not worth a form."""
    to = request.http.query_params.get("to", "")
    response = request.redirect(request.local(request.http.query_params.get("back", "")))
    if to in THEMES:
        response.set_cookie(
            THEME_COOKIE, to, max_age=31_536_000, path=f"{request.prefix}/", samesite="lax", httponly=True
        )
    return response


VIEWER, OPERATOR = Role.VIEWER, Role.OPERATOR
ROUTES = (
    PageRoute("GET", "/", VIEWER, pages.overview),
    PageRoute("GET", "/theme", VIEWER, _theme),
    PageRoute("GET", "/runs", VIEWER, pages.runs),
    PageRoute("GET", "/runs/{}", VIEWER, show_run),
    PageRoute("GET", "/runs/{}/payload/{}", VIEWER, download),
    PageRoute("GET", "/runs/{}/diff", VIEWER, choose_diff),
    PageRoute("GET", "/runs/{}/diff/{}", VIEWER, show_diff),
    PageRoute("GET", "/runs/{}/{}", OPERATOR, _confirm_run),
    PageRoute("POST", "/runs/{}/{}", OPERATOR, _perform_run),
    PageRoute("GET", "/bulk", OPERATOR, _choose_runs),
    PageRoute("POST", "/bulk", OPERATOR, actions.choose_bulk),
    PageRoute("GET", "/bulk/{}", OPERATOR, _confirm_bulk),
    PageRoute("POST", "/bulk/{}", OPERATOR, _perform_bulk),
    PageRoute("GET", "/workflows", VIEWER, pages.workflows),
    PageRoute("GET", "/workflows/{}", VIEWER, show_type),
    PageRoute("GET", "/workflows/{}/start", OPERATOR, show_start),
    PageRoute("POST", "/workflows/{}/start", OPERATOR, start_run),
    PageRoute("GET", "/schedules", VIEWER, pages.schedules),
    PageRoute("GET", "/schedules/{}/backfill", OPERATOR, backfill_page.confirm_backfill),
    PageRoute("POST", "/schedules/{}/backfill", OPERATOR, backfill_page.perform_backfill),
    PageRoute("GET", "/schedules/{}/change", OPERATOR, show_change),
    PageRoute("POST", "/schedules/{}/change", OPERATOR, change_schedule),
    PageRoute("GET", "/schedules/{}/{}", OPERATOR, _confirm_schedule),
    PageRoute("POST", "/schedules/{}/{}", OPERATOR, _perform_schedule),
    PageRoute("GET", "/queues", VIEWER, pages.queues),
    PageRoute("GET", "/queues/{}/{}/{}", OPERATOR, _confirm_order),
    PageRoute("POST", "/queues/{}/{}/{}", OPERATOR, _perform_order),
    PageRoute("GET", "/events", VIEWER, events_page.events),
    PageRoute("POST", "/events", OPERATOR, events_page.emit),
    PageRoute("GET", "/events/{}", VIEWER, events_page.show_event),
    PageRoute("GET", "/events/{}/replay", OPERATOR, events_page.confirm_replay),
    PageRoute("POST", "/events/{}/replay", OPERATOR, events_page.perform_replay),
    PageRoute("GET", "/dead-letters", VIEWER, pages.dead_letters),
    PageRoute("GET", "/dead-letters/{}/{}", OPERATOR, _confirm_group),
    PageRoute("POST", "/dead-letters/{}/{}", OPERATOR, _perform_group),
    PageRoute("GET", "/workers", VIEWER, pages.workers),
    PageRoute("GET", "/workers/{}/{}", OPERATOR, _confirm_worker),
    PageRoute("POST", "/workers/{}/{}", OPERATOR, _perform_worker),
    PageRoute("GET", "/deploy", VIEWER, deploy_page.deploy),
    PageRoute("GET", "/deploy/check", OPERATOR, deploy_page.confirm_check),
    PageRoute("POST", "/deploy/check", OPERATOR, deploy_page.perform_check),
)


def find_route(method: str, path: str) -> tuple[PageRoute, list[str]]:
    """Find the route of a path, whose parts are still encoded, and its varying parts. Raises `Refused`."""
    given = path.rstrip("/").split("/")[1:] if path != "/" else [""]
    for route in ROUTES:
        parts = route.path.split("/")[1:]
        if len(parts) != len(given) or route.method != ("GET" if method == "HEAD" else method):
            continue
        if all(part in ("{}", one) for part, one in zip(parts, given, strict=True)):
            varying = [one for part, one in zip(parts, given, strict=True) if part == "{}"]
            return route, [unquote(one, errors="surrogateescape") for one in varying]
    raise Refused(NOT_FOUND, "there is no such page")


class Dashboard:
    """The pages of an engine's database: `HttpApp(engine, pages=Dashboard())`.

    `neighbours` are the addresses of other dashboards by name, such as `{"billing": "/billing/"}`: the head of each
    page has a menu of them. `name` is that of this one. `login` is the address of the host application's login page,
    which gets the wanted page as the parameter `next`; by default a page asks for a token.
    """

    def __init__(self, *, name: str = "", neighbours: Mapping[str, str] | None = None, login: str = "") -> None:
        others = check_mapping("neighbours", {} if neighbours is None else neighbours, '{"billing": "/billing/"}')
        for label, address in others.items():
            if not isinstance(address, str) or not address.startswith(("/", "http://", "https://")):
                raise UsageError(
                    f"the address of {brief(label)} is {brief(address)}; give one such as /billing/ or https://..."
                )
        self._name = check_text("name", name)
        self._neighbours: dict[str, str] = others
        self._login = check_text("login", login)
        # Now, because the first request of each page would otherwise block the event loop.
        for name in environment().list_templates():
            environment().get_template(name)
        static_files()
        self._live: LiveViews | None = None
        self._charts: Charts | None = None

    async def close(self) -> None:
        """Stop what follows the database for open pages."""
        if self._live is not None:
            await self._live.close()
            self._live = None
        if self._charts is not None:
            await self._charts.close()
            self._charts = None

    async def respond(self, api: ApiRequest, path: str, content: bytes, *, known: bool) -> Response | EventStream:
        """Answer a request for a page."""
        request = PageRequest(
            engine=api.engine,
            http=api.request,
            path=path,
            shown=api.shown,
            actor=api.principal.name,
            role=api.principal.role,
            csrf=api.principal.csrf,
            session=api.principal.session is not None,
            start_bulk_worker=api.services.start_bulk_worker,
            name=self._name,
            neighbours=self._neighbours,
        )
        try:
            if path.startswith("/static/"):
                return _static(path.removeprefix("/static/"))
            if path == "/login":
                return await _login(request, api, content)
            if not known:
                login = self._login or request.url("login")
                return request.redirect(f"{login}?{urlencode({'next': request.here})}")
            if path == "/logout" and api.request.method == "POST":
                return await _logout(request, api, content)
            if path == "/live" and api.request.method == "GET":
                return await self._follow(api, request)
            if path == "/charts" and api.request.method == "GET":
                return await self._chart(api, request)
            route, parts = find_route(api.request.method, path)
            if not request.role.includes(route.role):
                raise Refused(
                    FORBIDDEN, f"this needs the role {route.role.value}; {request.actor} is {request.role.value}"
                )
            if route.method == "POST":
                return await route.handler(request, *parts, _form(request, api, content))
            return await route.handler(request, *parts)
        except Exception as error:
            return _failed(request, error, known=known)

    async def _chart(self, api: ApiRequest, request: PageRequest) -> Response:
        """The figures of a chart of the overview; they have no payload, so they are the same for every role."""
        if self._charts is None:
            self._charts = Charts(api.engine, api.services.hub.budget)
        name = request.http.query_params.get("range", "")
        if name not in RANGES:
            raise UsageError(f"a range is one of {', '.join(RANGES)}")
        content = msgspec.json.encode(await self._charts.read(name))
        return Response(content, 200, HEADERS, media_type="application/json")

    async def _follow(self, api: ApiRequest, request: PageRequest) -> EventStream:
        """Follow a page of this server: the address of the view is in the query."""
        if self._live is None:
            self._live = LiveViews(api.engine, api.services.hub, draw_view)
        target = request.http.query_params.get("view", "")
        path, _, query = target.removeprefix(request.prefix).partition("?")
        route, _ = find_route("GET", path or "/")
        if route.role is not VIEWER:
            raise Refused(NOT_FOUND, "this page is not live")
        view = ViewKey(path=path or "/", query=query, prefix=request.prefix, role=request.role)
        again = "last-event-id" in request.http.headers or request.http.query_params.get("again") == "yes"
        return EventStream(await self._live.follow(view, request.shown, again=again))


async def draw_view(engine: Engine, key: ViewKey, shown: Redactor) -> Response:
    """Make the page of a view for all of its viewers: it has nothing that belongs to one of them."""
    scope = {
        "type": "http", "method": "GET", "scheme": "http", "server": ("localhost", 80), "path": key.prefix + key.path,
        "query_string": key.query.encode("ascii", "replace"), "root_path": key.prefix, "headers": [],
    }  # fmt: skip
    request = PageRequest(
        engine=engine, http=Request(scope), path=key.path, shown=shown, actor="", role=key.role, csrf="",
        session=False, start_bulk_worker=_start_nothing,
    )  # fmt: skip
    route, parts = find_route("GET", key.path)
    return await route.handler(request, *parts)


async def _start_nothing() -> None:
    """A view that is drawn again starts no worker."""


def _static(name: str) -> Response:
    if name not in static_files():
        raise Refused(NOT_FOUND, "there is no such file")
    headers = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
    return Response(static_files()[name][0], 200, headers, media_type=_MEDIA[name.rpartition(".")[2]])


def _form(request: PageRequest, api: ApiRequest, content: bytes) -> dict[str, str]:
    """Fields of a form with its CSRF token. Raises `Refused`."""
    form = _fields(api, content)
    if not request.csrf and not api.principal.ambient:
        return form
    if not request.csrf or not hmac.compare_digest(
        form.get("csrf", "").encode("utf-8", "replace"), request.csrf.encode()
    ):
        raise Refused(FORBIDDEN, "the form is too old or was made by another page; go back, reload it and try again")
    return form


def _fields(api: ApiRequest, content: bytes) -> dict[str, str]:
    if not content:
        return {}
    kind = api.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM:
        raise UsageError(f"a form is sent as {_FORM}, not as {kind or 'something unnamed'}")
    try:
        found = parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=200)
    except ValueError as error:
        raise UsageError(f"the form cannot be read: {error}") from None
    form: dict[str, str] = {}
    for name, value in found:
        # Browsers send line ends as CR LF. The values of check boxes of one name are lines; no id has a line end.
        text = value.replace("\r\n", "\n")
        form[name] = f"{form[name]}\n{text}" if name == "run" and name in form else text
    return form


async def _login(request: PageRequest, api: ApiRequest, content: bytes) -> Response:
    if api.request.method != "POST":
        return request.render("login.html", next=request.http.query_params.get("next", ""), problem="")
    form = _fields(api, content)
    try:
        login = await api.services.authenticator.login(form.get("token", "").strip())
    except Refused as refused:
        return request.render("login.html", status=401, next=form.get("next", ""), problem=str(refused))
    response = request.redirect(request.local(form.get("next", "")))
    response.headers["set-cookie"] = cookie(api, login.secret)
    return response


async def _logout(request: PageRequest, api: ApiRequest, content: bytes) -> Response:
    _form(request, api, content)
    await api.services.authenticator.logout(api.principal)
    response = request.redirect(request.url("login"))
    response.headers["set-cookie"] = cookie(api, "")
    return response


def _failed(request: PageRequest, error: Exception, *, known: bool) -> Response:
    """The page of an error, with the same status and text as in the API."""
    kind = kind_of(error)
    if kind is None:
        logger.error("a page failed", exc_info=error)
        kind, error = _BUG, Refused(_BUG, "the server met an error of its own; its log has it")
    detail = str(error) if isinstance(error, Refused) else request.shown.detail(str(error))
    if not known:
        return Response(detail.encode("utf-8", "replace"), kind.status, HEADERS, media_type="text/plain")
    response = request.render(
        "message.html",
        status=kind.status,
        title=kind.title.capitalize(),
        sentence=f"{detail[:1].upper()}{detail[1:]}.",
        back=request.url("runs"),
        back_text="All runs",
    )
    for name, value in headers_of(error, kind).items():
        response.headers[name] = value
    return response
