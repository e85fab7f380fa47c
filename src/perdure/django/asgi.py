"""The dashboard and the HTTP API for users of Django: inside of an ASGI project, or beside a WSGI project.

It needs the extra `perdure[dashboard]`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import django
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.shortcuts import resolve_url
from starlette.responses import RedirectResponse

from perdure.core.redaction import Redaction
from perdure.dashboard import Dashboard
from perdure.django.engines import make_engine
from perdure.django.project_settings import project_settings
from perdure.django.users import DjangoAccess
from perdure.http.app import HttpApp, Receive, Scope, Send

__all__ = ["dashboard_application", "mount_dashboard"]

Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def mount_dashboard(application: Any, *, redaction: Redaction | None = None) -> Application:
    """Add the dashboard to an ASGI application of Django, at the path that the setting PERDURE names as DASHBOARD."""
    path = project_settings().dashboard.rstrip("/")
    if not path.startswith("/"):
        raise ImproperlyConfigured(
            f"PERDURE['DASHBOARD'] is {path!r}; to mount the dashboard, give a path: '/perdure/'"
        )
    return _Mount(_make_site(redaction), path, application)


def dashboard_application(*, redaction: Redaction | None = None) -> Application:
    """Make an ASGI application with the dashboard alone, to run beside a WSGI application of Django."""
    django.setup(set_prefix=False)
    return _Mount(_make_site(redaction), "", None)


def _make_site(redaction: Redaction | None) -> tuple[HttpApp, Callable[[], Awaitable[None]]]:
    engine = make_engine()
    pages = Dashboard(login=resolve_url(settings.LOGIN_URL))
    return HttpApp(engine, access=DjangoAccess(), redaction=redaction, pages=pages), engine.close


class _Mount:
    """Passes requests under a path to the dashboard, and others to Django, which has no lifespan."""

    def __init__(
        self, site: tuple[HttpApp, Callable[[], Awaitable[None]]], path: str, application: Application | None
    ) -> None:
        self._site, self._close_engine = site
        self._path = path
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        root: str = scope.get("root_path", "").rstrip("/")
        path: str = scope["path"].removeprefix(root)
        if self._application is None or path.startswith(f"{self._path}/"):
            await self._site({**scope, "root_path": root + self._path, "perdure.mount": self._path}, receive, send)
        elif path == self._path and scope["type"] == "http":
            await RedirectResponse(f"{root}{self._path}/")(scope, receive, send)
        else:
            await self._application(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._site.close()
                await self._close_engine()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
