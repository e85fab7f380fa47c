"""Database URLs.

`sqlite:///shop.db` is a file relative to the working directory, `sqlite:////var/lib/shop.db` an absolute one,
`sqlite://` a database in memory that ends with the engine. Options follow a question mark: `prefix` (of table names),
`synchronous` (FULL or NORMAL), `quick_check` (auto, on or off) and `busy` (seconds to wait for other processes).

`postgresql://user:password@host/database` is a PostgreSQL server in the format of its own tools (including several
hosts, and options such as `sslmode`), with the additional options `schema`, `prefix`, `pool` (largest number of
connections), `notify` (on or off: hints between processes) and `listen` (`host:port` for these hints, if it differs).

`mysql://user:password@host:port/database` (or `mariadb://`) is a MySQL or MariaDB server, with the options `prefix`,
`pool`, `ssl` (verify, require, prefer or off), `ssl_ca` (a file with certificates to trust) and `socket` (the path of a
Unix socket, instead of host and port). Without `ssl`, the certificate of a server on another machine is verified.

A driver in the spelling of SQLAlchemy (`postgresql+asyncpg://`, `sqlite+aiosqlite://`) is accepted and left out.

Each takes `audit` (full, lifecycle or off: the level of the audit trail).

Passwords are kept out of every message. A password may stand between the user name and the host, or in an option. It
may also stand elsewhere by mistake, because it has a `/`, `?`, `#`, `@` or `&` that is not percent-encoded, or because
the host is missing. So a URL is shown only as far as it is certain where its parts begin and end, and messages of
others are searched for the password and its pieces.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, unquote_plus, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from perdure.core.audit import Audit
from perdure.errors import StoreRefused, UsageError
from perdure.store.sql.dialect import DEFAULT_PREFIX

_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_HOSTS = re.compile(r"[^/@?#,]+(,[^/@?#,]+)*")
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
#: Values of `sslmode` with which the driver checks who issued the server's certificate.
_VERIFYING = frozenset({"verify-ca", "verify-full"})
#: Other spellings, which are those of MySQL's own tools.
_SSL_WORDS = {"preferred": "prefer", "required": "require"}
#: Driver in the spelling of SQLAlchemy, such as `postgresql+asyncpg`. Perdure has its own drivers.
_DRIVER = re.compile(r"^(postgres|postgresql|mysql|mariadb|sqlite)\+\w+(?=:)", re.IGNORECASE)
_EXAMPLE = (
    "use sqlite:///relative.db, sqlite:////absolute.db, sqlite:// for a database in memory, "
    "postgresql://user@host/database or mysql://user@host/database"
)

T = TypeVar("T")

HIDDEN = "***"

#: Schemes of servers, which `://` follows.
_SERVERS = frozenset({"postgresql", "postgres", "mysql", "mariadb"})
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+._-]*")
_CERTAIN_HOSTS = re.compile(r"(?:[^:@\[\]]*|\[[^\]@]*\])(?::[0-9]*)?")
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


class SqliteUrl(Struct, frozen=True, kw_only=True):
    """Location and settings of an SQLite database."""

    #: None: in memory.
    path: str | None
    prefix: str = DEFAULT_PREFIX
    synchronous: str = "FULL"
    quick_check: str = "auto"
    busy_seconds: float = 30.0
    audit: Audit = Audit.LIFECYCLE


class PostgresUrl(Struct, frozen=True, kw_only=True):
    """Location of a PostgreSQL database, and the tables in it that are ours."""

    #: What the driver is given.
    dsn: str
    #: None: wherever the server looks first.
    schema: str | None = None
    prefix: str = DEFAULT_PREFIX
    pool: int = 10
    #: Address of the connection that listens for notifications; None: this process does not listen.
    listen: str | None = None
    #: What the user wants sessions to be called.
    called: str = ""
    audit: Audit = Audit.LIFECYCLE

    def __repr__(self) -> str:
        return f"<{self.where}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("where", self.where)]

    @property
    def tables(self) -> str:
        """Prefix of table names in statements, with the schema if any."""
        return self.prefix if self.schema is None else f'"{self.schema}".{self.prefix}'

    @property
    def where(self) -> str:
        """The database in messages: without the user's name and password."""
        parts = urlsplit(self.dsn)
        return f"The database {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def authority_file(self) -> str:
        """File with the certificates of the authorities to trust; empty if the URL names none."""
        return dict(parse_qsl(urlsplit(self.dsn).query)).get("sslrootcert", "")

    @property
    def is_unverified(self) -> bool:
        """True if a server on another machine need not prove which server it is."""
        parts = urlsplit(self.dsn)
        options = dict(parse_qsl(parts.query))
        mode = options.get("sslmode") or os.environ.get("PGSSLMODE", "")
        named = parts.netloc.rpartition("@")[2] or options.get("host") or os.environ.get("PGHOST", "")
        return mode not in _VERIFYING and not all(map(is_local, filter(None, unquote(named).split(","))))


