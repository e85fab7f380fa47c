"""Activities that have returned `Pending`, over HTTP and with the remote engine."""

from __future__ import annotations

import pytest

from perdure import Engine, Status
from perdure.admin import Failure, Role
from perdure.errors import AttemptNotFound, AttemptOver, DecodeError
from tests.helpers import eventually
from tests.http.serving import PERMITS, Served, permit
from tests.http.test_runs import start, until


async def waiting(site: Served, run_id: str) -> str:
    """Start an activity and wait until it is pending; its token."""
    PERMITS.pop(run_id, None)
    await start(site, "http.permit.v1", id=run_id)
    await until(site, run_id, Status.WAITING)
    return PERMITS[run_id]


async def test_an_operator_completes_a_pending_activity(site: Served) -> None:
    token = await waiting(site, "p1")
    why = await site.viewer.get("/runs/p1/why")
    assert "It waits for its completion from outside since" in why["why"]
    refused = await site.viewer.post(f"/activities/{token}/complete", {"value": 5})
    assert refused.status_code == 403
    for _ in range(2):
        answer = await site.operator.post(f"/activities/{token}/complete", {"value": 5})
        assert (answer.status_code, answer.json()) == (200, {"done": True})
    result = await site.viewer.call("GET", "/runs/p1/result", params={"wait": 60})
    assert result.json()["output"] == 5
    late = await site.operator.post(f"/activities/{token}/complete", {"value": 6})
    assert (late.status_code, late.json()["type"]) == (409, "urn:perdure:problem:attempt-over")
    forged = await site.operator.post(f"/activities/{token[:-4]}AAAA/complete", {"value": 6})
    assert (forged.status_code, forged.json()["type"]) == (404, "urn:perdure:problem:attempt-not-found")


async def test_a_result_of_another_type_is_refused(site: Served) -> None:
    token = await waiting(site, "p2")
    answer = await site.operator.post(f"/activities/{token}/complete", {"value": "many"})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:perdure:problem:not-decodable")
    assert (await site.operator.post(f"/activities/{token}/heartbeat", {"details": 7})).status_code == 200
    body = {"type": "shop.Declined", "message": "no cover"}
    assert (await site.operator.post(f"/activities/{token}/fail", body)).status_code == 200
    run = await until(site, "p2", Status.FAILED)
    assert (run["error"]["type"], run["error"]["message"]) == ("shop.Declined", "no cover")


async def test_a_remote_engine_reports_as_one_on_the_database(site: Served) -> None:
    async with Engine(site.url, [permit], token=site.tokens[Role.OPERATOR]) as engine:
        run = await engine.start(permit(), id="p3")
        await until(site, "p3", Status.WAITING)
        token = PERMITS["p3"]
        await engine.runs.heartbeat(token, {"far": 3})
        assert 'said {"far":3}' in await run.why()
        with pytest.raises(DecodeError):
            await engine.runs.complete(token, "many")
        with pytest.raises(AttemptNotFound):
            await engine.runs.complete("x", 1)
        await engine.runs.complete(token, 5)
        await engine.runs.complete(token, 5)
        assert await run.result("60s") == 5
        with pytest.raises(AttemptOver) as caught:
            await engine.runs.complete(token, 6)
        assert caught.value.run_id == "p3"
        PERMITS.pop("p4", None)
        other = await engine.start(permit(), id="p4")
        await eventually(lambda: "p4" in PERMITS)
        await engine.runs.fail(PERMITS["p4"], OSError(5, "no line"))
        await until(site, "p4", Status.FAILED)
        assert Failure.read((await other.info()).error).message == "[Errno 5] no line"
