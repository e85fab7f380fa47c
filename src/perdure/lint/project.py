"""Modules of the linted code: parsed, indexed, and found by name. Nothing is imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

#: Folders above a linted file in which the modules that it imports are looked for.
_ABOVE = 6
#: Files that mark the top folder of a project.
_TOP = ("pyproject.toml", "setup.py", "setup.cfg", ".git")

#: Steps from re-export to re-export, or from alias to alias, before a name is given up.
_FAR = 20


class FunctionInfo:
    """A function, method or named lambda."""

    def __init__(
        self, node: Function, name: str, module: Module, owner: ClassInfo | None, parent: FunctionInfo | None
    ) -> None:
        self.node = node
        self.name = name
        self.module = module
        self.owner = owner
        self.parent = parent
        self.body: list[ast.stmt] = [ast.Expr(node.body)] if isinstance(node, ast.Lambda) else node.body
        #: Names bound in the function: parameters, variables, functions, imports.
        self.parameters = {argument.arg: argument for argument in _arguments(node.args)}
        self.functions: dict[str, FunctionInfo] = {}
        self.imports: dict[str, str] = {}
        self.annotated: dict[str, ast.expr] = {}
        self.assigned: dict[str, list[ast.expr | None]] = {}
        self.elements: dict[str, list[ast.expr]] = {}
        self.globals: set[str] = set()
        _Bindings(self).collect(self.body)

    @property
    def is_async(self) -> bool:
        """True for an `async def`."""
        return isinstance(self.node, ast.AsyncFunctionDef)

    @property
    def decorators(self) -> list[ast.expr]:
        """The decorators; a lambda has none."""
        return [] if isinstance(self.node, ast.Lambda) else self.node.decorator_list

    @property
    def returns(self) -> ast.expr | None:
        """The declared type of the result."""
        return None if isinstance(self.node, ast.Lambda) else self.node.returns

    def binds(self, name: str) -> bool:
        """True if a name is local to the function."""
        if name in self.globals:
            return False
        return (
            name in self.parameters or name in self.functions or name in self.imports or name in self.assigned
            or name in self.annotated or name in self.elements
        )  # fmt: skip


class ClassInfo:
    """A class at the top of a module."""

    def __init__(self, node: ast.ClassDef, module: Module) -> None:
        self.node = node
        self.name = node.name
        self.module = module
        self.methods: dict[str, FunctionInfo] = {}
        self.fields: dict[str, ast.expr] = {}
        self.values: dict[str, ast.expr] = {}
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self.methods[statement.name] = FunctionInfo(statement, statement.name, module, self, None)
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                self.fields[statement.target.id] = statement.annotation
                if statement.value is not None:
                    self.values[statement.target.id] = statement.value
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self.values[statement.targets[0].id] = statement.value


class Module:
    """A parsed file."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        self.name = name
        self.path = path
        self.lines = text.splitlines()
        self.tree = ast.parse(text, str(path))
        self.package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.imports: dict[str, str] = {}
        self.functions: dict[str, FunctionInfo] = {}
        self.classes: dict[str, ClassInfo] = {}
        self.values: dict[str, ast.expr] = {}
        self.annotated: dict[str, ast.expr] = {}
        for statement in _top(self.tree.body):
            self._index(statement)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node above each node; only modules with workflow code need it."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def _index(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            self.imports.update(imported(statement, self.package))
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            self.functions[statement.name] = FunctionInfo(statement, statement.name, self, None, None)
        elif isinstance(statement, ast.ClassDef):
            self.classes[statement.name] = ClassInfo(statement, self)
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    self.values[target.id] = statement.value
                    if isinstance(statement.value, ast.Lambda):
                        self.functions[target.id] = FunctionInfo(statement.value, target.id, self, None, None)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            self.annotated[statement.target.id] = statement.annotation
            if statement.value is not None:
                self.values[statement.target.id] = statement.value

    def all_functions(self) -> Iterator[FunctionInfo]:
        """Functions, methods and the functions within them."""
        pending = [*self.functions.values()]
        for each in self.classes.values():
            pending += each.methods.values()
        while pending:
            function = pending.pop(0)
            yield function
            pending += function.functions.values()


