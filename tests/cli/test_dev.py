"""`perdure dev`: a worker that follows the code, the dashboard, and an end that leaves no process behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest

from perdure.cli.children.child_side import NO_TARGET
from perdure.cli.console.target import with_engine
from perdure.cli.dev.command import listening, may_open_browser
from perdure.errors import UsageError
from tests.cli.conftest import Perdure
from tests.stage import Stage

pytestmark = pytest.mark.skipif(os.name != "posix", reason="perdure dev needs POSIX")

URL = "sqlite:///app.db"
APP = """
import asyncio, os, pathlib, time
from perdure import Context, Engine, Retry, step, workflow

@step(retry=Retry.never())
def work(seconds: float) -> int:
    pathlib.Path("step-began").touch()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and not pathlib.Path("step-may-end").exists():
        time.sleep(0.02)
    return os.getpid()

def label() -> str:
    return "VERSION"

@workflow("flow.v1")
async def flow(ctx: Context, seconds: float = 0.0) -> str:
    await ctx.step(work, seconds)
    await ctx.receive("go", bool)
    return await ctx.step(label)

@workflow("clock.v1")
async def clock(ctx: Context) -> float:
    try:
        return time.time()
    except Exception:
        return 0.0

@step(retry=Retry.never())
def pair() -> list[int]:
    return (1, 2)

@workflow("shape.v1")
async def shape(ctx: Context) -> list[int]:
    return await ctx.step(pair)

engine = Engine("sqlite:///app.db", [flow, clock, shape])
"""


class Dev:
    """A `perdure dev` in a process of its own, and the lines that it prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.seen: list[dict[str, Any]] = []
        self._queue: Queue[str | None] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        # The test may close the pipe while this thread waits for a line.
        with suppress(ValueError):
            for line in self.process.stdout:
                self._queue.put(line)
        self._queue.put(None)

    def until(self, event: str, fits: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """The next line of an event that fits."""
        while True:
            line = self._queue.get(timeout=90)
            assert line is not None, self.seen
            said: dict[str, Any] = json.loads(line)
            self.seen.append(said)
            if said["event"] == event and fits(said):
                return said

    def rest(self) -> list[dict[str, Any]]:
        """The lines up to the end of the process and of its children."""
        found = []
        while (line := self._queue.get(timeout=90)) is not None:
            found.append(json.loads(line))
        return found

    def await_file(self, path: Path) -> None:
        """Wait until code of the project has made a file."""
        begun = time.monotonic()
        while not path.exists():
            assert self.process.poll() is None, "the command ended"
            assert time.monotonic() - begun < 90, f"{path} was not made"
            time.sleep(0.02)  # between two looks

    def ended(self, run_id: str, status: str = "success") -> dict[str, Any]:
        return self.until(
            "attempt", lambda one: (one["run_id"], one["scope"], one["status"]) == (run_id, "run", status)
        )


@contextmanager
def developing(place: Path, *options: str, target: str = "app:engine") -> Iterator[Dev]:
    command = [sys.executable, "-m", "perdure.cli", "dev", target, "--json", "--no-browser", "--port", "0", *options]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Dev(process)
        finally:
            process.kill()


@pytest.fixture
def place(perdure: Perdure, tmp_path: Path) -> Path:
    write(tmp_path, "one")
    return tmp_path


def write(place: Path, version: str) -> None:
    (place / "app.py").write_text(APP.replace("VERSION", version), encoding="utf-8")


def result_of(run_id: str) -> Any:
    async def read(engine: Any) -> Any:
        return json.loads((await (await engine.get(run_id)).info()).output)

    return with_engine(URL, read)


def ends(pid: int) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 60)[0])
    finally:
        os.close(handle)


needs_pidfd = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux lets one wait for such a process")


