"""Headers of runs over HTTP, by hand and through an engine on a server."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import TracerProvider

from perdure import Engine, Every
from perdure.admin import Role
from perdure.core.tracing import trace_id_of
from perdure.http import Redaction
from perdure.tracing import Tracing
from tests.http.serving import WORKFLOWS, Order, Served, checkout, served
from tests.stage import Stage

BODY = {"type": "http.checkout.v1", "input": {"order": {"id": "o", "cents": 1}}}


async def test_a_run_is_started_with_headers_and_shows_them(site: Served) -> None:
    answer = await site.operator.post("/runs", {**BODY, "id": "one", "headers": {"tenant": "acme"}})
    assert (answer.status_code, answer.json()["headers"]) == (201, {"tenant": "acme"})
    assert (await site.viewer.get("/runs/one"))["headers"] == {"tenant": "acme"}
    [listed] = (await site.viewer.get("/runs"))["items"]
    assert listed["headers"] == {"tenant": "acme"}
    many = await site.operator.post("/runs/batch", {"runs": [BODY, BODY], "headers": {"tenant": "b"}})
    for run_id in many.json()["ids"]:
        assert (await site.viewer.get(f"/runs/{run_id}"))["headers"] == {"tenant": "b"}


async def test_headers_that_are_refused_are_a_bad_request(local: Served) -> None:
    refused: tuple[Any, ...] = ({"tenant": 1}, {"a b": "c"}, {"a": "\n"}, [])
    for headers in refused:
        answer = await local.operator.post("/runs", {**BODY, "headers": headers})
        assert answer.status_code in (400, 422), answer.text


async def test_an_engine_on_a_server_passes_headers_on(site: Served) -> None:
    async with Engine(site.url, WORKFLOWS, token=site.tokens[Role.ADMIN]) as engine:
        run = await engine.start(checkout(Order("o", 1)), headers={"tenant": "acme"})
        assert (await run.info()).headers == {"tenant": "acme"}
        [other] = await engine.start_many([checkout(Order("o", 1))], headers={"tenant": "b"})
        assert (await other.info()).headers == {"tenant": "b"}
        made = await engine.schedules.create("nightly", checkout(Order("o", 1)), Every("1d"), headers={"tenant": "c"})
        assert made.headers == {"tenant": "c"}
        scheduled = await engine.schedules.trigger("nightly")
        assert (await scheduled.info()).headers == {"tenant": "c"}
        assert (await engine.schedules.change("nightly", headers={"tenant": "d"})).headers == {"tenant": "d"}
        assert (await engine.schedules.change("nightly", headers=None)).headers == {}


async def test_redaction_applies_to_headers(on_disk: Stage) -> None:
    engine = on_disk.engine(*WORKFLOWS)
    async with served(engine, redaction=Redaction(keys=["*token"]), work=False) as site:
        headers = {"tenant": "acme", "api_token": "secret"}
        answer = await site.operator.post("/runs", {**BODY, "id": "one", "headers": headers})
        assert answer.json()["headers"] == {"tenant": "acme", "api_token": "[redacted]"}


async def test_the_context_of_a_trace_passes_from_a_request_into_the_run(site: Served) -> None:
    carried = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "baggage": "tenant=acme"}
    answer = await site.operator.post("/runs", {**BODY, "id": "one"}, headers={**carried, "tracestate": "x" * 2000})
    assert answer.json()["headers"] == carried
    given = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-0000000000000001-00"}
    answer = await site.operator.post("/runs", {**BODY, "id": "two", "headers": given}, headers=carried)
    assert answer.json()["headers"] == {**carried, **given}
    answer = await site.operator.post("/runs", {**BODY, "id": "three"}, headers={"traceparent": "none", "baggage": "a"})
    assert answer.json()["headers"] == {}


async def test_an_engine_on_a_server_passes_the_trace_of_its_caller_on(local: Served) -> None:
    provider = TracerProvider()
    async with Engine(local.url, WORKFLOWS, token=local.tokens[Role.ADMIN], tracing=Tracing(provider)) as engine:
        with provider.get_tracer("tests").start_as_current_span("caller") as caller:
            run = await engine.start(checkout(Order("o", 1)))
        trace_id = f"{caller.get_span_context().trace_id:032x}"
        assert trace_id_of((await run.info()).headers) == trace_id