class Project:
    """The modules that are linted, and those that they import from the same packages."""

    def __init__(self) -> None:
        self.modules: dict[str, Module | None] = {}
        #: Files that cannot be parsed, with the error.
        self.broken: dict[Path, SyntaxError] = {}
        self._by_path: dict[Path, Module | None] = {}
        self._roots: dict[Path, None] = {}

    def add(self, path: Path) -> Module | None:
        """Parse a file; None if that is not possible."""
        if path in self._by_path:
            return self._by_path[path]
        root, name = _module_name(path)
        for folder in _upwards(root):
            self._roots[folder] = None
        module = self._by_path[path] = self._parse(path, name)
        self.modules.setdefault(name, module)
        return module

    def _parse(self, path: Path, name: str) -> Module | None:
        try:
            return Module(name, path, path.read_text(encoding="utf-8-sig"))
        except SyntaxError as error:
            self.broken[path] = error
        except ValueError as error:  # NUL characters, or another encoding
            self.broken[path] = SyntaxError(str(error))
        return None

    def module(self, name: str) -> Module | None:
        """Find a module by its full name, among the linted files or beside them."""
        if name not in self.modules:
            self.modules[name] = self._look_for(name)
        return self.modules[name]

    def _look_for(self, name: str) -> Module | None:
        parts = name.split(".")
        if parts[0] in sys.stdlib_module_names or parts[0] == "perdure":
            return None
        for root in list(self._roots):
            for path in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")):
                if path.is_file():
                    return self.add(path)
        return None

    def find(self, name: str) -> FunctionInfo | ClassInfo | tuple[Module, str] | str:
        """Find what a full name stands for: a function, a class, a variable of a module, or a name from outside."""
        for _ in range(_FAR):
            module, rest = self._split(name)
            if module is None or not rest:
                return name
            first, _, more = rest.partition(".")
            if first in module.imports:
                name = ".".join(filter(None, (module.imports[first], more)))
                continue
            if first in module.functions and not more:
                return module.functions[first]
            if first in module.classes:
                owner = module.classes[first]
                return owner.methods.get(more, name) if more else owner
            if first in module.values and not more:
                return module, first
            return name
        return name

    def _split(self, name: str) -> tuple[Module | None, str]:
        """Split a full name into the longest module and the rest."""
        head, rest = name, ""
        while head:
            module = self.module(head)
            if module is not None:
                return module, rest
            head, _, last = head.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
        return None, name


class _Bindings(ast.NodeVisitor):
    """Collects what a function binds, without looking into the functions inside it."""

    def __init__(self, function: FunctionInfo) -> None:
        self._function = function

    def collect(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        function = self._function
        function.functions[node.name] = FunctionInfo(node, node.name, function.module, function.owner, function)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - of NodeVisitor

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._function.assigned.setdefault(node.name, []).append(None)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        pass

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        self._function.imports.update(imported(node, self._function.module.package))

    visit_ImportFrom = visit_Import  # noqa: N815 - of NodeVisitor

    def visit_Global(self, node: ast.Global) -> None:
        self._function.globals.update(node.names)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._function.annotated[node.target.id] = node.annotation
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        function = self._function
        for target in node.targets:
            if isinstance(target, ast.Name):
                function.assigned.setdefault(target.id, []).append(node.value)
                if isinstance(node.value, ast.Lambda):
                    function.functions[target.id] = FunctionInfo(
                        node.value, target.id, function.module, function.owner, function
                    )
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._function.assigned.setdefault(node.target.id, []).append(node.value)
        self.visit(node.value)

    def visit_For(self, node: ast.For | ast.AsyncFor | ast.comprehension) -> None:
        if isinstance(node.target, ast.Name):
            self._function.elements.setdefault(node.target.id, []).append(node.iter)
        self.generic_visit(node)

    visit_AsyncFor = visit_For  # noqa: N815 - of NodeVisitor
    visit_comprehension = visit_For

    def visit_withitem(self, node: ast.withitem) -> None:
        if isinstance(node.optional_vars, ast.Name):
            self._function.assigned.setdefault(node.optional_vars.id, []).append(node.context_expr)
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._function.assigned.setdefault(node.name, []).append(None)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._function.assigned.setdefault(node.id, [])


def imported(statement: ast.Import | ast.ImportFrom, package: str) -> Mapping[str, str]:
    """Return the names that an import binds, with the full name of each."""
    if isinstance(statement, ast.Import):
        return {
            alias.asname or alias.name.split(".")[0]: alias.name if alias.asname else alias.name.split(".")[0]
            for alias in statement.names
        }
    base = statement.module or ""
    if statement.level:
        parts = package.split(".") if package else []
        above = parts[: len(parts) - statement.level + 1]
        base = ".".join([*above, *([base] if base else [])])
    return {alias.asname or alias.name: f"{base}.{alias.name}" if base else alias.name for alias in statement.names}


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, also those within `if` and `try`."""
    for statement in body:
        yield statement
        for block in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                yield from _top(getattr(statement, block, []))


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    optional = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *optional]


def _module_name(path: Path) -> tuple[Path, str]:
    """Folder from which a file is imported, and its full name."""
    parts = [] if path.name == "__init__.py" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts) or path.parent.name


def _upwards(folder: Path) -> Iterator[Path]:
    """The folder and those above it, up to the top of the project."""
    for each in (folder, *folder.parents[:_ABOVE]):
        yield each
        if any((each / name).exists() for name in _TOP):
            return
