"""Values of expressions, as far as the code tells: a context, a set, a path, a function, an object of a class."""

from __future__ import annotations

import ast
import builtins
from typing import Literal

from msgspec import Struct

from perdure.lint.project import ClassInfo, Found, FunctionInfo, Module, Project
from perdure.lint.rules import NETWORK, OPERATIONS, rule_of

Kind = Literal[
    "context", "set", "keys", "sequence", "path", "client", "engine", "object", "class", "function", "name", "global",
    "operation", "task", "call", "number",
]  # fmt: skip

#: How deep expressions and aliases are followed.
_DEEP = 12

_CONTEXTS = frozenset(("perdure.Context", "perdure.workflow.context.Context"))
_BLOCKING = frozenset(("perdure.blocking.Context", "perdure.workflow.blocking.Context"))
_ENGINES = frozenset(
    ("perdure.Engine", "perdure.Handle", "perdure.blocking.Engine", "perdure.blocking.Handle", "perdure.Lock")
)
_MACHINES = frozenset(("perdure.machine.StateMachine", "perdure.workflow.machine.state_machine.StateMachine"))
_SETS = frozenset(
    ("set", "frozenset", "typing.Set", "typing.FrozenSet", "typing.AbstractSet", "typing.MutableSet",
     "collections.abc.Set", "collections.abc.MutableSet")
)  # fmt: skip
_SEQUENCES = frozenset(
    ("list", "tuple", "collections.deque", "typing.List", "typing.Sequence", "typing.Iterable",
     "collections.abc.Sequence", "collections.abc.Iterable", "collections.abc.Iterator", "collections.abc.Collection")
)  # fmt: skip
_TASKS = frozenset(
    ("asyncio.Task", "asyncio.Future", "perdure.Operation", "perdure.Child", "asyncio.create_task",
     "asyncio.ensure_future")
)  # fmt: skip
_SET_METHODS = frozenset(("union", "difference", "intersection", "symmetric_difference", "copy"))
#: Types and functions whose values have the same hash in every process.
_NUMBERS = frozenset(
    ("int", "bool", "float", "complex", "len", "ord", "round", "decimal.Decimal", "fractions.Fraction", "uuid.UUID")
)

#: Decorators by their full names.
WORKFLOW = frozenset(("perdure.workflow", "perdure.workflow.definition.workflow", "perdure.Workflow"))
STEP = frozenset(("perdure.step", "perdure.workflow.step.step"))
ACTIVITY = frozenset(("perdure.activity", "perdure.workflow.activity.activity"))


class Value(Struct, frozen=True):
    """The value of an expression."""

    kind: Kind
    #: Full name from outside of the project.
    name: str = ""
    function: FunctionInfo | None = None
    owner: ClassInfo | None = None
    module: Module | None = None
    #: Elements of a set or sequence, or the result of an operation.
    inner: Value | None = None


CONTEXT = Value("context")
#: The context of a `def` workflow, whose calls return results.
BLOCKING = Value("context", "perdure.blocking")
PATH = Value("path")
NUMBER = Value("number")
TASK = Value("task")


