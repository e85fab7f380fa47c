"""The request for a page: the caller, the links of the page, and its rendering."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from perdure.client.engine import Engine
from perdure.core.access import Role
from perdure.core.model.run import Run, Status
from perdure.core.pinning import base_queue
from perdure.core.status_signs import STATUS_SIGNS
from perdure.core.time.duration import length
from perdure.dashboard import texts
from perdure.http.redaction import Redactor
from perdure.store.url import shown as shown_url

FOLDER = Path(__file__).parent
THEME_COOKIE = "perdure_theme"
THEMES = ("light", "dark")
#: Nothing but files of this server, no inline script or style, no frames, no foreign forms.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
PAGES = (
    ("", "Overview"),
    ("runs", "Runs"),
    ("workflows", "Workflows"),
    ("schedules", "Schedules"),
    ("queues", "Queues"),
    ("events", "Events"),
    ("dead-letters", "Dead letters"),
    ("workers", "Workers"),
    ("deploy", "Deploy"),
)

#: Templates with parts that are drawn again while the page is open: elements with `data-live`.
LIVE = frozenset(
    f"{name}.html"
    for name in (
        "overview",
        "runs",
        "run",
        "workflows",
        "schedules",
        "queues",
        "events",
        "event",
        "dead_letters",
        "workers",
        "deploy",
    )
)

#: Signs of states that are not a run's.
_OTHER_SIGNS = {
    "alive": "●", "late": "◆", "draining": "◔", "stopped": "⊘", "dead": "✕",
    "interrupted": "◆", "retrying": "◔", "skipped": "⊘",
}  # fmt: skip


def glyph(state: str) -> str:
    """Glyph of a status."""
    return STATUS_SIGNS[Status(state)].glyph if state in tuple(Status) else _OTHER_SIGNS.get(state, "○")


def _place(x: float) -> str:
    return f"{min(100.0, max(0.0, x)):.3f}"


_FILTERS: dict[str, Callable[..., Any]] = {
    "length": length,
    "length_of": len,
    "age": texts.age,
    "iso": texts.iso,
    "clock": texts.clock,
    "is_time": texts.is_time,
    "count": texts.count,
    "pretty": texts.pretty,
    "cut_text": lambda text: texts.cut(text)[0],
    "left_out": lambda text: texts.cut(text)[1],
    "first_line": texts.first_line,
    "short_type": lambda name: name.rpartition(".")[2] or name,
    "base_queue": base_queue,
    "frames": texts.frames,
    "frame_name": texts.first_line,
    "rows": lambda text: min(24, max(4, 2 + text.count("\n"))),
    "place": _place,
    # A bar is never too thin to be seen, and stays within the width.
    "left": lambda x: _place(min(x, 99.6)),
    "wide": lambda width: _place(max(width, 0.4)),
    "dot": lambda x: _place(min(x, 99.6)),
}


@cache
def environment() -> Environment:
    """Templates. Every value is escaped; an unknown name is an error."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(_FILTERS)
    names: dict[str, Any] = made.globals
    names["glyph"] = glyph
    return made


@cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """Files that pages use, by name, each with its content and a digest of it."""
    found = {path.name: path.read_bytes() for path in (FOLDER / "static").iterdir() if path.is_file()}
    return {name: (content, hashlib.sha256(content).hexdigest()[:12]) for name, content in found.items()}


class PageRequest:
    """A request for a page by a caller. Every text of users that a page shows goes through `shown`."""

    def __init__(
        self,
        *,
        engine: Engine,
        http: Request,
        path: str,
        shown: Redactor,
        actor: str,
        role: Role,
        csrf: str,
        session: bool,
        start_bulk_worker: Callable[[], Awaitable[None]],
        name: str = "",
        neighbours: Mapping[str, str] | None = None,
    ) -> None:
        self.engine = engine
        #: The request as the server received it.
        self.http = http
        self.shown = shown
        self.actor = actor
        self.role = role
        self.csrf = csrf
        #: The caller has logged in here, and may log out.
        self.session = session
        self.start_bulk_worker = start_bulk_worker
        #: Name of this dashboard among its neighbours, and their addresses by name.
        self.name = name
        self.neighbours = neighbours or {}
        self.prefix: str = http.scope.get("root_path", "").rstrip("/")
        #: Path and query of this page, as the browser has them.
        self.here = f"{self.prefix}{path}{'?' * bool(http.url.query)}{http.url.query}"
        theme = http.cookies.get(THEME_COOKIE, "")
        self.theme = theme if theme in THEMES else ""
        self.database = shown_url(engine.url)
        self.engine_url = f'"{self.database}"'
        self.version = version("perdure")
        self.pages = PAGES
        self.columns: tuple[str, ...] = ()

    @property
    def operates(self) -> bool:
        """True if the caller may change something."""
        return self.role.includes(Role.OPERATOR)

    def url(self, *parts: str) -> str:
        """Address of a page of this server; each part may be any text."""
        return f"{self.prefix}/" + "/".join(quote(part.encode("utf-8", "replace"), safe="") for part in parts)

    def runs_url(self, query: str, **more: str) -> str:
        """Address of the runs that fit a query."""
        found = urlencode({name: value for name, value in {"q": query, **more}.items() if value}, errors="replace")
        return self.url("runs") + (f"?{found}" if found else "")

    def static(self, name: str) -> str:
        """Address of a file; it changes with the content."""
        return f"{self.prefix}/static/{name}?v={static_files()[name][1]}"

    def render(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Make the answer of a page."""
        live = f"{self.prefix}/live?{urlencode({'view': self.here}, errors='replace')}" if template in LIVE else ""
        given = {
            "focus": "",
            "live": live if status == 200 else "",
            "notice": "",
            "notice_bad": False,
            # No page of the menu.
            "page": None,
            "title": "",
            **values,
        }
        text = environment().get_template(template).render(request=self, **given)
        # Lone surrogates in stored texts have no UTF-8.
        return HTMLResponse(text.encode("utf-8", "replace"), status, HEADERS)

    def redirect(self, address: str) -> Response:
        """Lead to another page of this server."""
        return RedirectResponse(address, 303, HEADERS)

    def local(self, address: str) -> str:
        """An address from outside if it is one of this server's pages, else that of the first page."""
        ok = address.startswith(f"{self.prefix}/") and not address.startswith("//") and "\\" not in address
        return address if ok and address.isprintable() else self.url()


def shown_attributes(request: PageRequest, run: Run) -> dict[str, str]:
    """Attributes of a run as texts, as the caller may see them."""
    found = request.shown.value(dict(run.attributes or {}))
    return {name: _text(value) for name, value in found.items()} if isinstance(found, dict) else {}


def shown_headers(request: PageRequest, run: Run) -> dict[str, str]:
    """Headers of a run, as the caller may see them."""
    return request.shown.members(run.headers)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.datetime) else str(value)
