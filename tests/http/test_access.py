"""Access, by the route table: no token sees nothing, a viewer changes nothing, an operator makes no tokens."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Any

import httpx
import pytest

from perdure.admin import Role
from perdure.client.session import session_of
from perdure.errors import UsageError
from perdure.http import Access, HttpApp, Principal, ProxyLogin
from perdure.http.access import COOKIE, SAFE_METHODS
from perdure.http.routes import PREFIX, ROUTES, Route
from perdure.http.server import check_bind, parse_bind
from tests.http.serving import WORKFLOWS, Caller, Served, calling
from tests.stage import Stage

PROBLEM = "application/problem+json"
GUARDED = [route for route in ROUTES if route.role is not None]
#: Paths that a viewer may POST to: they write nothing.
READING = (
    "/session", "/runs/count", "/runs/unserved", "/runs/updated", "/bulk/preview",
    "/schedules/{schedule_id}/backfill/preview",
)  # fmt: skip


def path_of(route: Route) -> str:
    """A path of the route, of things that do not exist."""
    return re.sub(r"\{(\w+)\}", lambda name: "0" if name[1] == "number" else "nothing", route.path)


async def ask(caller: Caller, route: Route, **options: Any) -> httpx.Response:
    return await caller.call(route.method, path_of(route), {} if route.method != "GET" else None, **options)


async def test_no_token_sees_nothing(local: Served) -> None:
    for route in GUARDED:
        answer = await ask(local.anonymous, route)
        assert (answer.status_code, answer.headers["content-type"]) == (401, PROBLEM), route.path
        assert answer.headers["www-authenticate"].startswith("Bearer")
        wrong = await ask(local.anonymous, route, headers={"Authorization": "Bearer perdure_wrong"})
        assert wrong.status_code == 401


async def test_no_role_does_what_a_higher_one_may(local: Served) -> None:
    callers = {Role.VIEWER: local.viewer, Role.OPERATOR: local.operator, Role.ADMIN: local.admin}
    for route in GUARDED:
        if route.streams:
            continue
        assert route.role is not None
        for role, caller in callers.items():
            answer = await ask(caller, route)
            if role.includes(route.role):
                assert answer.status_code not in (401, 403), (role, route.path, answer.text)
                # The session ends with DELETE, which a bearer token has none of.
            else:
                assert answer.status_code == 403, (role, route.path, answer.text)
                assert f"needs the role {route.role.value}" in answer.json()["detail"]


async def test_a_viewer_changes_nothing(local: Served, on_disk: Stage) -> None:
    await local.operator.post("/runs", {"type": "http.sleeper.v1", "id": "nothing"})
    before = (await on_disk.dump())["events"]
    for route in GUARDED:
        if route.method not in SAFE_METHODS and route.path not in READING:
            assert (await ask(local.viewer, route)).status_code == 403, route.path
    after = [event for event in (await on_disk.dump())["events"] if event not in before]
    assert [event for event in after if "viewer" in str(event)] == []


async def test_every_private_answer_is_not_stored_and_not_framed(local: Served) -> None:
    for route in ROUTES:
        if route.streams:
            continue
        answer = await ask(local.admin, route)
        assert answer.headers["cache-control"] == "no-store", route.path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


async def test_live_updates_and_refusals_are_not_stored_either(local: Served) -> None:
    headers = {"Authorization": f"Bearer {local.tokens[Role.VIEWER]}"}
    async with local.viewer.client.stream("GET", f"{PREFIX}/live", headers=headers) as stream:
        assert (stream.status_code, stream.headers["cache-control"]) == (200, "no-store")
    refused = {
        401: await local.anonymous.call("GET", "/runs"),
        403: await local.viewer.post("/runs", {"type": "http.approval.v1"}),
        404: await local.viewer.call("GET", "/runs/nothing"),
        405: await local.viewer.call("PATCH", "/runs"),
        415: await local.operator.call("POST", "/runs", content=b"x", headers={"Content-Type": "text/plain"}),
        421: await local.admin.call("GET", "/runs", headers={"Host": "evil.example"}),
        422: await local.viewer.call("GET", "/runs", params={"limit": "many"}),
    }
    for status, answer in refused.items():
        assert (answer.status_code, answer.headers["cache-control"]) == (status, "no-store")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8470", "", "localhost.evil.example", "[::2]"])
async def test_a_forged_host_is_refused(local: Served, host: str) -> None:
    for route in ROUTES:
        answer = await ask(local.admin, route, headers={"Host": host})
        assert answer.status_code in (400, 421), route.path


async def test_a_token_is_looked_up_by_its_digest_and_compared_in_constant_time(
    local: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[Any, Any]] = []
    asked: list[str] = []
    store = await session_of(local.engine).connect()
    compare, find = hmac.compare_digest, store.token

    def counted(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return compare(one, other)

    async def found(digest: str) -> Any:
        asked.append(digest)
        return await find(digest)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    monkeypatch.setattr(store, "token", found)
    for token, status in ((local.tokens[Role.VIEWER], 200), (f"{local.tokens[Role.VIEWER]}x", 401)):
        asked.clear()
        compared.clear()
        answer = await local.anonymous.call("GET", "/runs", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == status
        digest = hashlib.sha256(token.encode()).hexdigest()
        assert asked == [digest]
        assert compared == [(digest, digest)] * (status == 200)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil", "http://127.0.0.1:1"])
async def test_a_forged_origin_is_refused(local: Served, origin: str) -> None:
    # Also for a login, so that no page logs a browser in under another name.
    for route in ROUTES:
        answer = await ask(local.admin, route, headers={"Origin": origin})
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:perdure:problem:forbidden")
        assert "access-control-allow-origin" not in answer.headers
    own = await local.admin.call("GET", "/runs", headers={"Origin": local.url})
    assert own.status_code == 200


async def test_a_browser_logs_in_by_a_token_and_needs_the_csrf_token(site: Served) -> None:
    token = site.tokens[Role.OPERATOR]
    login = await site.anonymous.post("/session", {"token": token})
    assert login.status_code == 201, login.text
    cookie = login.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=Lax", "Path=/"))
    assert "Secure" not in cookie
    assert token not in cookie
    body = {"type": "http.approval.v1", "id": "by-browser"}
    for headers in ({}, {"X-CSRF-Token": "0" * 64}, {"X-CSRF-Token": ""}):
        forged = await site.anonymous.post("/runs", body, headers=headers)
        assert (forged.status_code, "CSRF" in forged.json()["detail"]) == (403, True)
    session = await site.anonymous.get("/session")
    assert session["role"] == "operator"
    made = await site.anonymous.post("/runs", body, headers={"X-CSRF-Token": session["csrf"]})
    assert made.status_code == 201
    [created] = [one for one in (await site.viewer.get("/runs/by-browser/events"))["items"] if one["kind"] == "created"]
    assert created["actor"].startswith("token:operator/")
    out = await site.anonymous.call("DELETE", "/session", headers={"X-CSRF-Token": session["csrf"]})
    assert out.json() == {"done": True}
    value = cookie.partition(";")[0].partition("=")[2]
    again = await site.anonymous.call("GET", "/session", headers={"Cookie": f"{COOKIE}={value}"})
    assert again.status_code == 401


async def test_every_route_that_changes_something_needs_the_csrf_token_of_a_session(local: Served) -> None:
    await local.anonymous.post("/session", {"token": local.tokens[Role.ADMIN]})
    for route in GUARDED:
        answer = await ask(local.anonymous, route) if not route.streams else None
        if route.method not in SAFE_METHODS:
            assert answer is not None
            assert answer.status_code == 403, route.path


async def test_a_wrong_token_does_not_log_in(local: Served) -> None:
    for token in ("", "perdure_wrong", "x" * 1000):
        answer = await local.anonymous.post("/session", {"token": token})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers


async def test_a_revoked_or_expired_token_ends_with_its_sessions(site: Served) -> None:
    made = (await site.admin.post("/tokens", {"name": "ci", "role": "operator", "expires": "1h"})).json()
    assert made["info"]["expires_at"] is not None
    bearer = {"Authorization": f"Bearer {made['token']}"}
    assert (await site.anonymous.call("GET", "/runs", headers=bearer)).status_code == 200
    await site.anonymous.post("/session", {"token": made["token"]})
    assert (await site.anonymous.call("GET", "/runs")).status_code == 200
    twice = await site.admin.post("/tokens", {"name": "ci"})
    assert (twice.status_code, twice.json()["type"]) == (409, "urn:perdure:problem:token-exists")
    revoked = await site.admin.call("DELETE", "/tokens/ci")
    assert revoked.json()["revoked_at"] is not None
    assert (await site.anonymous.call("GET", "/runs", headers=bearer)).status_code == 401
    assert (await site.anonymous.call("GET", "/runs")).status_code == 401
    assert (await site.admin.post("/tokens", {"name": "ci"})).status_code == 201
    listed = (await site.admin.get("/tokens"))["items"]
    assert [one["name"] for one in listed] == ["admin", "ci", "operator", "viewer"]
    assert "digest" not in str(listed)


async def test_the_database_holds_no_token_and_knows_the_last_use(site: Served, stage: Stage) -> None:
    await site.viewer.get("/runs")
    rows = await stage.rows("SELECT * FROM perdure_tokens")
    for token in site.tokens.values():
        assert token not in str(rows)
        assert token.removeprefix("perdure_") not in str(rows)
    found = await site.engine.tokens.get("viewer")
    assert found.used_at > 0
    await site.viewer.get("/runs")
    assert (await site.engine.tokens.get("viewer")).used_at == found.used_at


async def test_the_host_application_may_know_the_caller(on_disk: Stage) -> None:
    def authenticate(connection: Any) -> Principal | None:
        user = connection.headers.get("x-user")
        return None if user is None else Principal(name=f"user:{user}", role=Role.OPERATOR)

    app = HttpApp(on_disk.engine(*WORKFLOWS), access=Access(authenticate=authenticate))
    async with calling(app) as client:
        caller = Caller(client, {"X-User": "ada"})
        assert (await Caller(client).call("GET", "/runs")).status_code == 401
        body = {"type": "http.approval.v1", "id": "a"}
        assert (await caller.post("/runs", body)).status_code == 403
        csrf = (await caller.get("/session"))["csrf"]
        assert (await caller.post("/runs", body, headers={"X-CSRF-Token": csrf})).status_code == 201
        assert (await caller.get("/runs/a/events"))["items"][0]["actor"] == "user:ada"
        # The token belongs to one user.
        bob = Caller(client, {"X-User": "bob", "X-CSRF-Token": csrf})
        assert (await bob.post("/runs", body)).status_code == 403


@pytest.mark.parametrize(("proxies", "status"), [(["127.0.0.1"], 200), (["10.0.0.0/8"], 401)])
async def test_headers_of_a_proxy_count_only_from_its_address(on_disk: Stage, proxies: list[str], status: int) -> None:
    login = ProxyLogin(user="x-auth-user", groups="x-auth-groups", roles={"ops": "operator", "all": "viewer"})
    access = Access(proxies=proxies, login=login, hosts=["ops.example.com", "127.0.0.1"])
    app = HttpApp(on_disk.engine(*WORKFLOWS), access=access)
    async with calling(app) as client:
        caller = Caller(client, {"X-Auth-User": "ada", "X-Auth-Groups": "all, ops"})
        answer = await caller.call("GET", "/session")
        assert answer.status_code == status
        if status == 200:
            assert (answer.json()["name"], answer.json()["role"]) == ("user:ada", "operator")
            stranger = Caller(client, {"X-Auth-User": "eve", "X-Auth-Groups": "sales"})
            assert (await stranger.call("GET", "/session")).status_code == 403
        forwarded = {"X-Forwarded-Host": "ops.example.com", "X-Forwarded-Proto": "https"}
        origin = {"Origin": "https://ops.example.com"}
        believed = await caller.call("GET", "/session", headers={**forwarded, **origin})
        assert believed.status_code == (200 if status == 200 else 403)


async def test_other_origins_are_allowed_by_name(on_disk: Stage) -> None:
    app = HttpApp(on_disk.engine(*WORKFLOWS), access=Access(origins=["https://app.example.com"]))
    async with calling(app) as client:
        ask = {"Origin": "https://app.example.com", "Access-Control-Request-Method": "POST"}
        allowed = await client.options(f"{PREFIX}/runs", headers=ask)
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (204, ask["Origin"])
        assert "access-control-allow-credentials" not in allowed.headers
        other = await client.options(f"{PREFIX}/runs", headers={**ask, "Origin": "https://evil.example"})
        assert (other.status_code, "access-control-allow-origin" in other.headers) == (403, False)


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "10.1.2.3", "ops.example.com"])
async def test_a_public_bind_without_authentication_is_refused(on_disk: Stage, bind: str) -> None:
    engine = on_disk.engine(*WORKFLOWS)
    with pytest.raises(UsageError, match="create a token first"):
        await check_bind(engine, Access(hosts=["ops.example.com"]), bind)
    await engine.tokens.create("ci")
    await check_bind(engine, Access(hosts=["ops.example.com"]), bind)
    with pytest.raises(UsageError, match="anonymous callers would be viewer"):
        await check_bind(engine, Access(anonymous="viewer", hosts=["ops.example.com"]), bind)
    with pytest.raises(UsageError, match="--host"):
        await check_bind(engine, Access(), bind)
    await check_bind(engine, Access(anonymous="admin"), "127.0.0.1")


def test_an_address_to_listen_on_is_checked() -> None:
    assert parse_bind("[::1]:80") == ("::1", 80)
    assert parse_bind("localhost") == ("localhost", 8470)
    for wrong in ("", ":", ":80", "host:99999", "host:x"):
        with pytest.raises(UsageError, match="not an address"):
            parse_bind(wrong)
