"""Bearer tokens for access over HTTP: creating, listing and revoking them."""

from __future__ import annotations

import base64
import builtins

from msgspec import Struct

from perdure.client.runs.start import Moment
from perdure.client.session import Session
from perdure.core.access import TOKEN_BYTES, TOKEN_PREFIX, NewToken, Role, TokenInfo, token_digest
from perdure.core.ids import check_name
from perdure.core.option_checks import check_page, check_text
from perdure.core.time.duration import NEVER, instant
from perdure.errors import InvalidDuration, TokenExists, TokenNotFound


class CreatedToken(Struct, frozen=True, kw_only=True):
    """A new token. Its text is shown this once; the database stores a digest of it."""

    token: str
    info: TokenInfo


class Tokens:
    """Tokens of an engine's database: `engine.tokens`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def create(self, name: str, role: Role | str = Role.VIEWER, *, expires: Moment | None = None) -> CreatedToken:
        """Create a token for a role: `viewer`, `operator` or `admin`.

        It is valid until `expires`, a time or a duration from now, or until it is revoked. Raises `TokenExists` if a
        valid token has that name.
        """
        name = check_name(name, "token name")
        role = Role.of(role)
        secret = base64.urlsafe_b64encode(self._session.system.entropy(TOKEN_BYTES)).decode().rstrip("=")
        token = TOKEN_PREFIX + secret
        return CreatedToken(token=token, info=await self._create(name, role, expires, token_digest(token)))

    async def _create(self, name: str, role: Role, expires: Moment | None, digest: str) -> TokenInfo:
        return await create_with_digest(self._session, name, role, expires, digest)

    async def list(self, *, limit: int = 100, after: str = "") -> builtins.list[TokenInfo]:
        """List tokens by name, beginning after a name; also expired and revoked ones, until their name is reused."""
        check_page(limit)
        after = check_text("after", after)
        return await (await self._session.connect()).tokens(after, limit)

    async def get(self, name: str) -> TokenInfo:
        """Read one token. Raises `TokenNotFound`."""
        return await self._find(check_name(name, "token name"))

    async def revoke(self, name: str) -> TokenInfo:
        """Revoke a token for good. Servers refuse it within a few seconds. Raises `TokenNotFound`."""
        found = await self._find(check_name(name, "token name"))
        return await self._revoke(found)

    async def _revoke(self, found: TokenInfo) -> TokenInfo:
        store = await self._session.connect()
        revoked = await store.revoke_token(found.name, found.created_at, self._session.actor)
        # Replaced between the two: the token that was meant is no longer valid, or it would not have been.
        return found if revoked is None else revoked

    async def _find(self, name: str) -> TokenInfo:
        found = await (await self._session.connect()).tokens("", 1, name)
        if not found:
            raise TokenNotFound(f"there is no token {name!r}")
        return found[0]


async def create_with_digest(session: Session, name: str, role: Role, expires: Moment | None, digest: str) -> TokenInfo:
    """Store a token by its digest. A repetition gives the same token. Raises `TokenExists`."""
    check_name(name, "token name")
    store = await session.connect()
    now = await store.now()
    until = NEVER if expires is None else instant(expires, now)
    if until <= now:
        raise InvalidDuration(f"expires={expires!s} is not in the future; leave it out for a token without an end")
    created = await store.create_token(NewToken(name=name, digest=digest, role=role, expires_at=until), session.actor)
    if created is None:
        raise TokenExists(
            f"there is a valid token {name!r}, or another token with the same digest; revoke it first, or choose "
            "another name"
        )
    return created
