"""Handlers that swallow a cancellation."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from perdure.lint.project import FunctionInfo

_CANCELLED = frozenset(("asyncio.CancelledError", "asyncio.exceptions.CancelledError"))
_ALL = frozenset(("BaseException",))
_SUPPRESS = "contextlib.suppress"

NameOf = Callable[[ast.expr], str]


def swallows_cancellation(
    node: ast.Try | ast.With | ast.AsyncWith, function: FunctionInfo, name_of: NameOf
) -> Iterator[ast.AST]:
    """Return handlers, or calls of `suppress`, that catch a cancellation and go on."""
    if not _has_await(node.body) or _awaits_cancelled_task(node.body, function):
        return
    if isinstance(node, ast.Try):
        for handler in node.handlers:
            names = _caught(handler.type, name_of)
            if names & _CANCELLED:
                if not _leaves(handler.body, (ast.Raise, ast.Return, ast.Break)):
                    yield handler
                return
            if (handler.type is None or names & _ALL) and not _leaves(handler.body, (ast.Raise,)):
                yield handler
        return
    for item in node.items:
        call = item.context_expr
        if isinstance(call, ast.Call) and name_of(call.func) == _SUPPRESS:
            names = {name_of(argument) for argument in call.args}
            if names & (_ALL | _CANCELLED):
                yield call


def _caught(node: ast.expr | None, name_of: NameOf) -> set[str]:
    if node is None:
        return set()
    return {name_of(each) for each in (node.elts if isinstance(node, ast.Tuple) else [node])}


def _walk(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Nodes of statements, without those of functions inside them."""
    pending = list(body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)


def _has_await(body: list[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in _walk(body))


def _leaves(body: list[ast.stmt], ways: tuple[type[ast.stmt], ...]) -> bool:
    """True if a handler raises again, leaves on purpose, or takes the cancellation back."""
    return any(
        isinstance(node, ways) or (isinstance(node, ast.Attribute) and node.attr == "uncancel") for node in _walk(body)
    )


def _awaits_cancelled_task(body: list[ast.stmt], function: FunctionInfo) -> bool:
    """True if all that is awaited are variables whose `cancel` the function calls."""
    cancelled = {
        ast.unparse(node.func.value)
        for node in ast.walk(function.node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cancel"
    }
    awaited = [node.value for node in _walk(body) if isinstance(node, ast.Await)]
    return bool(awaited) and all(ast.unparse(each) in cancelled for each in awaited)
