"""Modules of the linted code: parsed, indexed, and found by name. Nothing is imported."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from perdure.lint.rules import rule_of

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

#: Folders above a linted file in which the modules that it imports are looked for.
_ABOVE = 6
#: Files that mark the top folder of a project.
_TOP = ("pyproject.toml", "setup.py", "setup.cfg", ".git")

#: Ends of lines of code. `str.splitlines` knows more, such as a form feed.
_LINE_END = re.compile(r"\r\n|\r|\n")

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
        self.lines = _LINE_END.split(text)
        self.tree = ast.parse(text, str(path))
        self.package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.imports: dict[str, str] = {}
        #: Modules of which every name is imported.
        self.stars: list[str] = []
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
            names = dict(imported(statement, self.package))
            if (star := names.pop("*", None)) is not None:
                self.stars.append(star.removesuffix(".*"))
            self.imports.update(names)
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


#: A function, a class, a variable of a module, or the full name of something from outside.
Found = FunctionInfo | ClassInfo | tuple[Module, str] | str


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
            return Module(name, path, _decoded(path.read_bytes()))
        except SyntaxError as error:
            self.broken[path] = error
        except (OSError, ValueError) as error:  # NUL characters, or another encoding than the file says
            self.broken[path] = SyntaxError(str(error))
        except (RecursionError, MemoryError):
            self.broken[path] = SyntaxError("it is nested too deeply")
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

    def find(self, name: str) -> Found:
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
            starred = self.find_star(module, rest)
            return name if starred is None else starred
        return name

    def find_star(self, module: Module, name: str) -> Found | None:
        """Find a name that a module imports with all names of another one."""
        pending, seen = list(reversed(module.stars)), {module.name}
        while pending:
            star = pending.pop(0)
            if star in seen:
                continue
            seen.add(star)
            other = self.module(star)
            if other is None:
                if star.partition(".")[0] == "perdure" or rule_of(f"{star}.{name}") is not None:
                    return f"{star}.{name}"
                continue
            first = name.partition(".")[0]
            if any(first in names for names in (other.imports, other.functions, other.classes, other.values)):
                return self.find(f"{star}.{name}")
            pending += reversed(other.stars)
        return None

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


class _Bindings:
    """Collects what a function binds, without looking into the functions inside it."""

    def __init__(self, function: FunctionInfo) -> None:
        self._function = function

    def collect(self, body: list[ast.stmt]) -> None:
        # Without recursion: a sum of a thousand texts is a tree that is as deep.
        pending: list[ast.AST] = list(reversed(body))
        while pending:
            node = pending.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._add_function(node, node.name)
            elif isinstance(node, ast.ClassDef):
                self._assign(node.name, None)
            elif not isinstance(node, ast.Lambda):
                self._bind(node)
                pending += reversed(list(ast.iter_child_nodes(node)))

    def _add_function(self, node: Function, name: str) -> None:
        function = self._function
        function.functions[name] = FunctionInfo(node, name, function.module, function.owner, function)

    def _assign(self, name: str, value: ast.expr | None) -> None:
        self._function.assigned.setdefault(name, []).append(value)

    def _bind(self, node: ast.AST) -> None:
        function = self._function
        match node:
            case ast.Import() | ast.ImportFrom():
                function.imports.update(imported(node, function.module.package))
            case ast.Global(names=names):
                function.globals.update(names)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                function.annotated[name] = annotation
            case ast.Assign(targets=targets, value=value):
                for name in [target.id for target in targets if isinstance(target, ast.Name)]:
                    self._assign(name, value)
                    if isinstance(value, ast.Lambda):
                        self._add_function(value, name)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                self._assign(name, value)
            case (
                ast.For(target=ast.Name(id=name), iter=iterated)
                | ast.AsyncFor(target=ast.Name(id=name), iter=iterated)
                | ast.comprehension(target=ast.Name(id=name), iter=iterated)
            ):
                function.elements.setdefault(name, []).append(iterated)
            case ast.withitem(optional_vars=ast.Name(id=name), context_expr=entered):
                self._assign(name, entered)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                self._assign(name, None)
            case ast.MatchMapping(rest=str(name)):
                self._assign(name, None)
            case ast.Name(id=name, ctx=ast.Store()):
                function.assigned.setdefault(name, [])
            case _:
                pass


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
    pending = list(reversed(body))
    while pending:
        statement = pending.pop()
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            inside: Iterable[list[ast.stmt]] = (
                getattr(statement, block, []) for block in ("body", "orelse", "finalbody")
            )
            pending += reversed([each for block in inside for each in block])


def _decoded(source: bytes) -> str:
    """Text of a file, in the encoding that it names. Raises `SyntaxError` and `UnicodeDecodeError`."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return source.decode(encoding)


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
