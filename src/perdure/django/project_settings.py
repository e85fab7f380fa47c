"""The setting `PERDURE`, and the URL of the database that Django's own settings name."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import quote, urlencode

import msgspec
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from msgspec import Struct

from perdure.core.codec.decoders import convert_to

#: Options of a PostgreSQL connection in Django's settings that Perdure's own driver understands, too.
_SHARED_OPTIONS = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs"})


class ProjectSettings(Struct, frozen=True, kw_only=True, rename="upper", forbid_unknown_fields=True):
    """The setting `PERDURE`; its keys are these names in capitals."""

    #: Alias of the database in `DATABASES` that has Perdure's tables.
    database: str = "default"
    #: Address of another database or server, instead of `DATABASE`.
    url: str | None = None
    #: Modules or packages with workflows and activities; by default the module `workflows` of each app.
    workflows: list[str] | None = None
    #: Options of `Engine`.
    options: dict[str, Any] = {}
    #: False: `manage.py migrate` and `manage.py flush` leave Perdure's tables alone.
    migrate: bool = True
    #: Path or address of the dashboard.
    dashboard: str = "/perdure/"


def project_settings() -> ProjectSettings:
    """Read the setting `PERDURE`, with defaults. Raises `ImproperlyConfigured`."""
    try:
        return cast(ProjectSettings, convert_to(ProjectSettings, getattr(settings, "PERDURE", {})))
    except msgspec.ValidationError as error:
        known = ", ".join(ProjectSettings.__struct_encode_fields__)
        raise ImproperlyConfigured(f"the setting PERDURE is wrong: {error}; its keys are {known}") from None


def database_url() -> str:
    """Return the address of the database for an engine. Raises `ImproperlyConfigured`."""
    chosen = project_settings()
    if chosen.url is not None:
        return chosen.url
    alias = chosen.database
    database: Any = connections[alias]
    match database.vendor:
        case "sqlite":
            if database.is_in_memory_db():
                raise ImproperlyConfigured(
                    f"the database {alias!r} is in memory, and workers could not see it; name a file. In tests: "
                    f"DATABASES[{alias!r}]['TEST'] = {{'NAME': 'test.db'}}"
                )
            return f"sqlite:///{quote(str(database.settings_dict['NAME']))}"
        case "postgresql":
            return _server_url("postgresql", "host", database.settings_dict, _SHARED_OPTIONS)
        case "mysql":
            return _server_url("mysql", "socket", database.settings_dict, frozenset())
        case other:
            raise ImproperlyConfigured(
                f"the database {alias!r} is of the kind {other}, on which Perdure does not run; name one of "
                "PostgreSQL, MySQL, MariaDB or SQLite: PERDURE = {'DATABASE': ...}"
            )


def _server_url(scheme: str, socket: str, given: dict[str, Any], shared: frozenset[str]) -> str:
    user, password, host = (str(given[name] or "") for name in ("USER", "PASSWORD", "HOST"))
    options = {name: str(value) for name, value in given.get("OPTIONS", {}).items() if name in shared}
    if host.startswith("/"):
        options[socket], host = host, ""
        if given["PORT"]:
            options["port"] = str(given["PORT"])
    elif given["PORT"]:
        host = f"{host}:{given['PORT']}"
    secret = f":{quote(password, safe='')}" if password else ""
    login = f"{quote(user, safe='')}{secret}@" if user else ""
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{login}{host}/{quote(str(given['NAME']), safe='')}{query}"
