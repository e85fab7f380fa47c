"""Packages that import a module when one of its names is used for the first time.

Most programs use a part of Perdure: a web server starts runs and has no worker. Type checkers read the imports that a
package makes under `TYPE_CHECKING`; a test compares them with the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, names: Mapping[str, Sequence[str]], modules: Sequence[str] = (), packages: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that loads names when they are first used.

    `names`: the exported names, by module. `modules`: modules of the package that are names themselves. `packages`:
    exported names that are also packages of their own, as the decorator `workflow` and the package `perdure.workflow`.
    """
    module_of = {name: module for module, exported in names.items() for name in exported}
    namespace = vars(sys.modules[package])
    for name in packages:
        # Python binds a package in its parent when it is first imported, and never again. Then the name is free.
        import_module(f"{package}.{name}")
        namespace.pop(name, None)

    def load(name: str) -> Any:
        if (module := module_of.get(name)) is not None:
            value = getattr(import_module(module), name)
        elif name in modules:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        namespace[name] = value
        return value

    def list_names() -> list[str]:
        return sorted({*namespace, *module_of, *modules})

    return load, list_names
