"""The server around the routes: probes, bounds, redaction, prefixes, and errors of the database."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from perdure import Context, Engine, Status, Watermark, workflow
from perdure.admin import Role
from perdure.errors import Overloaded, StoreUnavailable, UsageError
from perdure.http import Access, HttpApp, Redaction
from perdure.http import app as app_module
from perdure.http.access import COOKIE
from perdure.http.redaction import Redactor
from tests.helpers import eventually
from tests.http.serving import WORKFLOWS, Caller, Served, approval, calling, served, sleeper
from tests.http.test_runs import ORDER, start, until
from tests.stage import Stage


async def test_probes_say_what_is_missing(stage: Stage) -> None:
    async with served(stage.engine(*WORKFLOWS), work=False) as site:
        live = await site.anonymous.client.get("/livez")
        assert (live.status_code, live.json()["ok"]) == (200, True)
        ready = await site.anonymous.client.get("/readyz")
        assert (ready.status_code, ready.json()["ok"]) == (503, False)
        assert {one["name"]: one["ok"] for one in ready.json()["checks"]} == {
            "database": True,
            "schema": True,
            "workers": False,
        }
        assert all(one["detail"] == "" for one in ready.json()["checks"])
        known = await site.viewer.client.get("/readyz", headers=site.viewer.headers)
        assert "0 of 0 workers" in str(known.json())
        async with site.engine.worker():
            now = await site.anonymous.client.get("/readyz", headers={"Host": "10.1.2.3:80"})
            assert (now.status_code, now.json()["ok"]) == (200, True)


async def test_a_database_that_fails_is_503_with_the_python_text(local: Served, on_disk: Stage) -> None:
    store = on_disk.store
    assert store is not None

    async def failing(*_: object, **__: object) -> Any:
        raise StoreUnavailable("the database runs.db is locked")

    store.get = failing  # type: ignore[method-assign] # a store that breaks
    engine = local.engine
    engine._session.store.bound = 0.05  # type: ignore[attr-defined] # of Retrying
    answer = await local.viewer.call("GET", "/runs/any")
    assert (answer.status_code, answer.json()["detail"]) == (503, "the database runs.db is locked")
    assert answer.headers["retry-after"] == "1"


async def test_a_closed_engine_is_503(on_disk: Stage) -> None:
    engine = on_disk.engine(*WORKFLOWS)
    token = (await engine.tokens.create("ci")).token
    async with calling(HttpApp(engine)) as client:
        await engine.close()
        answer = await client.get("/api/v1/runs", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 503
        assert (await client.get("/readyz")).status_code == 503


async def test_bodies_are_bounded_and_must_be_json(on_disk: Stage) -> None:
    async with served(on_disk.engine(*WORKFLOWS), work=False, max_body=1000) as site:
        client, url = site.operator.client, "/api/v1/runs"
        headers = {**site.operator.headers, "content-type": "application/json"}
        large = await client.post(url, content=b"x" * 1001, headers=headers)
        assert (large.status_code, large.json()["type"]) == (413, "urn:perdure:problem:body-too-large")

        async def chunks() -> Any:
            for _ in range(100):
                yield b"x" * 100

        assert (await client.post(url, content=chunks(), headers=headers)).status_code == 413
        for content in (b"{", b"\xff", b"[" * 900, b'{"type": "x", "type": "\\ud800"}'):
            assert (await client.post(url, content=content, headers=headers)).status_code in (400, 422), content
        assert (await client.post(url, content=b"[]", headers=headers)).status_code == 422
        assert (await client.post(url, content=b'{"type":"x","oops":1}', headers=headers)).status_code == 422
        text = await client.post(url, content=b"{}", headers={**headers, "content-type": "text/plain"})
        assert text.status_code == 415


async def test_payloads_over_the_engines_limit_are_413(on_disk: Stage) -> None:
    engine = on_disk.engine(*WORKFLOWS, payload_warn=500, payload_limit=1000)
    async with served(engine, work=False) as site:
        body = {"type": "http.checkout.v1", "input": {"order": {"id": "x" * 2000, "cents": 1}}}
        answer = await site.operator.post("/runs", body)
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:perdure:problem:payload-too-large")


async def test_a_caller_has_a_bounded_rate(on_disk: Stage) -> None:
    engine = on_disk.engine(*WORKFLOWS)
    tokens = [(await engine.tokens.create(name)).token for name in ("one", "other")]
    async with calling(HttpApp(engine, rate=0.001, burst=5)) as client:
        statuses = []
        for _ in range(8):
            answer = await client.get("/api/v1/runs", headers={"Authorization": f"Bearer {tokens[0]}"})
            statuses.append(answer.status_code)
        assert statuses == [200] * 5 + [429] * 3
        again = await client.get("/api/v1/runs", headers={"Authorization": f"Bearer {tokens[0]}"})
        assert int(again.headers["retry-after"]) > 0
        other = await client.get("/api/v1/runs", headers={"Authorization": f"Bearer {tokens[1]}"})
        assert other.status_code == 200
        # A session is no way around it.
        assert (await client.post("/api/v1/session", json={"token": tokens[0]})).status_code == 201
        assert (await client.get("/api/v1/runs")).status_code == 429
        client.cookies.clear()
        guesses = [await client.get("/api/v1/runs", headers={"Authorization": f"Bearer {n}"}) for n in range(8)]
        assert 429 in {one.status_code for one in guesses}


async def test_tokens_are_not_guessed_by_a_probe(on_disk: Stage) -> None:
    engine = on_disk.engine(*WORKFLOWS)
    async with calling(HttpApp(engine, rate=0.001, burst=5)) as client:
        for number in range(8):
            ready = await client.get("/readyz", headers={"Authorization": f"Bearer {number}"})
            assert ready.status_code == 503
        assert (await client.get("/api/v1/runs", headers={"Authorization": "Bearer x"})).status_code == 429


async def test_probes_share_one_read_of_the_database(idle: Served, on_disk: Stage) -> None:
    store = on_disk.store
    assert store is not None
    read, asked, going = store.workers, 0, asyncio.Event()

    async def slow() -> Any:
        nonlocal asked
        asked += 1
        await going.wait()
        return await read()

    store.workers = slow  # type: ignore[method-assign] # to count its calls
    # Without a network, so that all of them arrive within a few turns of the loop.
    async with httpx.AsyncClient(transport=httpx.ASGITransport(idle.app), base_url="http://localhost") as client:
        probes = [asyncio.ensure_future(client.get("/readyz")) for _ in range(10)]
        await eventually(lambda: asked >= 1)
        for _ in range(1000):
            await asyncio.sleep(0)
        going.set()
        assert {one.status_code for one in await asyncio.gather(*probes)} == {503}
    assert asked == 1


async def test_payloads_are_hidden_by_role_and_by_pattern(stage: Stage) -> None:
    redaction = Redaction(payloads="operator", keys=["*cents", "Secret"], texts=[r"\bsk-\w+"])
    async with served(stage.engine(*WORKFLOWS), redaction=redaction) as site:
        order = {"order": {"id": "sk-abc123", "cents": -1}, "note": "uses sk-abc123"}
        await start(site, "http.checkout.v1", order, id="r", attributes={"secret": "hush", "who": "sk-abc123"})
        await until(site, "r", Status.FAILED)
        await start(site, "http.approval.v1", id="sk-live")
        paths = [f"/runs/r{more}" for more in ("", "/history", "/report", "/result", "/events", "/why", "/states")]
        paths += ["/runs?payloads=true", "/dead-letters", "/dead-letters/r", "/events"]
        for path in paths:
            hidden = (await site.viewer.call("GET", path)).text
            assert all(word not in hidden for word in ("sk-abc123", "nothing to charge", "hush")), (path, hidden)
            shown = (await site.operator.call("GET", path)).text
            assert "sk-abc123" not in shown
            assert '"cents": -1' not in shown
            assert '"cents":-1' not in shown
        operator = await site.operator.get("/runs/r")
        assert operator["input"] == {"order": {"id": "[redacted]", "cents": "[redacted]"}, "note": "uses [redacted]"}
        assert operator["attributes"] == {"secret": "[redacted]", "who": "[redacted]"}
        assert operator["error"]["message"] == "nothing to charge"
        viewer = await site.viewer.get("/runs/r")
        assert (viewer["input"], viewer["error"]["message"]) == ("[redacted]", "[redacted]")
        assert viewer["error"]["type"] == "ValueError"


async def test_a_published_state_is_redacted_by_its_key_and_its_key_hides_no_error(on_disk: Stage) -> None:
    redaction = Redaction(keys=["stage"], texts=["st[a]ge"])
    async with served(on_disk.engine(*WORKFLOWS), redaction=redaction) as site:
        await start(site, "http.approval.v1", id="r")
        await until(site, "r", Status.WAITING)
        assert await site.viewer.get("/runs/r/states") == {"stage": "[redacted]"}
        assert (await site.viewer.get("/runs/r/states/stage"))["value"] == "[redacted]"


async def test_findings_of_a_deploy_check_are_redacted(on_disk: Stage) -> None:
    await on_disk.engine(*WORKFLOWS).start(sleeper(), id="r")
    async with served(on_disk.engine(approval), work=False, redaction=Redaction(texts=["sleep"])) as site:
        checked = (await site.operator.post("/deploy-checks")).json()
        for found in (checked["findings"], (await site.operator.get("/deploy-check"))["findings"]):
            assert [one["expected"] for one in found] == ["a workflow of the type 'http.[redacted]er.v1'"]
        [stored] = (await site.viewer.get("/deploy-checks"))["items"]
        assert [one["expected"] for one in stored["types"]] == ["a workflow of the type 'http.[redacted]er.v1'"]


async def test_a_redacted_value_is_not_found_by_a_filter(on_disk: Stage) -> None:
    redaction = Redaction(payloads="operator", keys=["secret"])
    async with served(on_disk.engine(*WORKFLOWS), redaction=redaction) as site:
        await start(
            site, "http.checkout.v1", {"order": {"id": "o", "cents": -1}}, id="r", attributes={"secret": "hush"}
        )
        await until(site, "r", Status.FAILED)
        for caller, filter in (
            (site.viewer, {"attribute": ["other=x"]}),
            (site.viewer, {"attribute": ["secret^=h"]}),
            (site.viewer, {"error": "nothing"}),
            (site.operator, {"attribute": ["secret^=h"]}),
        ):
            answers = [
                await caller.call("GET", "/runs", params=filter),
                await caller.post("/runs/count", filter),
                await caller.post("/bulk/preview", {"where": filter}),
            ]
            if "error" in filter:
                answers.append(await caller.call("GET", "/dead-letters", params=filter))
            assert {one.status_code for one in answers} == {403}, filter
            assert "redacted" in answers[0].json()["detail"]
        assert [one["id"] for one in (await site.operator.get("/runs", error="nothing"))["items"]] == ["r"]
        assert (await site.viewer.get("/runs", type="http.checkout.v1"))["items"]


async def test_descriptions_of_types_and_problems_of_limits_are_redacted(on_disk: Stage) -> None:
    @workflow("http.secret.v1")
    async def described(ctx: Context) -> None:
        """Use sk-abc123 to pay."""

    async with served(on_disk.engine(described), redaction=Redaction(texts=[r"\bsk-\w+"])) as site:
        [found] = [one for one in (await site.viewer.get("/types"))["items"] if one["type"] == "http.secret.v1"]
        assert found["description"] == "Use [redacted] to pay."


def test_a_payload_that_is_too_deep_to_look_into_is_redacted_as_a_whole() -> None:
    """No codec of Perdure writes one, but another program may."""
    deep = '{"x":' * 500 + '"secret"' + "}" * 500
    assert Redactor(Redaction(keys=["password"]), Role.ADMIN).payload(deep) == "[redacted]"


async def test_an_error_keeps_its_class_for_callers_who_see_no_payloads(on_disk: Stage) -> None:
    async with (
        served(on_disk.engine(*WORKFLOWS), work=False, redaction=Redaction(payloads="admin")) as site,
        Engine(site.url, WORKFLOWS, token=site.tokens[Role.OPERATOR]) as engine,
    ):
        await site.engine.queues.watermarks.set(Watermark(queue="narrow", high=1))
        await engine.start(approval(), queue="narrow")

        async def refused() -> bool:
            try:
                await engine.start(approval(), queue="narrow")
            except Overloaded as error:
                return (error.depth, error.high) == (1, 1)
            return False

        await eventually(refused)


def test_rules_of_redaction_are_checked() -> None:
    with pytest.raises(UsageError, match="not a regular expression"):
        Redaction(texts=["("])
    with pytest.raises(UsageError, match="a role is one of"):
        Redaction(payloads="root")


@pytest.mark.parametrize("how", ["root_path", "mounted", "forwarded"])
async def test_it_works_under_a_prefix(on_disk: Stage, how: str) -> None:
    engine = on_disk.engine(*WORKFLOWS)
    token = (await engine.tokens.create("ci", Role.ADMIN)).token
    app = HttpApp(engine, access=Access(proxies=["127.0.0.1"] if how == "forwarded" else []))
    outer: HttpApp | Starlette = app
    if how == "mounted":
        outer = Starlette(routes=[Mount("/ops/perdure", app=app)])
    headers = {"Authorization": f"Bearer {token}"}
    prefix = "" if how == "forwarded" else "/ops/perdure"
    if how == "forwarded":
        headers["X-Forwarded-Prefix"] = "/ops/perdure"
    # A server with a root path gets the prefix from its proxy, and adds it to the path by itself.
    async with calling(outer, "/ops/perdure" if how == "root_path" else "") as client:
        place = "" if how == "root_path" else prefix
        document = await client.get(f"{place}/api/v1/openapi.json", headers=headers)
        assert document.status_code == 200, document.text
        assert document.json()["servers"] == [{"url": "/ops/perdure"}]
        body = {"type": "http.approval.v1", "id": "a/b"}
        assert (await client.post(f"{place}/api/v1/runs", json=body, headers=headers)).status_code == 201
        run = await client.get(f"{place}/api/v1/runs/a%2Fb", headers=headers)
        assert run.json()["id"] == "a/b"
        login = await client.post(f"{place}/api/v1/session", json={"token": token}, headers=headers)
        assert "Path=/ops/perdure/" in login.headers["set-cookie"]


async def test_the_cookie_is_secure_except_on_plain_loopback(on_disk: Stage) -> None:
    engine = on_disk.engine(*WORKFLOWS)
    token = (await engine.tokens.create("ci")).token
    app = HttpApp(engine, access=Access(proxies=["127.0.0.1"], hosts=["ops.example.com", "127.0.0.1"]))
    async with calling(app) as client:
        for headers, secure in (
            ({}, False),
            ({"X-Forwarded-Proto": "https"}, True),
            ({"X-Forwarded-Host": "ops.example.com"}, True),
        ):
            answer = await client.post("/api/v1/session", json={"token": token}, headers=headers)
            assert ("; Secure" in answer.headers["set-cookie"]) is secure
            assert COOKIE in answer.headers["set-cookie"]


async def test_hostile_requests_get_an_answer(local: Served) -> None:
    host, port = local.address
    token = local.tokens[Role.ADMIN]
    for request in (
        b"GET /api/v1/runs/%ff HTTP/1.1",
        b"GET /api/v1/runs/%00 HTTP/1.1",
        b"GET /api/v1//runs HTTP/1.1",
        b"GET /api/v1/runs/ HTTP/1.1",
        b"GET /api/v1/runs?limit=99999999999999999999 HTTP/1.1",
        b"GET /api/v1/runs?cursor=%ff HTTP/1.1",
        b"GET /api/v1/runs?created_after=0001-01-01T00:00:00Z HTTP/1.1",
        b"GET /api/v1/runs?created_before=9999-12-31T23:59:59Z HTTP/1.1",
        b"GET /api/v1/runs?limit=1&limit=2 HTTP/1.1",
        b"GET /api/v1/runs?unknown=1 HTTP/1.1",
        b"GET /api/v1/runs/x/states/%23 HTTP/1.1",
        b"BREW /api/v1/runs HTTP/1.1",
        b"GET /api/v1/../../etc/passwd HTTP/1.1",
    ):
        reader, writer = await asyncio.open_connection(host, port)
        head = f"\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        writer.write(request + head.encode())
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        status = int(answer.split(b" ")[1])
        assert status < 500, (request, answer)


async def test_an_answer_is_decoded_as_the_python_value(local: Served) -> None:
    """Numbers and text come through as they were stored."""
    odd = {"order": {"id": "ünïcode \u2028 🎉", "cents": 2**53 + 1}}
    await start(local, "http.checkout.v1", odd, id="odd")
    run = json.loads((await local.viewer.call("GET", "/runs/odd")).text)
    assert run["input"]["order"] == odd["order"]
    assert odd != ORDER


async def test_an_engine_without_code_starts_any_type(on_disk: Stage) -> None:
    engine = Engine(on_disk.url)
    async with engine, calling(HttpApp(engine)) as client:
        token = (await engine.tokens.create("ci", Role.OPERATOR)).token
        caller = Caller(client, {"Authorization": f"Bearer {token}"})
        for input in ({"order": 1}, [1, 2], {}):
            assert (await caller.post("/runs", {"type": "elsewhere.v1", "input": input})).status_code == 201
    assert isinstance(client, httpx.AsyncClient)


async def test_a_start_that_a_watermark_lets_wait_ends(local: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = {"high": 1, "when_full": "wait"}
    assert (await local.operator.call("PUT", "/queues/full/watermark", mark)).status_code == 200
    await start(local, "http.approval.v1", queue="full")
    monkeypatch.setattr(app_module, "HANDLER_TIME", 0.2)
    local.app._longest_wait = 0.0
    late = await local.operator.post("/runs", {"type": "http.approval.v1", "queue": "full"})
    assert (late.status_code, "same id or key" in late.json()["detail"]) == (503, True)
