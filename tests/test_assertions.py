"""The tests themselves: each one can fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDERS = (ROOT / "tests", ROOT / "src" / "perdure" / "testing" / "conformance")

Function = ast.FunctionDef | ast.AsyncFunctionDef

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


class Facts(NamedTuple):
    """What these tests need to know of a function."""

    place: str
    name: str
    called: set[str]
    asserts: bool
    #: Places and texts of its assertions that hold whatever happens.
    always_true: list[str]


def facts_of(file: str, function: Function) -> Facts:
    always_true = [
        f"{file}:{node.lineno} {ast.unparse(node)}"
        for node in ast.walk(function)
        if isinstance(node, ast.Assert) and is_always_true(node.test)
    ]
    return Facts(f"{file}:{function.lineno}", function.name, called_in(function), asserts(function), always_true)


@cache
def suite() -> list[Facts]:
    """The functions of the suite.

    One tree is in memory at a time: millions of nodes would slow down every later collection of garbage.
    """
    return [
        facts_of(str(path.relative_to(ROOT)), function)
        for folder in FOLDERS
        for path in sorted(folder.rglob("*.py"))
        for function in functions_of(ast.parse(path.read_text(encoding="utf-8")))
    ]


def silent_tests() -> list[str]:
    """Tests that neither assert nor call a function of the suite that does, directly or by another."""
    asserting = WAITERS | {one.name for one in suite() if one.asserts}
    while more := {one.name for one in suite() if one.name not in asserting and one.called & asserting}:
        asserting |= more
    asserting = {name for name in asserting if not name.startswith("test_")}
    return [
        f"{one.place} {one.name}"
        for one in suite()
        if one.name.startswith("test_") and not one.asserts and not one.called & asserting
    ]


def test_every_test_says_what_has_to_be_so() -> None:
    assert silent_tests() == []


def test_no_assertion_holds_whatever_happens() -> None:
    assert [found for one in suite() for found in one.always_true] == []


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
