"""Lines of a workflow's source that ask for an operation, found by its name.

To note the line of each operation as it begins would cost every step. A name that several lines use has several sites.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from msgspec import Struct

#: Methods whose first argument names the operation: a function, or a message.
_BY_FUNCTION = frozenset({"step", "transaction", "call"})
_BY_MESSAGE = frozenset({"receive", "receive_many", "receive_question", "ask"})


class CallSite(Struct, frozen=True, kw_only=True):
    """A call in a source. Its line counts from 1."""

    line: int
    #: Last line of the call.
    end: int
    method: str
    #: Name of the function that a child is made of: `ship` in `ctx.call(ship(order))`; else empty.
    callee: str
    awaited: bool
    #: Its result is not kept.
    dropped: bool
    names: frozenset[str]


def call_sites(source: str) -> list[CallSite]:
    """All calls of methods in the source of a function, which may be indented. Raises `SyntaxError`."""
    lines = source.splitlines(keepends=True)
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    tree = ast.parse("".join(line[indent:] if line[:indent].isspace() else line for line in lines))
    awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
    dropped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        CallSite(
            line=call.lineno,
            end=call.end_lineno or call.lineno,
            method=call.func.attr,
            callee=_callee(call),
            awaited=id(call) in awaited,
            dropped=id(call) in dropped,
            names=frozenset(_names(call, call.func.attr)),
        )
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    ]


def operation_name(location: str) -> str:
    """The name in a location: `charge` of `pages/~17/charge#2`."""
    return location.rpartition("/")[2].partition("#")[0]


def _callee(call: ast.Call) -> str:
    inner = call.args[0] if call.args else None
    return ast.unparse(inner.func) if isinstance(inner, ast.Call) else ""


def _names(call: ast.Call, method: str) -> Iterator[str]:
    """Names that the operation of a call may have."""
    yield method
    if method in _BY_FUNCTION and call.args:
        text = ast.unparse(call.args[0])
        yield text
        # A method is recorded as `Class.method`; a class may be instantiated on the spot.
        yield text.replace("()", "")
    if method in _BY_MESSAGE:
        yield from (str(one.value) for one in call.args if isinstance(one, ast.Constant))
    for inner in ast.walk(call):
        if isinstance(inner, ast.keyword) and inner.arg == "name" and isinstance(inner.value, ast.Constant):
            yield str(inner.value.value)
