from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from perdure.cli.app import cli
from perdure.cli.console.command_groups import Command, CommandGroup
from tests.cli.conftest import URL, Perdure, parse_command


def test_the_version_is_told(perdure: Perdure) -> None:
    answer = perdure("--version")
    assert answer.code == 0
    assert answer.out.startswith("perdure ")


def test_help_names_every_command(perdure: Perdure) -> None:
    text = perdure("--help").out
    for name in ("demo", "worker", "start", "runs", "show", "send", "cancel", "why", "migrate"):
        assert f"  {name} " in text
    for command in (*("show", "worker", "start", "migrate"), "runs list", "dead-letters retry", "queues pause"):
        assert "--json" in perdure(*command.split(), "--help").out


def commands(group: CommandGroup, path: str = "perdure") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, CommandGroup):
            yield from commands(command, f"{path} {name}")


@pytest.mark.parametrize(("path", "command"), [pytest.param(*one, id=one[0]) for one in commands(cli)])
def test_help_is_one_short_sentence_with_an_example_that_parses(path: str, command: click.Command) -> None:
    assert command.help is not None
    first = command.help.split("\n\n")[0].rstrip()
    assert first.endswith(".")
    assert ". " not in first
    assert isinstance(command, Command | CommandGroup)
    words = shlex.split(command.example)
    assert words[0] == "perdure"
    assert words[1] == path.split()[1] or words[1] == path.rsplit(maxsplit=1)[-1]
    # Parsing checks options and the number of arguments, and runs nothing.
    parse_command(cli, words)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("dead", URL), "no such command 'dead'; see `perdure dead-letters`"),
        (("messages", "run-1"), "no such command 'run-1'; to list, say `perdure messages list run-1`"),
        (("pause", URL, "a"), "see `perdure runs pause` or `perdure queues pause`"),
        (("dead-letters", "requeue", URL, "a"), "see `perdure dead-letters retry`"),
        (("strat", "shop:engine"), "did you mean `perdure start`?"),
        (("runs", "shwo", URL, "a"), "did you mean `perdure runs show`?"),
        (("nonsense",), "see `perdure --help`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_old_or_mistyped_command_gets_a_hint(perdure: Perdure, arguments: tuple[str, ...], hint: str) -> None:
    answer = perdure(*arguments)
    assert answer.code == 2
    assert hint in answer.err


def test_a_group_lists_when_no_command_is_named(perdure: Perdure) -> None:
    perdure("start", URL, "checkout", "--id", "o-1")
    assert perdure("runs", URL, "--json").out == perdure("runs", "list", URL, "--json").out


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("runs",),
        ("runs", "shop"),
        ("runs", "a:b", "c:d"),
        ("show", URL),
        ("runs", URL, "--status", "sleepy"),
        ("runs", URL, "--limit", "0"),
        ("send", URL, "run", "name", "not json"),
        ("worker", URL),
        ("runs", URL, "--database-timeout", "0"),
        ("runs", URL, "--database-timeout", "soon"),
    ],
    ids=" ".join,
)
def test_a_misuse_exits_with_two(perdure: Perdure, arguments: tuple[str, ...]) -> None:
    answer = perdure(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert "Usage:" in answer.err
    told = perdure(*arguments, "--json")
    assert (told.code, told.out) == (2, "")
    assert json.loads(told.err)["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("start", "shop:engine", "checkout", '"x"'), "1 argument too many: the command takes [TARGET] TYPE; give the"),
        (("show", URL, "a", "b", "c"), "2 arguments too many: the command takes [TARGET] RUN\n"),
    ],
)
def test_a_line_with_too_many_arguments_is_told_which_the_command_takes(
    perdure: Perdure, arguments: tuple[str, ...], complaint: str
) -> None:
    assert complaint in perdure(*arguments).err


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("nowhere:engine", "there is no module nowhere"),
        ("shop.inner:engine", "there is no module shop.inner"),
        ("shop:motor", "the module shop has no motor; it has shop:engine"),
        ("shop:not_an_engine", "shop:not_an_engine is of type int, not an Engine"),
        ("broken:engine", "cannot import broken: ZeroDivisionError"),
        ("lacking:engine", "cannot import lacking: No module named 'nowhere_to_be_found'"),
        ("sqlite:///missing.db", "there is no database"),
        ("sqlite://", "is a database in memory"),
        ("oracle://host/db", "is not a database URL that Perdure knows"),
    ],
)
def test_a_target_that_is_not_there_is_named(perdure: Perdure, target: str, complaint: str) -> None:
    Path("broken.py").write_text("1 / 0")
    Path("lacking.py").write_text("import nowhere_to_be_found")
    answer = perdure("runs", target)
    assert (answer.code, answer.out) == (1, "")
    assert complaint in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not Path("missing.db").exists()


def test_a_run_that_is_not_there_is_one_clear_line(perdure: Perdure) -> None:
    perdure("migrate", URL)
    for arguments in (("show", "x"), ("why", "x"), ("cancel", "x"), ("send", "x", "name", "1")):
        answer = perdure(arguments[0], URL, *arguments[1:])
        assert (answer.code, answer.out) == (1, "")
        assert answer.err.startswith("perdure: there is no run 'x'")
        told = json.loads(perdure(arguments[0], URL, *arguments[1:], "--json").err)
        assert told["error"]["type"] == "RunNotFound"


def test_a_database_without_tables_is_left_without_them(perdure: Perdure) -> None:
    Path("shop.db").touch()
    answer = perdure("runs", URL)
    assert answer.code == 1
    assert "run `perdure migrate`" in answer.err


def test_the_traceback_is_for_those_who_ask(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perdure.cli", "runs", "sqlite:///missing.db"]
    usual = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert usual.returncode == 1
    assert "Traceback" not in usual.stderr
    asked = subprocess.run([*command, "--debug"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert asked.returncode == 1
    assert "Traceback" in asked.stderr
    assert "StoreUnavailable" in asked.stderr


def test_a_reader_that_has_seen_enough_is_no_error(perdure: Perdure) -> None:
    for number in range(30):
        perdure("start", URL, "checkout", "--id", f"run-{number}")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "perdure.cli", "runs", URL]
    with os.fdopen(writer) as closed:
        answer = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (1, "")


def test_an_encoding_that_lacks_a_character_is_no_error(perdure: Perdure) -> None:
    perdure("start", URL, "checkout", "--id", "bestellung-ä")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "perdure.cli", "runs", URL]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "bestellung-\\xe4" in answer.stdout


def test_help_of_the_group_needs_neither_rich_nor_a_database() -> None:
    code = "import sys, perdure.cli.app as a; a.run(['--help']); sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("target", ["...:engine", ".shop:engine"])
def test_a_target_without_a_module_is_refused(perdure: Perdure, target: str) -> None:
    answer = perdure("check", target)
    assert (answer.code, answer.err) == (
        1,
        f"perdure: {target!r} names no engine; give its module and its name, such as shop:engine\n",
    )
