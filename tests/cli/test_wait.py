"""`perdure wait`: outcomes as they come, and exit codes that scripts can use."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from perdure.cli.console.target import load_engine
from tests.cli.conftest import URL, Perdure, work


def start(perdure: Perdure, type: str, run_id: str, **options: object) -> None:
    assert perdure("start", "shop:engine", type, "--id", run_id, "--input", json.dumps(options)).code == 0


ORDER = {"order": {"id": "o", "cents": 5}}
BAD = {"order": {"id": "o", "cents": -5}}


def test_completed_runs_end_with_0_and_show_their_results(perdure: Perdure) -> None:
    start(perdure, "checkout", "a", **ORDER)
    start(perdure, "checkout", "b", **ORDER)
    work("a", "b")
    answer = perdure("wait", URL, "a", "b", "a")
    assert answer.code == 0
    assert sorted(answer.out.splitlines()) == ['a  completed  "paid 5"', 'b  completed  "paid 5"']
    assert perdure("wait", "shop:engine", "a").code == 0


def test_a_failed_or_cancelled_run_ends_with_1(perdure: Perdure) -> None:
    start(perdure, "checkout", "bad", **BAD)
    start(perdure, "checkout", "good", **ORDER)
    start(perdure, "approval", "off")
    perdure("cancel", URL, "off")
    work("bad", "good", "off")
    answer = perdure("wait", URL, "good", "bad")
    assert answer.code == 1
    assert "bad  failed  StepFailed" in answer.out or "nothing to charge" in answer.out
    assert "good  completed" in answer.out
    assert perdure("wait", URL, "off", "--json").json["status"] == "cancelled"
    assert perdure("wait", URL, "off").code == 1


def test_time_that_runs_out_ends_with_124_and_says_why(perdure: Perdure) -> None:
    start(perdure, "approval", "slow")
    start(perdure, "checkout", "quick", **ORDER)
    work("quick")
    answer = perdure("wait", URL, "slow", "quick", "--timeout", "1s")
    assert answer.code == 124
    assert "quick  completed" in answer.out
    assert "slow  waiting: message  timed out: " in answer.out
    lines = [json.loads(line) for line in perdure("wait", URL, "slow", "--timeout", "1ms", "--json").out.splitlines()]
    assert [(line["id"], line["timed_out"], bool(line["why"])) for line in lines] == [("slow", True, True)]


def test_any_ends_with_the_first_outcome(perdure: Perdure) -> None:
    start(perdure, "approval", "slow")
    start(perdure, "checkout", "bad", **BAD)
    work("bad")
    answer = perdure("wait", URL, "slow", "bad", "--any", "--timeout", "120s")
    assert answer.code == 1
    assert [line.split()[0] for line in answer.out.splitlines()] == ["bad"]


def test_an_outcome_is_printed_while_other_runs_go_on(perdure: Perdure, tmp_path: Path) -> None:
    start(perdure, "approval", "late")
    start(perdure, "checkout", "early", **ORDER)
    command = [sys.executable, "-m", "perdure.cli", "wait", URL, "late", "early"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as waiting:
        assert waiting.stdout is not None
        seen = threading.Event()

        async def main() -> None:
            sys.modules.pop("shop", None)
            engine = load_engine("shop:engine")
            async with engine, engine.worker():
                await asyncio.to_thread(seen.wait)
                await engine.send("late", "approval", True)
                await (await engine.get("late")).result(timeout=120)

        working = threading.Thread(target=lambda: asyncio.run(main()))
        working.start()
        assert waiting.stdout.readline().startswith("early  completed")
        seen.set()
        assert waiting.stdout.readline() == "late  completed  true\n"
        working.join()
    assert waiting.returncode == 0


def test_the_target_may_come_from_the_environment(perdure: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    start(perdure, "checkout", "a", **ORDER)
    work("a")
    monkeypatch.setenv("PERDURE_URL", URL)
    assert perdure("wait", "a").code == 0
    assert perdure("wait", URL, "a").code == 0
    assert "at least one RUN" in perdure("wait", URL).err


def test_mistakes_are_named(perdure: Perdure) -> None:
    perdure("migrate", URL)
    unknown = perdure("wait", URL, "nothing")
    assert unknown.code == 1
    assert "there is no run 'nothing'" in unknown.err
    assert perdure("wait", URL, "a", "--timeout", "soon").code == 2
    assert perdure("wait").code == 2
