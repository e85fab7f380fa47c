"""The linter: it checks each function that workflow code reaches, and returns the findings in order."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from perdure.lint.project import FunctionInfo, Module, Project
from perdure.lint.reach import Reach, Reached, label, workflow_nodes
from perdure.lint.rules import (
    AWAIT,
    BLOCKING_CALLS,
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
    OPERATIONS,
    ORDER,
    ORDERED,
    PATH_METHODS,
    RANDOM,
    SEEDED,
    STEP_METHODS,
    SYNTAX,
    THREADS,
    UNORDERED,
    UUID,
    WAIT,
    Finding,
    Rule,
    is_allowed,
    rule_of,
    shown_path,
)
from perdure.lint.values import ACTIVITY, BLOCKING, STEP, WORKFLOW, Value, Values, held, is_context

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
                for place in swallows_cancellation(node, self._function, self._name_of, self._blocks):
                    self._report(CANCEL, place, "the handler")
            if (reason := depends_on_order(node, self._function, self._values)) is not None:
                self._report(ORDER, node, reason)
        return list(self._found.values())

    def _of(self, node: ast.expr) -> Value | None:
        return self._values.of(node, self._function, self._module)

    def _name_of(self, node: ast.expr) -> str:
        return self._values.full_name(node, self._function, self._module)

    def _blocks(self, node: ast.AST) -> bool:
        """True if a node is a call of a blocking context that waits."""
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in BLOCKING_CALLS
            and held(self._of(node.func.value)) == BLOCKING
        )

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
        elif (
            name == "next" and node.args and (shared := self._of(node.args[0])) is not None and shared.kind == "global"
        ):
            self._report(GLOBALS, node, f"the module's {shared.name!r}")
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
            and is_context(held(self._of(node.func.value)))
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
                made = self._values.full_name(each.func, None, value.module)
                # A seed does not help: all runs of the process draw from one generator.
                rule = RANDOM if made in SEEDED else rule_of(made)
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
    if isinstance(value, ast.Name):
        return value.id in function.functions or value.id in function.parameters
    return isinstance(value, ast.Lambda | ast.Call | ast.Subscript | ast.Attribute)


_CANCELLED = frozenset(("asyncio.CancelledError", "asyncio.exceptions.CancelledError"))
_ALL = frozenset(("BaseException",))
_SUPPRESS = "contextlib.suppress"

NameOf = Callable[[ast.expr], str]


def swallows_cancellation(
    node: ast.Try | ast.With | ast.AsyncWith, function: FunctionInfo, name_of: NameOf, blocks: Callable[[ast.AST], bool]
) -> Iterator[ast.AST]:
    """Return handlers, or calls of `suppress`, that catch a cancellation and go on."""
    if not _has_await(node.body) and not any(map(blocks, _walk(node.body))):
        return
    if _awaits_cancelled_task(node.body, function):
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
    while isinstance(parent, ast.NamedExpr):
        parent = module.parents.get(parent)
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
        return parent.test is node or (isinstance(parent.test, ast.NamedExpr) and parent.test.value is node)
    if isinstance(parent, ast.Attribute):
        return parent.attr not in _OF_FUTURES
    if isinstance(parent, ast.Subscript):
        return parent.value is node
    return isinstance(
        parent, ast.Compare | ast.BinOp | ast.BoolOp | ast.UnaryOp | ast.FormattedValue | ast.For | ast.comprehension
    )


def _only_target(node: ast.AST | None) -> ast.Name | None:
    """The variable that a statement assigns to, if it is the only target."""
    if isinstance(node, ast.AnnAssign):
        return node.target if isinstance(node.target, ast.Name) else None
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return None
    [target] = node.targets
    return target if isinstance(target, ast.Name) else None


def _is_unused(parent: ast.AST | None, function: FunctionInfo) -> bool:
    """True if an operation is assigned to a variable that is never awaited or passed on."""
    target = _only_target(parent)
    if target is None:
        return False
    name = target.id
    # A declaration with a value is not among the assignments.
    others = 0 if isinstance(parent, ast.AnnAssign) else 1
    if name in function.globals or len(function.assigned.get(name, ())) != others:
        return False
    parents = function.module.parents
    for node in ast.walk(function.node):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            above = parents.get(node)
            is_future = isinstance(above, ast.Attribute) and above.attr in _OF_FUTURES
            if is_future or not _is_misused(node, above, function):
                return False
    return True


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
                return None if self._is_of_one(node.func.value) else f"{ast.unparse(node.func)}()"
            takes = node.func.attr in ("join", "extend", "fromkeys", "map", "writelines")
            of_sets = [each for each in node.args if self.is_set(each)]
            name = self._values.full_name(node.func, self._function, self._function.module)
            if of_sets and (takes or name in ORDERED):
                return f"{ast.unparse(node.func)}()"
            return None
        name = self._values.full_name(node.func, self._function, self._function.module)
        ties = name in ("min", "max") and any(keyword.arg == "key" for keyword in node.keywords)
        if (name in ORDERED or ties) and any(self.is_set(each) for each in node.args):
            return None if self._is_without_order(node, name) else f"{name}() of a set"
        return None

    def _is_without_order(self, node: ast.Call, name: str) -> bool:
        """True if a sequence with the elements of a set is used so that their order does not matter."""
        parent = self._function.module.parents.get(node)
        if isinstance(parent, ast.For):
            return not _is_ordered_body(parent)
        if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            return name == "list" and self._is_sorted(parent.targets[0].id)
        if name == "iter" and self._is_of_one(node.args[0]):
            return True
        return isinstance(parent, ast.Call) and self._is_unordered(parent)

    def _is_sorted(self, name: str) -> bool:
        """True if the function sorts a list."""
        return any(
            isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "sort"
            and isinstance(each.func.value, ast.Name) and each.func.value.id == name
            for each in ast.walk(self._function.node)
        )  # fmt: skip

    def _is_of_one(self, node: ast.expr) -> bool:
        """True if the function compares the length of a set with one."""
        text = ast.dump(node)
        return any(
            isinstance(each, ast.Compare) and isinstance(each.left, ast.Call) and isinstance(each.left.func, ast.Name)
            and each.left.func.id == "len" and [ast.dump(given) for given in each.left.args] == [text]
            and any(isinstance(other, ast.Constant) and other.value in (1, 2) for other in each.comparators)
            for each in ast.walk(self._function.node)
        )  # fmt: skip


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


#: Folders that hold no code of the project.
_SKIPPED = frozenset(("__pycache__", "node_modules", "site-packages", "venv", "build", "dist"))


def lint(files: Iterable[Path]) -> list[Finding]:
    """Check files, and the modules of the same packages that their workflows call into; findings in order."""
    project = Project()
    modules = [module for path in files if (module := project.add(path.resolve())) is not None]
    values = Values(project)
    found = [
        finding
        for reached in Reach(project, values).functions(modules)
        for finding in FunctionCheck(reached, values).findings()
    ]
    found += [
        Finding(
            path=shown_path(path),
            line=error.lineno or 1,
            column=error.offset or 1,
            code=SYNTAX.code,
            rule=SYNTAX.name,
            message=f"the file {SYNTAX.reason}: {error.msg}",
            remedy=SYNTAX.remedy,
        )
        for path, error in project.broken.items()
    ]
    return sorted({(each.path, each.line, each.column, each.code): each for each in found}.values())


def python_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Python files in folders, without hidden ones and installed packages; files are taken as they are."""
    for path in paths:
        if path.is_dir():
            for found in sorted(path.rglob("*.py")):
                inside = found.relative_to(path).parts
                # A folder or a link without a target may have such a name, too.
                if found.is_file() and not any(part.startswith(".") or part in _SKIPPED for part in inside):
                    yield found
        else:
            yield path
