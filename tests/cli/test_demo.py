from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("demo")
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", "demo", "--json", "--folder", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert (process.returncode, err) == (0, b"")
    return folder, json.loads(out)


Told = tuple[Path, dict[str, Any]]


def test_worker_a_died_by_sigkill_and_b_took_over(told: Told) -> None:
    folder, summary = told
    assert summary["ok"] is True
    assert summary["killed"]["signal"] == "SIGKILL"
    pids = {json.loads(line)["pid"] for line in (folder / "activity.jsonl").read_text().splitlines()}
    assert pids == {summary["killed"]["pid"], summary["took_over"]}
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_every_finished_step_had_its_effect_once(told: Told) -> None:
    folder, summary = told
    effects = Counter(line.split()[0] for line in (folder / "effects.log").read_text().splitlines())
    assert effects.keys() == {"charge", "reserve", "print_label", "ship", "notify"}
    for step, count in effects.items():
        assert count == 1 or step in summary["in_flight"]


def test_no_step_that_was_recorded_before_the_kill_began_again(told: Told) -> None:
    _, summary = told
    finished = [step for step in summary["steps"] if step["finished_before_kill"]]
    assert "reserve" in [step["name"] for step in finished]
    assert all((step["attempts_by_b"], step["effects"]) == (0, 1) for step in finished)


def test_the_attempts_before_the_kill_still_count(told: Told) -> None:
    folder, summary = told
    [charge] = [step for step in summary["steps"] if step["name"] == "charge"]
    assert charge["in_flight_at_kill"]
    traces = [json.loads(line) for line in (folder / "activity.jsonl").read_text().splitlines()]
    begun = [(one["attempt"], one["pid"]) for one in traces if (one["step"], one["what"]) == ("charge", "begins")]
    # Each has a number of its own, and none is left out.
    assert [attempt for attempt, _ in begun] == list(range(1, len(begun) + 1))
    assert Counter(pid for _, pid in begun) == {
        summary["killed"]["pid"]: charge["attempts_by_a"],
        summary["took_over"]: charge["attempts_by_b"],
    }


def test_the_run_can_be_looked_at_afterwards(told: Told) -> None:
    folder, summary = told
    command = [sys.executable, "-m", "perdure.cli", "show", f"sqlite:///{folder}/shop.db", summary["run"], "--json"]
    known = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert (known["run"]["status"], known["run"]["output"]) == ("completed", summary["result"])
    claims = [event["actor"] for event in known["events"] if event["kind"] in ("started", "claimed")]
    assert len(set(claims)) == 2


def test_a_folder_in_use_is_not_written_to(told: Told) -> None:
    folder, _ = told
    before = sorted(folder.iterdir())
    command = [sys.executable, "-m", "perdure.cli", "demo", "--folder", str(folder)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2
    assert sorted(folder.iterdir()) == before


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell's background job ignores SIGINT, and so would everything that the tests start from one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux lets one wait for the child of another process")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_do_not_outlive_a_demo_that_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "demo"
    command = [sys.executable, "-u", "-m", "perdure.cli", "demo", "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = next(int(line.split()[-2]) for line in process.stdout if "worker process" in line)
        process.send_signal(number)
        # The pipe ends when its last holder does; the worker has another output, so only the demo holds it.
        process.stdout.read()
        assert process.wait() in {130, -number}
    assert ends(worker), f"worker {worker} lives on"


def ends(pid: int) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 30)[0])
    finally:
        os.close(handle)
