from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.cli.conftest import URL, Perdure, work

ORDER = '[{"id": "o", "cents": 7}]'


def start(perdure: Perdure, run_id: str, *attributes: str) -> None:
    given = [part for one in attributes for part in ("--attribute", one)]
    answer = perdure("start", "shop:engine", "checkout", "--input", ORDER, "--id", run_id, *given)
    assert answer.code == 0, answer.err


def test_a_run_is_started_with_attributes_and_found_by_them(perdure: Perdure) -> None:
    start(perdure, "a", "customer=acme", "amount=12.5", "vip=true", "due=2026-01-02T03:04Z", 'code="7"', "note=a=b")
    start(perdure, "b", "customer=beta", "amount=7", "due=2026-01-01")
    start(perdure, "c")

    def found(*filters: str) -> list[str]:
        given = [part for one in filters for part in ("--attribute", one)]
        return [run["id"] for run in perdure("runs", "list", URL, *given, "--json").json["runs"]]

    assert found("customer=acme") == ["a"]
    assert found("amount>=7") == ["b", "a"]
    assert found("amount>7", "amount<100") == ["a"]
    assert found("customer^=b") == ["b"]
    assert found('customer=["acme","beta","none"]') == ["b", "a"]
    assert found("vip=true") == ["a"]
    assert found("due>2026-01-02T00:00Z") == ["a"]
    assert found("due=2026-01-01") == ["b"]
    assert found('code="7"') == ["a"]
    assert found("note=a=b") == ["a"]
    run = perdure("show", URL, "a", "--json").json["run"]
    due = "2026-01-02T03:04:00.000000Z"
    expected = {"amount": 12.5, "code": "7", "customer": "acme", "due": due, "note": "a=b", "vip": True}
    assert run["attributes"] == expected
    assert "customer=beta" in perdure("show", URL, "b").out
    assert "amount=12.5" in perdure("runs", "list", URL).out
    assert "ATTRIBUTES" not in perdure("runs", "list", URL, "--id-prefix", "c").out


@pytest.mark.parametrize("wrong", ["customer", "=x", "a>1", "a/b=1"])
def test_an_attribute_that_is_none_is_refused(perdure: Perdure, wrong: str) -> None:
    answer = perdure("start", "shop:engine", "checkout", "--input", ORDER, "--attribute", wrong)
    assert answer.code != 0
    assert wrong in answer.err or "attribute" in answer.err


def test_listings_go_both_ways_and_take_every_filter(perdure: Perdure) -> None:
    for name in ("a1", "a2", "b1"):
        start(perdure, name)
    first = perdure("runs", "list", URL, "--oldest", "--limit", "2", "--json").json
    assert [run["id"] for run in first["runs"]] == ["a1", "a2"]
    assert first["previous"] is None
    second = perdure("runs", "list", URL, "--oldest", "--limit", "2", "--cursor", first["cursor"], "--json").json
    back = perdure("runs", "list", URL, "--oldest", "--limit", "2", "--cursor", second["previous"], "--json").json
    assert [run["id"] for run in back["runs"]] == ["a1", "a2"]
    found = perdure("runs", "list", URL, "--id-prefix", "a", "--roots", "--json").json["runs"]
    assert [run["id"] for run in found] == ["a2", "a1"]
    assert perdure("runs", "list", URL, "--error", "nothing", "--json").json["runs"] == []
    assert perdure("runs", "list", URL, "--schedule", "nightly", "--json").json["runs"] == []


def test_runs_are_counted(perdure: Perdure) -> None:
    start(perdure, "done", "customer=acme")
    work("done")
    start(perdure, "a", "customer=acme")
    start(perdure, "b", "customer=beta")
    assert perdure("runs", "count", URL).out.strip() == "3"
    assert perdure("runs", "count", URL, "--status", "pending", "--json").json["count"] == {
        "value": "", "count": 2, "exact": True
    }  # fmt: skip
    by_status = perdure("runs", "count", URL, "--by", "status", "--json").json["groups"]
    assert [(one["value"], one["count"]) for one in by_status] == [("pending", 2), ("completed", 1)]
    lines = perdure("runs", "count", URL, "--by", "attribute:customer").out.splitlines()
    assert [line.split() for line in lines[1:]] == [["acme", "2"], ["beta", "1"]]
    assert perdure("runs", "count", URL, "--by", "colour").code == 1
    assert perdure("runs", "count", URL, "--by", "attribute:none").out == ""


def test_a_schedule_has_attributes(perdure: Perdure) -> None:
    options = ("--input", ORDER, "--every", "1h", "--attribute", "origin=cron", "--json")
    answer = perdure("schedules", "create", URL, "nightly", "checkout", *options)
    assert answer.json["attributes"] == {"origin": "cron"}


def test_a_bulk_action_is_shown_before_and_reported_after(perdure: Perdure) -> None:
    for name in ("a", "b", "c"):
        start(perdure, name, f"customer={'acme' if name != 'c' else 'beta'}")
    given = ("runs", "bulk", URL, "cancel", "--attribute", "customer=acme")
    shown = perdure(*given, "--dry-run").out.splitlines()
    assert shown[0] == "2 runs."
    assert [line.split()[0] for line in shown[2:]] == ["a", "b"]
    assert [run["id"] for run in perdure(*given, "--dry-run", "--json").json["first"]] == ["a", "b"]
    answer = perdure(*given, "--reason", "sold out", "--id", "job")
    assert (answer.code, answer.out.strip()) == (0, "cancel: 2 done, 0 skipped, 0 failed.")
    assert "--id job" in answer.err
    assert perdure(*given, "--reason", "sold out", "--id", "job", "--json").json["done"] == 2
    again = perdure("runs", "bulk", URL, "cancel", "--run", "a", "--run", "none", "--json").json
    assert (again["done"], again["skipped"]) == (0, 2)
    sent = perdure("runs", "bulk", URL, "send", "--run", "c", "--message", "go", "--value", "7", "--detach", "--json")
    assert perdure("show", URL, sent.json["id"], "--json").json["run"]["status"] == "pending"


def test_a_bulk_worker_does_what_was_detached_until_it_is_signalled(perdure: Perdure) -> None:
    start(perdure, "a")
    job = perdure("runs", "bulk", URL, "cancel", "--run", "a", "--detach", "--json").json["id"]
    command = [sys.executable, "-m", "perdure.cli", "runs", "bulk-worker", URL, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {"event": "working", "pid": process.pid, "url": URL}
            waited = perdure("wait", URL, "a", job, "--timeout", "60s")
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=90)
        finally:
            process.kill()
    assert waited.code == 1  # the run was cancelled
    assert perdure("show", URL, "a", "--json").json["run"]["status"] == "cancelled"
    assert perdure("show", URL, job, "--json").json["run"]["status"] == "completed"
    assert (process.returncode, json.loads(out)["event"]) == (0, "stopped")
    assert all(json.loads(line)["level"] != "error" for line in err.splitlines())


@pytest.mark.parametrize(
    "options", [("cancel",), ("cancel", "--run", "a", "--all"), ("send", "--all"), ("explode", "--all")]
)
def test_a_bulk_action_without_its_options_is_refused(perdure: Perdure, options: tuple[str, ...]) -> None:
    start(perdure, "a")
    assert perdure("runs", "bulk", URL, *options).code != 0
    assert perdure("runs", "count", URL).out.strip() == "1"
