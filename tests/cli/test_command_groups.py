"""What a group does without a command, and what it says about a line that it cannot follow."""

from __future__ import annotations

import json

import click
import pytest

from perdure.cli.app import COMMANDS, cli
from perdure.cli.console.command_groups import CommandGroup
from tests.cli.conftest import URL, Perdure


def groups() -> dict[str, CommandGroup]:
    """The groups of the command line, by name."""
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for places in COMMANDS.values() for name in places}
    return {name: command for name, command in found.items() if isinstance(command, CommandGroup)}


LISTING = [name for name, group in groups().items() if "list" in group.list_commands(click.Context(group))]


def test_every_group_but_that_of_activities_has_a_list() -> None:
    assert set(groups()) - set(LISTING) == {"activities"}


@pytest.mark.parametrize("name", sorted({*LISTING} - {"messages"}))
def test_a_group_lists_without_a_command(perdure: Perdure, name: str) -> None:
    assert perdure("start", URL, "checkout", "--id", "o-1").code == 0
    short, spelled = perdure(name, URL, "--json"), perdure(name, "list", URL, "--json")
    assert (short.code, short.err) == (0, "")
    assert json.loads(short.out) == json.loads(spelled.out)


def test_a_group_lists_the_target_of_the_environment(perdure: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    assert perdure("start", URL, "checkout", "--id", "o-1").code == 0
    monkeypatch.setenv("PERDURE_URL", URL)
    assert "o-1" in perdure("runs").out
    answer = perdure("runs", "--status", "failed", "--json")
    assert (answer.code, json.loads(answer.out)["runs"]) == (0, [])


@pytest.mark.parametrize("name", LISTING)
def test_the_help_of_a_group_says_that_it_lists(perdure: Perdure, name: str) -> None:
    text = " ".join(perdure(name, "--help").out.split())
    assert f"Usage: perdure {name} [OPTIONS] [COMMAND] [ARGS]..." in text
    assert f"Without a COMMAND, it is `perdure {name} list`." in text


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (("runs", "shop.db"), "a TARGET is an engine such as shop:engine or a database such as sqlite:///shop.db"),
        (("runs", "lst"), "did you mean `perdure runs list`?"),
        (("activities", URL), "the TARGET follows a command; see `perdure activities --help`"),
        ((URL,), "the TARGET follows a command; see `perdure --help`"),
        (("messages", URL), f"name a RUN after the TARGET {URL}"),
        (("show", URL), f"name a RUN after the TARGET {URL}"),
        (("show", "o-1"), "name a TARGET"),
        (("send", URL, "o-1", "go"), "Missing argument 'JSON'"),
        (("send", URL, "o-1", "--key", "k"), "Missing argument 'NAME'"),
        (("send", "o-1", "go"), "name a TARGET"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_line_that_lacks_a_part_is_told_which(perdure: Perdure, line: tuple[str, ...], hint: str) -> None:
    answer = perdure(*line)
    assert answer.code == 2
    assert hint in answer.err


def test_a_line_without_a_target_is_told_which_argument_it_lacks(
    perdure: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_URL", URL)
    answer = perdure("send", "o-1", "go")
    assert (answer.code, "Missing argument 'JSON'" in answer.err) == (2, True)


def test_a_shell_completes_a_group_without_a_command_as_its_list() -> None:
    from click.shell_completion import ShellComplete

    complete = ShellComplete(cli, {}, "perdure", "_PERDURE_COMPLETE")
    for line in (["runs", URL], ["runs", "list", URL]):
        assert "--status" in {one.value for one in complete.get_completions(line, "--st")}
    names = {one.value for one in complete.get_completions(["runs"], "")}
    assert {"list", "show", "retry"} <= names
