"""Search for workflow code: workflows, handlers of state machines, and the helpers that they call."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from msgspec import Struct

from perdure.lint.project import FunctionInfo, Module, Project
from perdure.lint.rules import STEP_METHODS
from perdure.lint.values import ACTIVITY, STEP, WORKFLOW, Value, Values, held, is_context, is_property

HANDLERS = frozenset(
    (
        "on_start", "on_activity_completed", "on_activity_failed", "on_timer", "on_message", "on_child_completed",
        "on_child_failed", "on_cancel",
    )
)  # fmt: skip

#: Functions and methods that call the functions they get, on the run's loop.
_CALLERS = frozenset(
    (
        "sorted", "min", "max", "map", "filter", "sort", "functools.reduce", "itertools.groupby", "itertools.takewhile",
        "add_done_callback", "call_soon", "call_later", "call_at", "callback", "push_async_callback", "join", "race",
        "loop", "outcome", "map", "gather", "shield", "itertools.accumulate", "itertools.filterfalse",
        "itertools.dropwhile",
    )
)  # fmt: skip


class Reached(Struct, frozen=True):
    """A function that is workflow code, and the workflow that leads there."""

    function: FunctionInfo
    #: Name of the workflow; empty for the workflow itself.
    origin: str = ""


class Reach:
    """Finds workflow code."""

    def __init__(self, project: Project, values: Values) -> None:
        self._project = project
        self._values = values
        self._seen: set[ast.AST] = set()

    def functions(self, modules: Iterable[Module]) -> Iterator[Reached]:
        """Functions of the modules that are workflow code, and what they call in any module of the project."""
        pending = [each for module in modules for each in self._roots(module)]
        while pending:
            reached = pending.pop(0)
            if reached.function.node in self._seen or self._is_step(reached.function):
                continue
            self._seen.add(reached.function.node)
            yield reached
            origin = reached.origin or label(reached.function)
            pending += [Reached(each, origin) for each in self._called(reached.function)]

    def _roots(self, module: Module) -> Iterator[Reached]:
        functions = list(module.all_functions())
        yield from (Reached(each) for each in functions if self._values.roles(each) & WORKFLOW)
        yield from self._registered(module)
        for owner in module.classes.values():
            if self._values.is_machine(owner):
                for base in self._values.lineage(owner):
                    for name, method in base.methods.items():
                        if name in HANDLERS or name == "__init__":
                            yield Reached(method, "" if name in HANDLERS else owner.name)
        for each in functions:
            if any(self._takes_context(each, name) for name in each.parameters):
                yield Reached(each)

    def _registered(self, module: Module) -> Iterator[Reached]:
        """Functions made workflows by a call: `flow = workflow("type")(function)`."""
        # Most modules have no such name, and need not be searched.
        if not any(self._project.find(name) in WORKFLOW or name == "perdure" for name in module.imports.values()):
            return
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            outer = node.func.func if isinstance(node.func, ast.Call) else node.func
            name = self._values.full_name(outer, None, module)
            made = self._values.of(node.args[-1], None, module)
            if name in WORKFLOW and made is not None and made.kind == "function" and made.function is not None:
                yield Reached(made.function)

    def _takes_context(self, function: FunctionInfo, name: str) -> bool:
        annotation = function.parameters[name].annotation
        return annotation is not None and is_context(self._values.declared(annotation, function.module))

    def _is_step(self, function: FunctionInfo) -> bool:
        return bool(self._values.roles(function) & (STEP | ACTIVITY))

    # helpers

    def _called(self, function: FunctionInfo) -> Iterator[FunctionInfo]:
        for node in workflow_nodes(function, self._values):
            if isinstance(node, ast.Call):
                yield from self._targets(self._values.of(node.func, function, function.module))
                yield from self._callbacks(node, function)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                base = held(self._values.of(node.value, function, function.module))
                if base is not None and base.kind == "object" and base.owner is not None:
                    for each in self._values.lineage(base.owner):
                        if node.attr in each.methods and is_property(each.methods[node.attr]):
                            yield each.methods[node.attr]

    def _targets(self, value: Value | None) -> Iterator[FunctionInfo]:
        if value is None:
            return
        if value.kind == "function" and value.function is not None:
            if not self._values.roles(value.function) & (WORKFLOW | ACTIVITY | STEP):
                yield value.function
        elif value.kind == "class" and value.owner is not None:
            for each in self._values.lineage(value.owner):
                yield from (each.methods[name] for name in ("__init__", "__post_init__") if name in each.methods)

    def _callbacks(self, node: ast.Call, function: FunctionInfo) -> Iterator[FunctionInfo]:
        """Functions that a call gets in order to call them."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        full = self._values.full_name(node.func, function, function.module)
        if name not in _CALLERS and full not in _CALLERS:
            return
        on_context = (
            isinstance(node.func, ast.Attribute)
            and name == "map"
            and is_context(self._values.of(node.func.value, function, function.module))
        )
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        for each in [value for one in given for value in (one.values if isinstance(one, ast.Dict) else [one])]:
            value = self._values.of(each, function, function.module)
            if value is None or value.kind != "function" or value.function is None:
                continue
            # `ctx.map` runs a function as a step unless it takes the context.
            is_step = on_context and not any(
                self._takes_context(value.function, parameter) for parameter in value.function.parameters
            )
            if not is_step:
                yield value.function


