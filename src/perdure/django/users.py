"""Users of Django as callers of the dashboard and the HTTP API."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections
from django.http import HttpRequest
from django.http.request import split_domain_port, validate_host
from starlette.requests import HTTPConnection

from perdure.core.access import Role
from perdure.core.printed_text import brief
from perdure.django.roles import role_of
from perdure.http.access import LOOPBACK_HOSTS, Access, Principal
from perdure.http.problems import MISDIRECTED, Refused


class DjangoAccess(Access):
    """Access by the sessions, permissions and `ALLOWED_HOSTS` of Django."""

    def __init__(self) -> None:
        trusted = [origin for origin in settings.CSRF_TRUSTED_ORIGINS if "*" not in origin]
        super().__init__(origins=trusted, authenticate=_principal)

    def check_host(self, connection: HTTPConnection) -> None:
        """Raise `Refused` for a request under an unknown name."""
        host = connection.headers.get("host", "")
        allowed = settings.ALLOWED_HOSTS or (LOOPBACK_HOSTS if settings.DEBUG else [])
        name, _ = split_domain_port(host)
        if not name or not validate_host(name, allowed):
            raise Refused(MISDIRECTED, f"this server is not reached as {brief(host)}; add the name to ALLOWED_HOSTS")


async def _principal(connection: HTTPConnection) -> Principal | None:
    cookie = connection.cookies.get(settings.SESSION_COOKIE_NAME)
    if cookie is None:
        return None
    found = await sync_to_async(_find_user)(cookie)
    return None if found is None else Principal(name=f"user:{found[0]}", role=found[1])


def _find_user(cookie: str) -> tuple[str, Role] | None:
    """Find the name and the role of the user of a session."""
    # Imported late: its models need the apps of the project.
    from django.contrib.auth import get_user

    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(cookie)
    try:
        user: Any = get_user(request)
        role = role_of(user)
        return None if role is None else (user.get_username(), role)
    finally:
        close_old_connections()
