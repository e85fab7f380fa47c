"""Rooms of the source stay small: modules in a folder, lines of a function, private names of other objects."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "perdure"
#: Without the conformance suite, whose tests are named and divided like tests.
SOURCES = [path for path in sorted(ROOT.rglob("*.py")) if "testing" not in path.parts]
#: With names of the standard library and of drivers that begin with an underscore, and calls of overridden methods.
PRIVATE_NAMES = 40


def test_no_folder_has_more_than_twenty_modules() -> None:
    modules = Counter(path.parent for path in ROOT.rglob("*.py") if path.name != "__init__.py")
    assert {str(folder): count for folder, count in modules.items() if count > 20} == {}


def test_no_function_has_more_than_sixty_lines() -> None:
    assert read_source()[0] == []


def test_few_places_use_private_names_of_other_objects() -> None:
    found = read_source()[1]
    assert len(found) <= PRIVATE_NAMES, "\n".join(found)


@cache
def read_source() -> tuple[list[str], list[str]]:
    """Return the long functions, and the uses of private names of other objects. The source is parsed once for both."""
    long: list[str] = []
    private: list[str] = []
    for path in SOURCES:
        name = path.relative_to(ROOT)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if (node.end_lineno or 0) - node.lineno >= 60:
                    long.append(f"{name}:{node.name}")
            elif isinstance(node, ast.Attribute) and is_private_of_another(node):
                private.append(f"{name}:{node.lineno} {ast.unparse(node)}")
    return long, private


def is_private_of_another(node: ast.Attribute) -> bool:
    own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    return node.attr.startswith("_") and not node.attr.startswith("__") and not own
