"""Schedules, queues, limits, breakers, locks, watermarks, dead letters, workers and deploys over HTTP."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

from perdure import Status
from tests.helpers import eventually
from tests.http.serving import Served
from tests.http.test_runs import ORDER, start, until

NOW = datetime.datetime.now(datetime.UTC)


async def test_a_schedule_is_created_changed_triggered_and_deleted(site: Served) -> None:
    body = {"type": "http.checkout.v1", "input": ORDER, "timing": {"cron": "30 2 * * *", "zone": "Europe/Prague"}}
    made = await site.operator.call("PUT", "/schedules/nightly", {**body, "attributes": {"tier": "gold"}})
    assert made.status_code == 200, made.text
    assert made.json()["timing"] == {
        "cron": "30 2 * * *", "zone": "Europe/Prague", "every": None, "start": None, "at": None,
    }  # fmt: skip
    assert made.json()["attributes"] == {"tier": "gold"}
    other = await site.operator.call("PUT", "/schedules/nightly", {**body, "timing": {"every": "1h"}})
    assert (other.status_code, other.json()["type"]) == (409, "urn:perdure:problem:schedule-exists")
    changes = {"timing": {"every": "15m"}, "jitter": "1m", "misfire": {"policy": "all"}, "overlap": "allow"}
    changed = await site.operator.call("PATCH", "/schedules/nightly", changes)
    assert (changed.json()["timing"]["every"], changed.json()["misfire"]["limit"]) == (900.0, None)
    assert len((await site.viewer.get("/schedules/nightly/next", count=3))["times"]) == 3
    assert (await site.operator.post("/schedules/nightly/pause", {"reason": "holidays"})).json() == {"done": True}
    assert (await site.viewer.get("/schedules/nightly"))["reason"] == "holidays"
    assert (await site.operator.post("/schedules/nightly/resume", {"catch_up": True})).json() == {"done": True}
    triggered = await site.operator.post("/schedules/nightly/trigger")
    assert triggered.status_code == 201
    [run] = (await site.viewer.get("/runs", schedule="nightly"))["items"]
    assert run["id"] == triggered.json()["id"]
    kinds = [event["kind"] for event in (await site.viewer.get("/schedules/nightly/events"))["items"]]
    assert kinds[0] == "schedule_created"
    assert [one["id"] for one in (await site.viewer.get("/schedules"))["items"]] == ["nightly"]
    assert (await site.operator.call("DELETE", "/schedules/nightly")).json() == {"done": True}
    assert (await site.viewer.call("GET", "/schedules/nightly")).status_code == 404


async def test_a_schedule_is_backfilled(site: Served) -> None:
    body = {"type": "http.counting.v1", "input": {"upto": 1}, "timing": {"cron": "0 * * * *"}}
    await site.operator.call("PUT", "/schedules/hourly", body)
    hour = NOW.replace(minute=0, second=0, microsecond=0)
    span = {"start": (hour - datetime.timedelta(hours=3)).isoformat(), "end": hour.isoformat()}
    answer = await site.operator.post("/schedules/hourly/backfill", span)
    assert (answer.status_code, len(answer.json()["ids"])) == (201, 3)
    late = {"start": span["start"], "end": (NOW + datetime.timedelta(days=1)).isoformat()}
    assert (await site.operator.post("/schedules/hourly/backfill", late)).status_code == 422


async def test_a_timing_has_one_kind(idle: Served) -> None:
    for timing in ({}, {"cron": "@daily", "every": "1h"}, {"cron": "nonsense"}, {"every": "1ms"}, {"zone": "UTC"}):
        body = {"type": "http.approval.v1", "timing": timing}
        answer = await idle.operator.call("PUT", "/schedules/s", body)
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:perdure:problem:invalid-schedule"), timing


async def test_queues_and_types_are_paused_and_resumed(site: Served) -> None:
    assert (await site.operator.post("/queues/reports/pause", {"reason": "stocktaking"})).json() == {"done": True}
    assert (await site.operator.post("/queues/reports/pause")).json() == {"done": False}
    assert (await site.operator.post("/types/http.sleeper.v1/pause")).json() == {"done": True}
    pauses = (await site.viewer.get("/pauses"))["items"]
    assert {(one["kind"], one["name"], one["actor"]) for one in pauses} == {
        ("queue", "reports", "token:operator"),
        ("type", "http.sleeper.v1", "token:operator"),
    }
    types = {one["type"]: one["enabled"] for one in (await site.viewer.get("/types"))["items"]}
    assert (types["http.sleeper.v1"], types["http.approval.v1"]) == (False, True)
    assert (await site.operator.post("/types/http.sleeper.v1/resume")).json() == {"done": True}
    assert (await site.operator.post("/queues/reports/resume")).json() == {"done": True}
    assert (await site.viewer.get("/pauses"))["items"] == []


async def test_the_pause_of_a_queue_leaves_its_actor_and_reason_and_may_be_repeated(site: Served) -> None:
    for verb, reason in (("pause", "stocktaking"), ("resume", "counted")):
        # The same request, sent again because its answer was lost.
        for _ in range(2):
            answer = await site.operator.call(
                "POST", f"/queues/reports/{verb}", {"reason": reason}, headers={"request-id": f"one-{verb}"}
            )
            assert answer.json() == {"done": True}
        assert (await site.operator.post(f"/queues/reports/{verb}", {"reason": "again"})).json() == {"done": False}
    events = (await site.viewer.get("/events", run="queue:reports"))["items"]
    assert [(one["kind"], one["actor"], one["data"]) for one in reversed(events)] == [
        ("queue_paused", "token:operator", {"reason": "stocktaking"}),
        ("queue_resumed", "token:operator", {"reason": "counted"}),
    ]


async def test_events_for_other_systems_are_published_listed_and_replayed(site: Served) -> None:
    event = {"type": "order.paid", "data": {"order": 1}, "key": "o-1", "id": "paid-1", "subject": "o-1"}
    for _ in range(2):
        made = await site.operator.post("/outbox", event)
        assert (made.status_code, made.json()) == (201, {"id": "paid-1"})
    other = await site.operator.post("/outbox", {**event, "data": 2})
    assert (other.status_code, other.json()["type"]) == (409, "urn:perdure:problem:run-exists")
    [one] = (await site.viewer.get("/outbox", type="order.%", key="o-1"))["items"]
    assert (one["id"], one["data"], one["partitionkey"], one["deliveries"]) == ("paid-1", {"order": 1}, "o-1", [])
    again = await site.operator.post("/outbox/paid-1/replay", {"to": "hook"})
    assert again.status_code == 201
    found = await site.viewer.get("/outbox/paid-1")
    assert (found["event"]["source"], found["deliveries"]) == ("perdure", [])
    assert (await site.viewer.call("GET", "/outbox/nothing")).status_code == 404
    assert (await site.viewer.call("POST", "/outbox", event)).status_code == 403


async def test_watermarks_bound_what_waits(site: Served) -> None:
    set_ = await site.operator.call("PUT", "/queues/slow/watermark", {"high": 1})
    assert (set_.json()["queue"], set_.json()["high"]) == ("slow", 1)
    await start(site, "http.approval.v1", queue="slow")
    full = await site.operator.post("/runs", {"type": "http.approval.v1", "queue": "slow"})
    assert (full.status_code, full.json()["type"]) == (429, "urn:perdure:problem:overloaded")
    assert "retry-after" in full.headers
    assert (await site.viewer.get("/queues/slow/depth")) == {"depth": 1}
    assert (await site.viewer.get("/types/http.approval.v1/depth")) == {"depth": 1}
    assert [one["queue"] for one in (await site.viewer.get("/watermarks"))["items"]] == ["slow"]
    assert (await site.operator.call("PUT", "/types/http.desk.v1/watermark", {"high": 5})).status_code == 200
    assert (await site.operator.call("DELETE", "/types/http.desk.v1/watermark")).json() == {"done": True}
    assert (await site.operator.call("DELETE", "/queues/slow/watermark")).json() == {"done": True}
    await start(site, "http.approval.v1", queue="slow")


async def test_sticky_events_are_emitted_read_listed_and_deleted(site: Served) -> None:
    missing = await site.viewer.call("GET", "/sticky-events/rates")
    assert (missing.status_code, missing.json()["emitted"]) == (202, False)
    assert (await site.viewer.call("PUT", "/sticky-events/rates", {"value": 1})).status_code == 403
    waiting = asyncio.ensure_future(site.viewer.get("/sticky-events/rates", wait=30))
    for value, replace, emitted in ((1, False, True), (2, False, False), (2, True, True)):
        answer = await site.operator.call("PUT", "/sticky-events/rates", {"value": value, "replace": replace})
        assert answer.json() == {"emitted": emitted}
    assert (await waiting)["value"] in (1, 2)
    assert (await site.viewer.get("/sticky-events/rates"))["value"] == 2
    assert [one["name"] for one in (await site.viewer.get("/sticky-events", prefix="ra"))["items"]] == ["rates"]
    assert (await site.operator.call("PUT", "/sticky-events/a%20%2F", {"value": 1})).status_code == 422
    assert (await site.operator.call("DELETE", "/sticky-events/rates")).json() == {"deleted": True}
    assert (await site.operator.call("DELETE", "/sticky-events/rates")).json() == {"deleted": False}


async def test_limits_breakers_and_locks_are_set_and_listed(site: Served) -> None:
    assert (await site.operator.call("PUT", "/limits/payments", {"rate": "100/m", "burst": 5})).status_code == 200
    [limit] = (await site.viewer.get("/limits"))["items"]
    assert (limit["name"], limit["override"]["burst"]) == ("payments", 5)
    assert (await site.operator.call("PUT", "/limits/tenant%2Facme", {"concurrency": 2})).status_code == 200
    assert (await site.operator.call("PUT", "/limits/payments", {})).status_code == 422
    assert (await site.operator.call("DELETE", "/limits/payments")).json() == {"done": True}
    for order, circuit in (("open", "open"), ("close", "closed")):
        assert (await site.operator.post(f"/breakers/openai/{order}")).json() == {"done": True}
        [breaker] = (await site.viewer.get("/breakers"))["items"]
        assert (breaker["circuit"], breaker["by_hand"]) == (circuit, True)
    assert (await site.operator.post("/breakers/openai/reset")).json() == {"done": True}
    lock = await site.engine.locks.acquire("import", "1h", owner="me")
    assert (await site.viewer.get("/locks/import"))["lock"]["owner"] == "me"
    assert [one["name"] for one in (await site.viewer.get("/locks"))["items"]] == ["import"]
    assert (await site.operator.call("DELETE", "/locks/import")).json() == {"done": True}
    assert (await site.viewer.get("/locks/import")) == {"lock": None}
    assert lock.name == "import"


async def test_dead_letters_are_retried_and_pruned(site: Served) -> None:
    await start(site, "http.mail.v1", {"to": "ada"}, id="m")
    await until(site, "m", Status.FAILED)
    letter = await site.viewer.get("/dead-letters/m")
    assert (letter["error"]["type"], len(letter["errors"])) == ("ConnectionError", 1)
    done = await site.operator.post("/dead-letters/retry", {"where": {"error": "ConnectionError"}})
    assert done.json() == {"done": ["m"], "refused": {}}
    await until(site, "m", Status.FAILED)

    async def requeued() -> bool:
        return bool((await site.viewer.get("/dead-letters/m"))["requeued"] == 1)

    await eventually(requeued)
    changed = {"ids": ["m"], "changes": {"input": {"to": "bob"}, "attempts": 2}}
    assert (await site.operator.post("/dead-letters/retry", changed)).json()["done"] == ["m"]
    await until(site, "m", Status.FAILED)
    missing = await site.operator.post("/dead-letters/retry", {"ids": ["unknown"]})
    assert list(missing.json()["refused"]) == ["unknown"]
    assert (await site.operator.post("/dead-letters/retry", {})).status_code == 422
    pruned = await site.admin.post("/dead-letters/prune", {"older_than": "0s"})
    assert pruned.json()["runs"] == 1


async def test_old_runs_and_events_are_pruned_by_an_admin(site: Served) -> None:
    await start(site, "http.checkout.v1", ORDER, id="old")
    await site.viewer.get("/runs/old/result", wait=60)
    body = {"older_than": "0s", "status": ["completed"], "types": ["http.%"]}

    async def pruned() -> bool:
        return bool((await site.admin.post("/runs/prune", body)).json()["runs"])

    await eventually(pruned)
    assert (await site.viewer.get("/runs"))["items"] == []
    assert (await site.admin.post("/events/prune", {"older_than": "0s"})).json()["deleted"] > 0


async def test_the_fleet_and_its_code_are_shown(site: Served) -> None:
    [worker] = (await site.viewer.get("/workers"))["items"]
    assert (worker["status"], "http.checkout.v1" in worker["types"]) == ("alive", True)
    load = await site.viewer.get("/workers/load")
    assert (load["workers"], load["slots"]) == (1, worker["slots"])
    await start(site, "http.approval.v1", id="a")
    await until(site, "a", Status.WAITING)
    report = await site.operator.get("/deploy-check", type="http.approval.v1")
    assert (report["ok"], report["checked"]) == (True, 1)
    assert (await site.operator.post("/runs/unserved", {"ids": ["a", "unknown"]})).json() == {"ids": []}
    assert (await site.operator.post("/runs/a/evict")).status_code == 200


async def test_a_message_is_broadcast_and_one_that_fits_no_type_is_decided(site: Served) -> None:
    sent = await site.operator.post("/broadcasts", {"name": "alarm", "value": True, "correlation": "ritz"})
    assert sent.json() == {"sent": 0}
    await start(site, "http.approval.v1", id="a")
    await site.operator.post("/runs/a/messages", {"name": "approval", "value": 7})

    async def aside() -> bool:
        return len((await site.viewer.get("/runs/a/set-aside"))["items"]) == 1

    await eventually(aside)
    assert (await site.operator.post("/runs/a/set-aside/0/deliver", {"value": "yes"})).json() == {"done": True}
    assert (await site.viewer.get("/runs/a/result", wait=60))["output"] == "yes"
    twice = await site.operator.post("/runs/a/set-aside/0/drop")
    assert twice.status_code in (409, 422)


async def test_runs_are_found_by_attributes_and_paged_both_ways(site: Served) -> None:
    for number in range(4):
        attributes = {"customer": "acme" if number % 2 else "ritz", "amount": number * 50}
        await start(site, "http.sleeper.v1", id=f"r{number}", attributes=attributes)
    when = "2030-01-31T09:00:00Z"
    run_id = await start(site, "http.sleeper.v1", id="timed", attributes={"due": {"time": when}})
    assert (await site.viewer.get(f"/runs/{run_id}"))["attributes"] == {"due": {"time": when}}
    found = await site.viewer.get("/runs", attribute=["customer=acme", "amount>=100"])
    assert [run["id"] for run in found["items"]] == ["r3"]
    assert found["items"][0]["attributes"] == {"customer": "acme", "amount": 150}
    later = await site.viewer.get("/runs", attribute="due>=2030-01-01T00:00:00Z")
    assert [run["id"] for run in later["items"]] == ["timed"]
    assert (await site.viewer.call("GET", "/runs", params={"attribute": "nonsense"})).status_code == 422
    counted = (await site.viewer.post("/runs/count", {"type": "http.sleeper.v1"})).json()
    assert counted["items"] == [{"value": "", "count": 5, "exact": True}]
    groups = (await site.viewer.post("/runs/count", {"by": "attribute:customer"})).json()
    assert {(one["value"], one["count"]) for one in groups["items"]} == {("acme", 2), ("ritz", 2)}
    assert (await site.viewer.post("/runs/count", {"by": "colour"})).status_code == 422
    first = await site.viewer.get("/runs", order="oldest", limit=2, id_prefix="r")
    assert [run["id"] for run in first["items"]] == ["r0", "r1"]
    second = await site.viewer.get("/runs", order="oldest", limit=2, id_prefix="r", cursor=first["cursor"])
    assert [run["id"] for run in second["items"]] == ["r2", "r3"]
    back = await site.viewer.get("/runs", order="oldest", limit=2, id_prefix="r", cursor=second["previous"])
    assert [run["id"] for run in back["items"]] == ["r0", "r1"]


async def test_the_audit_trail_names_the_caller(site: Served) -> None:
    await start(site, "http.approval.v1", id="a")
    page = await site.viewer.get("/events", actor="token:operator", kind="created")
    assert [event["run_id"] for event in page["items"]] == ["a"]
    assert (await site.viewer.get("/events", actor="token:viewer"))["items"] == []


async def test_many_runs_are_cancelled_by_a_filter(site: Served) -> None:
    for number in range(5):
        await start(site, "http.sleeper.v1", id=f"s{number}", attributes={"tier": "a" if number else "b"})
    where = {"type": "http.sleeper.v1", "attribute": ["tier=a"]}
    preview = (await site.viewer.post("/bulk/preview", {"where": where})).json()
    assert (preview["count"], preview["exact"], len(preview["first"])) == (4, True, 4)
    body = {"action": "cancel", "where": where, "id": "job", "reason": "a test"}
    started = await site.operator.post("/bulk", body)
    assert (started.status_code, started.json()["id"]) == (202, "job")

    async def ended() -> Any:
        found = await site.viewer.get("/bulk/job")
        return found if found["finished"] else None

    report = await eventually(ended)
    assert (report["status"], report["action"], report["done"], report["failed"]) == ("completed", "cancel", 4, 0)
    assert (await site.operator.post("/bulk", body)).json()["done"] == 4
    assert (await site.viewer.get("/runs/s0"))["status"] != "cancelled"
    for number in range(1, 5):
        await until(site, f"s{number}", Status.CANCELLED)
    purge = {"action": "delete", "purge": True, "ids": ["s1"], "id": "purge"}
    assert (await site.operator.post("/bulk", purge)).status_code == 403
    assert (await site.admin.post("/bulk", purge)).status_code == 202
    assert (await site.operator.post("/bulk", {"action": "cancel"})).status_code == 422


async def test_a_worker_is_drained_over_http(site: Served) -> None:
    [worker] = (await site.viewer.get("/workers"))["items"]
    assert worker["drain"] is None
    assert (await site.viewer.post(f"/workers/{worker['id']}/drain")).status_code == 403
    assert (await site.operator.post("/workers/unknown/drain")).json()["type"] == "urn:perdure:problem:worker-not-found"
    body = {"reason": "new host", "grace": "1s"}
    assert (await site.operator.post(f"/workers/{worker['id']}/drain", body)).json() == {"done": True}
    assert (await site.operator.post(f"/workers/{worker['id']}/drain", body)).json() == {"done": False}
    [worker] = (await site.viewer.get("/workers"))["items"]
    assert (worker["drain"]["reason"], worker["drain"]["grace"]) == ("new host", 1.0)
    assert worker["drain"]["actor"].startswith("token:")


async def test_a_priority_is_changed_and_runs_are_found_by_build(site: Served) -> None:
    await start(site, "http.approval.v1", id="a")
    await until(site, "a", Status.WAITING)
    changed = await site.operator.call("PUT", "/runs/a/priority", {"priority": 7, "reason": "urgent"})
    assert changed.json() == {"done": True}
    run = await site.viewer.get("/runs/a")
    [worker] = (await site.viewer.get("/workers"))["items"]
    assert (run["priority"], run["build"]) == (7, worker["build"])
    if run["build"]:
        assert [one["id"] for one in (await site.viewer.get("/runs", build=run["build"]))["items"]] == ["a"]
    assert (await site.viewer.get("/runs", build="none"))["items"] == []
    assert (await site.operator.call("PUT", "/runs/nothing/priority", {"priority": 7})).status_code == 404
    assert (await site.operator.call("PUT", "/runs/a/priority", {"priority": 2**40})).status_code == 422


async def test_a_backfill_is_previewed_and_the_latest_fires_are_listed(site: Served) -> None:
    body = {"type": "http.counting.v1", "input": {"upto": 1}, "timing": {"cron": "0 * * * *"}}
    await site.operator.call("PUT", "/schedules/hourly", body)
    hour = NOW.replace(minute=0, second=0, microsecond=0)
    span = {"start": (hour - datetime.timedelta(hours=3)).isoformat(), "end": hour.isoformat()}
    preview = (await site.viewer.post("/schedules/hourly/backfill/preview", span)).json()
    assert (preview["fire_times"], preview["missing"], len(preview["first"])) == (3, 3, 3)
    assert (await site.viewer.get("/schedules/hourly/fires"))["items"] == []
    await site.operator.post("/schedules/hourly/backfill", span)
    assert (await site.viewer.post("/schedules/hourly/backfill/preview", span)).json()["missing"] == 0
    fires = (await site.viewer.get("/schedules/hourly/fires", limit=2))["items"]
    assert [fire["at"] for fire in fires] == [
        (hour - datetime.timedelta(hours=back)).isoformat().replace("+00:00", "Z") for back in (1, 2)
    ]
    assert all(fire["run_id"].startswith("hourly@") and fire["status"] for fire in fires)


async def test_deploy_checks_are_stored_and_sources_are_read(site: Served) -> None:
    await start(site, "http.approval.v1", id="a")
    await until(site, "a", Status.WAITING)
    assert (await site.viewer.get("/deploy-checks"))["items"] == []
    assert (await site.viewer.post("/deploy-checks")).status_code == 403
    assert (await site.operator.post("/deploy-checks", {"types": ["http.approval.v1"]})).status_code == 201
    [report] = (await site.viewer.get("/deploy-checks"))["items"]
    assert (report["ok"], report["checked"]) == (True, 1)
    assert [(one["type"], one["goes_on"], one["diverged"]) for one in report["types"]] == [("http.approval.v1", 1, 0)]
    await eventually(lambda: site.engine.queues.sources("http.approval.v1"))
    [source] = (await site.viewer.get("/types/http.approval.v1/sources"))["items"]
    assert (source["file"], "async def approval" in source["source"]) == ("serving.py", True)
    assert (await site.viewer.get("/types/http.approval.v1/sources", build="none"))["items"] == []