@needs_pidfd
def test_it_works_and_serves_until_ctrl_c_and_a_run_survives_changes_of_the_code(perdure: Perdure, place: Path) -> None:
    with developing(place) as dev:
        page = dev.until("serving")["dashboard"]
        assert page.startswith("http://127.0.0.1:")
        first = dev.until("working")
        assert first["types"] == ["clock.v1", "flow.v1", "shape.v1"]
        answer = httpx.get(page, timeout=60, trust_env=False)
        assert (answer.status_code, "Workflows" in answer.text) == (200, True)
        perdure("start", URL, "flow.v1", "--id", "a")
        dev.until("parked", lambda one: one["run_id"] == "a")

        write(place, "two")
        assert dev.until("changed")["files"] == ["app.py"]
        second = dev.until("working")
        assert ends(first["pid"])
        perdure("send", URL, "a", "go", "true")
        dev.ended("a")
        assert result_of("a") == "two"
        assert httpx.get(f"{page}livez", timeout=60, trust_env=False).status_code == 200

        dev.process.send_signal(signal.SIGINT)
        assert dev.until("stopping")
        assert dev.rest()[-1] == {"event": "stopped"}
        assert dev.process.wait(timeout=60) == 0
        assert ends(second["pid"])


@needs_pidfd
def test_code_that_cannot_be_loaded_is_shown_and_the_last_good_code_goes_on(perdure: Perdure, place: Path) -> None:
    with developing(place) as dev:
        first = dev.until("working")
        (place / "app.py").write_text("def (", encoding="utf-8")
        assert "SyntaxError" in dev.until("broken")["error"]
        dev.until("kept")
        perdure("start", URL, "flow.v1", "--id", "a")
        perdure("send", URL, "a", "go", "true")
        dev.ended("a")
        assert result_of("a") == "one"
        write(place, "two")
        assert dev.until("working")["pid"] != first["pid"]
        assert [one["event"] for one in dev.seen].count("exited") == 0


def test_code_that_is_broken_from_the_start_is_waited_for(place: Path) -> None:
    (place / "app.py").write_text("import nothing_of_that_name", encoding="utf-8")
    with developing(place) as dev:
        assert "nothing_of_that_name" in dev.until("broken")["error"]
        dev.until("waiting")
        write(place, "one")
        dev.until("working")
        assert "exited" not in [one["event"] for one in dev.seen]


#: Runs a child for each target, after one import. A child that cannot use the target says why on its pipe and ends.
CHILDREN = """
import json, os, sys
from perdure.cli.dev import child
child.stop_with_parent = lambda: None
for target in sys.argv[1:]:
    there, here = os.pipe()
    settings = {"role": "worker", "target": target, "json": True, "strict": True, "lease": "15s", "grace": "1s",
                "queues": [], "log_level": "info", "database_timeout": None, "socket": 0, "ready": here, "port": 0}
    code = child.main([json.dumps(settings)])
    print(json.dumps([code, json.loads(os.fdopen(there).read())["document"]["error"]]))
"""


def test_a_target_that_is_no_engine_ends_the_command(place: Path) -> None:
    (place / "memory.py").write_text("from perdure import Engine\nengine = Engine('sqlite://')\n", encoding="utf-8")
    (place / "remote.py").write_text(
        "from perdure import Engine\nengine = Engine('http://localhost:1')\n", encoding="utf-8"
    )
    reasons = {
        "ap:engine": "there is no module ap",
        "app:engin": "it has app:engine",
        "app:flow": "not an Engine",
        "memory:engine": "a database in memory",
        "remote:engine": "a worker needs the database itself",
    }
    command = [sys.executable, "-c", CHILDREN, *reasons]
    done = subprocess.run(command, cwd=place, check=True, capture_output=True, text=True, timeout=90)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [code for code, _ in found] == [NO_TARGET] * len(reasons)
    for reason, (_, error) in zip(reasons.values(), found, strict=True):
        assert reason in error
    with developing(place, target="memory:engine") as dev:
        assert reasons["memory:engine"] in dev.until("broken")["error"]
        assert dev.process.wait(timeout=60) == 1


