"""Queue messages over HTTP: an ASGI application.

`POST` one message: the status is 200 if it is done, 503 with `Retry-After` if it is to be sent again, 400 if it is no
message. `POST` a JSON array of messages: the body has a result for each. `POST` to a path that ends in `/due`, now and
then: ready runs are enqueued or, without a queue, listed. Bodies are bounded, and a token, if there is one, is compared
in constant time.
"""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import msgspec

from perdure.errors import StoreError, UsageError
from perdure.push.handler import QueueHandler
from perdure.push.message import MessageOutcome, MessageResult

logger = logging.getLogger("perdure.push")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]


class _Refused(Exception):
    """A request that is refused with a status and a reason."""

    def __init__(self, status: int, reason: str, headers: Headers = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class PushApp:
    """An ASGI application that hands what is posted to a `QueueHandler`, which starts and stops with it."""

    def __init__(
        self, handler: QueueHandler, *, token: str | None, max_body: int = 1024 * 1024, max_batch: int = 1000
    ) -> None:
        """Accept requests with `Authorization: Bearer` and this `token`; None accepts all.

        Use None for tests and private networks only.

        Bodies of more than `max_body` bytes, and batches of more than `max_batch` messages, are refused.
        """
        if token is not None and not token:
            raise UsageError("an empty token protects nothing; give one, or None to accept all requests")
        self._handler = handler
        self._token = None if token is None else token.encode()
        self._max_body = max_body
        self._max_batch = max_batch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or the events of the server's life, by the ASGI specification."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            try:
                status, answer, headers = await self._respond(scope, receive)
            except _Refused as refused:
                status, answer, headers = refused.status, {"error": str(refused)}, refused.headers
            await _reply(send, status, answer, headers)
        else:
            raise UsageError(f"PushApp speaks HTTP, not {scope['type']}")

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
                await self._handler.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _respond(self, scope: Scope, receive: Receive) -> tuple[int, object, Headers]:
        if scope["method"] != "POST":
            raise _Refused(405, "only POST is understood here", [(b"allow", b"POST")])
        self._let_in(scope["headers"])
        if scope["path"].endswith("/due"):
            return await self._due()
        body = await self._read(scope["headers"], receive)
        if body.lstrip()[:1] == b"[":
            answers = await self._handler.handle([bytes(one) for one in self._batch(body)])
            return 200, {"answers": [_shown(answer) for answer in answers]}, ()
        [answer] = await self._handler.handle([body])
        if answer.outcome is MessageOutcome.MALFORMED:
            raise _Refused(400, answer.detail)
        after = [] if answer.ack else [(b"retry-after", str(math.ceil(answer.delay)).encode())]
        return 200 if answer.ack else 503, _shown(answer), after

    def _let_in(self, headers: Headers) -> None:
        if self._token is None:
            return
        given = next((value for name, value in headers if name.lower() == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        # Compared even if the scheme is wrong, so that the time of an answer reveals nothing.
        same = hmac.compare_digest(token.strip(), self._token)
        if scheme.lower() != b"bearer" or not same:
            raise _Refused(401, "the token is missing or wrong", [(b"www-authenticate", b"Bearer")])

    async def _due(self) -> tuple[int, object, Headers]:
        try:
            return 200, {"due": await self._handler.due()}, ()
        except StoreError as error:
            raise _Refused(503, f"the database cannot be reached: {error}", [(b"retry-after", b"5")]) from error

    async def _read(self, headers: Headers, receive: Receive) -> bytes:
        too_large = _Refused(413, f"a body may have {self._max_body} bytes at the most")
        said = next((value for name, value in headers if name.lower() == b"content-length"), b"0")
        if said.isdigit() and int(said) > self._max_body:
            raise too_large
        body = bytearray()
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise _Refused(400, "the request ended before its body did")
            body += event.get("body", b"")
            if len(body) > self._max_body:
                raise too_large
            if not event.get("more_body", False):
                return bytes(body)

    def _batch(self, body: bytes) -> list[msgspec.Raw]:
        try:
            batch = msgspec.json.decode(body, type=list[msgspec.Raw])
        except msgspec.DecodeError as error:
            raise _Refused(400, f"not a JSON array of messages: {error}") from error
        if len(batch) > self._max_batch:
            raise _Refused(413, f"a batch may have {self._max_batch} messages at the most, not {len(batch)}")
        return batch


def _shown(answer: MessageResult) -> dict[str, object]:
    shown: dict[str, object] = {"ack": answer.ack, "outcome": answer.outcome.value, "run_id": answer.run_id}
    if answer.status is not None:
        shown["status"] = answer.status.value
    if not answer.ack:
        shown["delay_seconds"] = answer.delay
        shown["message"] = msgspec.Raw(answer.body)
    if answer.detail:
        shown["detail"] = answer.detail
    return shown


async def _reply(send: Send, status: int, answer: object, headers: Headers) -> None:
    body = msgspec.json.encode(answer)
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
