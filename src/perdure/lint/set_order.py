"""Code that depends on the order of a set."""

from __future__ import annotations

import ast

from perdure.lint.project import FunctionInfo
from perdure.lint.rules import OPERATIONS, ORDERED, UNORDERED
from perdure.lint.values import Values, held

#: Elements whose order in a set is the same in every process.
_STABLE = frozenset(("number", "task", "operation"))

#: Methods whose calls are ordered: those that append to something, and those of a context.
_ORDERED_CALLS = OPERATIONS | frozenset(
    (
        "append", "extend", "insert", "appendleft", "write", "put", "put_nowait", "setdefault", "send", "publish",
        "emit", "spawn", "start",
    )
)  # fmt: skip


def depends_on_order(node: ast.AST, function: FunctionInfo, values: Values) -> str | None:
    """Describe a use of a set's order; None if there is none."""
    check = _SetUse(function, values)
    if isinstance(node, ast.For | ast.AsyncFor):
        return "this loop" if check.is_set(node.iter) and _is_ordered_body(node) else None
    if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
        return "this comprehension" if check.is_set(node.generators[0].iter) and check.is_seen(node) else None
    if isinstance(node, ast.Starred):
        return "this unpacking" if check.is_set(node.value) and check.is_unpacked_in_order(node) else None
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple | ast.List):
        # `(only,) = names` has one element and no order.
        return "this unpacking" if len(node.targets[0].elts) > 1 and check.is_set(node.value) else None
    return check.of_call(node) if isinstance(node, ast.Call) else None


class _SetUse:
    def __init__(self, function: FunctionInfo, values: Values) -> None:
        self._function = function
        self._values = values

    def is_set(self, node: ast.expr) -> bool:
        """True if an expression is a set whose order may differ."""
        value = held(self._values.of(node, self._function, self._function.module))
        return value is not None and value.kind == "set" and (value.inner is None or value.inner.kind not in _STABLE)

    def is_seen(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> bool:
        """True if the order of a comprehension reaches something that depends on it."""
        if isinstance(node, ast.DictComp):
            return any(isinstance(each, ast.Await) or _is_operation(each) for each in ast.walk(node))
        if any(isinstance(each, ast.Await) or _is_operation(each) for each in ast.walk(node.elt)):
            return True
        parent = self._function.module.parents.get(node)
        return not (isinstance(parent, ast.Call) and self._is_unordered(parent))

    def is_unpacked_in_order(self, node: ast.Starred) -> bool:
        """True unless a set is unpacked into another set, or into a call that looks at no order."""
        parent = self._function.module.parents.get(node)
        return not (isinstance(parent, ast.Set) or (isinstance(parent, ast.Call) and self._is_unordered(parent)))

    def _is_unordered(self, node: ast.Call) -> bool:
        name = self._values.full_name(node.func, self._function, self._function.module)
        ties = name in ("min", "max") and any(keyword.arg == "key" for keyword in node.keywords)
        if name in UNORDERED and not ties:
            return True
        return isinstance(node.func, ast.Attribute) and node.func.attr in (
            "update", "union", "difference", "intersection", "issubset", "issuperset", "isdisjoint",
        )  # fmt: skip

    def of_call(self, node: ast.Call) -> str | None:
        """Describe a call that uses the order of a set."""
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "pop" and not node.args and self.is_set(node.func.value):
                return f"{ast.unparse(node.func)}()"
            takes = node.func.attr in ("join", "extend", "fromkeys", "map", "writelines")
            of_sets = [each for each in node.args if self.is_set(each)]
            name = self._values.full_name(node.func, self._function, self._function.module)
            if of_sets and (takes or name in ORDERED):
                return f"{ast.unparse(node.func)}()"
            return None
        name = self._values.full_name(node.func, self._function, self._function.module)
        ties = name in ("min", "max") and any(keyword.arg == "key" for keyword in node.keywords)
        if (name in ORDERED or ties) and any(self.is_set(each) for each in node.args):
            parent = self._function.module.parents.get(node)
            if not (isinstance(parent, ast.Call) and self._is_unordered(parent)):
                return f"{name}() of a set"
        return None


def _is_operation(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OPERATIONS


def _is_ordered_body(node: ast.For | ast.AsyncFor) -> bool:
    """True if the iterations of a loop depend on their order: they wait, leave, or collect."""
    for each in (inner for statement in node.body for inner in ast.walk(statement)):
        if isinstance(each, ast.Await | ast.Yield | ast.YieldFrom | ast.Break | ast.AsyncWith | ast.AsyncFor):
            return True
        if isinstance(each, ast.Return) and not (each.value is None or isinstance(each.value, ast.Constant)):
            return True
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in _ORDERED_CALLS:
            return True
        if isinstance(each, ast.Assign | ast.AugAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            if any(isinstance(target, ast.Subscript) for target in targets):
                return True
    return False
