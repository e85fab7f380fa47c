"""Messages of errors have one style: lower case, one sentence without a full stop, what to do after a semicolon."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from perdure import errors

SOURCE = Path(errors.__file__).parent
#: Words that are written with a capital wherever they are. "Expected" is msgspec's, whose messages ours stand beside.
PROPER = {"SQLite", "PostgreSQL", "MySQL", "MariaDB", "Redis", "Python", "JSON", "HTTP", "NaN", "Expected"}
ERRORS = {
    name for module in (builtins, errors) for name, one in vars(module).items()
    if isinstance(one, type) and issubclass(one, BaseException)
}  # fmt: skip


def texts() -> Iterator[tuple[str, str]]:
    """Name and text of each file of the source."""
    return ((path.relative_to(SOURCE).as_posix(), path.read_text()) for path in sorted(SOURCE.rglob("*.py")))


@cache
def proper() -> set[str]:
    """Words that may begin a message with a capital: those above, and the classes of the source."""
    return PROPER | {name for _, text in texts() for name in re.findall(r"^ *class (\w+)", text, re.MULTILINE)}


def literal(node: ast.expr) -> str | None:
    """The text of a message, with `{}` for each value in it; None if it is computed elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return f"{literal(node.left) or '{}'}{literal(node.right) or '{}'}"
    return None


@cache
def messages() -> tuple[tuple[str, str], ...]:
    """File and line, and the message, of every error that is made.

    One tree is in memory at a time, because all of them would slow down every later collection of garbage.
    """
    return tuple(one for path, text in texts() for one in messages_in(path, ast.parse(text)))


def messages_in(path: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute) and node.args:
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in ERRORS and (message := literal(node.args[0])):
                yield f"{path}:{node.lineno}", message


def faults(message: str) -> list[str]:
    """What is wrong with a message."""
    first = re.match(r"\w+", message)
    found = []
    if first and first[0][0].isupper() and first[0] not in proper():
        found.append("begins with a capital")
    if message.endswith(".") and not message.endswith("..."):
        found.append("ends with a full stop")
    if re.search(r"[\w`'})]\. [A-Z]", message):
        found.append("has a second sentence")
    return found


def test_messages_of_errors_have_one_style() -> None:
    wrong = {place: (found, message) for place, message in messages() if (found := faults(message))}
    assert wrong == {}


def test_the_source_has_messages_to_check() -> None:
    assert len(messages()) > 300


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("The run is over", "begins with a capital"),
        ("run {} is over.", "ends with a full stop"),
        ("run {} is over. Start another", "has a second sentence"),
    ],
)
def test_another_style_is_noticed(message: str, fault: str) -> None:
    assert faults(message) == [fault]
    assert faults("SQLite 3.40 is too old; install 3.51 or newer: see `perdure why ...`") == []
