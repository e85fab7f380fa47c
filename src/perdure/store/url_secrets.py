"""Passwords of database URLs, kept out of every message.

A password may stand between the user name and the host, or in an option. It may also stand elsewhere by mistake,
because it has a `/`, `?`, `#`, `@` or `&` that is not percent-encoded, or because the host is missing. So a URL is
shown only as far as it is certain where its parts begin and end, and messages of others are searched for the password
and its pieces.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import wraps
from typing import TypeVar
from urllib.parse import unquote, unquote_plus

from perdure.errors import StoreRefused, UsageError

T = TypeVar("T")

HIDDEN = "***"

#: Schemes of servers, which `://` follows.
_SERVERS = frozenset({"postgresql", "postgres", "mysql", "mariadb"})
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+._-]*")
_HOSTS = re.compile(r"(?:[^:@\[\]]*|\[[^\]@]*\])(?::[0-9]*)?")
_SENSITIVE = re.compile(r"pass|pwd|secret|token|credential|passfile|key", re.IGNORECASE)
_OPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
#: Options that cannot be a piece of a password in the option before them.
_OPTIONS = frozenset({
    "application_name", "audit", "busy", "connect_timeout", "database", "dbname", "host", "listen", "notify", "pool",
    "port", "prefix", "quick_check", "schema", "socket", "ssl", "ssl_ca", "sslmode", "sslrootcert", "synchronous",
    "target_session_attrs", "user",
})  # fmt: skip
#: Characters at which parsers take a password apart, or which they leave out or escape.
_PIECES = re.compile(r"\W+")
#: Shortest piece that is searched for. Shorter ones are part of many words.
_SHORTEST = 3
_ENCODE = (
    "write postgresql://user:password@host/database, with / ? # and @ in the user name and the password "
    "percent-encoded as %2F, %3F, %23 and %40"
)


def shown(url: str) -> str:
    """A URL without its password, for messages."""
    scheme, found, rest = _scheme(url)
    if not found:
        return _without_scheme(url)
    authority, tail = _split(rest)
    if not (_is_file(scheme) and not authority) and ("@" in tail or not _is_certain(authority)):
        return f"{scheme}://{HIDDEN}"
    userinfo, at, hosts = authority.rpartition("@")
    user, colon, _ = userinfo.partition(":")
    return f"{scheme}://{user}{f':{HIDDEN}' if colon else ''}{at}{hosts}{_shown_tail(tail)}"


def secrets_of(url: str) -> frozenset[str]:
    """The passwords that a URL may have, as written and decoded; also their pieces if its parts are not certain."""
    scheme, found, rest = _scheme(url)
    before, at, after = (rest if found else url).rpartition("@")
    authority, tail = _split(rest)
    raw = [before.partition(":")[2]] if at and not (_is_file(scheme) and not authority) else []
    certain = bool(found) and _is_certain(authority) and "@" not in tail and url.isprintable()
    if found and not certain:
        raw.append(rest.partition(":")[2])
    if not found and shown(url) != url:
        raw.append(url.partition(":")[2])
    for option in re.finditer(r"[?&]([^=&]*)=", rest):
        if _SENSITIVE.search(unquote_plus(option[1])):
            value, *more = rest[option.end() :].split("&")
            certain = certain and "#" not in rest
            raw += [value, *(part for one in more if one.partition("=")[0] not in _OPTIONS for part in one.split("="))]
    if not certain:
        return frozenset(_decoded([*raw, *(piece for one in _decoded(raw) for piece in _PIECES.split(one))]))
    # A password that is also the name of the user or of the database is no secret.
    public = {before.partition(":")[0], *_PIECES.split(after.partition("?")[0])} if at else set[str]()
    return frozenset(_decoded(raw)) - public


def secrets_in(password: str) -> frozenset[str]:
    """A password, if it is long enough to be searched for."""
    return frozenset({password} if len(password) >= _SHORTEST else ())


def masked(text: str, secrets: Collection[str]) -> str:
    """A text without these secrets, for messages of others."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def check_unambiguous(url: str) -> None:
    """Raise `UsageError` for a URL with a password that is not percent-encoded, so that its parts are mistaken."""
    scheme, found, rest = _scheme(url)
    if _is_file(scheme) or (not found and _base(url.partition(":")[0]) not in _SERVERS):
        return
    authority, tail = _split(rest)
    path, _, fragment = tail.partition("#")
    path, _, query = path.partition("?")
    names = [option.partition("=")[0] for option in query.split("&") if option]
    clear = bool(found) and _is_certain(authority) and "@" not in path and "@" not in fragment
    if not (clear and all(_OPTION.fullmatch(unquote(name)) for name in names)):
        raise UsageError(f"the database URL {shown(url)!r} cannot be read; {_ENCODE}")


