"""Access: who calls, with which role, and which requests are forged.

A caller is known by a bearer token, by the session of a browser, by the host application's own login, or by headers of
a trusted proxy. Credentials that a browser sends by itself (all but bearer tokens) need a CSRF token for every request
that changes something. Requests under an unknown `Host`, or from a page of another origin, are refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from inspect import isawaitable

from msgspec import Struct
from starlette.requests import HTTPConnection

from perdure.client.engine import Engine
from perdure.client.session import session_of
from perdure.core.access import (
    TOKEN_BYTES,
    TRAIL,
    NewToken,
    Role,
    StoredToken,
    TokenInfo,
    token_digest,
)
from perdure.core.option_checks import check_list, check_text
from perdure.core.printed_text import brief
from perdure.errors import StoreError, UsageError
from perdure.http.problems import FORBIDDEN, MISDIRECTED, UNAUTHENTICATED, Refused

#: Cookie of a browser's session, and header of the CSRF token.
COOKIE = "perdure_session"
CSRF_HEADER = "x-csrf-token"
#: Methods that change nothing.
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: Names of this machine, under which a server on loopback is reached.
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")

#: Seconds for which a token is trusted without another read, and tokens that are remembered.
_FRESH = 2.0
_REMEMBERED = 1000
#: Microseconds between two writes of a token's last use, and the length of a session.
_USE_INTERVAL = 60 * 1_000_000
_SESSION = 12 * 3600 * 1_000_000
#: Longest name of an actor in the audit trail, and characters of a token that are looked at.
_LONGEST_ACTOR = 200
_LONGEST_TOKEN = 200


_NO_TOKEN = "the token is unknown, expired or revoked; create one: perdure tokens create"  # noqa: S105 - a message


class Principal(Struct, frozen=True, kw_only=True):
    """A caller: name in the audit trail, and role."""

    name: str
    role: Role
    #: A browser sends the credentials by itself, so requests may be forged.
    ambient: bool = True
    #: CSRF token that belongs to the credentials; empty where none is needed.
    csrf: str = ""
    #: Session of a browser, if the caller has one.
    session: TokenInfo | None = None

    @property
    def account(self) -> str:
        """Name under which requests and streams are counted: all sessions of a token count as the token."""
        return self.name if self.session is None else TRAIL + self.session.parent


Authenticate = Callable[[HTTPConnection], Awaitable[Principal | None] | Principal | None]


class ProxyLogin(Struct, frozen=True, kw_only=True):
    """Login by headers of a trusted proxy, such as one that speaks OpenID Connect.

    `user` is the header with the user's name, `groups` the one with their groups, separated by commas. `roles` maps
    groups to roles; the highest counts. `default` is the role of users without such a group; None refuses them.
    """

    user: str = "x-forwarded-user"
    groups: str = "x-forwarded-groups"
    roles: Mapping[str, Role | str] = {}
    default: Role | str | None = None

    def role_of(self, groups: str) -> Role | None:
        """Role of a user in these groups."""
        names = {one.strip() for one in groups.split(",")}
        found = [Role.of(role) for group, role in self.roles.items() if group in names]
        if self.default is not None:
            found.append(Role.of(self.default))
        return max(found, key=list(Role).index, default=None)


class Access:
    """Rules of access.

    `hosts` are the names under which the server is reached; by default those of this machine. `origins` are other sites
    whose pages may call the API. `proxies` are addresses or networks of reverse proxies whose `X-Forwarded-*` headers
    count, and whose `login` headers name users. `authenticate` asks the host application: it gets the request and
    returns a `Principal`, or None. `anonymous` is the role of requests without credentials; None refuses them.
    """

    def __init__(
        self,
        *,
        hosts: Iterable[str] = LOOPBACK_HOSTS,
        origins: Iterable[str] = (),
        proxies: Iterable[str] = (),
        login: ProxyLogin | None = None,
        authenticate: Authenticate | None = None,
        anonymous: Role | str | None = None,
    ) -> None:
        self.hosts = frozenset(
            check_text("hosts", one).lower() for one in check_list("hosts", hosts, "['ops.example.com']")
        )
        self.origins = frozenset(
            check_text("origins", one).rstrip("/").lower()
            for one in check_list("origins", origins, "['https://app.example.com']")
        )
        self.proxies = tuple(_network(one) for one in check_list("proxies", proxies, "['10.0.0.0/8']"))
        if login is not None and not self.proxies:
            raise UsageError("login by headers needs proxies=[...], the addresses from which the headers are believed")
        self.login = login
        self.authenticate = authenticate
        self.anonymous = None if anonymous is None else Role.of(anonymous)

    def trusts(self, address: str) -> bool:
        """Tell whether an address is that of a trusted proxy."""
        try:
            peer = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(peer in network for network in self.proxies)

    def check_host(self, connection: HTTPConnection) -> None:
        """Raise `Refused` for a request under an unknown name."""
        host = connection.headers.get("host", "")
        if "*" not in self.hosts and without_port(host) not in self.hosts and host.lower() not in self.hosts:
            raise Refused(
                MISDIRECTED, f"this server is not reached as {brief(host)}; add the name to its allowed hosts"
            )

    def check_origin(self, connection: HTTPConnection) -> None:
        """Raise `Refused` for a request that a page of another site makes."""
        origin = connection.headers.get("origin")
        if origin is None or origin.lower() in self.origins:
            return
        if origin.lower() != f"{connection.url.scheme}://{connection.headers.get('host', '').lower()}":
            raise Refused(
                FORBIDDEN, f"pages of {brief(origin)} may not call this server; add the origin to the allowed origins"
            )


def without_port(host: str) -> str:
    """The name in a `Host` header, in lower case."""
    name = host.lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0]


def _network(text: object) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(check_text("proxies", text), strict=False)
    except ValueError:
        raise UsageError(f"proxies has {brief(text)}: give addresses or networks, such as 10.0.0.0/8") from None


class Login(Struct, frozen=True, kw_only=True):
    """A new session: the secret for the cookie, and the caller."""

    secret: str
    principal: Principal


class Authenticator:
    """Finds the caller of a request. Reads of tokens are shared by requests of a few seconds."""

    def __init__(self, engine: Engine, access: Access) -> None:
        self._session = session_of(engine)
        self._access = access
        self._known: dict[str, tuple[float, StoredToken | None]] = {}
        self._used: dict[str, int] = {}
        #: Key of CSRF tokens for callers without a session.
        self._secret = self._session.system.entropy(TOKEN_BYTES)

    async def principal(self, connection: HTTPConnection) -> Principal | None:
        """Find the caller; None if the request has no credentials. Raises `Refused` for wrong credentials."""
        access = self._access
        if access.authenticate is not None:
            found = access.authenticate(connection)
            found = await found if isawaitable(found) else found
            if found is not None:
                return self._with_csrf(found)
        if (header := connection.headers.get("authorization")) is not None:
            return await self._bearer(header)
        if (cookie := connection.cookies.get(COOKIE)) is not None and (one := await self._browser(cookie)) is not None:
            return one
        if access.login is not None and (one := self._proxied(access.login, connection)) is not None:
            return self._with_csrf(one)
        if access.anonymous is not None:
            return self._with_csrf(Principal(name="anonymous", role=access.anonymous))
        return None

    async def login(self, token: str) -> Login:
        """Begin a session of a browser by a token. Raises `Refused`."""
        stored = await self._find(token)
        if stored is None or stored.info.parent:
            raise Refused(UNAUTHENTICATED, _NO_TOKEN)
        system, store = self._session.system, await self._session.connect()
        secret = base64.urlsafe_b64encode(system.entropy(TOKEN_BYTES)).decode().rstrip("=")
        owner = stored.info
        new = NewToken(
            name=f"{owner.name[:100]}/{system.entropy(8).hex()}",
            parent=owner.name,
            digest=token_digest(secret),
            role=owner.role,
            expires_at=min(store.clock() + _SESSION, owner.expires_at),
        )
        made = await store.create_token(new, TRAIL + owner.name)
        if made is None:
            self.forget()
            raise Refused(UNAUTHENTICATED, f"the token {owner.name!r} was revoked at this moment; create another")
        return Login(secret=secret, principal=_of_session(made, secret))

    async def logout(self, principal: Principal) -> None:
        """End the session of a caller."""
        if principal.session is not None:
            store = await self._session.connect()
            await store.revoke_token(principal.session.name, principal.session.created_at, principal.name)
            self.forget()

    def forget(self) -> None:
        """Read tokens again: one was created or revoked."""
        self._known.clear()

    async def _bearer(self, header: str) -> Principal:
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            raise Refused(UNAUTHENTICATED, f"{brief(scheme)} is not supported; send `Authorization: Bearer <token>`")
        stored = await self._find(token.strip())
        if stored is None or stored.info.parent:
            raise Refused(UNAUTHENTICATED, _NO_TOKEN)
        return Principal(name=TRAIL + stored.info.name, role=stored.info.role, ambient=False)

    async def _browser(self, secret: str) -> Principal | None:
        stored = await self._find(secret)
        return None if stored is None or not stored.info.parent else _of_session(stored.info, secret)

    def _proxied(self, login: ProxyLogin, connection: HTTPConnection) -> Principal | None:
        peer = connection.scope.get("perdure.peer") or (connection.client.host if connection.client else "")
        user = connection.headers.get(login.user, "")
        if not user or not self._access.trusts(peer):
            return None
        role = login.role_of(connection.headers.get(login.groups, ""))
        if role is None:
            raise Refused(FORBIDDEN, f"the user {brief(user)} has no role here; their groups give none")
        return Principal(name=f"user:{user[:_LONGEST_ACTOR]}", role=role)

    def _with_csrf(self, principal: Principal) -> Principal:
        if not principal.ambient or principal.csrf:
            return principal
        token = hmac.new(self._secret, principal.name.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        return Principal(
            name=principal.name[:_LONGEST_ACTOR], role=principal.role, csrf=token, session=principal.session
        )

    async def _find(self, token: str) -> StoredToken | None:
        """The valid token of that text."""
        if not token or len(token) > _LONGEST_TOKEN:
            return None
        digest, now = token_digest(token), self._session.system.monotonic()
        until, stored = self._known.get(digest, (now, None))
        store = await self._session.connect()
        if until <= now:
            stored = await store.token(digest)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[digest] = now + _FRESH, stored
        if stored is None or not hmac.compare_digest(stored.digest, digest) or not stored.info.is_valid(store.clock()):
            return None
        await self._note_use(stored, store.clock())
        return stored

    async def _note_use(self, stored: StoredToken, now: int) -> None:
        """Write the time of a use, at most once a minute; a failure to do so is no reason to refuse."""
        if now - max(self._used.get(stored.digest, 0), stored.info.used_at) < _USE_INTERVAL:
            return
        if len(self._used) >= _REMEMBERED:
            self._used.clear()
        self._used[stored.digest] = now
        with suppress(StoreError):
            await self._session.store.touch_tokens([(stored.digest, now)], TRAIL + stored.info.name)


def _of_session(info: TokenInfo, secret: str) -> Principal:
    csrf = hmac.new(secret.encode(), b"csrf", hashlib.sha256).hexdigest()
    return Principal(name=TRAIL + info.name, role=info.role, csrf=csrf, session=info)


def check_csrf(principal: Principal, connection: HTTPConnection, method: str) -> None:
    """Raise `Refused` for a request that changes something and lacks the CSRF token of its credentials."""
    if method in SAFE_METHODS or not principal.ambient:
        return
    given = connection.headers.get(CSRF_HEADER, "")
    if not principal.csrf or not hmac.compare_digest(given.encode(), principal.csrf.encode()):
        raise Refused(
            FORBIDDEN,
            "the request lacks the CSRF token; read it at /api/v1/session and send it as X-CSRF-Token, or send a "
            "bearer token, which `perdure tokens create` makes",
        )
