"""Completion in shells: a real bash, and the answers that zsh and fish ask for."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from perdure.cli.console.completion import PATIENCE, SHELLS
from tests.cli.conftest import URL, Perdure, work

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash on this machine")

#: What a shell does with the script: it calls the function with the line up to the cursor.
PRESS = r"""
eval "$(perdure completion bash)"
while IFS= read -r COMP_LINE; do
    COMP_POINT=${#COMP_LINE}
    _perdure_completion perdure
    echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture
def program(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds `perdure`, and has time."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "perdure"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m perdure.cli "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", PATIENCE: "60"}


def press_tab(program: dict[str, str], *lines: str, **environment: str) -> list[set[str]]:
    """The suggestions of bash at the end of each line."""
    command = ["bash", "--norc", "-c", PRESS]
    typed = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(
        command, check=True, env=program | environment, input=typed, capture_output=True, text=True, timeout=300
    )
    assert done.stderr == ""
    return [set(line.split()) for line in done.stdout.splitlines()]


#: Answers the lines on its input as a shell's call of `perdure` does, each in a process of its own, after one import.
ANSWER = """
import os, sys
import perdure.cli.app, perdure.cli.console.completion, perdure.client.engine
for line in sys.stdin:
    child = os.fork()
    if not child:
        os.environ["COMP_LINE"] = line.removesuffix("\\n")
        sys.argv = ["perdure"]
        try:
            perdure.cli.app.main()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)
    print("end", flush=True)
"""


def suggestions(program: dict[str, str], *lines: str) -> list[set[str]]:
    """The answers to bash at the end of each line, without a bash."""
    done = subprocess.run(
        [sys.executable, "-c", ANSWER], check=True, env={**program, "_PERDURE_COMPLETE": "bash_complete"},
        input="".join(f"{line}\n" for line in lines), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stderr == ""
    answers = done.stdout.split("end\n")
    assert answers.pop() == ""
    return [{one.partition(",")[2] for one in answer.splitlines() if one} for answer in answers]


@pytest.fixture
def shop(perdure: Perdure) -> None:
    for run_id in ("o-1", "o-2", "x:y-3"):
        perdure("start", "shop:engine", "checkout", "--id", run_id, "--input", '{"order": {"id": "o", "cents": 5}}')
    perdure("start", URL, "checkout", "--id", "far", "--queue", "reports")
    perdure("schedules", "create", "shop:engine", "nightly", "approval", "--cron", "0 2 * * *")
    work("o-1")


@needs_bash
def test_commands_options_and_choices_are_completed(program: dict[str, str]) -> None:
    *found, commands = suggestions(
        program, "perdure doc", "perdure runs set", "perdure runs sqlite:///shop.db --status wai", "perdure top --onc",
        "perdure runs ",
    )  # fmt: skip
    assert found == [{"doctor"}, {"set-priority"}, {"waiting"}, {"--once"}]
    assert {"list", "show", "retry"} <= commands


@needs_bash
@pytest.mark.usefixtures("shop")
def test_run_ids_types_queues_and_schedules_of_the_target_are_completed(program: dict[str, str]) -> None:
    assert press_tab(program, f"perdure show {URL} o") == [{"o-1", "o-2"}]
    assert suggestions(
        program,
        f"perdure show {URL} o",
        f"perdure wait {URL} o-1 ",
        f"perdure dead-letters retry {URL} fa",
        f"perdure start {URL} ch",
        f"perdure runs {URL} --type ap",
        f"perdure runs {URL} --queue re",
        f"perdure queues pause {URL} rep",
        f"perdure schedules show {URL} ni",
        f"perdure runs list {URL} --schedule ",
        "perdure show shop:engine o-2",
        f"perdure why {URL} o-1 ",
        f"perdure send {URL} o-1 ",
    ) == [
        {"o-1", "o-2"},
        {"o-1", "o-2", "x:y-3", "far"},
        {"far"},
        {"checkout"},
        {"approval"},
        {"reports"},
        {"reports"},
        {"nightly"},
        {"nightly"},
        {"o-2"},
        set(),
        set(),
    ]


@needs_bash
@pytest.mark.usefixtures("shop")
def test_the_part_of_a_word_before_a_colon_is_kept_by_bash(program: dict[str, str]) -> None:
    assert press_tab(program, f"perdure show {URL} x:") == [{"y-3"}]


@needs_bash
@pytest.mark.usefixtures("shop")
def test_the_environment_names_the_target(program: dict[str, str]) -> None:
    assert press_tab(program, "perdure show o-", "perdure cancel fa", PERDURE_URL=URL) == [{"o-1", "o-2"}, {"far"}]


@needs_bash
def test_a_name_that_a_shell_would_execute_is_never_suggested(program: dict[str, str], perdure: Perdure) -> None:
    perdure("migrate", URL)
    with closing(sqlite3.connect("shop.db")) as connection:
        for run_id in ("o-$(touch${IFS}pwned)", "o-`id`", "o 1", "o-;ls", "o-\x1b[2J", "o-good"):
            connection.execute("INSERT INTO perdure_runs (id, type) VALUES (?, 't')", [run_id])
        connection.commit()
    assert press_tab(program, f"perdure show {URL} o") == [{"o-good"}]
    assert not Path("pwned").exists()


@needs_bash
def test_errors_are_silent(program: dict[str, str], perdure: Perdure) -> None:
    Path("noisy.py").write_text("import sys\nprint('noise')\nprint('noise', file=sys.stderr)\nraise ValueError\n")
    lines = [
        "perdure show sqlite:///absent.db ",
        "perdure show oracle://x ",
        "perdure show nowhere:engine ",
        "perdure show noisy:engine ",
        "perdure show postgresql://127.0.0.1:1/x ",
        "perdure show sqlite:///absent.db --parent ",
        "perdure show ",
    ]
    assert suggestions(program, *lines) == [set()] * len(lines)
    assert press_tab(program, lines[0], **{PATIENCE: "soon"}) == [set()]


@needs_bash
def test_a_server_that_never_answers_costs_a_bounded_time(program: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept: list[socket.socket] = []

        def accept() -> None:
            try:
                while True:
                    kept.append(listener.accept()[0])
            except OSError:
                return

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        url = f"postgresql://u@127.0.0.1:{listener.getsockname()[1]}/x"
        # `press_tab` fails if the shell does not come back.
        assert press_tab(program, f"perdure show {url} ", **{PATIENCE: "2"}) == [set()]
        # Closing it alone would not end the thread.
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(90)
        for connection in kept:
            connection.close()


@needs_bash
@pytest.mark.usefixtures("shop")
def test_a_locked_file_costs_a_bounded_time(program: dict[str, str]) -> None:
    with closing(sqlite3.connect("shop.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        found = press_tab(program, f"perdure show {URL} ", **{PATIENCE: "2"})
        assert found in ([set()], [{"o-1", "o-2", "x:y-3", "far"}])


@pytest.mark.parametrize("shell", ["zsh", "fish"])
@pytest.mark.usefixtures("shop")
def test_other_shells_get_names_with_notes(shell: str) -> None:
    line = f"perdure show {URL} o-2"
    asked = {"zsh": {"COMP_WORDS": line, "COMP_CWORD": "3"}, "fish": {"COMP_WORDS": line, "COMP_CWORD": "o-2"}}[shell]
    environment = {**os.environ, **asked, "_PERDURE_COMPLETE": f"{shell}_complete", PATIENCE: "60"}
    command = [sys.executable, "-m", "perdure.cli"]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    expected = {"zsh": ["plain", "o-2", "checkout completed"], "fish": ["plain,o-2\tcheckout completed"]}[shell]
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_is_printed(perdure: Perdure, shell: str) -> None:
    answer = perdure("completion", shell)
    assert answer.code == 0
    assert f"_PERDURE_COMPLETE={shell}_complete" in answer.out
    assert perdure("completion", shell, "--json").json["script"].strip() == answer.out.strip()
    assert perdure("completion", "cmd").code == 2
