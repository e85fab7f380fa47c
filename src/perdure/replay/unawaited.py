"""Finds the line of a workflow that asks for an operation without awaiting it, for the error that says so.

It reads the source of the workflow function when the run has failed already. To note the line of each operation as it
begins would cost every step.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

#: Methods of the context whose operation has the name of their first argument.
_NAMED = frozenset({"step", "transaction", "call"})


def describe_forgotten(label: str, function: Callable[..., Any] | None) -> str:
    """The label of an operation, with the file, line and code that asked for it if they can be told."""
    if function is None:
        return label
    try:
        found = _find(label, inspect.unwrap(function))
    except Exception:
        # The source may be missing, or be of another version.
        return label
    return label if found is None else f"{label} ({found})"


def _find(label: str, function: Callable[..., Any]) -> str | None:
    lines, first = inspect.getsourcelines(function)
    indent = len(lines[0]) - len(lines[0].lstrip())
    tree = ast.parse("".join(line[indent:] if line[:indent].isspace() else line for line in lines))
    awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
    calls = [call for call in _calls(tree) if id(call) not in awaited]
    name = label.rpartition("/")[2].partition("#")[0]
    matching = [call for call in calls if name in _names(call)]
    # Statements that drop the operation come before assignments, whose operation may be awaited later.
    dropped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    candidates = [call for call in matching if id(call) in dropped] or matching
    if not candidates:
        return None
    line = candidates[0].lineno
    file = PurePath(inspect.getsourcefile(function) or "?").name
    return f"{file}:{first + line - 1}: `{lines[line - 1].strip()}`"


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node


def _names(call: ast.Call) -> Iterator[str]:
    """Names that the operation of a call may have."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    yield method
    if method in _NAMED and call.args:
        text = ast.unparse(call.args[0])
        yield text
        # A method is recorded as `Class.method`; a class may be instantiated on the spot.
        yield text.replace("()", "")
    for inner in ast.walk(call):
        if isinstance(inner, ast.keyword) and inner.arg == "name" and isinstance(inner.value, ast.Constant):
            yield str(inner.value.value)
