"""Writes `client/blocking.pyi`, the types of the blocking client, from the source of the async one.

    python -m tests.typing.blocking_stub

A coroutine function becomes a function, an async generator a generator, an async context manager a context manager. The name of an
async class stands for its blocking view.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
STUB = ROOT / "src" / "perdure" / "client" / "blocking.pyi"

#: Async classes by module, in the order of the stub.
CLASSES = {
    "engine": ["Engine"],
    "handle": ["Handle"],
    "workers": ["EngineWorker", "Workers"],
    "pusher": ["Pusher"],
    "locks": ["Lock", "Locks", "HeldLock"],
    "runs": ["Runs"],
    "schedules": ["Schedules"],
    "limits": ["Limits"],
    "breakers": ["Breakers"],
    "dead_letters": ["DeadLetters"],
    "audit": ["AuditTrail"],
    "queues": ["Queues"],
    "watermarks": ["Watermarks"],
}
#: Members that a view leaves out.
HIDDEN = {"Engine": {"blocking"}, "HeldLock": {"begin", "end"}}
#: Classes that users make themselves.
CONSTRUCTED = {"Engine", "Pusher"}

HEADER = '''"""Types of the blocking client. Generated from the async client by `python -m tests.typing.blocking_stub`; do not edit."""

import builtins
import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload
'''

VARIABLES = """
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")
"""


class _Blocking(ast.NodeTransformer):
    """Types of answers as they are after the wait."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        if name == "Coroutine" and isinstance(node.slice, ast.Tuple):
            return node.slice.elts[2]
        if name == "AsyncGenerator":
            node.value = ast.Name("Generator")
        return node


def stub() -> str:
    """The text of the stub."""
    imports: list[str] = ["from collections.abc import Generator"]
    classes: list[str] = []
    views = {name for names in CLASSES.values() for name in names}
    for module, names in CLASSES.items():
        tree = ast.parse((ROOT / "src" / "perdure" / "client" / f"{module}.py").read_text(encoding="utf-8"))
        own = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name not in views]
        imports += [f"from perdure.client.{module} import {name}" for name in own if not name.startswith("_")]
        imports += [
            ast.unparse(node) for node in _imports(tree) if not any(alias.name in views for alias in node.names)
        ]
        imports += _apart(tree, views)
        classes += [_class(node) for node in tree.body if isinstance(node, ast.ClassDef) and node.name in names]
    imports.append("from perdure.client.engine import Engine as AsyncEngine")
    text = "\n".join([HEADER, *dict.fromkeys(imports), VARIABLES, *classes, _OVER])
    return _formatted(text)


_OVER = '''
def engine_over(target: AsyncEngine) -> Engine:
    """Make a blocking view of an engine that exists, with a background loop of its own."""
'''


def _imports(tree: ast.Module) -> list[ast.ImportFrom]:
    """Imports at the top of a module, apart from those of its own blocking view."""
    inner = [one for node in tree.body if isinstance(node, ast.If) for one in node.body]
    return [
        node
        for node in (*tree.body, *inner)
        if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "perdure.client.blocking")
    ]


def _apart(tree: ast.Module, views: set[str]) -> list[str]:
    """Imports that bring a name of a view: their other names."""
    return [
        f"from {node.module} import {alias.name}"
        for node in _imports(tree)
        if any(alias.name in views for alias in node.names)
        for alias in node.names
        if alias.name not in views
    ]


def _class(node: ast.ClassDef) -> str:
    doc = f'"""`{node.name}` whose methods block."""'
    bases = f"({', '.join(ast.unparse(base) for base in node.bases if ast.unparse(base).startswith('Generic'))})"
    lines = [f"class {node.name}{bases if bases != '()' else ''}:", f"    {doc}"]
    functions = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    overloaded = {one.name for one in functions if _is(one, "overload")}
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and not one.target.id.startswith("_"):
            lines += ["    @property", f"    def {one.target.id}(self) -> {ast.unparse(one.annotation)}: ..."]
        elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and (
            _is_shown(node.name, one) and (one.name not in overloaded or _is(one, "overload"))
        ):
            lines.append(_indented(_function(one)))
    names = {one.name for one in functions}
    if "__aenter__" in names:
        entered = next(one.returns for one in functions if one.name == "__aenter__")
        assert entered is not None
        given = ast.unparse(entered)
        lines.append(f"    def __enter__(self) -> {'Self' if given == node.name else given}: ...")
        lines.append(_EXIT)
    return "\n".join(lines) + "\n"


_EXIT = """    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ..."""


def _is_shown(cls: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if function.name == "__init__":
        return cls in CONSTRUCTED
    return not function.name.startswith("_") and function.name not in HIDDEN.get(cls, set())


def _is(function: ast.FunctionDef | ast.AsyncFunctionDef, decorator: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == decorator for one in function.decorator_list)


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    returns = None if node.returns is None else _Blocking().visit(node.returns)
    doc = ast.get_docstring(node, clean=True)
    body: list[ast.stmt] = [ast.Expr(ast.Constant(...))]
    fresh = ast.FunctionDef(node.name, node.args, body, node.decorator_list, returns)
    ast.fix_missing_locations(fresh)
    text = ast.unparse(fresh)
    if doc is None:
        return text
    head, _, _ = text.rpartition("\n")
    paragraphs = doc.replace("\n", "\n    ").replace("\n    \n", "\n\n")
    return f'{head}\n    """{paragraphs}{chr(10) + "    " if chr(10) in doc else ""}"""'


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.split("\n"))


def _formatted(text: str) -> str:
    for command in (["check", "--fix-only", "--select", "F401,F811,I,E402,UP", "--quiet"], ["format"]):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(STUB), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
    return text


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