class MysqlUrl(Struct, frozen=True, kw_only=True):
    """Location of a MySQL or MariaDB database, and the tables in it that are ours."""

    host: str
    port: int
    database: str
    user: str | None
    password: str
    socket: str | None = None
    ssl: str = "off"
    #: File with the certificates of the authorities to trust; None: those that the system trusts.
    ssl_ca: str | None = None
    prefix: str = DEFAULT_PREFIX
    pool: int = 10
    audit: Audit = Audit.LIFECYCLE

    def __repr__(self) -> str:
        return f"<{self.where}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("where", self.where)]

    @property
    def where(self) -> str:
        """The database in messages: without the user's name and password."""
        return f"The database mysql://{self.socket or f'{self.host}:{self.port}'}/{self.database}"

    @property
    def is_local(self) -> bool:
        """True if nothing that is sent leaves this machine."""
        return self.socket is not None or is_local(self.host)


def is_local(host: str) -> bool:
    """Tell whether a host, perhaps with a port, is this machine: a loopback address, or the path of a socket."""
    name = host[1 : host.index("]")] if host.startswith("[") and "]" in host else host
    name = name.rpartition(":")[0] if name.count(":") == 1 else name
    if name.lower() == "localhost" or name.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_in_memory(url: str) -> bool:
    """True if the database lives in the memory of one process."""
    where = parse(url)
    return isinstance(where, SqliteUrl) and where.path is None


#: Connections that a process keeps, if the URL allows as many: two that commit, one that claims, one for the rest.
_FEWEST = 4