def hides_password(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Let no error of a function that reads a URL tell its password. Every error about the URL is a `UsageError`."""

    @wraps(parse)
    def safe(url: str) -> T:
        given: object = url
        if not isinstance(given, str):
            return parse(url)
        try:
            check_unambiguous(url)
            return parse(url)
        except UsageError as error:
            problem = masked(str(error), secrets_of(url))
        except ValueError:
            # Of the standard library, which repeats what it cannot read.
            problem = f"the database URL {shown(url)!r} cannot be read; {_ENCODE}"
        # Raised here, so that the original error is not its context.
        raise UsageError(problem)

    return safe


async def connecting(opening: Awaitable[T], where: str, secrets: Callable[[], Collection[str]]) -> T:
    """Wait for a driver that opens a connection, and remove the password from its error.

    Raises `StoreRefused` in place of an error from which it cannot be removed.
    """
    try:
        return await opening
    except Exception as error:
        known = secrets()
        if not is_told(error, known):
            raise
        for one in _chain(error):
            _mask_in_place(one, known)
        # Its object is the password.
        if not isinstance(error, UnicodeError) and not is_told(error, known):
            raise
        kind = type(error).__name__
    raise StoreRefused(f"{where} cannot be reached: {kind}; check the user name and the password of the URL")


def _mask_in_place(error: BaseException, secrets: Collection[str]) -> None:
    """Mask the texts of an error, which keeps its class and its codes, by which it is handled."""
    error.args = tuple(masked(one, secrets) if isinstance(one, str) else one for one in error.args)
    for name, value in list(vars(error).items()):
        if isinstance(value, str):
            setattr(error, name, masked(value, secrets))
    if isinstance(error, OSError) and isinstance(error.strerror, str):
        error.strerror = masked(error.strerror, secrets)


def is_told(error: BaseException, secrets: Collection[str]) -> bool:
    """Return whether an error, its causes or its context tell one of the secrets."""
    texts = [f"{one} {one!r} {getattr(one, '__notes__', '')}" for one in _chain(error)]
    return any(secret in text for secret in secrets for text in texts)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            left += [one.__cause__, one.__context__]
            left += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


def _scheme(url: str) -> tuple[str, str, str]:
    scheme, found, rest = url.partition("://")
    return (scheme, found, rest) if found and _SCHEME.fullmatch(scheme) else (url, "", "")


def _split(rest: str) -> tuple[str, str]:
    end = re.search(r"[/?#]", rest)
    return (rest, "") if end is None else (rest[: end.start()], rest[end.start() :])


def _base(scheme: str) -> str:
    """A scheme without the driver that some libraries add."""
    return scheme.strip().lower().partition("+")[0]


def _is_file(scheme: str) -> bool:
    return _base(scheme) == "sqlite"


def _is_certain(authority: str) -> bool:
    """Return whether the hosts after the last @ are hosts; otherwise they may be a part of a password."""
    return all(_HOSTS.fullmatch(host) for host in authority.rpartition("@")[2].split(","))


def _without_scheme(url: str) -> str:
    """A text that is no URL: shown if it looks like the name of a file."""
    scheme, _, rest = url.partition(":")
    plain = not rest or url == ":memory:" or scheme == "sqlite" or re.match(r"[A-Za-z]:[\\/]", url) is not None
    if plain and "@" not in url and not _SENSITIVE.search(rest):
        return url
    return f"{scheme}:{HIDDEN}" if scheme.isalpha() and rest else HIDDEN


def _shown_tail(tail: str) -> str:
    path, mark, query = tail.partition("?")
    if not mark:
        return tail
    query, number, fragment = query.partition("#")
    options, sensitive = list[str](), False
    for option in query.split("&"):
        name, equals, _ = option.partition("=")
        if _SENSITIVE.search(unquote_plus(name)):
            sensitive = True
            options.append(f"{name}={HIDDEN}")
        elif sensitive and (not equals or name not in _OPTIONS):
            options.append(HIDDEN)
        else:
            options.append(option)
    return f"{path}?{'&'.join(options)}{'' if sensitive else number + fragment}"


def _decoded(texts: Collection[str]) -> Iterator[str]:
    for one in texts:
        for text in (one, unquote(one), unquote_plus(one)):
            if len(text) >= _SHORTEST:
                yield from (text, repr(text)[1:-1], ascii(text)[1:-1])
