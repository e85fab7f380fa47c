from __future__ import annotations

import json
import subprocess
import sys

from tests.cli.conftest import URL, Perdure, work

ORDER = '[{"id": "o", "cents": 7}]'
POOR = '[{"id": "o", "cents": -7}]'


def test_events_are_listed_and_filtered(perdure: Perdure) -> None:
    perdure("migrate", URL)
    assert perdure("audit", URL).err == "No events.\n"
    perdure("start", "shop:engine", "checkout", "--id", "rich", "--input", ORDER)
    perdure("start", "shop:engine", "checkout", "--id", "poor", "--input", POOR)
    work("rich", "poor")
    lines = perdure("audit", URL).out.splitlines()
    assert lines[0].split() == ["ID", "TIME", "EVENT", "RUN", "BY", "DATA"]
    assert len(lines) == 7
    [failed] = perdure("audit", "list", URL, "--kind", "failed", "--type", "checkout", "--since", "1h", "--json").json[
        "events"
    ]
    assert (failed["run"], failed["data"]) == ("poor", {"error": "ValueError", "message": "nothing to charge"})
    assert perdure("audit", URL, "--until", "1h").err == "No events.\n"
    page = perdure("audit", URL, "--run", "rich", "--limit", "2", "--json").json
    rest = perdure("audit", URL, "--run", "rich", "--cursor", str(page["cursor"]), "--json").json
    assert [event["kind"] for event in (*page["events"], *rest["events"])] == ["completed", "started", "created"]
    assert "--cursor" in perdure("audit", URL, "--limit", "2").err


def test_events_are_followed(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "checkout", "--id", "first", "--input", ORDER)
    command = [sys.executable, "-m", "perdure.cli", "audit", URL, "--kind", "created", "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["run"] == "first"
            perdure("start", "shop:engine", "checkout", "--id", "second", "--input", ORDER)
            assert json.loads(process.stdout.readline())["run"] == "second"
        finally:
            process.kill()


def test_old_events_are_pruned(perdure: Perdure) -> None:
    for name in ("a", "b", "c"):
        perdure("start", "shop:engine", "checkout", "--id", name, "--input", ORDER)
    assert perdure("audit", "prune", URL, "--older-than", "1h").out == "0 events older than 1h deleted.\n"
    assert perdure("audit", "prune", URL, "--older-than", "0s", "--json").json == {"deleted": 2}
    assert len(perdure("runs", URL, "--json").json["runs"]) == 3
    assert perdure("audit", "prune", URL, "--older-than", "soon").code == 1
    assert perdure("audit", "prune", URL).code == 2


def test_a_worker_logs_what_it_does_with_fields_and_writes_as_much_of_a_trail_as_it_is_told(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "checkout", "--id", "poor", "--input", POOR)
    command = [sys.executable, "-m", "perdure.cli", "worker", "shop:engine", "--log-format", "json", "--audit", "off"]
    with subprocess.Popen([*command, "--stop-at-eof"], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            again = perdure("start", "shop:engine", "checkout", "--id", "poor", "--input", POOR, "--wait", "--json")
            assert again.json["status"] == "failed"
            _, said = process.communicate(timeout=90)
        finally:
            process.kill()
    lines = [json.loads(line) for line in said.splitlines()]
    told = [
        tuple(line[field] for field in ("run_id", "step", "attempt", "retry_count", "status", "error"))
        for line in lines
        if line["logger"] == "perdure.execution"
    ]
    error = "ValueError: nothing to charge"
    assert told == [
        ("poor", "charge", 1, 0, "retrying", error),
        ("poor", "charge", 2, 1, "retrying", error),
        ("poor", "charge", 3, 2, "failed", error),
        ("poor", None, 1, 0, "failed", error),
    ]
    assert [event["kind"] for event in perdure("audit", URL, "--json").json["events"]] == ["created"]
