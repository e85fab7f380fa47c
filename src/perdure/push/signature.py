"""Signatures of queue messages, by the Standard Webhooks specification (standardwebhooks.com).

A message has three headers: `webhook-id`, `webhook-timestamp` (seconds since the epoch) and `webhook-signature`, a list
of `v1,` and the base64 of an HMAC-SHA256 over id, time and body. A key is `whsec_` and the base64 of 24 to 64 random
bytes. A message is signed with every key and accepted with any, so that keys can be rotated. A time outside the
tolerance is refused: a captured message can be replayed only for so long, and a replay only executes its run again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from typing import cast

from perdure.core.option_checks import check_duration, is_encodable
from perdure.core.printed_text import brief
from perdure.core.system import System
from perdure.core.time.duration import Duration
from perdure.errors import InvalidSignature, UsageError
from perdure.host import Host

#: Names of the headers, and of the fields of an entry in Redis.
ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"
NAMES = (ID, TIMESTAMP, SIGNATURE)

_PREFIX = "whsec_"
_SHORTEST, _LONGEST = 24, 64
_KEY = (
    f"a signing key is {_PREFIX} and the base64 of {_SHORTEST} to {_LONGEST} random bytes; "
    "make one with SigningKeys.generate()"
)
_VERSION = b"v1,"
#: Longest headers that are looked at, in bytes.
_LONGEST_ID = 256
_LONGEST_SIGNATURE = 4096
_TIME = re.compile(rb"[0-9]{1,12}")
#: Ids of our own messages. A full stop would make it unclear where the id ends and the time begins.
_ID = re.compile(rf"[!-\-/-~]{{1,{_LONGEST_ID}}}")
#: Longest delay, in seconds.
_LONGEST_DELAY = 1e9

Text = str | bytes
Headers = Mapping[str, str] | Iterable[tuple[Text, Text]]


class SigningKeys:
    """Keys that sign messages and verify signatures: the current one, and others during a rotation."""

    __slots__ = ("_keys", "_system", "_tolerance")

    def __init__(self, *keys: str, tolerance: Duration = "5m", system: System | None = None) -> None:
        """Use these keys, each `whsec_...`. Raises `UsageError`.

        `tolerance` is how far the clocks of sender and receiver may differ, and how long a message may travel.
        """
        if not keys:
            raise UsageError(f"there is no key to sign with; {_KEY}")
        self._keys = tuple(_decoded(key) for key in keys)
        self._tolerance = check_duration("tolerance", tolerance)
        self._system = Host() if system is None else system

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._keys)}>"

    @staticmethod
    def generate() -> str:
        """Make a new random key."""
        return _PREFIX + base64.b64encode(Host().entropy(32)).decode()

    def sign(self, body: Text, *, id: str | None = None, delay: float = 0.0) -> dict[str, str]:
        """Make the headers of a message with this body, to be delivered now or in so many seconds.

        `id` names the message, the same for each of its deliveries; by default a new one. Raises `UsageError`.
        """
        name = f"msg_{self._system.entropy(16).hex()}" if id is None else id
        if not isinstance(name, str) or not _ID.fullmatch(name):
            raise UsageError(
                f"id={brief(id)} cannot be signed; use 1 to {_LONGEST_ID} characters of ASCII, without blanks and full "
                "stops"
            )
        if isinstance(delay, bool) or not isinstance(delay, int | float) or not abs(delay) <= _LONGEST_DELAY:
            raise UsageError(f"delay={brief(delay)} is not a number of seconds")
        time = str(int(self._now() + delay))
        content = _content(name.encode(), time.encode(), _signed(body))
        return {ID: name, TIMESTAMP: time, SIGNATURE: " ".join(sign.decode() for sign in self._signatures(content))}

    def verify(self, body: Text, headers: Headers, *, max_age: Duration | None = None) -> None:
        """Check the signature of a message. Raises `InvalidSignature`.

        `max_age` is how old a message may be if that is not the tolerance, as for a message that waits in a queue.
        """
        found = self.check_headers(headers, max_age=max_age)
        given = found[SIGNATURE].split()
        matches = False
        for expected in self._signatures(_content(found[ID], found[TIMESTAMP], _signed(body))):
            for one in given:
                # Every pair is compared, so that the time of an answer reveals nothing.
                matches |= hmac.compare_digest(expected, one)
        if not matches:
            raise InvalidSignature(f"no signature in {SIGNATURE} is valid: the key differs, or the message was changed")

    def check_headers(self, headers: Headers, *, max_age: Duration | None = None) -> dict[str, bytes]:
        """Read the headers of a signature before there is a body: complete and recent, or `InvalidSignature`."""
        found = _read(headers)
        if not _TIME.fullmatch(found[TIMESTAMP]):
            raise InvalidSignature(f"{TIMESTAMP} is not a number of seconds since the epoch")
        age = self._now() - int(found[TIMESTAMP])
        if age > max(self._tolerance, 0 if max_age is None else check_duration("max_age", max_age)):
            raise InvalidSignature(f"{TIMESTAMP} is {age:.0f} seconds ago, longer than is allowed; sign it again")
        if -age > self._tolerance:
            raise InvalidSignature(f"{TIMESTAMP} is {-age:.0f} seconds ahead; compare the clocks")
        return found

    def _signatures(self, content: bytes) -> list[bytes]:
        digests = (hmac.digest(key, content, hashlib.sha256) for key in self._keys)
        return [_VERSION + base64.b64encode(digest) for digest in digests]

    def _now(self) -> float:
        return self._system.now() / 1e6


def signing_keys(keys: SigningKeys | str | Iterable[str] | None) -> SigningKeys | None:
    """The keys of an option: one, several, or none. Raises `UsageError`."""
    if keys is None or isinstance(keys, SigningKeys):
        return keys
    if not isinstance(keys, str | list | tuple | set | frozenset):
        # Not repeated here: they may be the right ones, as bytes.
        raise UsageError(f"keys is of {type(keys).__name__}, not text or a list of it; {_KEY}")
    return SigningKeys(*([keys] if isinstance(keys, str) else keys))


def is_secret(token: object) -> bool:
    """Tell whether a token is text that has bytes."""
    return isinstance(token, str) and bool(token) and is_encodable(token)


def _read(headers: Headers) -> dict[str, bytes]:
    """Read the headers of a signature; each must be there once. Raises `InvalidSignature`."""
    found: dict[str, bytes] = {}
    for name, value in _pairs(headers):
        known = (name if isinstance(name, str) else name.decode("latin-1")).lower()
        if known in NAMES:
            if known in found:
                raise InvalidSignature(f"the header {known} is there twice")
            found[known] = (value if isinstance(value, bytes) else _encoded(value)).strip()
    for name in NAMES:
        if not found.get(name):
            raise InvalidSignature(f"the message is not signed: the header {name} is missing")
    if len(found[ID]) > _LONGEST_ID or len(found[SIGNATURE]) > _LONGEST_SIGNATURE:
        raise InvalidSignature("the headers of the signature are too long")
    return found


def _pairs(headers: Headers) -> list[tuple[Text, Text]]:
    """Names and values of headers, of whatever mapping or list a server has."""
    try:
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        fits = all(isinstance(name, str | bytes) and isinstance(value, str | bytes) for name, value in pairs)
    except (TypeError, ValueError):
        fits, pairs = False, []
    if not fits:
        raise InvalidSignature("the headers are no names with values, of text or bytes")
    return cast("list[tuple[Text, Text]]", pairs)


def _content(id: bytes, time: bytes, body: bytes) -> bytes:
    return b".".join((id, time, body))


def _decoded(key: object) -> bytes:
    try:
        raw = base64.b64decode(key.strip().removeprefix(_PREFIX), validate=True) if isinstance(key, str) else b""
    except (binascii.Error, ValueError):
        raw = b""
    if not _SHORTEST <= len(raw) <= _LONGEST:
        raise UsageError(_KEY)
    return raw


def _encoded(value: str) -> bytes:
    """Bytes of a header; no signature fits one that has none."""
    try:
        return value.encode(errors="surrogateescape")
    except UnicodeError:
        raise InvalidSignature("a header of the signature is no text") from None


def _signed(body: object) -> bytes:
    """Bytes of a body."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    try:
        return body.encode() if isinstance(body, str) else _no_body(body)
    except UnicodeError:
        return _no_body(body)


def _no_body(body: object) -> bytes:
    raise UsageError(f"the body {brief(body)} is neither bytes nor text that has any")
