"""Drawn calls of the parts beside the engine: metrics, traces, the server, webhooks, tools and helpers of tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from perdure import Engine
from perdure.dashboard import Dashboard
from perdure.http import Access, HttpApp, ProxyLogin, Redaction, SideBySide
from perdure.mcp import add_workflow, make_server
from perdure.metrics import Metrics
from perdure.outbox import Subscription, Webhook
from perdure.push import Announcer, GitHub, Send, StandardWebhooks, Start, Stripe, WebhookSource
from perdure.starlette import engine_lifespan, stream_response
from perdure.testing import (
    Environment,
    assert_absent,
    assert_attempts,
    assert_failure,
    assert_operations,
    assert_order,
    assert_result,
    replay_everywhere,
)
from perdure.testing.strategies import FailurePlan, failures, failures_of, messages
from perdure.tracing import Tracing
from tests.fuzz.calls import Found, arguments_for, quiet, timed
from tests.fuzz.hostile import Draw, anything

_ENGINE = Engine("sqlite://", [anything])
_APP = HttpApp(_ENGINE)
_REQUEST = Request({"type": "http", "headers": [], "method": "GET", "path": "/", "query_string": b""})


async def _on_event(event: Any) -> None:
    return None


def _made(function: Callable[..., Any], **fixed: Any) -> Callable[[Draw], Callable[[], Any]]:
    """Draw all arguments but the fixed ones. Assertions may fail, as they are made for."""

    def prepare(draw: Draw) -> Callable[[], Any]:
        given = {**arguments_for(function, draw), **fixed}
        first: list[Any] = []
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.POSITIONAL_ONLY and name in given:
                first.append(given.pop(name))
            elif parameter.kind is parameter.VAR_POSITIONAL:
                ahead = [one for one in inspect.signature(function).parameters if one in given and one != name]
                ahead = [one for one in ahead if one not in _keyword_only(function)]
                first += [given.pop(one) for one in ahead]
                first += [draw.any() for _ in range(draw.random.randrange(3))]

        def call() -> Any:
            try:
                answer = function(*first, **given)
                return list(answer) if inspect.isgenerator(answer) else answer
            except AssertionError:
                return None

        return call

    return prepare


def _keyword_only(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.VAR_KEYWORD)}


def _verified(source: WebhookSource) -> Callable[[Draw], Callable[[], Any]]:
    """Draw requests as a server hands them over: bytes, and headers of text."""

    def prepare(draw: Draw) -> Callable[[], Any]:
        headers = {source.signature_header: draw.text()} if draw.random.random() < 0.9 else {}
        body, now = draw.text().encode("utf-8", "replace"), 1e9 * draw.random.random()
        return lambda: source.event(body, headers, now)

    return prepare


#: Calls by name.
PARTS: dict[str, Callable[[Draw], Callable[[], Any]]] = {
    "Access": _made(Access),
    "Announcer": _made(Announcer, engine=_ENGINE),
    "Dashboard": _made(Dashboard),
    "Environment": _made(Environment),
    "FailurePlan": _made(FailurePlan),
    "GitHub": _made(GitHub),
    "GitHub.event": _verified(GitHub("secret", on_event=_on_event)),
    "HttpApp": _made(HttpApp, engine=_ENGINE, access=None, pages=None),
    "Metrics": _made(Metrics, engine=_ENGINE, cells=None),
    "ProxyLogin": _made(ProxyLogin),
    "Redaction": _made(Redaction),
    "Send": _made(Send),
    "SideBySide": _made(SideBySide),
    "StandardWebhooks": _made(StandardWebhooks),
    "Start": _made(Start),
    "Stripe": _made(Stripe),
    "Stripe.event": _verified(Stripe("secret", on_event=_on_event)),
    "Subscription": _made(Subscription),
    "Tracing": _made(Tracing),
    "Webhook": _made(Webhook),
    "add_workflow": _made(add_workflow, engine=_ENGINE, workflow=anything),
    "assert_absent": _made(assert_absent),
    "assert_attempts": _made(assert_attempts),
    "assert_failure": _made(assert_failure),
    "assert_operations": _made(assert_operations),
    "assert_order": _made(assert_order),
    "assert_result": _made(assert_result),
    "engine_lifespan": _made(engine_lifespan),
    "failures": _made(failures),
    "failures_of": _made(failures_of),
    "make_server": _made(make_server, engine=_ENGINE),
    "messages": _made(messages),
    "replay_everywhere": _made(replay_everywhere),
    "stream_response": _made(stream_response, connection=_REQUEST),
}


def fuzz_parts(seed: int, count: int) -> Found:
    """Make `count` calls."""
    found, draw = Found(), Draw(seed)
    names = list(PARTS)
    with quiet():
        for number in range(count):
            name = names[number % len(names)]
            timed(found, name, PARTS[name](draw))
    return found
