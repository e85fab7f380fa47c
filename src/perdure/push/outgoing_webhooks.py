"""Delivery of events over HTTP: CloudEvents in structured mode, signed by the Standard Webhooks specification.

The header `webhook-id` is a digest of the event's id and source, so it is the same for each delivery of an event.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Unpack
from urllib.parse import urlsplit

from perdure.client.outbox import Subscription
from perdure.core.model.cloud_event import CONTENT_TYPE, CloudEvent
from perdure.core.option_checks import check_duration
from perdure.core.policy.classify import classify
from perdure.core.process_fork import never_finalize, watch_forks
from perdure.core.time.duration import Duration
from perdure.errors import Fatal, RetryAfter, Undeliverable, UsageError
from perdure.push.signature import SigningKeys, signing_keys
from perdure.workflow.run_settings import ActivityOptions

if TYPE_CHECKING:
    import httpx

#: Answer of a receiver that wants no more events.
_GONE = 410
#: Bytes of an answer that are read.
_LONGEST_ANSWER = 64 * 1024
#: Shortest and longest pause that a receiver may ask for, in seconds.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 3600.0


class Webhook(Subscription):
    """A URL that gets the events of some types and sources, signed.

    An answer with a status of 200 to 299 is a success. 410 makes the delivery a dead letter at once; a `Retry-After` of
    429 and 503 is followed. Every other answer, redirects included, is a failed attempt.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        keys: SigningKeys | str | Iterable[str],
        events: str | Iterable[str] = "%",
        sources: str | Iterable[str] = "%",
        headers: Mapping[str, str] | None = None,
        timeout: Duration = "30s",
        **options: Unpack[ActivityOptions],
    ) -> None:
        """`keys` sign each request; several during a rotation. `headers` are added to each request.

        `timeout` bounds one request. The other options are those of `Subscription`.
        """
        self._url = _checked_url(url)
        self._keys = signing_keys(keys)
        if self._keys is None:
            raise UsageError("a webhook is signed; give keys=SigningKeys.generate(), and the same to its receiver")
        self._headers = _checked_headers(headers)
        self._timeout = check_duration("timeout", timeout)
        self._httpx = _library()
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}
        watch_forks(self._detach)
        super().__init__(name, self._post, events=events, sources=sources, **options)

    async def close(self) -> None:
        """Close the connections of the current event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    async def _post(self, event: CloudEvent) -> None:
        assert self._keys is not None
        body = event.to_json()
        signature = self._keys.sign(body, id=message_id(event))
        headers = {**self._headers, **signature, "content-type": f"{CONTENT_TYPE}; charset=utf-8"}
        async with (
            asyncio.timeout(self._timeout),
            self._client().stream("POST", self._url, content=body, headers=headers) as response,
        ):
            await _drain(response)
        if response.is_success:
            return
        said = f"the receiver of {self.name} answered event {event.id!r} with status {response.status_code}"
        if response.status_code == _GONE:
            raise Fatal(f"{said}: it wants no more events")
        error = self._httpx.HTTPStatusError(said, request=response.request, response=response)
        after = classify(error).retry_after
        if after is not None:
            raise RetryAfter(min(max(after, _SHORTEST_PAUSE), _LONGEST_PAUSE), said)
        raise Undeliverable(said)

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._httpx.AsyncClient(timeout=self._timeout, follow_redirects=False)
            self._clients[loop] = client
        return client

    def _detach(self) -> None:
        """Leave the connections to the process that this one was forked from."""
        never_finalize(self._clients)
        self._clients = {}


async def _drain(response: httpx.Response) -> None:
    """Read a short answer, so that its connection is used again; a long one is of no interest."""
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > _LONGEST_ANSWER:
            return


def message_id(event: CloudEvent) -> str:
    """Value of `webhook-id`: the ids of events may have characters that a signature cannot have."""
    both = f"{event.source}\0{event.id}".encode()
    return f"evt_{hashlib.sha256(both).hexdigest()[:40]}"


def _checked_headers(headers: object) -> dict[str, str]:
    given = {} if headers is None else headers
    if not isinstance(given, Mapping) or not all(
        isinstance(text, str) and text.isascii() for pair in given.items() for text in pair
    ):
        # Not repeated here: one may be a password.
        raise UsageError("the headers of a webhook are a dict of names and values, such as {'x-tenant': 'acme'}")
    return dict(given)


def _checked_url(url: object) -> str:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
    except ValueError:
        parts = None
    if not isinstance(url, str) or parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        # Not repeated here: it may have a password.
        raise UsageError("the url of a webhook is that of its receiver, such as https://example.com/hooks/shop")
    return url


def _library() -> ModuleType:
    try:
        import httpx
    except ModuleNotFoundError:
        raise UsageError("a webhook needs the package httpx; install it: pip install 'perdure[client]'") from None
    return httpx
