"""Database URLs.

`sqlite:///shop.db` is a file relative to the working directory, `sqlite:////var/lib/shop.db` an absolute one, `sqlite://` a
database in memory that ends with the engine. Options follow a question mark: `prefix` (of table names), `synchronous`
(FULL or NORMAL), `quick_check` (auto, on or off) and `busy` (for how many seconds to wait for other processes).
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from perdure.core.errors import UsageError
from perdure.store.dialect import DEFAULT_PREFIX

_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_EXAMPLE = "Use sqlite:///relative.db, sqlite:////absolute.db, or sqlite:// for a database in memory."


class SqliteUrl(Struct, frozen=True, kw_only=True):
    """Where an SQLite database is and how to treat it."""

    #: None: in memory.
    path: str | None
    prefix: str = DEFAULT_PREFIX
    synchronous: str = "FULL"
    quick_check: str = "auto"
    busy_seconds: float = 30.0


def parse(url: str) -> SqliteUrl:
    """What a URL says. Raises `UsageError`."""
    parts = urlsplit(url)
    if parts.scheme != "sqlite" or parts.netloc or parts.fragment:
        raise UsageError(f"{url!r} is not a database URL that Perdure knows. {_EXAMPLE}")
    path = unquote(parts.path.removeprefix("/"))
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(options.keys() - {"prefix", "synchronous", "quick_check", "busy"})
    if unknown:
        raise UsageError(
            f"{url!r} has the unknown option {unknown[0]!r}; known are prefix, synchronous, quick_check, busy."
        )
    return SqliteUrl(
        path=None if path in ("", ":memory:") else path,
        prefix=_prefix(options.get("prefix", DEFAULT_PREFIX)),
        synchronous=_one_of("synchronous", options.get("synchronous", "FULL").upper(), ("FULL", "NORMAL")),
        quick_check=_one_of("quick_check", options.get("quick_check", "auto"), ("auto", "on", "off")),
        busy_seconds=_seconds(options.get("busy", "30")),
    )


def _prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise UsageError(
            f"{text!r} cannot begin the names of tables; use lower-case letters, digits and _, at most 41."
        )
    return text


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise UsageError(f"The option {option} of a database URL is one of {', '.join(allowed)}, not {value!r}.")
    return value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 86_400:
        raise UsageError(f"The option busy of a database URL is a number of seconds, not {text!r}.")
    return seconds