class Values:
    """Infers values. It follows assignments and annotations, not the flow of the code."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._known: dict[tuple[ast.expr, FunctionInfo | None], Value | None] = {}
        self._roles: dict[FunctionInfo, frozenset[str]] = {}

    def of(self, node: ast.expr | None, function: FunctionInfo | None, module: Module, depth: int = 0) -> Value | None:
        """Infer the value of an expression in a function, or at the top of a module."""
        if node is None or depth > _DEEP:
            return None
        key = node, function
        if key not in self._known:
            # Recursion through variables ends here.
            self._known[key] = None
            self._known[key] = self._infer(node, function, module, depth + 1)
        return self._known[key]

    def _infer(self, node: ast.expr, function: FunctionInfo | None, module: Module, depth: int) -> Value | None:
        if isinstance(node, ast.Name):
            return self._name(node.id, function, module, depth)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, function, module, depth)
        if isinstance(node, ast.Call):
            return self._call(node, function, module, depth)
        if isinstance(node, ast.Await):
            value = self.of(node.value, function, module, depth)
            return value.inner if value is not None and value.kind in ("operation", "task") else value
        if isinstance(node, ast.Set):
            return Value("set", inner=self._common([self.of(each, function, module, depth) for each in node.elts]))
        if isinstance(node, ast.SetComp):
            return Value("set", inner=self.of(node.elt, function, module, depth))
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            return Value("sequence", inner=self.of(node.elt, function, module, depth))
        if isinstance(node, ast.Constant):
            return NUMBER if isinstance(node.value, int | float | complex) else None
        if isinstance(node, ast.BinOp):
            return self._operator(node, function, module, depth)
        if isinstance(node, ast.IfExp):
            return self.of(node.body, function, module, depth) or self.of(node.orelse, function, module, depth)
        if isinstance(node, ast.BoolOp):
            return self._common([self.of(each, function, module, depth) for each in node.values])
        return None

    def full_name(self, node: ast.expr, function: FunctionInfo | None, module: Module) -> str:
        """Full name of something from outside of the project; empty if it is something else."""
        value = self.of(node, function, module)
        return value.name if value is not None and value.kind == "name" else ""

    # names

    def _name(self, name: str, function: FunctionInfo | None, module: Module, depth: int) -> Value | None:
        inside = function
        while inside is not None:
            if inside.binds(name):
                return self._local(name, inside, depth)
            inside = inside.parent
        return self._of_module(name, module, depth)

    def _local(self, name: str, function: FunctionInfo, depth: int) -> Value | None:
        module = function.module
        if name in function.functions:
            return Value("function", function=function.functions[name])
        if name in function.imports:
            return self._found(function.imports[name], depth)
        if name in function.annotated:
            return self.declared(function.annotated[name], module, depth)
        if name in function.parameters:
            return self._parameter(name, function, depth)
        elements = [self.of(each, function, module, depth) for each in function.elements.get(name, ())]
        if elements:
            found = self._common([None if each is None else each.inner for each in elements])
            return found if not function.assigned.get(name) else None
        # A variable that is assigned more than once counts only if all values are of one kind.
        return self._common([self.of(each, function, module, depth) for each in function.assigned.get(name, ())])

    def _parameter(self, name: str, function: FunctionInfo, depth: int) -> Value | None:
        annotation = function.parameters[name].annotation
        first = next(iter(function.parameters), "")
        if function.owner is not None and function.parent is None and name == first:
            kinds = {getattr(each, "id", "") for each in function.decorators}
            if "staticmethod" not in kinds:
                return Value("class" if "classmethod" in kinds else "object", owner=function.owner)
        if annotation is not None:
            return self.declared(annotation, function.module, depth)
        if name not in ("ctx", "context"):
            return None
        return BLOCKING if self._is_blocking(function) else CONTEXT

    def _is_blocking(self, function: FunctionInfo) -> bool:
        """True if a context without annotation is that of a `def` workflow."""
        while isinstance(function.node, ast.Lambda) and function.parent is not None:
            function = function.parent
        if function.is_async:
            return False
        names = function.module.imports.values()
        return bool(self.roles(function) & WORKFLOW) or any(name.startswith("perdure.blocking") for name in names)

    def _of_module(self, name: str, module: Module, depth: int) -> Value | None:
        if name in module.imports:
            return self._found(module.imports[name], depth)
        if name in module.functions:
            return Value("function", function=module.functions[name])
        if name in module.classes:
            return Value("class", owner=module.classes[name])
        if name in module.values or name in module.annotated:
            return self._global(module, name, depth)
        starred = self.project.find_star(module, name) if module.stars else None
        if starred is not None and not (isinstance(starred, str) and hasattr(builtins, name)):
            return self._value_of(starred, depth)
        return Value("name", name) if hasattr(builtins, name) else None

    def _found(self, name: str, depth: int) -> Value | None:
        return self._value_of(self.project.find(name), depth)

    def _value_of(self, found: Found, depth: int) -> Value | None:
        if isinstance(found, FunctionInfo):
            return Value("function", function=found)
        if isinstance(found, ClassInfo):
            return Value("class", owner=found)
        if isinstance(found, tuple):
            return self._global(*found, depth)
        return Value("name", found)

    def _global(self, module: Module, name: str, depth: int) -> Value:
        """A variable of a module: what it holds, and where it is."""
        annotation = module.annotated.get(name)
        value = self.declared(annotation, module, depth) if annotation is not None else None
        value = value or self.of(module.values.get(name), None, module, depth)
        if value is not None and value.kind in ("name", "function", "class", "engine", "call"):
            return value
        return Value("global", name, module=module, inner=value)

    # attributes, calls, operators

    def _attribute(
        self, node: ast.Attribute, function: FunctionInfo | None, module: Module, depth: int
    ) -> Value | None:
        base = held(self.of(node.value, function, module, depth))
        if base is None:
            return None
        if base.kind == "name":
            return self._found(f"{base.name}.{node.attr}", depth)
        if base.kind in ("object", "class") and base.owner is not None:
            return self._member(base.owner, node.attr, depth)
        if base.kind == "engine":
            return base
        if base.kind == "path" and node.attr in ("parent", "parents"):
            return PATH
        return None

    def _member(self, owner: ClassInfo, name: str, depth: int) -> Value | None:
        for each in self.lineage(owner):
            if name in each.methods:
                method = each.methods[name]
                if is_property(method):
                    return self.declared(method.returns, method.module, depth)
                return Value("function", function=method)
            if name in each.fields:
                return self.declared(each.fields[name], each.module, depth)
            if (value := self._assigned_to_self(each, name, depth)) is not None:
                return value
            if name in each.values:
                return self.of(each.values[name], None, each.module, depth)
        return None

    def _assigned_to_self(self, owner: ClassInfo, name: str, depth: int) -> Value | None:
        initialize = owner.methods.get("__init__")
        if initialize is None or depth > _DEEP:
            return None
        for node in ast.walk(initialize.node):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(target, ast.Attribute):
                continue
            if target.attr == name and isinstance(target.value, ast.Name) and target.value.id == "self":
                if isinstance(node, ast.AnnAssign):
                    return self.declared(node.annotation, owner.module, depth)
                return self.of(node.value, initialize, owner.module, depth)
        return None

    def _call(self, node: ast.Call, function: FunctionInfo | None, module: Module, depth: int) -> Value | None:
        if isinstance(node.func, ast.Attribute):
            made = self._method_call(node, node.func, function, module, depth)
            if made is not None:
                return made
        called = self.of(node.func, function, module, depth)
        if called is None:
            return None
        if called.kind == "class":
            return Value("object", owner=called.owner)
        if called.kind == "function" and called.function is not None:
            return self._result(called.function, depth)
        return self._library_call(called.name, node, function, module, depth) if called.kind == "name" else None

    def _library_call(
        self, name: str, node: ast.Call, function: FunctionInfo | None, module: Module, depth: int
    ) -> Value | None:
        first = node.args[0] if node.args else None
        given = held(self.of(first, function, module, depth))
        if name in ("set", "frozenset"):
            return Value("set", inner=self._set_elements(node, given, function, module, depth))
        if name in ("sorted", "list", "tuple"):
            return Value("sequence", inner=None if given is None else given.inner)
        if name == "range":
            return Value("sequence", inner=NUMBER)
        if name in ("pathlib.Path", "pathlib.PurePath", "pathlib.PosixPath"):
            return PATH
        if name in _ENGINES:
            return Value("engine", name)
        if name in _TASKS:
            return TASK
        if name in _NUMBERS:
            return NUMBER
        return Value("client", name) if rule_of(name) is NETWORK else None

    def _set_elements(
        self, node: ast.Call, given: Value | None, function: FunctionInfo | None, module: Module, depth: int
    ) -> Value | None:
        if node.args:
            return None if given is None else given.inner
        target = module.parents.get(node)
        if function is None or not isinstance(target, ast.Assign) or not isinstance(target.targets[0], ast.Name):
            return None
        name = target.targets[0].id
        added = [
            self.of(each.args[0], function, module, depth)
            for each in ast.walk(function.node)
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "add"
            and each.args and isinstance(each.func.value, ast.Name) and each.func.value.id == name
        ]  # fmt: skip
        return self._common(added)

    def _method_call(
        self, node: ast.Call, method: ast.Attribute, function: FunctionInfo | None, module: Module, depth: int
    ) -> Value | None:
        base = held(self.of(method.value, function, module, depth))
        if base is not None and base.kind == "context":
            if method.attr == "options":
                return base
            if method.attr not in OPERATIONS:
                return None
            result = self._step_result(node, method.attr, function, module, depth)
            return result if base == BLOCKING else Value("operation", inner=result)
        if base is not None and base.kind == "set" and method.attr in _SET_METHODS:
            return base
        if method.attr in ("keys", "items") and (base is None or base.kind not in ("object", "class", "name")):
            return Value("keys")
        if method.attr == "create_task":
            return TASK
        return PATH if base is not None and base.kind == "path" and method.attr.startswith(("with_", "join")) else None

    def _step_result(
        self, node: ast.Call, method: str, function: FunctionInfo | None, module: Module, depth: int
    ) -> Value | None:
        if method not in ("step", "transaction") or not node.args:
            return None
        step = self.of(node.args[0], function, module, depth)
        if step is None or step.kind != "function" or step.function is None:
            return None
        return self.declared(step.function.returns, step.function.module, depth)

    def _result(self, function: FunctionInfo, depth: int) -> Value | None:
        roles = self.roles(function)
        if roles & (WORKFLOW | ACTIVITY):
            return Value("call", function=function)
        return self.declared(function.returns, function.module, depth)

    def _operator(self, node: ast.BinOp, function: FunctionInfo | None, module: Module, depth: int) -> Value | None:
        left = held(self.of(node.left, function, module, depth))
        right = held(self.of(node.right, function, module, depth))
        if isinstance(node.op, ast.Div) and left is not None and left.kind == "path":
            return PATH
        if isinstance(node.op, ast.Sub | ast.BitOr | ast.BitAnd | ast.BitXor):
            sides = [each for each in (left, right) if each is not None and each.kind in ("set", "keys")]
            if sides:
                return Value("set", inner=self._common([each.inner for each in sides]))
        if isinstance(node.op, ast.Mod | ast.FloorDiv | ast.Add | ast.Sub | ast.Mult):
            return NUMBER if left == NUMBER and right == NUMBER else None
        return None

    def _common(self, values: list[Value | None]) -> Value | None:
        """The value, if all are of one kind."""
        kinds = {None if each is None else each.kind for each in values}
        return values[0] if len(kinds) == 1 else None

    # declarations

    def declared(self, annotation: ast.expr | None, module: Module, depth: int = 0) -> Value | None:
        """Value of a variable with that annotation."""
        if annotation is None or depth > _DEEP:
            return None
        depth += 1
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except SyntaxError:
                return None
        if isinstance(annotation, ast.BinOp):
            sides = [self.declared(side, module, depth) for side in (annotation.left, annotation.right)]
            return next((side for side in sides if side is not None), None)
        if isinstance(annotation, ast.Subscript):
            return self._declared_generic(annotation, module, depth)
        value = self.of(annotation, None, module, depth)
        if value is None:
            return None
        if value.kind == "class":
            return Value("object", owner=value.owner)
        return self._declared_name(value.name, None) if value.kind == "name" else None

    def _declared_generic(self, annotation: ast.Subscript, module: Module, depth: int) -> Value | None:
        value = self.of(annotation.value, None, module, depth)
        inside = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        inner = self.declared(inside[0], module, depth) if inside else None
        if value is None:
            return None
        if value.kind == "class":
            return Value("object", owner=value.owner)
        if value.name in ("typing.Optional", "typing.Annotated", "typing.Final", "typing.ClassVar"):
            return inner
        return self._declared_name(value.name, inner) if value.kind == "name" else None

    def _declared_name(self, name: str, inner: Value | None) -> Value | None:
        if name in _CONTEXTS:
            return CONTEXT
        if name in _BLOCKING:
            return BLOCKING
        if name in _SETS:
            return Value("set", inner=inner)
        if name in _SEQUENCES:
            return Value("sequence", inner=inner)
        if name in ("pathlib.Path", "pathlib.PosixPath"):
            return PATH
        if name in _ENGINES:
            return Value("engine", name)
        if name in _TASKS:
            return Value("task", inner=inner)
        if name in _NUMBERS:
            return NUMBER
        return Value("client", name) if rule_of(name) is NETWORK else None

    # roles

    def roles(self, function: FunctionInfo) -> frozenset[str]:
        """Full names of the decorators of a function."""
        if function in self._roles:
            return self._roles[function]
        names = set[str]()
        for decorator in function.decorators:
            node = decorator.func if isinstance(decorator, ast.Call) else decorator
            value = self.of(node, function.parent, function.module)
            if value is not None and value.kind == "name":
                names.add(value.name)
            elif isinstance(node, ast.Name) and value is None:
                # `wf = workflow("type")` and `@wf`
                made = self._name(node.id, function.parent, function.module, 0)
                names.add("" if made is None else made.name)
        self._roles[function] = frozenset(names)
        return self._roles[function]

    def lineage(self, owner: ClassInfo) -> list[ClassInfo]:
        """The class and its bases in the project."""
        found, pending = list[ClassInfo](), [owner]
        while pending:
            each = pending.pop(0)
            if each in found:
                continue
            found.append(each)
            for base in each.node.bases:
                node = base.value if isinstance(base, ast.Subscript) else base
                value = self.of(node, None, each.module)
                if value is not None and value.kind == "class" and value.owner is not None:
                    pending.append(value.owner)
        return found

    def is_machine(self, owner: ClassInfo) -> bool:
        """True if a class is a state machine."""
        for each in self.lineage(owner):
            for base in each.node.bases:
                node = base.value if isinstance(base, ast.Subscript) else base
                if self.full_name(node, None, each.module) in _MACHINES:
                    return True
        return False


def held(value: Value | None) -> Value | None:
    """Contents of a module's variable; other values are themselves."""
    return value.inner if value is not None and value.kind == "global" else value


def is_context(value: Value | None) -> bool:
    """True for a context, blocking or not."""
    return value is not None and value.kind == "context"


def is_property(function: FunctionInfo) -> bool:
    """True if a method is read like an attribute."""
    names = [each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in function.decorators]
    return bool({"property", "cached_property"} & set(names))