def label(function: FunctionInfo) -> str:
    """Name of a function for messages."""
    return function.name if function.owner is None else f"{function.owner.name}.{function.name}"


def workflow_nodes(function: FunctionInfo, values: Values) -> Iterator[ast.AST]:
    """Nodes of a function that run as workflow code: without functions inside it and without steps."""
    pending: list[ast.AST] = list(reversed(function.body))
    skipped = set[ast.AST]()
    while pending:
        node = pending.pop()
        if node in skipped:
            continue
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # Defaults and decorators run here; the body does not.
            pending += node.decorator_list
            if not isinstance(node, ast.ClassDef):
                pending += [*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)]
            continue
        if isinstance(node, ast.Call):
            skipped.update(_step_functions(node, function, values), _passed_on(node, function, values))
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            skipped.update(_annotations(node), _kept_lambdas(node.value))
        pending += reversed(list(ast.iter_child_nodes(node)))


def _annotations(node: ast.AST) -> tuple[ast.AST, ...]:
    return (node.annotation,) if isinstance(node, ast.AnnAssign) else ()


def _kept_lambdas(node: ast.expr | None) -> Iterator[ast.Lambda]:
    """Lambdas that a variable holds, alone or in a collection: nothing calls them here.

    A lambda that takes the context is a branch, and workflow code.
    """
    pending = [node]
    while pending:
        each = pending.pop()
        if isinstance(each, ast.Lambda):
            if each is node or not {"ctx", "context"} & {argument.arg for argument in each.args.args}:
                yield each
        elif isinstance(each, ast.List | ast.Tuple | ast.Set):
            pending += each.elts
        elif isinstance(each, ast.Dict):
            pending += each.values
        elif isinstance(each, ast.IfExp):
            pending += [each.body, each.orelse]
        elif isinstance(each, ast.BoolOp):
            pending += each.values


def _passed_on(node: ast.Call, function: FunctionInfo, values: Values) -> tuple[ast.AST, ...]:
    """Lambdas that a call gives to a helper, which makes a step of them."""
    called = values.of(node.func, function, function.module)
    helper = None if called is None or called.kind != "function" else called.function
    if helper is None or not any(isinstance(each, ast.Lambda) for each in _given(node)):
        return ()
    steps = {
        first.id
        for each in ast.walk(helper.node)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in STEP_METHODS
        for first in each.args[:1]
        if isinstance(first, ast.Name)
    }
    names = list(helper.parameters)[1 if isinstance(node.func, ast.Attribute) and helper.owner is not None else 0 :]
    by_name = [*zip(names, node.args, strict=False), *((keyword.arg, keyword.value) for keyword in node.keywords)]
    return tuple(given for name, given in by_name if name in steps and isinstance(given, ast.Lambda))


def _given(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _step_functions(node: ast.Call, function: FunctionInfo, values: Values) -> tuple[ast.AST, ...]:
    """Arguments of a call of the context that are steps, or make them."""
    if not isinstance(node.func, ast.Attribute):
        return ()
    method = node.func.attr
    if method not in STEP_METHODS and method not in ("map", "options"):
        return ()
    if not is_context(held(values.of(node.func.value, function, function.module))):
        return ()
    if method == "options":
        return tuple(keyword.value for keyword in node.keywords if keyword.arg in ("undo", "using"))
    return tuple(
        each
        for each in node.args[:1]
        if isinstance(each, ast.Lambda | ast.Name | ast.Attribute)
        or (
            isinstance(each, ast.Call) and values.full_name(each.func, function, function.module) == "functools.partial"
        )
    )
