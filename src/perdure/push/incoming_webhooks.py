"""Webhooks of other systems: who signed them, what they say, and what follows from them.

A source verifies a request and reads an event from it: `GitHub`, `Stripe`, and `StandardWebhooks` for all senders that
follow that specification, the outbox of another Perdure among them. A function of the user's turns the event into a
`Start`, a `Send`, or nothing. The id of the run, or the key of the message, follows from the id of the delivery, so a
delivery that is repeated changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Unpack

import msgspec
from msgspec import Struct

from perdure.client.engine import Engine
from perdure.client.runs.start import StartOptions
from perdure.client.session import session_of
from perdure.core.ids import check_id
from perdure.core.option_checks import check_duration
from perdure.core.printed_text import brief
from perdure.core.time.duration import Duration
from perdure.errors import DecodeError, InvalidSignature, RunExists, RunFinished, UsageError
from perdure.push.signature import ID, NAMES, SigningKeys, is_secret
from perdure.workflow.channels import Channel
from perdure.workflow.definition import Call

_TIME = re.compile(r"[0-9]{1,12}")
#: Signatures in one header that are compared, and the longest header that is read.
_MOST_SIGNATURES = 16
_LONGEST_HEADER = 4096


class IncomingEvent(Struct, frozen=True, kw_only=True):
    """A webhook whose signature was valid."""

    #: Name of the source: `github`, `stripe` or `standard`.
    source: str
    #: Id of the delivery, the same if it is repeated.
    id: str
    #: Type of the event, such as `pull_request` or `invoice.paid`; empty if the sender gives none.
    type: str
    #: JSON of the body.
    data: Any
    #: Headers, by name in lower case.
    headers: Mapping[str, str]


class Start:
    """Start a run because of a webhook, once for each delivery. The options are those of `engine.start`."""

    __slots__ = ("call", "options")

    def __init__(self, call: Call[Any], **options: Unpack[StartOptions]) -> None:
        self.call = call
        self.options = options


class Send:
    """Send a message to a run because of a webhook, once for each delivery."""

    __slots__ = ("name", "run_id", "value")

    def __init__(self, run_id: str, name: Channel[Any] | str, value: object = None) -> None:
        self.run_id = run_id
        self.name = name
        self.value = value


#: What follows from an event.
Decision = Start | Send | None
OnEvent = Callable[[IncomingEvent], Decision | Awaitable[Decision]]


class WebhookSource(ABC):
    """Verifies the requests of one kind of sender, and reads events from them."""

    name: ClassVar[str]
    #: Header with the signature.
    signature_header: ClassVar[str]

    def __init__(self, on_event: OnEvent) -> None:
        if not callable(on_event):
            raise UsageError(f"on_event={brief(on_event)}: give a function that takes an event of the sender")
        self.on_event = on_event

    def __repr__(self) -> str:
        return f"<webhooks of {self.name}>"

    def check_headers(self, headers: Mapping[str, str]) -> None:
        """Refuse a request without a signature before its body is read. Raises `InvalidSignature`."""
        if not headers.get(self.signature_header):
            raise InvalidSignature(f"the request is not signed: the header {self.signature_header} is missing")
        if len(headers[self.signature_header]) > _LONGEST_HEADER:
            raise InvalidSignature(f"the header {self.signature_header} is too long")

    @abstractmethod
    def verify(self, body: bytes, headers: Mapping[str, str], now: float) -> None:
        """Check the signature at a time, in seconds since the epoch. Raises `InvalidSignature`."""

    @abstractmethod
    def read(self, data: Any, headers: Mapping[str, str]) -> tuple[object, object]:
        """Return id and type of an event."""

    def event(self, body: bytes, headers: Mapping[str, str], now: float) -> IncomingEvent:
        """Verify and read a request. Raises `InvalidSignature`, and `DecodeError` if it is no event."""
        self.check_headers(headers)
        self.verify(body, headers, now)
        try:
            data = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise DecodeError(f"the body of a webhook is not JSON: {error}") from None
        id, type = self.read(data, headers)
        try:
            checked = check_id(id, "id of a delivery")
        except UsageError as error:
            raise DecodeError(f"the webhook has no id: {error}") from None
        known = type if isinstance(type, str) else ""
        return IncomingEvent(source=self.name, id=checked, type=known, data=data, headers=headers)


class GitHub(WebhookSource):
    """Webhooks of GitHub: `X-Hub-Signature-256`, with the ids and types of the headers `X-GitHub-...`.

    The signature covers only the body.
    """

    name = "github"
    signature_header = "x-hub-signature-256"

    def __init__(self, *secrets: str, on_event: OnEvent) -> None:
        """Accept requests that are signed with one of the `secrets`; several during a rotation."""
        super().__init__(on_event)
        self._secrets = _checked_secrets("GitHub", secrets)

    def verify(self, body: bytes, headers: Mapping[str, str], now: float) -> None:
        """Check the signature. Raises `InvalidSignature`."""
        self.check_headers(headers)
        method, _, given = headers[self.signature_header].partition("=")
        _check_digest(self._secrets, body, [given] if method == "sha256" else [], self.signature_header)

    def read(self, data: Any, headers: Mapping[str, str]) -> tuple[object, object]:
        """Return id and type of an event."""
        return headers.get("x-github-delivery"), headers.get("x-github-event")


class Stripe(WebhookSource):
    """Webhooks of Stripe: `Stripe-Signature`, which covers the body and its time."""

    name = "stripe"
    signature_header = "stripe-signature"

    def __init__(self, *secrets: str, on_event: OnEvent, tolerance: Duration = "5m") -> None:
        """Accept requests that are signed with one of the `secrets`, `whsec_...`; several during a rotation.

        `tolerance` is how far the time of a signature may be from the time here.
        """
        super().__init__(on_event)
        self._secrets = _checked_secrets("Stripe", secrets)
        self._tolerance = check_duration("tolerance", tolerance)

    def verify(self, body: bytes, headers: Mapping[str, str], now: float) -> None:
        """Check the signature. Raises `InvalidSignature`."""
        self.check_headers(headers)
        pairs = [part.strip().partition("=") for part in headers[self.signature_header].split(",")]
        times = [value for name, _, value in pairs if name == "t"]
        if len(times) != 1 or not _TIME.fullmatch(times[0]):
            raise InvalidSignature(f"{self.signature_header} has no time")
        age = now - int(times[0])
        if abs(age) > self._tolerance:
            raise InvalidSignature(f"{self.signature_header} is of {age:.0f} seconds ago, which is not allowed")
        given = [value for name, _, value in pairs if name == "v1"]
        _check_digest(self._secrets, times[0].encode() + b"." + body, given, self.signature_header)

    def read(self, data: Any, headers: Mapping[str, str]) -> tuple[object, object]:
        """Return id and type of an event."""
        return (data.get("id"), data.get("type")) if isinstance(data, dict) else (None, None)


class StandardWebhooks(WebhookSource):
    """Webhooks by the Standard Webhooks specification, such as those of the outbox of another Perdure."""

    name = "standard"
    signature_header = "webhook-signature"

    def __init__(self, keys: SigningKeys | str, *more: str, on_event: OnEvent) -> None:
        """Accept requests that are signed with one of the keys, `whsec_...`; several during a rotation."""
        super().__init__(on_event)
        self._keys = keys if isinstance(keys, SigningKeys) else SigningKeys(keys, *more)

    def verify(self, body: bytes, headers: Mapping[str, str], now: float) -> None:
        """Check the signature. Raises `InvalidSignature`."""
        self._keys.verify(body, [(name, headers[name]) for name in NAMES if name in headers])

    def read(self, data: Any, headers: Mapping[str, str]) -> tuple[object, object]:
        """Return id and type of an event."""
        return headers.get(ID), data.get("type") if isinstance(data, dict) else None


def _checked_secrets(sender: str, secrets: tuple[object, ...]) -> tuple[bytes, ...]:
    if not secrets or not all(is_secret(secret) for secret in secrets):
        # Not repeated here: they may be the right ones, as bytes.
        raise UsageError(f"{sender}(...) takes the secrets of the webhook as text, at least one, and none empty")
    return tuple(str(secret).encode() for secret in secrets)


def _check_digest(secrets: tuple[bytes, ...], signed: bytes, given: list[str], header: str) -> None:
    """Compare signatures in hexadecimal. Raises `InvalidSignature`."""
    matches = False
    for secret in secrets:
        expected = hmac.digest(secret, signed, hashlib.sha256).hex().encode()
        for one in given[:_MOST_SIGNATURES]:
            # Every pair is compared, so that the time of an answer reveals nothing.
            matches |= hmac.compare_digest(expected, one.strip().lower().encode(errors="replace"))
    if not matches:
        raise InvalidSignature(f"no signature in {header} is valid: the secret differs, or the body was changed")


async def perform(engine: Engine, decision: Decision, key: str) -> dict[str, object]:
    """Do what follows from an event, once for each key; returns what was done.

    Raises what `engine.start` and `engine.send` raise, and `UsageError` for a decision that is none.
    """
    match decision:
        case None:
            return {"outcome": "ignored"}
        case Start():
            return {"outcome": "started", "run_id": await _start(engine, decision, key)}
        case Send():
            try:
                await engine.send(decision.run_id, decision.name, decision.value, key=key)
            except RunFinished:
                return {"outcome": "finished", "run_id": decision.run_id}
            return {"outcome": "sent", "run_id": decision.run_id}
        case _:
            raise UsageError(f"on_event returned {brief(decision)}; return a Start, a Send or None")


async def _start(engine: Engine, start: Start, key: str) -> str:
    options: StartOptions = {**start.options}
    run_id = options.get("id")
    if run_id is None:
        run_id = options["id"] = key
    elif options.get("idempotency_key") is None and options.get("debounce") is None:
        options["idempotency_key"] = key
    try:
        return (await engine.start(start.call, **options)).id
    except RunExists:
        # A repeated delivery is one even if its headers, and so the input, differ.
        there = await session_of(engine).find(run_id)
        if run_id == key or there.idempotency_key == key:
            return run_id
        raise