def with_shared_pool(url: str, processes: int) -> str:
    """Return the URL with one process's part of its connections; unchanged for SQLite."""
    where = parse(url)
    if isinstance(where, SqliteUrl):
        return url
    part = max(min(where.pool, _FEWEST), -(-where.pool // processes))
    rest = re.sub(r"(?<=[?&])pool=\d+&?", "", url).rstrip("?&")
    return f"{rest}{'&' if '?' in rest else '?'}pool={part}"


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


def check_url_text(url: object) -> str:
    """Check that a URL is text. Raises `UsageError`, which does not show the value: it may have a password."""
    if isinstance(url, str):
        return url
    kind = "None" if url is None else f"of the type {type(url).__name__}"
    raise UsageError(
        f"a database URL is text, not {kind}; check that the setting is there that it comes from, or {_EXAMPLE}"
    )


@hides_password
def parse(url: str) -> SqliteUrl | PostgresUrl | MysqlUrl:
    """Parse a database URL. Raises `UsageError`."""
    url = _DRIVER.sub(r"\1", check_url_text(url))
    # A ValueError of the standard library may repeat a part of the password; `hides_password` replaces it.
    scheme = urlsplit(url).scheme
    if any(character < " " for character in unquote(url)):
        raise UsageError(f"{shown(url)!r} is not a database URL: it contains a control character; {_EXAMPLE}")
    if not _has_bytes(url, scheme):
        raise UsageError(f"{shown(url)!r} is not a database URL: it contains a lone surrogate; {_EXAMPLE}")
    match scheme:
        case "postgresql" | "postgres":
            return _postgres(url)
        case "mysql" | "mariadb":
            return _mysql(url)
        case "sqlite" if not url.lower().startswith("sqlite://") or urlsplit(url).netloc:
            raise UsageError(_misspelt_sqlite(url))
        case "sqlite":
            return _sqlite(url)
        case _:
            raise UsageError(_unknown(url, scheme))


def _options(url: str, parts: SplitResult) -> dict[str, str]:
    """The options of a URL. Raises `UsageError` for one that is there twice: another reader may take the other one."""
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in options:
            raise UsageError(f"{shown(url)!r} has the option {name!r} twice; leave one out")
        options[name] = value
    return options


def _misspelt_sqlite(url: str) -> str:
    parts = urlsplit(url)
    path = f"{parts.netloc}{parts.path}".lstrip("/")
    return (
        f"{shown(url)!r} is not a database URL; write sqlite:///{path} for a file in the working directory, or "
        f"sqlite:////{path} for one from the root"
    )


def _unknown(url: str, scheme: str) -> str:
    if "://" not in url and url and not url.isspace():
        return f"{shown(url)!r} is not a database URL; for a file write sqlite:///{shown(url)}"
    close = get_close_matches(scheme, ("postgresql", "sqlite", "mysql", "mariadb"), 1)
    hint = f"did you mean {close[0]}://?" if close else _EXAMPLE
    return f"{shown(url)!r} is not a database URL that Perdure knows; {hint}"


def _postgres(url: str) -> PostgresUrl:
    parts = urlsplit(url)
    options = _options(url, parts)
    ours: dict[str, str] = {
        name: options.pop(name) for name in ("schema", "prefix", "pool", "notify", "listen", "audit") if name in options
    }
    if "," in parts.netloc or "," in options.get("host", ""):
        # Of several hosts, one that takes no writes is of no use.
        options.setdefault("target_session_attrs", "read-write")
    schema = ours.get("schema")
    if schema is not None and not _SCHEMA.fullmatch(schema):
        raise UsageError(f"{schema!r} cannot be the name of a schema; use letters, digits and _, at most 63")
    parts = SplitResult(parts.scheme, parts.netloc, parts.path, urlencode(options), parts.fragment)
    return PostgresUrl(
        dsn=urlunsplit(parts),
        listen=_listen(parts, ours),
        schema=schema,
        prefix=_prefix(ours.get("prefix", DEFAULT_PREFIX)),
        pool=_pool(ours.get("pool", "10")),
        called=options.get("application_name", ""),
        audit=_audit(ours),
    )


def _listen(parts: SplitResult, ours: dict[str, str]) -> str | None:
    hosts = ours.get("listen")
    notify = _one_of("notify", ours.get("notify", "on"), ("on", "off"))
    if hosts is None or notify == "off":
        return urlunsplit(parts) if notify == "on" else None
    if not _HOSTS.fullmatch(hosts):
        raise UsageError(f"the option listen of a database URL is host:port, or several with commas, not {hosts!r}")
    user, at, _ = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, f"{user}{at}{hosts}", parts.path, parts.query, parts.fragment))


