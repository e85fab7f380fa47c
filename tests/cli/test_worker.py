from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import URL, Perdure


@contextmanager
def worker(*options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "perdure.cli", "worker", "shop:engine", "--json", *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(perdure: Perdure, run_id: str) -> str:
    """The status that a run ends in, worked on by another process."""
    status: str = perdure(
        "start", URL, "checkout", "--input", '[{"id": "o", "cents": 7}]', "--id", run_id, "--wait", "--json"
    ).json["status"]
    return status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_works_until_it_is_signalled(perdure: Perdure, number: signal.Signals) -> None:
    with worker("--slots", "5", "--lease", "5s", "--grace", "1s") as process:
        assert process.stdout is not None
        begun = json.loads(process.stdout.readline())
        assert begun == {
            "event": "working",
            "pid": process.pid,
            "url": URL,
            "types": ["approval", "checkout", "doomed", "family"],
        }
        assert wait_for(perdure, "o-1") == "completed"
        process.send_signal(number)
        out, err = process.communicate(timeout=90)
        assert (process.returncode, json.loads(out)["event"]) == (0, "stopped")
        assert all(json.loads(line)["level"] != "error" for line in err.splitlines())


def test_a_worker_takes_only_the_queues_that_it_is_told(perdure: Perdure) -> None:
    perdure("start", URL, "approval", "--id", "usual")
    perdure("start", URL, "approval", "--id", "special", "--queue", "special")
    for run_id in ("usual", "special"):
        perdure("send", URL, run_id, "approval", "true")
    with worker("--queue", "special"):
        assert perdure("start", URL, "approval", "--id", "special", "--wait", "--json").json["status"] == "completed"
    assert perdure("show", URL, "usual", "--json").json["run"]["status"] == "pending"


def test_a_worker_ends_with_its_parent_if_told_so(perdure: Perdure) -> None:
    with worker("--stop-at-eof") as process:
        assert wait_for(perdure, "o-1") == "completed"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=90) == 0


def test_a_worker_that_watches_its_parent_stops_at_a_signal_while_the_parent_lives(perdure: Perdure) -> None:
    with worker("--stop-at-eof") as process:
        assert wait_for(perdure, "o-1") == "completed"
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert (process.wait(timeout=90), "Fatal" in process.stderr.read()) == (0, False)


STUBBORN = """
import asyncio
from pathlib import Path
from perdure import Context, Engine, workflow

async def nap() -> None:
    Path("begun").touch()
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue

@workflow("stubborn")
async def stubborn(ctx: Context) -> None:
    await ctx.step(nap)

engine = Engine("sqlite:///shop.db", [stubborn])
"""


def test_a_worker_ends_although_a_step_ignores_its_cancellation(perdure: Perdure) -> None:
    Path("shop.py").write_text(STUBBORN, encoding="utf-8")
    perdure("start", "shop:engine", "stubborn", "--id", "s-1")
    with worker("--grace", "1ms") as process:
        while not Path("begun").exists():
            assert process.poll() is None
        process.terminate()
        out, err = process.communicate(timeout=90)
        assert process.returncode == 0
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"
    messages = [json.loads(line)["message"] for line in err.splitlines()]
    assert "the event loop ends without nap, which ignored a cancellation" in messages
    assert "Task was destroyed" not in err


def test_a_worker_of_impossible_settings_does_not_begin(perdure: Perdure) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "perdure.cli", "worker", "shop:engine", "--slots", "0"],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr == "perdure: slots=0: give a whole number from 1\n"


def test_a_worker_whose_server_is_away_waits_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "away.py").write_text(
        "from perdure import Context, Engine, workflow\n"
        "@workflow('away.v1')\n"
        "async def flow(ctx: Context) -> None: ...\n"
        "engine = Engine('postgresql://shop@127.0.0.1:9/shop', [flow])\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "perdure.cli", "worker", "away:engine", "--wait-for-database", "10m"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for _ in range(2):
                assert "the worker waits for its database" in process.stderr.readline()
        finally:
            process.kill()


def test_the_pace_of_polls_and_the_id_of_a_worker_are_options(perdure: Perdure) -> None:
    backoff = "first=10ms,longest=20s,idle=2,busy=0.5"
    with worker("--worker-id", "desk", "--poll-interval", "200ms", "--poll-backoff", backoff) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "working"
        while not (listed := perdure("workers", "list", URL, "--json").json):
            assert process.poll() is None
        assert listed[0]["id"].startswith("desk.")
        process.terminate()
        process.wait()


@pytest.mark.parametrize("wrong", ["idle", "idle=much", "fastest=1s", "first=1s,longest=10ms"])
def test_a_pace_of_polls_that_makes_no_sense_is_refused(perdure: Perdure, wrong: str) -> None:
    answer = perdure("worker", "shop:engine", "--poll-backoff", wrong)
    assert answer.code != 0
    assert "poll" in answer.err
