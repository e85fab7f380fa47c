"""Faults drawn from the source: small changes to its syntax tree, each of which should make a test fail.

A fault is known by its place and what becomes of it, so that the same source and seed give the same faults, and a
result that is kept from an earlier call belongs to the same fault. A line that ends with `# equivalent: <kind>:
<reason>` says that a change of that kind makes no difference there; such faults are listed and not tried. Within SQL
there is no room for a comment: the line on which the text ends says `# equivalent: sql <: <reason>`, with the operator
or word that may be changed.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

from msgspec import Struct

SWAPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
#: In SQL, what is looked for and what it becomes; only in text that is a statement or a part of one.
SQL = ((" <= ", " < "), (" < ", " <= "), (" >= ", " > "), (" > ", " >= "), (" <> ", " = "), (" AND ", " OR "))
_STATEMENT = re.compile(r"\b(SELECT|UPDATE|INSERT INTO|DELETE FROM|WHERE)\b")
_EQUIVALENT = re.compile(r"#.*\bequivalent: ([\w <>=]+): \S")
#: Folders that tests without a server do not reach.
SERVERS = frozenset({"postgres", "mysql"})
#: Functions whose faults break no promise.
_UNPROMISED = frozenset({"__repr__"})
#: Calls whose words are for people.
_FOR_PEOPLE = ("logger.", "_log.", "logging.")


class Fault(Struct, frozen=True):
    """A change of the source."""

    #: Relative to the source folder.
    path: str
    line: int
    #: The qualified name of the function that it is in; empty outside of functions.
    function: str
    kind: str
    #: Where in the file's text, and what it becomes.
    start: int
    end: int
    was: str
    becomes: str
    #: Why it makes no difference, by a word in the source.
    equivalent: bool = False

    @property
    def id(self) -> str:
        """The same as long as the file is."""
        return hashlib.blake2b(
            f"{self.path} {self.start} {self.was} {self.becomes}".encode(), digest_size=6
        ).hexdigest()

    def apply(self, text: str) -> str:
        """The source with the fault in it."""
        assert text[self.start : self.end] == self.was, f"{self.path} has changed"
        return text[: self.start] + self.becomes + text[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.kind}: {_short(self.was)} -> {_short(self.becomes)}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) < 100 else f"{text[:60]} ... {text[-30:]}"


def faults_of(source: Path, path: Path) -> list[Fault]:
    """Every fault that can be drawn from a file."""
    return list(_faults_in(path.read_text(encoding="utf-8"), str(path.relative_to(source))))


@cache
def _faults_in(text: str, path: str) -> tuple[Fault, ...]:
    return tuple(_Finder(text, path).find())


def draw(source: Path, package: str, count: int, seed: int) -> list[Fault]:
    """Draw faults of a package, spread over its files: no file gives a second one before each has given one.

    Folders of one server are packages of their own, such as `store/postgres`.
    """
    chance = Random(f"{seed} {package}")
    folder = source / "perdure" / package
    paths = sorted(folder.rglob("*.py"))
    pools = [faults_of(source, path) for path in paths if SERVERS.isdisjoint(path.relative_to(folder).parts)]
    for pool in pools:
        chance.shuffle(pool)
    drawn: list[Fault] = []
    while len(drawn) < count and any(pools):
        chance.shuffle(pools)
        drawn += [pool.pop() for pool in pools if pool][: count - len(drawn)]
    return drawn


class Functions:
    """The functions of a file by their lines."""

    def __init__(self, text: str | ast.Module) -> None:
        self._spans = list(_spans(ast.parse(text) if isinstance(text, str) else text, ""))

    def at(self, line: int) -> str:
        """Return the qualified name of the innermost function around a line; nothing outside of functions."""
        return max(((first, name) for first, last, name in self._spans if first <= line <= last), default=(0, ""))[1]


def _spans(node: ast.AST, prefix: str) -> Iterator[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                yield child.lineno, child.end_lineno or child.lineno, prefix + name
                yield from _spans(child, f"{prefix}{name}.<locals>.")
            case ast.ClassDef(name):
                yield from _spans(child, f"{prefix}{name}.")
            case _:
                yield from _spans(child, prefix)


class _Finder:
    def __init__(self, text: str, path: str) -> None:
        self._text = text
        self._path = path
        self._tree = ast.parse(text)
        self._functions = Functions(self._tree)
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def find(self) -> Iterator[Fault]:
        for node in self._tree.body:
            yield from self._at(node)

    def _at(self, node: ast.AST) -> Iterator[Fault]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name not in _UNPROMISED:
                for statement in node.body:
                    yield from self._at(statement)
            return
        if _is_for_people(node):
            return
        for kind, changed in _changes(node):
            yield self._fault(node, kind, changed)
        yield from self._in_sql(node)
        for child in _parts(node):
            yield from self._at(child)

    def _fault(self, node: ast.AST, kind: str, changed: str) -> Fault:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno, node.end_col_offset)
        return self._made(kind, start, end, changed, node.lineno)

    def _made(
        self, kind: str, start: int, end: int, changed: str, line: int, ends: tuple[int, str] | None = None
    ) -> Fault:
        place, word = ends or (line, kind)
        said = _EQUIVALENT.search(self._lines[place - 1])
        equivalent = said is not None and said[1] == word
        function = self._functions.at(line)
        return Fault(self._path, line, function, kind, start, end, self._text[start:end], changed, equivalent)

    def _in_sql(self, node: ast.AST) -> Iterator[Fault]:
        if not isinstance(node, ast.Constant | ast.JoinedStr):
            return
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._offset(node.lineno, node.col_offset)
        text = self._text[start : self._offset(node.end_lineno, node.end_col_offset)]
        if _STATEMENT.search(text):
            for was, becomes in SQL:
                for match in re.finditer(re.escape(was), text):
                    at = start + match.start()
                    line = self._text.count("\n", 0, at) + 1
                    ends = node.end_lineno, f"sql {was.strip()}"
                    yield self._made("sql", at, at + len(was), becomes, line, ends)

    def _offset(self, line: int, column: int) -> int:
        # Columns are counted in bytes.
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def _is_for_people(node: ast.AST) -> bool:
    match node:
        case ast.Expr(ast.Constant()):
            return True
        case ast.Expr(ast.Call(function)) if ast.unparse(function).startswith(_FOR_PEOPLE):
            return True
        case ast.If(ast.Name("TYPE_CHECKING")) | ast.Import() | ast.ImportFrom() | ast.Raise() | ast.Assert():
            return True
    return False


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "values") and isinstance(
            node, ast.JoinedStr
        ):
            continue
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases", "keywords") and isinstance(
            node, ast.AnnAssign | ast.ClassDef | ast.FunctionDef
        ):
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST):
                yield one


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The kinds of changes to a node, and what it becomes by them."""
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in SWAPS:
            yield "comparison", f"({ast.unparse(ast.Compare(left, [SWAPS[type(operator)]()], [right]))})"
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "connective", f"({ast.unparse(ast.BoolOp(other, values))})"
            yield "condition", f"({ast.unparse(ast.BoolOp(operator, values[:-1]) if len(values) > 2 else values[0])})"
        case ast.UnaryOp(ast.Not(), operand):
            yield "negation", f"({ast.unparse(operand)})"
        case ast.Constant(bool() as value):
            yield "constant", repr(not value)
        case ast.Constant(int() as value):
            yield "constant", repr(value + 1)
        case ast.BinOp(left, ast.Add(), right) if not _is_text(left) and not _is_text(right):
            yield "arithmetic", f"({ast.unparse(ast.BinOp(left, ast.Sub(), right))})"
        case ast.BinOp(left, ast.Sub(), right):
            yield "arithmetic", f"({ast.unparse(ast.BinOp(left, ast.Add(), right))})"
        case ast.Return(value) if value is not None and not isinstance(value, ast.Constant):
            yield "return", "return None"
        case ast.Expr(ast.Call() | ast.Await()):
            yield "statement", "pass"
        case ast.Continue() | ast.Break():
            yield "statement", "pass"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