def _mysql(url: str) -> MysqlUrl:
    parts = urlsplit(url)
    options = _options(url, parts)
    unknown = sorted(options.keys() - {"prefix", "pool", "ssl", "ssl_ca", "socket", "audit"})
    if unknown:
        raise UsageError(
            f"{shown(url)!r} has the unknown option {unknown[0]!r}; known are prefix, pool, ssl, ssl_ca, socket, audit"
        )
    if "," in parts.netloc.rpartition("@")[2]:
        raise UsageError(
            f"{shown(url)!r} names several hosts, which only PostgreSQL supports; name one, or a proxy that leads to "
            "the server that takes writes"
        )
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in database or parts.fragment:
        raise UsageError(f"{shown(url)!r} names no database; write mysql://user@host/database")
    try:
        port = parts.port or 3306
    except ValueError as error:
        raise UsageError(f"{shown(url)!r} has a port that is none; write mysql://user@host:3306/database") from error
    host, socket = parts.hostname or "localhost", options.get("socket") or None
    return MysqlUrl(
        host=host,
        port=port,
        database=database,
        user=None if parts.username is None else unquote(parts.username),
        password=unquote(parts.password or ""),
        socket=socket,
        ssl=_ssl(options, local=socket is not None or is_local(host)),
        ssl_ca=options.get("ssl_ca"),
        prefix=_prefix(options.get("prefix", DEFAULT_PREFIX)),
        pool=_pool(options.get("pool", "10")),
        audit=_audit(options),
    )


def _ssl(options: Mapping[str, str], *, local: bool) -> str:
    usual = "off" if local and "ssl_ca" not in options else "verify"
    asked = options.get("ssl", usual)
    wanted = _one_of("ssl", _SSL_WORDS.get(asked, asked), ("verify", "require", "prefer", "off"))
    if options.get("ssl_ca") == "":
        raise UsageError("the option ssl_ca of a database URL names no file; name one, or leave it out")
    if wanted != "verify" and "ssl_ca" in options:
        raise UsageError(f"the option ssl_ca of a database URL is for ssl=verify; with ssl={wanted} it has no effect")
    return wanted


def _sqlite(url: str) -> SqliteUrl:
    parts = urlsplit(url)
    if parts.fragment:
        raise UsageError(f"{url!r} has a #, which begins no part of a database URL; write %23 in the name of a file")
    path = unquote(parts.path.removeprefix("/"))
    options = _options(url, parts)
    unknown = sorted(options.keys() - {"prefix", "synchronous", "quick_check", "busy", "audit"})
    if unknown:
        raise UsageError(
            f"{url!r} has the unknown option {unknown[0]!r}; known are prefix, synchronous, quick_check, busy, audit"
        )
    return SqliteUrl(
        path=None if path in ("", ":memory:") else path,
        prefix=_prefix(options.get("prefix", DEFAULT_PREFIX)),
        synchronous=_one_of("synchronous", options.get("synchronous", "FULL").upper(), ("FULL", "NORMAL")),
        quick_check=_one_of("quick_check", options.get("quick_check", "auto"), ("auto", "on", "off")),
        busy_seconds=_seconds(options.get("busy", "30")),
        audit=_audit(options),
    )


def _prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise UsageError(f"{text!r} cannot begin the names of tables; use lower-case letters, digits and _, at most 41")
    return text


def _audit(options: Mapping[str, str]) -> Audit:
    return Audit(_one_of("audit", options.get("audit", Audit.LIFECYCLE), tuple(Audit)))


def _pool(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise UsageError(f"the option pool of a database URL is a number of connections from 1 to 1000, not {text!r}")
    return int(text)


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise UsageError(f"the option {option} of a database URL is one of {', '.join(allowed)}, not {value!r}")
    return value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 86_400:
        raise UsageError(f"the option busy of a database URL is a number of seconds, not {text!r}")
    return seconds


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


def _has_bytes(url: str, scheme: str) -> bool:
    # Python writes a byte in the name of a file that is not UTF-8 as a lone surrogate.
    try:
        url.encode(errors="surrogateescape" if _is_file(scheme) else "strict")
    except UnicodeEncodeError:
        return False
    return True


def _is_file(scheme: str) -> bool:
    return _base(scheme) == "sqlite"


def _is_certain(authority: str) -> bool:
    """Return whether the hosts after the last @ are hosts; otherwise they may be a part of a password."""
    return all(_CERTAIN_HOSTS.fullmatch(host) for host in authority.rpartition("@")[2].split(","))


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
