"""The checks of one function of workflow code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from perdure.lint.cancellation import swallows_cancellation
from perdure.lint.findings import Finding, is_allowed, shown_path
from perdure.lint.forgotten import is_forgotten
from perdure.lint.project import FunctionInfo, Module
from perdure.lint.reach import Reached, label, workflow_nodes
from perdure.lint.rules import (
    AWAIT,
    CALLED,
    CANCEL,
    CLIENT,
    CLOCK,
    CLOCK_BY_DEFAULT,
    DIRECT,
    ENVIRONMENT,
    FILE_METHODS,
    FILES,
    GLOBALS,
    IDENTITY,
    MUTABLE,
    MUTATORS,
    NETWORK,
    ORDER,
    PATH_METHODS,
    RANDOM,
    SEEDED,
    STEP_METHODS,
    THREADS,
    UUID,
    WAIT,
    Rule,
    rule_of,
)
from perdure.lint.set_order import depends_on_order
from perdure.lint.values import ACTIVITY, CONTEXT, STEP, WORKFLOW, Value, Values, held

#: Keywords that get a function to be called later, by a class or a sort.
_CALLBACK_KEYWORDS = frozenset(("default_factory", "factory", "key", "default"))


class FunctionCheck:
    """Checks one function."""

    def __init__(self, reached: Reached, values: Values) -> None:
        self._function = reached.function
        self._module = reached.function.module
        self._origin = reached.origin
        self._values = values
        self._found: dict[tuple[int, int, str], Finding] = {}
        owner = reached.function.owner
        self._in_machine = owner is not None and values.is_machine(owner)

    def findings(self) -> list[Finding]:
        """Check the function."""
        for node in workflow_nodes(self._function, self._values):
            if isinstance(node, ast.Call):
                self._check_call(node)
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
                self._check_name(node)
            elif isinstance(node, ast.Global):
                self._check_global(node)
            elif isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
                self._check_target(node)
            elif isinstance(node, ast.Try | ast.With | ast.AsyncWith):
                for place in swallows_cancellation(node, self._function, self._name_of):
                    self._report(CANCEL, place, "the handler")
            if (reason := depends_on_order(node, self._function, self._values)) is not None:
                self._report(ORDER, node, reason)
        return list(self._found.values())

    def _of(self, node: ast.expr) -> Value | None:
        return self._values.of(node, self._function, self._module)

    def _name_of(self, node: ast.expr) -> str:
        return self._values.full_name(node, self._function, self._module)

    # calls

    def _check_call(self, node: ast.Call) -> None:
        called = self._of(node.func)
        if called is not None and called.kind == "name":
            self._check_library(node, called.name)
        elif called is not None and called.kind == "function" and called.function is not None:
            self._check_own(node, called.function)
        elif called is not None and called.kind == "class" and called.owner is not None:
            self._check_defaults(node, called)
        if isinstance(node.func, ast.Attribute):
            self._check_method(node, node.func)
        if is_forgotten(node, self._function, self._values):
            self._report(AWAIT, node, ast.unparse(node.func))
        for keyword in node.keywords:
            if keyword.arg in _CALLBACK_KEYWORDS and (rule := rule_of(self._name_of(keyword.value))) is not None:
                self._report(rule, keyword.value, self._name_of(keyword.value))

    def _check_library(self, node: ast.Call, name: str) -> None:
        given = len(node.args) + len(node.keywords)
        if name in SEEDED and given:
            if name == "random.seed":
                self._report(GLOBALS, node, "the global random generator")
            return
        if name in ("id", "hash"):
            self._report(IDENTITY, node, f"{name}()")
        elif name in CLOCK_BY_DEFAULT and given < CLOCK_BY_DEFAULT[name]:
            self._report(CLOCK, node, f"{name}()")
        elif name == "random.Random" or name == "numpy.random.default_rng":
            self._report(RANDOM, node, f"{name}() without a seed")
        elif name == "asyncio.as_completed" and self._is_of_coroutines(node):
            self._report(WAIT, node, "asyncio.as_completed over bare coroutines")
        elif (rule := rule_of(name)) is not None and rule is not ENVIRONMENT:
            self._report(rule, node, f"{name}()")

    def _is_of_coroutines(self, node: ast.Call) -> bool:
        given = node.args[0] if node.args else None
        elements = given.elts if isinstance(given, ast.List | ast.Tuple | ast.Set) else []
        elements += [given.elt] if isinstance(given, ast.ListComp | ast.GeneratorExp | ast.SetComp) else []
        for element in elements:
            called = self._of(element.func) if isinstance(element, ast.Call) else None
            if called is not None and called.function is not None and called.function.is_async:
                return True
        return False

    def _check_own(self, node: ast.Call, function: FunctionInfo) -> None:
        roles = self._values.roles(function)
        if roles & STEP:
            if not self._is_made_for_step(node):
                self._report(DIRECT, node, f"the step {label(function)}", call="ctx.step(...)")
        elif roles & (WORKFLOW | ACTIVITY):
            parent = self._module.parents.get(node)
            if isinstance(parent, ast.Await | ast.Expr):
                what = "workflow" if roles & WORKFLOW else "activity"
                self._report(DIRECT, node, f"the {what} {label(function)}", call="ctx.call(...)")

    def _is_made_for_step(self, node: ast.Call) -> bool:
        """True for the inner call of `ctx.step(f(x))`, which has a rule of its own."""
        parent = self._module.parents.get(node)
        return isinstance(parent, ast.Call) and node in parent.args[:1] and self._is_step_call(parent)

    def _is_step_call(self, node: ast.Call) -> bool:
        return (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in STEP_METHODS
            and held(self._of(node.func.value)) == CONTEXT
        )

    def _check_defaults(self, node: ast.Call, called: Value) -> None:
        """Check the default factories of a class that workflow code instantiates."""
        assert called.owner is not None
        given = {keyword.arg for keyword in node.keywords}
        for owner in self._values.lineage(called.owner):
            fields = [name for name in owner.fields if name in owner.values]
            positions = list(owner.fields)
            for name in fields:
                if name in given or positions.index(name) < len(node.args):
                    continue
                for each in ast.walk(owner.values[name]):
                    if isinstance(each, ast.Attribute | ast.Name):
                        full = self._values.full_name(each, None, owner.module)
                        rule = rule_of(full)
                        if rule in (CLOCK, RANDOM, UUID) and self._is_factory(each, owner.values[name], owner.module):
                            self._report(rule, each, f"{full} as a default of {owner.name}", owner.module)

    def _is_factory(self, node: ast.AST, top: ast.expr, module: Module) -> bool:
        """True for a name within a `default_factory`: other defaults are computed once, at import."""
        while node is not top:
            parent = module.parents[node]
            if isinstance(parent, ast.keyword):
                return parent.arg in _CALLBACK_KEYWORDS
            node = parent
        return False

    def _check_method(self, node: ast.Call, method: ast.Attribute) -> None:
        value = self._of(method.value)
        base = held(value)
        if self._is_step_call(node):
            self._check_step_argument(node)
        if base is None:
            if method.attr in FILE_METHODS:
                self._report(FILES, node, f".{method.attr}()")
            elif method.attr == "run_in_executor":
                self._report(THREADS, node, ".run_in_executor()")
        elif base.kind == "path" and method.attr in PATH_METHODS:
            self._report(FILES, node, f"Path.{method.attr}()")
        elif base.kind == "engine":
            self._report(CLIENT, node, f"{ast.unparse(method)}()")
        elif base.kind == "client" and value is not None and value.kind == "global":
            self._report(NETWORK, node, f"{ast.unparse(method)}() of {base.name}")
        if value is not None and value.kind == "global" and method.attr in MUTATORS and self._is_mutable(value):
            self._report(GLOBALS, node, f"the module's {value.name!r}")

    def _check_step_argument(self, node: ast.Call) -> None:
        first = node.args[0] if node.args else None
        inner = first.value if isinstance(first, ast.Await) else first
        if not isinstance(inner, ast.Call):
            return
        called = self._of(inner.func)
        function = None if called is None else called.function
        if isinstance(first, ast.Await) or (function is not None and not makes_function(function)):
            self._report(CALLED, inner, f"{ast.unparse(inner.func)}()")

    # names and globals

    def _check_name(self, node: ast.Attribute | ast.Name) -> None:
        name = self._name_of(node)
        # `os.environ.get` is a use of `os.environ`; other names count where they are complete.
        is_part = isinstance(self._module.parents.get(node), ast.Attribute) and name not in ("os.environ", "sys.argv")
        if rule_of(name) is ENVIRONMENT and not is_part:
            self._report(ENVIRONMENT, node, name)
        value = self._of(node)
        if value is None or value.kind != "global" or value.module is None:
            return
        for each in _evaluated(value.module.values.get(value.name, ast.Constant(None))):
            if isinstance(each, ast.Call):
                rule = rule_of(self._values.full_name(each.func, None, value.module))
                if rule in (CLOCK, RANDOM, UUID):
                    self._report(rule, node, f"the module's {value.name!r}, made at import,")

    def _check_global(self, node: ast.Global) -> None:
        written = {
            each.id
            for each in ast.walk(self._function.node)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store | ast.Del)
        }
        for name in node.names:
            if name in written:
                self._report(GLOBALS, node, f"the module's {name!r}")

    def _check_target(self, node: ast.Assign | ast.AugAssign | ast.Delete) -> None:
        targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
        for target in targets:
            if not isinstance(target, ast.Subscript | ast.Attribute):
                continue
            value = self._of(target.value)
            if value is None:
                continue
            if value.kind == "class" and isinstance(target, ast.Attribute):
                self._report(GLOBALS, target, f"the class attribute {ast.unparse(target)}")
            elif value.kind == "global" and (isinstance(target, ast.Attribute) or self._is_mutable(value)):
                self._report(GLOBALS, target, f"the module's {value.name!r}")

    def _is_mutable(self, value: Value) -> bool:
        made = None if value.module is None else value.module.values.get(value.name)
        if isinstance(made, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp):
            return True
        if not isinstance(made, ast.Call) or value.module is None:
            return False
        return self._values.full_name(made.func, None, value.module) in MUTABLE

    # reporting

    def _report(self, rule: Rule, node: ast.AST, what: str, module: Module | None = None, call: str = "") -> None:
        place = module or self._module
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        if is_allowed(rule, place.lines, self._lines_of(node, place)):
            return
        through = f" (called by {self._origin})" if self._origin else ""
        words = {
            "ctx": "self" if self._in_machine else "ctx",
            "step": "an activity: self.activity(id, call)" if self._in_machine else "a step: ctx.step(function, ...)",
            "sleep": "self.timer(id, seconds)" if self._in_machine else "await ctx.sleep(seconds)",
            "call": call,
        }
        key = line, column, rule.code
        self._found.setdefault(
            key,
            Finding(
                path=shown_path(place.path),
                line=line,
                column=column,
                code=rule.code,
                rule=rule.name,
                message=f"{what} {rule.reason}{through}",
                remedy=rule.remedy.format_map(words),
            ),
        )

    def _lines_of(self, node: ast.AST, module: Module) -> list[int]:
        """First and last line of a node, and of its statement: a comment is at the end of a line."""
        lines = [getattr(node, "lineno", 1), getattr(node, "end_lineno", 1)]
        top: ast.AST | None = node
        while top is not None and not isinstance(top, ast.stmt):
            top = module.parents.get(top)
        if isinstance(top, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return):
            lines += [top.lineno, top.end_lineno or top.lineno]
        return lines


def _evaluated(node: ast.expr) -> Iterator[ast.AST]:
    """Nodes of an expression that are evaluated with it: without the bodies of lambdas."""
    pending: list[ast.AST] = [node]
    while pending:
        each = pending.pop()
        yield each
        if not isinstance(each, ast.Lambda):
            pending += ast.iter_child_nodes(each)


def makes_function(function: FunctionInfo) -> bool:
    """True if a function returns a function, or may."""
    if function.is_async:
        return False
    returns = function.returns
    if returns is not None:
        return any(word in ast.unparse(returns) for word in ("Callable", "Any", "object", "partial", "type["))
    return any(_is_function(value, function) for value in _returned(function))


def _returned(function: FunctionInfo) -> Iterator[ast.expr]:
    if isinstance(function.node, ast.Lambda):
        yield function.node.body
    for node in ast.walk(function.node):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value


def _is_function(value: ast.expr, function: FunctionInfo) -> bool:
    is_known: Callable[[str], bool] = lambda name: name in function.functions or name in function.parameters  # noqa: E731
    return isinstance(value, ast.Lambda | ast.Call | ast.Subscript | ast.Attribute) or (
        isinstance(value, ast.Name) and is_known(value.id)
    )
