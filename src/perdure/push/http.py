"""Queue messages over HTTP: an ASGI application.

`POST` one message: the status is 200 if it is done, 503 with `Retry-After` if it is to be sent again, 400 if it is no
message. `POST` a JSON array of messages: the body has a result for each. `POST` to a path that ends in `/due`, now and
then: ready runs are enqueued or, without a queue, listed. A request is authenticated by its signature, by a token, or
by both. Bodies are bounded in size and in time. A request never leads to the status 500.

A path of `webhooks` takes the webhooks of another system, which starts runs and sends messages.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from perdure.client.session import session_of
from perdure.core.ids import child_id
from perdure.core.option_checks import check_duration, check_flag, check_whole
from perdure.core.printed_text import brief, harmless
from perdure.core.time.duration import Duration
from perdure.errors import (
    DecodeError,
    EngineClosed,
    InvalidSignature,
    Overloaded,
    RunExists,
    RunNotFound,
    SingletonBusy,
    StoreError,
    UsageError,
)
from perdure.push.handler import QueueHandler
from perdure.push.incoming_webhooks import WebhookSource, perform
from perdure.push.message import MessageOutcome, MessageResult, QueueMessage
from perdure.push.signature import SigningKeys, is_secret, signing_keys

logger = logging.getLogger("perdure.push")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

#: Most digits of a Content-Length that is looked at.
_DIGITS = 18
#: WebSocket code for "this endpoint does not take such data".
_UNSUPPORTED = 1003


class _Refused(Exception):
    """A request that is refused with a status and a reason."""

    def __init__(self, status: int, reason: str, headers: Headers = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class PushApp:
    """An ASGI application that hands what is posted to a `QueueHandler`, which starts and stops with it."""

    def __init__(
        self,
        handler: QueueHandler,
        *,
        keys: SigningKeys | str | Iterable[str] | None = None,
        token: str | None = None,
        unauthenticated: bool = False,
        webhooks: Mapping[str, WebhookSource] | None = None,
        max_body: int = 1024 * 1024,
        max_batch: int = 1000,
        body_timeout: Duration = "30s",
    ) -> None:
        """Accept requests that are signed with one of the `keys`, or that have the `token` as `Authorization: Bearer`.

        With both, both are needed. Without either, `unauthenticated=True` accepts every request; use it for tests, or
        behind a gateway that authenticates. Raises `UsageError` if none of the three is given.

        `webhooks` are sources by path, such as `{"/github": GitHub(secret, on_event=...)}`; each authenticates its own
        requests. An application that only takes webhooks needs nothing else; it executes no runs then.

        Bodies of more than `max_body` bytes, batches of more than `max_batch` messages, and bodies that take longer
        than `body_timeout` to arrive are refused.
        """
        if token is not None and not is_secret(token):
            # Not repeated here: it may be the right one, as bytes.
            raise UsageError("an empty token, or one that is no text, protects nothing; give text, or signing keys")
        self._keys = signing_keys(keys)
        self._webhooks = _check_webhooks(webhooks)
        unauthenticated = check_flag("unauthenticated", unauthenticated)
        open_to_all = self._keys is None and token is None
        #: Whether queue messages are taken, too.
        self._takes_messages = unauthenticated or not open_to_all
        if open_to_all != unauthenticated and (unauthenticated or not self._webhooks):
            raise UsageError(
                "PushApp has keys or a token, and unauthenticated=True as well; leave one out"
                if unauthenticated
                else "PushApp without authentication lets every caller execute runs; give keys=SigningKeys(...) or "
                "token=..., or say unauthenticated=True"
            )
        self._handler = handler
        self._token = None if token is None else token.encode()
        self._max_body = check_whole("max_body", max_body, 1)
        self._max_batch = check_whole("max_batch", max_batch, 1)
        self._body_timeout = check_duration("body_timeout", body_timeout)
        self._system = session_of(handler.engine).system

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or the events of the server's life, by the ASGI specification."""
        match scope["type"]:
            case "lifespan":
                await self._live(receive, send)
            case "http":
                status, answer, headers = await self._answer(scope, receive)
                await _reply(send, status, answer, headers)
            case "websocket":
                await send({"type": "websocket.close", "code": _UNSUPPORTED})
            case other:
                raise UsageError(f"PushApp speaks HTTP, not {other}")

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                try:
                    await self._handler.start()
                except Exception as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                try:
                    await self._handler.stop()
                except Exception as error:
                    await send({"type": "lifespan.shutdown.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, object, Headers]:
        """Answer a request, whatever happens."""
        try:
            return await self._respond(scope, receive)
        except _Refused as refused:
            return refused.status, {"error": harmless(str(refused))}, refused.headers
        except (EngineClosed, StoreError) as error:
            return 503, {"error": harmless(f"the database cannot be reached: {error}")}, [(b"retry-after", b"5")]
        except Exception:
            logger.exception("request_failed: a request to %s could not be answered", harmless(str(scope.get("path"))))
            return 503, {"error": "the request could not be processed; the log says why"}, [(b"retry-after", b"30")]

    async def _respond(self, scope: Scope, receive: Receive) -> tuple[int, object, Headers]:
        headers: Headers = list(scope["headers"])
        if scope["method"] != "POST":
            raise _Refused(405, "only POST is understood here", [(b"allow", b"POST")])
        for path, source in self._webhooks.items():
            if scope["path"].endswith(path):
                return await self._webhook(path, source, headers, receive)
        if not self._takes_messages:
            raise _Refused(404, "there is no webhook at this path")
        self._check_token(headers)
        due = scope["path"].endswith("/due")
        if due and self._keys is None:
            return await self._due()
        body = await self._signed_body(headers, receive)
        if due:
            self._refuse_message(body)
            return await self._due()
        if body.lstrip()[:1] == b"[":
            answers = await self._handler.handle([bytes(one) for one in self._batch(body)])
            return 200, {"answers": [_shown(answer) for answer in answers]}, ()
        [answer] = await self._handler.handle([body])
        if answer.outcome is MessageOutcome.MALFORMED:
            raise _Refused(400, answer.detail)
        after = [] if answer.ack else [(b"retry-after", str(math.ceil(answer.delay)).encode())]
        return 200 if answer.ack else 503, _shown(answer), after

    async def _webhook(
        self, path: str, source: WebhookSource, headers: Headers, receive: Receive
    ) -> tuple[int, object, Headers]:
        """Answer a webhook of another system, after what follows from it is durable."""
        named = _by_name(headers)
        try:
            source.check_headers(named)
            body = await self._read(headers, receive)
            event = source.event(body, named, self._system.now() / 1e6)
        except InvalidSignature as error:
            raise _Refused(401, str(error)) from error
        except DecodeError as error:
            raise _Refused(400, str(error)) from error
        decision = source.on_event(event)
        if inspect.isawaitable(decision):
            decision = await decision
        try:
            return 200, await perform(self._handler.engine, decision, child_id(path.strip("/"), event.id)), ()
        except RunNotFound as error:
            # It may be started a moment later: the sender tries again.
            raise _Refused(404, str(error)) from error
        except (RunExists, SingletonBusy) as error:
            raise _Refused(409, str(error)) from error
        except Overloaded as error:
            raise _Refused(503, str(error), [(b"retry-after", b"30")]) from error

    def _check_token(self, headers: Headers) -> None:
        if self._token is None:
            return
        given = _values(headers, b"authorization")
        scheme, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
        # Compared even if the scheme is wrong, so that the time of an answer reveals nothing.
        same = hmac.compare_digest(token.strip(), self._token)
        if scheme.lower() != b"bearer" or not same:
            raise _Refused(401, "the token is missing or wrong", [(b"www-authenticate", b"Bearer")])

    async def _signed_body(self, headers: Headers, receive: Receive) -> bytes:
        """Read the body and check its signature. A request without a recent one is refused before it is read."""
        if self._keys is None:
            return await self._read(headers, receive)
        try:
            self._keys.check_headers(headers)
            body = await self._read(headers, receive)
            self._keys.verify(body, headers)
        except InvalidSignature as error:
            raise _Refused(401, str(error), [(b"www-authenticate", b"Standard-Webhooks")]) from error
        return body

    def _refuse_message(self, body: bytes) -> None:
        """Refuse a message at the path of `due`: its signature does not tell for which path it was made."""
        is_message = body.lstrip()[:1] == b"["
        with suppress(DecodeError):
            QueueMessage.decode(body)
            is_message = True
        if is_message:
            raise _Refused(400, "this path takes no messages; post them to the path without /due")

    async def _due(self) -> tuple[int, object, Headers]:
        return 200, {"due": await self._handler.due()}, ()

    async def _read(self, headers: Headers, receive: Receive) -> bytes:
        """Read the body, within its bounds of size and time."""
        too_large = _Refused(413, f"a body may have {self._max_body} bytes at the most")
        if any(value.strip().lower() not in (b"", b"identity") for value in _values(headers, b"content-encoding")):
            raise _Refused(415, "a body must not be compressed")
        said = _values(headers, b"content-length")
        if len(set(said)) > 1 or any(not value.isdigit() for value in said):
            raise _Refused(400, "the content-length is not a number")
        if any(len(value) > _DIGITS or int(value) > self._max_body for value in said):
            raise too_large
        too_slow = _Refused(
            408, f"the body took longer than {self._body_timeout:g} seconds", [(b"connection", b"close")]
        )
        until = self._system.monotonic() + self._body_timeout
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_timeout):
                # The clock is read, too: a timeout does not interrupt a server that always has the next part ready.
                while self._system.monotonic() <= until:
                    event = await receive()
                    if event["type"] == "http.disconnect":
                        raise _Refused(400, "the request ended before its body did")
                    body += event.get("body", b"")
                    if len(body) > self._max_body:
                        raise too_large
                    if not event.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise too_slow from None
        raise too_slow

    def _batch(self, body: bytes) -> list[msgspec.Raw]:
        try:
            batch = msgspec.json.decode(body, type=list[msgspec.Raw])
        except RecursionError:
            raise _Refused(400, "not a JSON array of messages: it is nested too deeply") from None
        except (msgspec.DecodeError, UnicodeError) as error:
            raise _Refused(400, f"not a JSON array of messages: {error}") from error
        if len(batch) > self._max_batch:
            raise _Refused(413, f"a batch may have {self._max_batch} messages at the most, not {len(batch)}")
        return batch


def _check_webhooks(given: Mapping[str, WebhookSource] | None) -> dict[str, WebhookSource]:
    """Sources by path, the longest path first. Raises `UsageError`."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(f"webhooks={brief(given)}: give a dict, such as {{'/github': GitHub(secret, on_event=...)}}")
    for path, source in given.items():
        if not isinstance(path, str) or not path.startswith("/") or not path.strip("/"):
            raise UsageError(f"webhooks has the path {brief(path)}; give one such as '/github'")
        if not isinstance(source, WebhookSource):
            raise UsageError(f"webhooks has {brief(source)}; give a GitHub, a Stripe or a StandardWebhooks")
    return dict(sorted(given.items(), key=lambda item: -len(item[0])))


def _by_name(headers: Headers) -> dict[str, str]:
    """Headers by name in lower case. Raises `_Refused` for a header of a signature that is there twice."""
    found: dict[str, str] = {}
    for name, value in headers:
        known = name.decode("latin-1").lower()
        if known in found and "signature" in known:
            raise _Refused(401, f"the header {known} is there twice")
        found[known] = value.decode("latin-1")
    return found


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for known, value in headers if known.lower() == name]


def _shown(answer: MessageResult) -> dict[str, object]:
    shown: dict[str, object] = {"ack": answer.ack, "outcome": answer.outcome.value, "run_id": answer.run_id}
    if answer.status is not None:
        shown["status"] = answer.status.value
    if not answer.ack:
        shown["delay_seconds"] = answer.delay
        shown["message"] = msgspec.Raw(answer.body)
    if answer.detail:
        shown["detail"] = harmless(answer.detail)
    return shown


async def _reply(send: Send, status: int, answer: object, headers: Headers) -> None:
    body = msgspec.json.encode(answer)
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
