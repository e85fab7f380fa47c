"""Runs over HTTP: starting, listing, reading, steering, with a real worker on every database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perdure import Status
from perdure.client.session import session_of
from perdure.http import Redaction
from perdure.store.sql import audit, reads
from perdure.store.sql.rows import to_records
from perdure.testing.conformance.harness import a_message, a_record, commit, held
from perdure.testing.conformance.runs.log import a_line
from tests.helpers import eventually
from tests.http.serving import WORKFLOWS, Served, part, served
from tests.stage import Stage

ORDER = {"order": {"id": "o1", "cents": 700}}


async def start(site: Served, type: str, input: Any = None, **more: Any) -> str:
    answer = await site.operator.post("/runs", {"type": type, "input": input or {}, **more})
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


async def until(site: Served, run_id: str, status: Status) -> Any:
    async def there() -> Any:
        run = await site.viewer.get(f"/runs/{part(run_id)}")
        return run if run["status"] == status.value else None

    return await eventually(there, saying=f"run {run_id} being {status}")


async def test_a_run_is_started_by_json_and_its_result_is_waited_for(site: Served) -> None:
    run_id = await start(site, "http.checkout.v1", ORDER, id="order-1")
    assert run_id == "order-1"
    answer = await site.viewer.call("GET", "/runs/order-1/result", params={"wait": 60})
    assert (answer.status_code, answer.json()["output"]) == (200, "paid 700")
    run = await site.viewer.get("/runs/order-1")
    assert (run["status"], run["input"]) == ("completed", {**ORDER, "note": ""})
    assert run["created_at"].endswith("Z")
    assert not {"token", "nonce", "seed"} & run.keys()


async def test_the_same_id_or_idempotency_key_gives_the_existing_run(site: Served) -> None:
    await start(site, "http.approval.v1", id="one")
    assert await start(site, "http.approval.v1", id="one") == "one"
    other = await site.operator.post("/runs", {"type": "http.sleeper.v1", "id": "one"})
    assert (other.status_code, other.json()["type"]) == (409, "urn:perdure:problem:run-exists")
    headers = {"Idempotency-Key": "k1"}
    body = {"type": "http.approval.v1"}
    first, second = [(await site.operator.post("/runs", body, headers=headers)).json()["id"] for _ in range(2)]
    assert first == second


async def test_arguments_are_checked_by_the_types_of_the_code(local: Served) -> None:
    for input in ({"order": {"id": "o1", "cents": "much"}}, {"order": 7}, {}, {"other": 1}, [1, 2, 3]):
        answer = await local.operator.post("/runs", {"type": "http.checkout.v1", "input": input})
        assert answer.status_code == 422, (input, answer.text)
    assert (await local.viewer.get("/runs"))["items"] == []


async def test_a_failed_run_shows_its_error_and_is_a_dead_letter(site: Served) -> None:
    await start(site, "http.checkout.v1", {"order": {"id": "o", "cents": -1}}, id="bad")
    answer = await site.viewer.call("GET", "/runs/bad/result", params={"wait": 60})
    assert answer.json()["status"] == "failed"
    assert answer.json()["error"]["message"] == "nothing to charge"
    [letter] = (await site.viewer.get("/dead-letters"))["items"]
    assert (letter["run_id"], letter["error"]["type"]) == ("bad", "ValueError")
    discarded = await site.operator.post("/dead-letters/discard", {"ids": ["bad"], "reason": "a test"})
    assert discarded.json() == {"done": ["bad"], "refused": {}}
    assert (await site.viewer.get("/dead-letters"))["items"] == []


async def test_runs_are_listed_by_filter_and_cursor(site: Served) -> None:
    ids = {await start(site, "http.approval.v1", id=f"run-{number}") for number in range(5)}
    await start(site, "http.sleeper.v1", id="asleep")
    seen: list[str] = []
    cursor = None
    while True:
        query = {"type": "http.approval.v1", "limit": 2} | ({"cursor": cursor} if cursor else {})
        page = await site.viewer.get("/runs", **query)
        seen += [run["id"] for run in page["items"]]
        assert all("input" not in run for run in page["items"])
        cursor = page["cursor"]
        if cursor is None:
            break
    assert (len(seen), set(seen)) == (5, ids)
    await until(site, "asleep", Status.WAITING)
    waiting = await site.viewer.get("/runs", status=["waiting", "blocked"], type="http.sleeper.v1", payloads="true")
    assert [(run["id"], run["input"]) for run in waiting["items"]] == [("asleep", {})]


async def test_a_run_receives_a_message_and_shows_what_it_did(site: Served) -> None:
    await start(site, "http.approval.v1", id="a")
    await until(site, "a", Status.WAITING)
    assert (await site.viewer.get("/runs/a/states")) == {"stage": "asked"}
    shown = await site.viewer.get("/runs/a/states/stage")
    assert (shown["published"], shown["value"], shown["finished"]) == (True, "asked", False)
    assert await site.viewer.get("/runs/a/states/stage", seen=shown["at"], wait=0.01) == shown
    assert "approval" in (await site.viewer.get("/runs/a/why"))["why"]
    for _ in range(2):
        sent = await site.operator.post("/runs/a/messages", {"name": "approval", "value": "yes", "key": "once"})
        assert sent.status_code in (202, 409)
    assert (await site.viewer.get("/runs/a/result", wait=60))["output"] == "yes"
    [listed] = (await site.viewer.get("/runs"))["items"]
    assert listed["updated_at"] == (await site.viewer.get("/runs/a"))["updated_at"] >= listed["finished_at"]
    assert listed["last_retry_at"] is None
    history = (await site.viewer.get("/runs/a/history"))["items"]
    assert [record["kind"] for record in history] == ["message"]
    assert (await site.viewer.get("/runs/a/report"))["attempts"] == 1
    assert (await site.viewer.get("/runs/a/interruptions"))["items"] == []
    events = (await site.viewer.get("/runs/a/events"))["items"]
    assert {"created", "completed"} <= {event["kind"] for event in events}
    assert {event["actor"] for event in events if event["kind"] in ("created", "sent")} == {"token:operator"}
    late = await site.operator.post("/runs/a/messages", {"name": "approval", "value": "no"})
    assert (late.status_code, late.json()["type"]) == (409, "urn:perdure:problem:run-finished")


async def test_a_question_is_answered_or_asked_again_by_its_key(site: Served) -> None:
    await start(site, "http.desk.v1", id="d")
    answer = await site.operator.post("/runs/d/questions", {"name": "quote", "value": 21, "wait": 60, "key": "q"})
    assert answer.json() == {"answered": True, "key": "q", "answer": 42}
    again = await site.operator.post("/runs/d/questions", {"name": "quote", "value": 21, "key": "q"})
    assert again.status_code in (200, 409)


async def test_a_question_without_an_answer_is_accepted(idle: Served) -> None:
    await start(idle, "http.desk.v1", id="d")
    answer = await idle.operator.post("/runs/d/questions", {"name": "quote", "value": 1, "wait": 0})
    assert (answer.status_code, answer.json()["answered"]) == (202, False)
    [message] = (await idle.viewer.get("/runs/d/inbox"))["items"]
    assert message["key"] == answer.json()["key"]


async def test_a_run_is_paused_resumed_woken_cancelled_and_retried(site: Served) -> None:
    await start(site, "http.sleeper.v1", id="s")
    await until(site, "s", Status.WAITING)
    assert (await site.operator.post("/runs/s/pause", {"reason": "holiday"})).json() == {"done": True}
    assert (await site.operator.post("/runs/s/resume")).json() == {"done": True}
    await until(site, "s", Status.WAITING)

    async def woken() -> bool:
        return (await site.operator.post("/runs/s/wake")).status_code == 200

    await eventually(woken)
    assert (await site.viewer.get("/runs/s/result", wait=60))["output"] == "awake"
    await start(site, "http.approval.v1", id="c")
    assert (await site.operator.post("/runs/c/cancel", {"reason": "sold out"})).json() == {"done": True}
    await until(site, "c", Status.CANCELLED)
    assert (await site.operator.post("/runs/c/retry")).json() == {"generation": 2}
    await until(site, "c", Status.WAITING)
    assert (await site.operator.post("/runs/c/terminate", {"reason": "enough"})).json() == {"done": True}
    await until(site, "c", Status.FAILED)
    kinds = {event["kind"]: event["actor"] for event in (await site.viewer.get("/runs/c/events"))["items"]}
    assert kinds["cancel_requested"] == "token:operator"


async def test_a_run_is_forked_with_another_input(site: Served) -> None:
    await start(site, "http.checkout.v1", ORDER, id="first")
    await site.viewer.get("/runs/first/result", wait=60)
    body = {"id": "second", "input": {"order": {"id": "o2", "cents": 5}, "note": "!"}}
    forked = await site.operator.post("/runs/first/fork", body)
    assert forked.status_code == 201
    assert (await site.viewer.get("/runs/second/result", wait=60))["output"] == "paid 5!"


async def test_a_run_is_forked_from_the_number_of_a_record(site: Served) -> None:
    await start(site, "http.checkout.v1", ORDER, id="first")
    await site.viewer.get("/runs/first/result", wait=60)
    records = (await site.viewer.get("/runs/first/history"))["items"]
    charge = next(record for record in records if record["kind"] == "step")
    forked = await site.operator.post("/runs/first/fork", {"id": "second", "from_step": charge["seq"]})
    assert forked.status_code == 201
    result = (await site.viewer.get("/runs/second/result", wait=60))["output"]
    assert result == (await site.viewer.get("/runs/first/result"))["output"]
    refused = await site.operator.post("/runs/first/fork", {"from_step": 99})
    assert refused.status_code == 422
    assert "run 'first' has no record 99; fork it from a record of a step" in refused.json()["detail"]


async def test_a_child_is_found_under_its_id_with_a_slash(site: Served) -> None:
    await start(site, "http.family.v1", id="parent")
    assert (await site.viewer.get("/runs/parent/result", wait=60))["output"] == "paid 5"
    [child] = (await site.viewer.get("/runs", parent="parent"))["items"]
    assert "/" in child["id"]
    assert (await site.viewer.get(f"/runs/{part(child['id'])}"))["parent_id"] == "parent"
    assert len((await site.viewer.get(f"/runs/{part(child['id'])}/history"))["items"]) == 1


async def test_a_run_is_deleted_brought_back_and_purged(site: Served) -> None:
    await start(site, "http.checkout.v1", ORDER, id="gone")
    await site.viewer.get("/runs/gone/result", wait=60)
    assert (await site.operator.call("DELETE", "/runs/gone")).json() == {"done": True}
    assert (await site.viewer.get("/runs"))["items"] == []
    assert (await site.operator.post("/runs/gone/undelete")).json() == {"done": True}
    assert (await site.admin.post("/runs/gone/purge")).json() == {"done": True}
    missing = await site.viewer.call("GET", "/runs/gone")
    assert (missing.status_code, missing.json()["type"]) == (404, "urn:perdure:problem:run-not-found")


async def test_many_runs_are_started_at_once(site: Served) -> None:
    body = {"type": "http.counting.v1", "inputs": [{"upto": number} for number in range(3)], "ids": ["a", "b", "c"]}
    answer = await site.operator.post("/runs/batch", body)
    assert (answer.status_code, answer.json()["ids"]) == (201, ["a", "b", "c"])
    assert (await site.viewer.get("/runs/c/result", wait=60))["output"] == 2


async def test_no_outcome_yet_is_status_202(idle: Served) -> None:
    await start(idle, "http.approval.v1", id="a")
    answer = await idle.viewer.call("GET", "/runs/a/result", params={"wait": 0.2})
    assert (answer.status_code, answer.json()["finished"]) == (202, False)


async def pages_of(site: Served, path: str, limit: int) -> list[list[int]]:
    """Numbers of the items of each page."""
    found: list[list[int]] = []
    cursor: str | None = "0" if path.endswith("inbox") else None
    while True:
        query = {"limit": limit} | ({} if cursor is None else {"cursor": cursor})
        page = await site.viewer.get(path, **query)
        found.append([item["id" if path.endswith("events") else "seq"] for item in page["items"]])
        cursor = page["cursor"]
        if cursor is None:
            return found


async def test_history_inbox_and_events_of_a_run_are_read_a_page_at_a_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[object] = []

    def counted_records(rows: Sequence[Any]) -> Any:
        decoded.extend(rows)
        return to_records(rows)

    monkeypatch.setattr(reads, "to_records", counted_records)
    for name in ("to_message", "to_event"):
        convert: Any = getattr(reads, name)

        def counted(row: Any, convert: Any = convert) -> Any:
            decoded.append(row)
            return convert(row)

        for module in (reads, audit):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, counted)
    async with served(stage.engine(*WORKFLOWS, audit="full"), work=False) as site:
        store = await session_of(site.engine).connect()
        lease = await held(store, "long")
        await commit(store, lease, *(a_record(seq) for seq in range(25)))
        await store.send([a_message("long", f"k{number}") for number in range(25)], "test")
        for part_of_run in ("history", "inbox", "events"):
            decoded.clear()
            pages = await pages_of(site, f"/runs/long/{part_of_run}", 10)
            assert [len(page) for page in pages[:2]] == [10, 10]
            numbers = [number for page in pages for number in page]
            assert len(numbers) >= 25
            assert numbers == sorted(set(numbers))
            # One more than a page tells that there is another.
            assert len(decoded) <= 11 * len(pages)
            beyond = await site.viewer.get(f"/runs/long/{part_of_run}", cursor=2**63 - 1)
            assert (beyond["items"], beyond["cursor"]) == ([], None)


async def test_events_of_a_schedule_are_read_a_page_at_a_time(local: Served) -> None:
    body = {"type": "http.approval.v1", "timing": {"every": "1h"}}
    assert (await local.operator.call("PUT", "/schedules/nightly", body)).status_code == 200
    for _ in range(2):
        await local.operator.post("/schedules/nightly/pause")
        await local.operator.post("/schedules/nightly/resume")
    pages = await pages_of(local, "/schedules/nightly/events", 2)
    assert [len(page) for page in pages] == [2, 2, 1]


async def test_a_run_may_have_the_name_of_a_path(idle: Served) -> None:
    for run_id in ("batch", "count", "prune", "unserved", "updated", "retry", "preview"):
        await start(idle, "http.approval.v1", id=run_id)
        assert (await idle.viewer.get(f"/runs/{run_id}"))["id"] == run_id
    wrong = await idle.viewer.call("PATCH", "/runs/batch")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "DELETE, GET, POST")


async def test_the_log_lines_of_a_run_are_read_and_redacted(on_disk: Stage) -> None:
    engine = on_disk.engine(*WORKFLOWS)
    async with served(engine, work=False) as site:
        store = await session_of(site.engine).connect()
        await held(store, "r1")
        await store.keep_log([("r1", a_line(number)) for number in range(5)], 5, "w1")
        found = await site.viewer.get("/runs/r1/logs", limit=2)
        assert [(line["number"], line["level"], line["text"][:6]) for line in found["items"]] == [
            (3, "INFO", "line 3"),
            (4, "INFO", "line 4"),
        ]
        found = await site.viewer.get("/runs/r1/logs", after=0, limit=1)
        assert [line["number"] for line in found["items"]] == [1]
        assert (await site.viewer.call("GET", "/runs/missing/logs")).status_code == 404
        assert (await site.viewer.call("GET", "/runs/r1/logs", params={"limit": 10_001})).status_code == 422
    for role in ("viewer", "operator", "admin"):
        await engine.tokens.revoke(role)
    async with served(engine, work=False, redaction=Redaction(payloads="operator")) as site:
        [line] = (await site.viewer.get("/runs/r1/logs", limit=1))["items"]
        assert "line" not in line["text"]
