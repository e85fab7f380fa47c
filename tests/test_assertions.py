"""The tests themselves: each one can fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (ROOT / "tests", ROOT / "src" / "perdure" / "testing" / "conformance")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Suite = dict[str, list[Function]]

#: Whatever waits for a condition and fails if it does not come.
WAITERS = {"eventually"}


def functions_of(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def called_in(function: Function) -> set[str]:
    """The functions that it calls by their bare names, so none that only shares its name with one of the suite."""
    return {
        node.func.id for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def asserts(function: Function) -> bool:
    """Whether it says itself what has to be so."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and not is_always_true(node.test):
            return True
        match node:
            case ast.Call(ast.Attribute(ast.Name("pytest"), "raises" | "warns" | "fail")):
                return True
        if isinstance(node, ast.Raise) and node.exc is not None and "AssertionError" in ast.unparse(node.exc):
            return True
    return False


def is_always_true(test: ast.expr) -> bool:
    """Whether an assertion holds whatever happens."""
    match test:
        case ast.Constant(value):
            return bool(value)
        case ast.Tuple(elements) | ast.List(elements):
            return bool(elements)
        case ast.GeneratorExp() | ast.Lambda():
            return True
        case ast.Compare(_, [ast.GtE()], [ast.Constant(0)]):
            # Lengths and counts are never less.
            return "len(" in ast.unparse(test)
        case ast.BoolOp(ast.Or(), values):
            return any(is_always_true(value) for value in values)
    return False


@pytest.fixture(scope="module")
def suite() -> Suite:
    """The functions of each file of the suite. Millions of nodes: kept for longer, they would slow down every later
    collection."""
    files = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]
    parsed = {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in files}
    return {name: list(functions_of(tree)) for name, tree in parsed.items()}


def silent_tests(suite: Suite) -> list[str]:
    """Tests that neither assert nor call a function of the suite that does, directly or by another."""
    places = [(name, function) for name, functions in suite.items() for function in functions]
    calls = {function: called_in(function) for _, function in places}
    asserting = WAITERS | {function.name for _, function in places if asserts(function)}
    while more := {
        function.name for _, function in places if function.name not in asserting and calls[function] & asserting
    }:
        asserting |= more
    asserting = {name for name in asserting if not name.startswith("test_")}
    return [
        f"{name}:{function.lineno} {function.name}"
        for name, function in places
        if function.name.startswith("test_") and not asserts(function) and not calls[function] & asserting
    ]


def test_every_test_says_what_has_to_be_so(suite: Suite) -> None:
    assert silent_tests(suite) == []


def test_no_assertion_holds_whatever_happens(suite: Suite) -> None:
    found = [
        f"{name}:{node.lineno} {ast.unparse(node)}"
        for name, functions in suite.items()
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Assert) and is_always_true(node.test)
    ]
    assert found == []


def test_what_cannot_fail_is_found() -> None:
    source = """
def test_one():
    value = compute()
def test_two():
    assert (value == 1, "message")
def test_three():
    assert len(value) >= 0
def test_four():
    assert value == 1
"""
    assert [function.name for function in functions_of(ast.parse(source)) if not asserts(function)] == [
        "test_one",
        "test_two",
        "test_three",
    ]
