"""Bounds on callers: rate of requests, concurrent streams, size and time of bodies."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from starlette.requests import ClientDisconnect, Request

from perdure.core.system import System
from perdure.http.problems import BAD_REQUEST, BODY_TOO_LARGE, TOO_MANY_REQUESTS, Refused
from perdure.http.views import Done

#: Callers and orders that are remembered, and for how many seconds orders are.
_REMEMBERED = 10_000
_ORDER_TIME = 600.0


class RecentOrders:
    """Answers to orders, for repetitions of their requests: an order that was carried out is answered alike again.

    The verbs that start or send something recognise a repetition by themselves, for good. An order that finds its work
    done cannot tell who did it, so its answer is kept here for a while.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._answers: OrderedDict[bytes, tuple[float, Done]] = OrderedDict()

    def find(self, seed: bytes | None) -> Done | None:
        """The answer that a request with this seed got lately."""
        until, answer = self._answers.get(seed or b"", (0.0, None))
        return answer if until > self._system.monotonic() else None

    def keep(self, seed: bytes | None, answer: object) -> None:
        """Keep the answer to an order."""
        if seed is None or not isinstance(answer, Done):
            return
        self._answers[seed] = self._system.monotonic() + _ORDER_TIME, answer
        while len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)


class RateLimit:
    """A token bucket for each caller: `rate` requests a second, and `burst` at once."""

    def __init__(self, system: System, rate: float, burst: int) -> None:
        self._system = system
        self._rate = rate
        self._burst = burst
        #: Time at which the bucket of each caller is full again.
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def check(self, caller: str) -> None:
        """Raise `Refused` if there were too many requests."""
        self._next(caller)

    def take(self, caller: str) -> None:
        """Count a request. Raises `Refused` if there were too many."""
        self._full_at[caller] = self._next(caller)
        self._full_at.move_to_end(caller)
        while len(self._full_at) > _REMEMBERED:
            self._full_at.popitem(last=False)

    def _next(self, caller: str) -> float:
        """Time at which the bucket would be full again after one more request."""
        now = self._system.monotonic()
        full_at = max(now, self._full_at.get(caller, now)) + 1 / self._rate
        wait = full_at - now - self._burst / self._rate
        if wait > 0:
            raise Refused(
                TOO_MANY_REQUESTS,
                f"more than {self._rate:g} requests a second; wait {wait:.1f} s",
                {"retry-after": str(int(wait) + 1)},
            )
        return full_at


class StreamLimit:
    """Concurrent streams, of each caller and of all."""

    def __init__(self, each: int, together: int) -> None:
        self._each = each
        self._together = together
        self._open: dict[str, int] = {}

    def enter(self, caller: str) -> None:
        """Count a stream. Raises `Refused` if there are too many."""
        mine = self._open.get(caller, 0)
        if mine >= self._each or sum(self._open.values()) >= self._together:
            raise Refused(TOO_MANY_REQUESTS, f"{mine} streams are open; close one first", {"retry-after": "5"})
        self._open[caller] = mine + 1

    def leave(self, caller: str) -> None:
        """Count the end of a stream."""
        left = self._open[caller] - 1
        if left:
            self._open[caller] = left
        else:
            del self._open[caller]


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """Read the body of a request. Raises `Refused` if it is too large or takes too long."""
    too_large = Refused(BODY_TOO_LARGE, f"the body has more than {most} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:18]) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise Refused(BAD_REQUEST, f"the body did not arrive within {seconds:g} s") from None
    except ClientDisconnect:
        raise Refused(BAD_REQUEST, "the client left before its request was complete") from None
    return bytes(body)