@pytest.mark.parametrize("late", ["worker", "server"])
def test_the_reason_is_shown_whichever_child_finds_it_first(place: Path, late: str) -> None:
    slow = f'import sys, time\nif \'"role":"{late}"\' in sys.argv[1]:\n    time.sleep(600)\n'
    (place / "app.py").write_text(slow, encoding="utf-8")
    with developing(place) as dev:
        assert "app has no engine" in dev.until("broken")["error"]
        assert dev.process.wait(timeout=60) == 1
        assert [one["event"] for one in [*dev.seen, *dev.rest()]].count("broken") == 1


@needs_pidfd
def test_a_worker_that_is_killed_is_replaced_and_its_run_goes_on(perdure: Perdure, place: Path) -> None:
    with developing(place, "--lease", "3s") as dev:
        first = dev.until("working")
        perdure("start", URL, "flow.v1", "--id", "a", "--arg", "seconds=600")
        dev.until("started", lambda one: one["run_id"] == "a")
        os.kill(first["pid"], signal.SIGKILL)
        gone = dev.until("exited")
        assert (gone["role"], gone["pid"], gone["code"]) == ("worker", first["pid"], -signal.SIGKILL)
        (place / "step-may-end").touch()
        second = dev.until("working")
        dev.until("reclaimed")
        dev.until("parked")
        perdure("send", URL, "a", "go", "true")
        dev.ended("a")
        [done] = [one for one in dev.seen if one["event"] == "attempt" and one["location"] == "work"]
        assert (done["status"], second["pid"] != first["pid"]) == ("success", True)


def test_children_that_die_at_once_are_started_less_and_less_often(place: Path) -> None:
    with (place / "app.py").open("a", encoding="utf-8") as file:
        file.write("\nimport signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with developing(place) as dev:
        pauses = [dev.until("restarting")["pause"] for _ in range(3)]
        assert pauses == [0.5, 1.0, 2.0]
        write(place, "one")
        dev.until("working")


def test_code_that_kills_its_process_does_not_replace_the_last_good_code(place: Path) -> None:
    with developing(place) as dev:
        page = dev.until("serving")["dashboard"]
        worker = dev.until("working")["pid"]
        assert httpx.get(f"{page}livez", timeout=60, trust_env=False).status_code == 200
        (place / "app.py").write_text("import os\nos._exit(7)\n", encoding="utf-8")
        assert dev.until("exited")["code"] == 7
        dev.until("kept")
        os.kill(worker, 0)
        assert httpx.get(f"{page}livez", timeout=60, trust_env=False).status_code == 200


@needs_pidfd
def test_a_second_ctrl_c_does_not_wait_for_steps(perdure: Perdure, place: Path) -> None:
    with developing(place, "--grace", "10m") as dev:
        worker = dev.until("working")["pid"]
        perdure("start", URL, "flow.v1", "--id", "a", "--arg", "seconds=600")
        # A run that has started, but whose step has not begun, is released at once.
        dev.await_file(place / "step-began")
        dev.process.send_signal(signal.SIGINT)
        dev.until("stopping")
        with pytest.raises(subprocess.TimeoutExpired):
            dev.process.wait(timeout=1)
        dev.process.send_signal(signal.SIGINT)
        assert dev.process.wait(timeout=60) == 130
        assert ends(worker)


@needs_pidfd
def test_children_do_not_outlive_a_parent_that_is_killed(place: Path) -> None:
    with developing(place) as dev:
        worker = dev.until("working")["pid"]
        dev.process.kill()
        assert ends(worker)
        # The pipe ends with its last holder, which is the server.
        dev.rest()


def test_clocks_in_workflow_code_and_values_that_json_changes_are_refused(perdure: Perdure, place: Path) -> None:
    with developing(place) as dev:
        dev.until("working")
        perdure("start", URL, "clock.v1", "--id", "a")
        # A busy machine may block the loop for a moment, which is a warning, too.
        warning = dev.until("log", lambda one: "event loop" not in one["message"])
        assert ("calls time.time(), which reads the clock" in warning["message"], warning["level"]) == (True, "warning")
        dev.ended("a")
        assert result_of("a") == 0.0
        perdure("start", URL, "shape.v1", "--id", "b")
        assert "is a tuple and comes back as a list" in dev.ended("b", "failed")["error"]


def test_without_strictness_they_are_not(perdure: Perdure, place: Path) -> None:
    with developing(place, "--no-strict", "--no-reload") as dev:
        dev.until("working")
        perdure("start", URL, "clock.v1", "--id", "a")
        dev.ended("a")
        assert result_of("a") > 1e9
        perdure("start", URL, "shape.v1", "--id", "b")
        dev.ended("b")
        assert result_of("b") == [1, 2]


def test_a_port_that_is_taken_is_replaced_unless_it_was_asked_for() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on port {taken} .* leave out --port"):
            listening(taken)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("perdure.cli.dev.command.PORT", taken)
            with listening(None) as sock:
                assert sock.getsockname()[1] not in (0, taken)


@pytest.mark.parametrize("absent", ["watchfiles", "starlette", "uvicorn", "jinja2"])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    perdure: Perdure, monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    answer = perdure("dev", "shop:engine")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == f"perdure: perdure dev needs {absent}, of the extra `dev`: pip install 'perdure[dev]'\n"


def test_a_database_is_not_enough(perdure: Perdure) -> None:
    answer = perdure("dev", URL)
    assert (answer.code, "name an engine such as app:engine" in answer.err) == (2, True)


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "linux", False),
        ({"DISPLAY": ":0", "CI": "true"}, "linux", False),
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, "darwin", False),
    ],
)
def test_a_browser_is_opened_only_in_front_of_a_person(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], platform: str, expected: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert may_open_browser(environment, platform) is expected
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert not may_open_browser(environment, platform)


