"""Operations and coroutines that are not awaited."""

from __future__ import annotations

import ast

from perdure.lint.project import FunctionInfo
from perdure.lint.values import ACTIVITY, STEP, WORKFLOW, Values

#: Attributes of a future; other attributes belong to its result.
_OF_FUTURES = frozenset(
    (
        "cancel", "cancelled", "done", "result", "exception", "add_done_callback", "remove_done_callback", "get_loop",
        "set_name", "get_name", "get_coro", "__await__",
    )
)  # fmt: skip

#: Coroutine functions of asyncio that do nothing unless they are awaited.
_OF_ASYNCIO = frozenset(("asyncio.sleep", "asyncio.wait", "asyncio.wait_for", "asyncio.gather", "asyncio.shield"))


def is_forgotten(node: ast.Call, function: FunctionInfo, values: Values) -> bool:
    """True if a call makes an operation or a coroutine that is not awaited where its result is needed."""
    module = function.module
    parent = module.parents.get(node)
    called = values.of(node.func, function, module)
    made = values.of(node, function, module)
    is_operation = made is not None and made.kind == "operation"
    if not is_operation:
        if not isinstance(parent, ast.Expr) or called is None:
            return False
        if called.kind == "name":
            return called.name in _OF_ASYNCIO
        own = called.function if called.kind == "function" else None
        return own is not None and own.is_async and not values.roles(own) & (WORKFLOW | ACTIVITY | STEP)
    if isinstance(parent, ast.Lambda):
        return False
    return _is_misused(node, parent, function) or _is_unused(parent, function)


def _is_misused(node: ast.expr, parent: ast.AST | None, function: FunctionInfo) -> bool:
    """True where a result is needed: a condition, a comparison, arithmetic, an attribute, the end of the workflow."""
    if isinstance(parent, ast.Expr):
        # A lambda's body is its result.
        return not isinstance(function.node, ast.Lambda)
    if isinstance(parent, ast.If | ast.While | ast.IfExp | ast.Assert):
        return parent.test is node
    if isinstance(parent, ast.Attribute):
        return parent.attr not in _OF_FUTURES
    if isinstance(parent, ast.Subscript):
        return parent.value is node
    return isinstance(
        parent, ast.Compare | ast.BinOp | ast.BoolOp | ast.UnaryOp | ast.FormattedValue | ast.For | ast.comprehension
    )


def _is_unused(parent: ast.AST | None, function: FunctionInfo) -> bool:
    """True if an operation is assigned to a variable that is never awaited or passed on."""
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1 or not isinstance(parent.targets[0], ast.Name):
        return False
    name = parent.targets[0].id
    if name in function.globals or len(function.assigned.get(name, ())) != 1:
        return False
    parents = function.module.parents
    for node in ast.walk(function.node):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            above = parents.get(node)
            is_future = isinstance(above, ast.Attribute) and above.attr in _OF_FUTURES
            if is_future or not _is_misused(node, above, function):
                return False
    return True
