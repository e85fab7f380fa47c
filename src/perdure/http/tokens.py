"""Handlers for tokens, and for the sessions of browsers that begin with one."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from perdure.client.session import session_of
from perdure.client.tokens import create_with_digest
from perdure.core.access import Role
from perdure.http.access import COOKIE, Principal
from perdure.http.api import ApiRequest, Reply, WhenText, moment
from perdure.http.views import Done, NamedQuery, Page, Time, named, time_of, view_of, views_of


class TokenView(Struct, frozen=True, kw_only=True):
    """A token, without its text, of which the server knows a digest only."""

    name: str
    role: str
    created_at: Time
    created_by: str
    expires_at: Time
    revoked_at: Time
    used_at: Time


class TokenBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to create."""

    name: str
    role: Role = Role.VIEWER
    expires: WhenText | None = None
    #: SHA-256 of a text that the caller has made, in hexadecimal digits. The text stays with the caller, and a
    #: repetition of the request gives the same token. Without it, the server makes the text.
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None


class NewTokenView(Struct, frozen=True, kw_only=True):
    """A new token. Its text is shown this once; null if the caller has made it."""

    token: str | None
    info: TokenView


async def create_token(api: ApiRequest, body: TokenBody) -> Reply[NewTokenView]:
    """Create a token."""
    text, expires = None, moment(body.expires)
    if body.digest is None:
        made = await api.engine.tokens.create(body.name, body.role, expires=expires)
        text, info = made.token, made.info
    else:
        info = await create_with_digest(session_of(api.engine), body.name, body.role, expires, body.digest)
    api.services.authenticator.forget()
    return Reply(NewTokenView(token=text, info=view_of(TokenView, info, api.shown)), 201)


async def list_tokens(api: ApiRequest, query: NamedQuery) -> Page[TokenView]:
    """List tokens by name."""
    found = await api.engine.tokens.list(limit=query.limit, after=query.cursor)
    return named(views_of(TokenView, found, api.shown), "name", query)


async def show_token(api: ApiRequest, name: str) -> TokenView:
    """Read a token."""
    return view_of(TokenView, await api.engine.tokens.get(name), api.shown)


class RevocationQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The token that is meant, if another one may have its name by now."""

    #: Time of its creation. A token of another time stays as it is.
    created_at: Time = None


async def revoke_token(api: ApiRequest, name: str, query: RevocationQuery) -> TokenView:
    """Revoke a token for good, with its sessions."""
    found = await api.engine.tokens.get(name)
    if query.created_at is None or time_of(found.created_at) == query.created_at:
        found = await api.engine.tokens.revoke(name)
    api.services.authenticator.forget()
    return view_of(TokenView, found, api.shown)


class SessionView(Struct, frozen=True, kw_only=True):
    """The caller: name in the audit trail, role, and CSRF token for requests that change something."""

    name: str
    role: Role
    csrf: str
    expires_at: Time

    @classmethod
    def of(cls, principal: Principal) -> SessionView:
        """Convert a caller."""
        session = principal.session
        return cls(
            name=principal.name,
            role=principal.role,
            csrf=principal.csrf,
            expires_at=None if session is None else time_of(session.expires_at),
        )


class LoginBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token of the person who logs in."""

    token: Annotated[str, Meta(max_length=1000)]


async def log_in(api: ApiRequest, body: LoginBody) -> Reply[SessionView]:
    """Begin a session of a browser by a token; the answer sets its cookie."""
    login = await api.services.authenticator.login(body.token)
    return Reply(SessionView.of(login.principal), 201, {"set-cookie": cookie(api, login.secret)})


async def show_session(api: ApiRequest) -> SessionView:
    """Read who the caller is, with the CSRF token."""
    return SessionView.of(api.principal)


async def log_out(api: ApiRequest) -> Reply[Done]:
    """End the session of the caller."""
    await api.services.authenticator.logout(api.principal)
    return Reply(Done(api.principal.session is not None), 200, {"set-cookie": cookie(api, "")})


def cookie(api: ApiRequest, secret: str) -> str:
    """The cookie of a session; empty to remove it."""
    request = api.request
    path = f"{request.scope.get('root_path', '').rstrip('/')}/"
    # A browser keeps no secure cookie of a plain connection, except to its own machine.
    plain = request.url.scheme == "http" and request.scope.get("perdure.loopback", False)
    # Lax: a link in a mail or a chat finds its reader logged in. A form of another site still comes without the cookie,
    # and every change needs the CSRF token.
    parts = [f"{COOKIE}={secret}", f"Path={path}", "HttpOnly", "SameSite=Lax", *([] if plain else ["Secure"])]
    return "; ".join([*parts, *(["Max-Age=0"] if not secret else [])])