@pytest.mark.parametrize("stage", ["file", "postgres", "mysql"], indirect=True)
async def test_a_person_reads_one_line_for_each_event(stage: Stage, tmp_path: Path) -> None:
    text, rest = await asyncio.to_thread(read_lines_of_a_run, stage.url, tmp_path)
    # A busy machine may block the loop for a moment, which is a warning.
    lines = [line for line in text.splitlines() if re.match(r"\d\d:", line) and "event loop" not in line]
    said = [re.sub(r"\b[\d.]+ (µs|ms|s)\b", "N s", line[10:]) for line in lines]
    assert said[1:] == [
        "◐ started     a",
        "● completed   a  step work, N s",
        "◔ waiting     a  message",
        "◐ running     a",
        "● completed   a  step label, N s",
        "● completed   a  N s",
    ], text
    assert re.search(r"dashboard +http://127\.0\.0\.1:\d+/\n", text)
    assert "stopping within 5s; Ctrl-C again stops at once" in rest


#: A waiting run is shown a moment late, after the steps of the same commit. On a busy machine, their lines may take
#: longer than that moment.
PATIENT = """
from perdure.cli.dev.lines import EventLines
EventLines.__init__.__kwdefaults__["delay"] *= 60
"""


def read_lines_of_a_run(url: str, place: Path) -> tuple[str, str]:
    """The lines of a run up to its end, and those after Ctrl-C."""
    app = APP.replace('"sqlite:///app.db"', 'os.environ["APP_URL"]') + PATIENT
    (place / "app.py").write_text(app, encoding="utf-8")
    environment = {**os.environ, "APP_URL": url}
    base = [sys.executable, "-m", "perdure.cli"]
    command = [*base, "dev", "app:engine", "--no-browser", "--port", "0"]

    def perdure(*words: str) -> None:
        subprocess.run([*base, *words], cwd=place, check=True, capture_output=True)

    with subprocess.Popen(
        command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            text = ""
            for line in process.stdout:
                text += line
                if "clock.v1, flow.v1, shape.v1" in line:
                    perdure("start", url, "flow.v1", "--id", "a")
                elif "waiting" in line:
                    perdure("send", url, "a", "go", "true")
                elif re.search(r"completed   a  [\d.]", line):
                    break
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, ""), text
    return text, rest
